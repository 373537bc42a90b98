"""The tracer does not change autograd, follows values, and knows the current module."""

from __future__ import annotations

import contextlib

import pytest
import torch

from predictor.events.events import Moment
from predictor.events.sizes import Shape
from predictor.trace.cuda_paths import as_on_cuda
from predictor.trace.module_tracker import ModuleTracker
from predictor.trace.recorder import Recorder
from predictor.trace.tracer import Tracer
from tests.predictor.small import small_llava, traced_at

WRAPPED_NUMBER_BYTES = 16
"""Python numbers reach a dispatch mode as host scalars of 8 bytes: never device memory."""


def cpu_allocations(model, batch, *, recorded: bool) -> list[int]:
    """Bytes that the CPU allocator hands out (+) and takes back (-) during forward and backward, in order."""
    recorder = Recorder(device="cpu")
    for _ in range(2):  # the first run makes what is made lazily
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile, \
                (recorder if recorded else contextlib.nullcontext()), as_on_cuda("flash"):
            recorder.moment = Moment.FORWARD
            loss = model(**batch, use_cache=False).loss
            recorder.moment = Moment.BACKWARD
            loss.backward()
            del loss
        for parameter in model.parameters():
            parameter.grad = None
    sizes = [event.nbytes() for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return [size for size in sizes if abs(size) > WRAPPED_NUMBER_BYTES]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_recording_does_not_change_what_a_cpu_step_allocates(checkpointing):
    torch.manual_seed(0)
    model = small_llava(recipe="full", device="cpu")
    if checkpointing:
        model.gradient_checkpointing_enable()
    ids = torch.full((2, 16), 5)
    ids[:, 1:5] = model.config.image_token_id
    batch = {"input_ids": ids, "labels": ids.clone(), "pixel_values": torch.randn(2, 3, 28, 28, dtype=torch.bfloat16)}
    assert cpu_allocations(model, batch, recorded=True) == cpu_allocations(model, batch, recorded=False)


def traced(padding="none", **settings):
    model = small_llava(**settings)
    return traced_at(model, Shape(2, 16, 2), padding=padding, sdpa_backend="cudnn")


def test_every_trainable_parameter_s_gradient_is_noted_once():
    model = small_llava(recipe="finetune")
    names = [name for _, name, _ in traced().gradients]
    assert sorted(names) == sorted(name for name, p in model.named_parameters() if p.requires_grad)


def test_a_gradient_is_as_large_as_its_parameter():
    recording = traced()
    sizes = {name: p.numel() * 2 for name, p in small_llava().named_parameters()}
    assert {name: recording.buffers[row].size for _, name, row in recording.gradients} == {
        name: sizes[name] for _, name, _ in recording.gradients}


def test_only_inputs_gradients_and_library_workspaces_outlive_a_micro_step():
    recording = traced()
    alive = set()
    for event in recording.events:
        (alive.add if event > 0 else alive.discard)(abs(event) - 1)
    roles = {recording.buffers[row].role for row in alive}
    assert roles == {"input", "gradient", "workspace"}
    assert {recording.buffers[row].size for row in alive if recording.buffers[row].role == "workspace"} == {
        ("cublas_workspace", ()), ("cublaslt_workspace", ())}


def test_tracing_twice_gives_the_same_recording():
    first, second = traced(), traced()
    assert first == second


def test_a_frozen_projector_s_backward_stops_at_the_embedding():
    modules = {b.module for b in traced(recipe="finetune").buffers if b.moment is Moment.BACKWARD and not b.recomputed}
    assert not any("vision_tower" in module for module in modules)


def test_a_frozen_language_model_keeps_activations_below_a_trainable_projector():
    recording = traced(recipe="pretrain")
    freed_in_backward = {-e - 1 for e, m in zip(recording.events, recording.moments) if e < 0 and m is Moment.BACKWARD}
    kept = [recording.buffers[row] for row in freed_in_backward if recording.buffers[row].moment is Moment.FORWARD]
    assert any("language_model.layers.0" in buffer.module for buffer in kept)


def test_a_padding_mask_costs_a_float_mask_of_one_number_a_pair_of_tokens():
    masks = [b.size for b in traced(padding="right").buffers if b.operator == "aten::where"]
    assert 2 * 2 * 16 * 16 in masks


def test_index_values_are_real_and_views_share_them():
    tracer = Tracer(lambda: ("", False))
    with tracer:
        ids = torch.arange(6, device="meta").view(2, 3)
        ids[0] += 10
        assert (ids == 12).sum().item() == 1
        assert (ids[0] > 0).nonzero().shape == (3, 1)
        assert ids.to("cpu").tolist() == [[10, 11, 12], [3, 4, 5]]


def test_quotients_of_integers_are_known():
    with Tracer(lambda: ("", False)):
        quotients = torch.arange(100, device="meta").float() / 4
        assert (quotients == 5).nonzero().tolist() == [[20]]


def test_a_float_reads_as_zero():
    with Tracer(lambda: ("", False)):
        assert torch.ones(3, device="meta").sum().item() == 0.0


def test_backward_knows_its_module_and_recomputation():
    model = small_llava()
    model.gradient_checkpointing_enable()
    recording = traced_at(model, Shape(2, 16, 2), padding="none", sdpa_backend="cudnn")
    recomputed = {b.module for b in recording.buffers if b.recomputed}
    assert "model.language_model.layers.1.mlp.up_proj" in recomputed
    assert all(b.moment is Moment.BACKWARD for b in recording.buffers if b.recomputed)
    assert any(b.module == "lm_head" and b.moment is Moment.BACKWARD for b in recording.buffers)


def test_places_survive_a_recomputation_that_ends_early():
    places = ModuleTracker(small_llava())
    with places.active():
        model = small_llava()
        model.gradient_checkpointing_enable()
        traced_at(model, Shape(2, 16, 2), padding="none", sdpa_backend="cudnn")
    assert places() == ("", False)


def test_attention_of_three_dimensions_is_computed_by_the_math_kernel():
    """Every fused kernel takes four (sdp_utils_cpp.h, check_tensor_shapes). Its fp32 scores are the largest tensor."""
    heads, tokens, width = 4, 24, 8
    query = torch.empty(heads, tokens, width, dtype=torch.bfloat16, device="meta")
    mask = torch.empty(1, tokens, tokens, dtype=torch.bool, device="meta")
    recorder = Recorder(device="meta")
    with recorder, as_on_cuda("efficient"):
        recorder.moment = Moment.FORWARD
        torch.nn.functional.scaled_dot_product_attention(query, query, query, mask)
    assert max(buffer.size for buffer in recorder.recording.buffers) == heads * tokens * tokens * 4

"""The key ``quantization``, the quantized model, and its loading: QLoRA, and inference."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import accumulate
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.engine.common import to_device
from predictor.engine.tape import Tape
from predictor.events import gemm_4bit, workspaces
from predictor.events.events import EventType
from predictor.formula.formula import Formula
from predictor.formula.formula_key import formula_key
from predictor.jobs import dispatch, training_job
from predictor.model import parser, quantization
from predictor.model.lora import adapters
from predictor.model.model_config import ModelConfig
from predictor.model.request import Request
from predictor.trace.host_values import HostValues
from predictor.workload.workload import Workload
from tests.predictor.small import TEXT, facts_of, small_config

HIDDEN, INTERMEDIATE, LAYERS, VOCABULARY = (TEXT[name] for name in (
    "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"))
LINEAR = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * INTERMEDIATE
"""Weights of a layer's linear layers."""
LANGUAGE_ONLY = {"load_in_4bit": True, "llm_int8_skip_modules": ["model.vision_tower", "model.multi_modal_projector",
                                                                 "lm_head"]}
ADAPTED = {"target_modules": ["q_proj"]}
H100 = gpus.find("h100-80gb")


def ask(wanted=LANGUAGE_ONLY, **keys) -> Workload:
    return Workload(**{"model": "llava-1.5-7b", "sequence_length": 1024, "lora": ADAPTED, "quantization": wanted} | keys)


def model_of(asked: Workload, **text):
    return parser.build(ModelConfig("small", small_config(**text)), attn_implementation="sdpa", recipe="lora",
                        patterns=parser.Patterns(asked.trainable, asked.frozen), lora=adapters(asked),
                        quantization=quantization.quantized(asked))


def facts(asked: Workload):
    """Tensors of a small model, by name."""
    return {tensor.name: tensor for tensor in facts_of(model_of(asked)).parameters}


# --- the key --------------------------------------------------------------------------------------------


def test_absent_values_are_those_of_transformers():
    from transformers import BitsAndBytesConfig

    theirs = BitsAndBytesConfig(load_in_4bit=True).to_dict()
    ours = ask({"load_in_4bit": True}).quantization
    assert ours["bnb_4bit_compute_dtype"] == "fp32" and theirs["bnb_4bit_compute_dtype"] == "float32"
    assert {name: theirs[name] for name in ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant")} == {
        name: ours[name] for name in ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant")}


def test_it_can_be_written_out_and_read_again():
    asked = ask({"load_in_4bit": True, "bnb_4bit_compute_dtype": "bfloat16"})
    assert Workload.from_mapping(asked.resolved()) == asked


@pytest.mark.parametrize("keys, message", [
    ({"wanted": {"load_in_4bit": False}}, "quantization load_in_4bit must be true"),
    ({"wanted": {"load_in_8bit": True, "load_in_4bit": True}}, "quantization has load_in_4bit and load_in_8bit: leave"),
    ({"wanted": {"bnb_4bit_quant_type": "int4"}}, "quantization bnb_4bit_quant_type must be one of fp4, nf4"),
    ({"wanted": {"bnb_4bit_compute_dtype": "float16"}}, "quantization bnb_4bit_compute_dtype \"float16\" is not supported"),
    ({"lora": None, "recipe": "finetune"}, "quantization is given, but recipe is finetune"),
    ({"sdpa_backend": "flash"}, "sdpa_backend is flash, but quantization's prepare peft makes attention run in fp32"),
])
def test_a_wrong_key_is_one_clear_line(keys, message):
    with pytest.raises(InputError) as caught:
        ask(**keys)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("keys", "name"), [
    ({"zero_stage": 3}, "zero_stage 3"), ({"lora": {"use_dora": True}}, "lora use_dora"),
    ({"gradient_checkpointing_modules": ["model"]}, r"gradient_checkpointing_modules \['model'\]"),
])
def test_what_was_not_compared_with_a_run_is_not_predicted(keys, name):
    with pytest.raises(InputError, match=f"{name}: not predicted with quantization yet: .*, or use peakcast learn"):
        dispatch.prepare(ask(**keys))


def test_few_tokens_for_layers_with_a_bias_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small_config()))
    with pytest.raises(InputError, match="model.vision_tower.encoder.layers.0.mlp.fc2, a 4-bit layer, would get 8"):
        dispatch.prepare(ask({"load_in_4bit": True, "bnb_4bit_compute_dtype": "bf16"}, model=str(path),
                             sequence_length=256, per_device_train_batch_size=2))


@pytest.mark.parametrize(("rows", "unpacked"), [(7, 0), (8, 4 * HIDDEN * HIDDEN)])
def test_fewer_than_8_rows_of_fp32_unpack_no_weight(rows, unpacked):
    assert workspaces.unpacked_4bit(H100, rows, HIDDEN, HIDDEN, 4, 4 * HIDDEN * HIDDEN) == unpacked


@settings(deadline=None)  # the first imports bitsandbytes
@given(st.sampled_from([gpu for gpu in gpus.TABLE if gpu.compute_capability >= (8, 0)]), st.integers(1, 1600),
       *[st.one_of(st.integers(1, 512).map(lambda blocks: 64 * blocks), st.integers(1, 1 << 15))] * 2, st.booleans(),
       st.sampled_from([2, 4]))
def test_the_kernel_for_few_rows_runs_when_bitsandbytes_says(gpu, rows, outputs, inputs, square, itemsize):
    from bitsandbytes.backends.cuda import ops

    inputs = outputs if square else inputs
    theirs = ops._gemm_4bit_use_custom_cuda.__wrapped__
    properties = gpu.multiprocessors, *gpu.compute_capability
    with mock.patch.object(ops, "_gpu_dispatch_props", lambda device: properties):
        says = rows <= ops._gemm_4bit_custom_max_m and inputs % 64 == 0 and theirs(
            0, {2: torch.bfloat16, 4: torch.float32}[itemsize], rows, outputs, inputs)
    assert gemm_4bit.is_fused(gpu, rows, outputs, inputs, itemsize) == says


def test_tracing_holds_no_packed_weights_on_the_host():
    host_values, packed = HostValues(), torch.empty(64, 1, dtype=torch.uint8, device="meta")
    view = packed.view(-1)
    host_values.follow(torch.ops.aten.view.default, (packed, [-1]), {}, [view])
    assert host_values.of(view) is None


def test_values_of_4_bits_share_a_formula_and_maxima_of_8_do_not():
    def filename(**wanted):
        asked = ask(LANGUAGE_ONLY | wanted, images_per_sample=1)
        return formula_key(Request.of(asked).on(gpus.find("h100-80gb"))).filename()

    assert filename(bnb_4bit_quant_type="nf4") == filename()
    assert filename(bnb_4bit_use_double_quant=True) != filename()


# --- the model ------------------------------------------------------------------------------------------


def test_linear_layers_of_the_language_model_hold_half_a_byte_a_weight():
    packed = [tensor for tensor in facts(ask()).values() if tensor.packed]
    assert sum(tensor.bytes for tensor in packed) == LAYERS * LINEAR // 2
    assert all(".language_model." in tensor.name and not tensor.trainable for tensor in packed)


@pytest.mark.parametrize(("prepare", "other", "adapter"), [("peft", 4, 4), ("trl", 2, 2)])
def test_what_is_not_quantised_is_as_peft_or_trl_leave_it(prepare, other, adapter):
    found = facts(ask(LANGUAGE_ONLY | {"prepare": prepare}))
    assert {tensor.itemsize for name, tensor in found.items()
            if not tensor.packed and not tensor.buffer and "lora_" not in name} == {other}
    assert {tensor.itemsize for name, tensor in found.items() if "lora_" in name} == {adapter}


def test_biases_of_quantised_layers_take_the_compute_dtype():
    asked = ask({"load_in_4bit": True, "bnb_4bit_compute_dtype": "bf16"})
    assert {tensor.itemsize for name, tensor in facts(asked).items() if name.endswith("fc1.bias")} == {2}


@pytest.mark.parametrize(("skipped", "message"), [
    (["mm_projector"], "llm_int8_skip_modules names 'mm_projector', with which no path of a linear layer"),
    (["model", "lm_head"], "llm_int8_skip_modules leaves no layer to quantise"),
    (["lm_head"], "multi_modal_projector.linear_1.weight has 4 or 8 bits and cannot train"),
])
def test_a_list_of_modules_to_skip_that_cannot_be(skipped, message):
    with pytest.raises(InputError, match=message):
        facts(ask({"load_in_4bit": True, "llm_int8_skip_modules": skipped}))


def served(wanted: dict, **keys) -> Workload:
    return Workload(model="llava-1.5-7b", mode="inference", sequence_length=1024, quantization=wanted, **keys)


def test_without_names_to_skip_all_layers_but_the_head_are_quantised():
    model = parser.build(ModelConfig("small", small_config()), attn_implementation="sdpa", recipe="full",
                         quantization=quantization.quantized(served({"load_in_8bit": True})))
    linear = {name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    assert {tensor.module for tensor in facts_of(model).parameters if tensor.quantized} == linear - {"lm_head"}


def test_layers_of_8_bits_hold_a_byte_a_weight_and_their_biases_stay():
    model = parser.build(ModelConfig("small", small_config()), attn_implementation="sdpa", recipe="full",
                         quantization=quantization.quantized(served({"load_in_8bit": True})))
    tensors = facts_of(model).parameters
    inside = [tensor for tensor in tensors if tensor.quantized and ".language_model." in tensor.name]
    assert sum(tensor.bytes for tensor in inside) == LAYERS * LINEAR
    assert not any(tensor.packed for tensor in tensors)
    assert {tensor.itemsize for tensor in tensors if tensor.name.endswith(".bias")} == {2}


@pytest.mark.parametrize(("threshold", "notes"), [(0, 0), (6.0, 1)])
def test_columns_of_outliers_are_left_out_and_named_with_their_bound(threshold, notes):
    model = parser.build(ModelConfig("small", small_config()), attn_implementation="sdpa", recipe="full",
                         quantization=quantization.quantized(served({"load_in_8bit": True})))
    found = quantization.notes(served({"load_in_8bit": True, "llm_int8_threshold": threshold}), facts_of(model), 100)
    assert len(found) == notes
    assert all(f"({4 * 100 + 10 * INTERMEDIATE:,} bytes in the widest" in note for note in found)


# --- its way to the device ------------------------------------------------------------------------------


def start_up(asked: Workload, model) -> Tape:
    tape = Tape()
    to_device(tape, training_job.setup_of(asked, Formula(None, facts_of(model), {})))
    return tape


def changes(tape: Tape) -> list[int]:
    """Bytes that come and go."""
    return [kind * tape.buffers.sizes[buffer] for kind, buffer in zip(tape.event_types, tape.event_buffers)
            if kind in (1, -1)]


def test_each_weight_is_there_in_full_while_it_is_quantised():
    """A layer far wider than all others: its weight in bf16, its 4 bits, its maxima and what came before it."""
    wide = 1 << 16
    asked = ask(LANGUAGE_ONLY | {"prepare": "trl"})
    model = model_of(asked, intermediate_size=wide, num_hidden_layers=1)
    weights = HIDDEN * wide
    code = 4 * quantization.CODE_ELEMENTS
    quantised = weights // 2 + 4 * weights // quantization.BLOCK_ELEMENTS + code
    before = 2 * (2 * VOCABULARY * HIDDEN + HIDDEN) + 2 * quantised  # head, embeddings, a norm; down, gate
    assert max(accumulate(changes(start_up(asked, model)))) == before + 2 * weights + quantised + code + 4  # up; code's sizes, the largest of them


def test_widening_doubles_all_other_weights_and_empties_the_cache():
    asked = ask()
    narrow, wide = (start_up(one, model_of(one)) for one in (ask(LANGUAGE_ONLY | {"prepare": "trl"}), asked))
    others = sum(tensor.bytes for tensor in facts(asked).values() if not tensor.packed and not tensor.buffer)
    assert sum(changes(wide)) - sum(changes(narrow)) == others // 2
    assert [tape.event_types.count(EventType.EMPTY_CACHE) for tape in (narrow, wide)] == [0, 1]


def test_a_weight_of_8_bits_is_there_twice_in_16_while_it_is_quantised():
    """As it was loaded, and as it comes back from the host; beside them the maxima of its rows and its bytes."""
    wide = 1 << 16
    model = parser.build(ModelConfig("small", small_config(intermediate_size=wide, num_hidden_layers=1)),
                         attn_implementation="sdpa", recipe="full",
                         quantization=quantization.quantized(served({"load_in_8bit": True})))
    asked = served({"load_in_8bit": True}, images_per_sample=1)
    setup = training_job.setup_of(ask(), Formula(None, facts_of(model), {}))
    tape = Tape()
    to_device(tape, replace(setup, quantization=asked.quantization))
    weights = HIDDEN * wide
    up, = (run for run in [changes(tape)] if 2 * weights in run)
    last = len(up) - up[::-1].index(-2 * weights) - 6
    assert up[last:last + 6] == [2 * weights, 2 * weights, 4 * wide, weights, -2 * weights, -2 * weights]

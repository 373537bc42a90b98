"""A loop that keeps the model's output or gradients frees the same bytes as the reference loop, only later."""

from __future__ import annotations

import json

import numpy as np
import pytest

from predictor import predict, readers
from predictor.answer import loop_difference as answer_loops
from predictor.answer.loop_difference import KEEPING, ZEROING, other_loops, with_loop
from predictor.common.errors import InputError
from predictor.engine.setup import STEPS
from predictor.events.events import MOMENTS, Moment
from predictor.explore import packing
from predictor.formula import formula
from predictor.jobs import dispatch, survival
from predictor.workload.workload import Workload
from tests.predictor.small import small_llama

pytestmark = pytest.mark.usefixtures("formula_cache")
VOCABULARY, TOKENS = 4096, 64
LOGITS_BYTES = 2 * TOKENS * VOCABULARY


@pytest.fixture
def job(tmp_path):
    """Prepares jobs of a language model with one sample of 64 tokens, in bf16, whose logits decide the peak."""
    path = tmp_path / "llama.json"
    path.write_text(json.dumps(small_llama(vocab_size=VOCABULARY)))

    def job(**keys):
        return dispatch.prepare(Workload(model=str(path), sequence_length=TOKENS, gpu="h100-80gb", profile="none", **keys))
    return job


def top(run, moment: Moment, step: int) -> int:
    """The highest live bytes in a moment of a step."""
    events = run.events
    return int(run.live[(events.moment == MOMENTS.index(moment)) & (events.step == step)].max())


def test_the_logits_are_alive_at_the_peak(job):
    assert job(keep_outputs="backward").run(None).peak - job().run(None).peak == LOGITS_BYTES


@pytest.mark.parametrize("steps", [1, 2])
def test_a_function_frees_the_output_before_the_optimizer_step(job, steps):
    reference, function = (job(gradient_accumulation_steps=steps, **keys).run(None)
                           for keys in ({}, {"keep_outputs": "backward"}))
    for step in range(1, STEPS + 1):
        assert top(function, Moment.OPTIMIZER_STEP, step) == top(reference, Moment.OPTIMIZER_STEP, step)
        assert top(function, Moment.FORWARD, step) == top(reference, Moment.FORWARD, step)


def test_a_script_keeps_the_output_through_the_optimizer_step_and_the_next_forward(job):
    reference, script = (job(**keys).run(None) for keys in ({}, {"keep_outputs": "next_forward"}))
    for moment, step in ((Moment.OPTIMIZER_STEP, 1), (Moment.FORWARD, 2), (Moment.OPTIMIZER_STEP, 3)):
        assert 0 <= top(script, moment, step) - top(reference, moment, step) - LOGITS_BYTES <= 4  # the loss, in fp32
    assert top(script, Moment.FORWARD, 1) == top(reference, Moment.FORWARD, 1)
    assert 0 <= script.live[-1] - reference.live[-1] - LOGITS_BYTES <= 4


def test_a_micro_step_keeps_the_output_into_the_next(job):
    one, other = (job(keep_outputs=kept, gradient_accumulation_steps=2).run(None) for kept in ("backward", "next_forward"))
    assert top(other, Moment.BACKWARD, 1) == top(one, Moment.BACKWARD, 1)
    assert top(other, Moment.FORWARD, 1) > top(one, Moment.FORWARD, 1)


def test_gradients_live_through_forward_once_a_step(job):
    reference, late = (job(gradient_accumulation_steps=2, zero_grad=place).run(None)
                       for place in ("after_step", "before_backward"))
    gradients = sum(tensor.bytes for tensor in job().setup.facts.parameters if tensor.trainable)
    assert top(late, Moment.FORWARD, 2) - top(reference, Moment.FORWARD, 2) >= 0
    assert top(late, Moment.BACKWARD, 2) == top(reference, Moment.BACKWARD, 2)
    assert late.live[-1] - reference.live[-1] == gradients


def test_zero_grad_at_the_top_of_the_loop_moves_no_peak(job):
    reference, early = (job(zero_grad=place).run(None) for place in ("after_step", "before_forward"))
    assert early.peak == reference.peak
    assert top(early, Moment.BACKWARD, 2) == top(reference, Moment.BACKWARD, 2)


@pytest.mark.parametrize("keys", [{"engine": "ddp", "data_parallel_size": 2}, {"gradient_accumulation_steps": 3}], ids=str)
def test_the_page_of_explore_can_pack_such_a_run(job, keys):
    prepared = job(keep_outputs="next_forward", zero_grad="before_backward", **keys)
    packed = packing.pack_run(prepared.composed(None, 0), prepared.micro, packing.Tables())
    assert packed.instances == STEPS * prepared.setup.micro_steps


@pytest.mark.parametrize("zero_stage", [1, 2])
def test_ranks_are_compared_by_their_peaks(job, zero_stage):
    prepared = job(keep_outputs="next_forward", zero_stage=zero_stage, data_parallel_size=4, gradient_accumulation_steps=2)
    worst = prepared.run(None)
    assert worst.peak == max(prepared.run(None, rank).peak for rank in range(4))


def test_loops_share_a_formula(job):
    assert job(keep_outputs="backward").formula is job().formula


def test_the_kept_buffers_are_in_the_file_and_checked(job, tmp_path):
    from dataclasses import replace

    kept = job(keep_outputs="backward").formula
    path = tmp_path / "kept.npz"
    path.write_bytes(formula.to_bytes(kept))
    assert np.array_equal(formula.load(path).micro.outputs, kept.micro.outputs)
    path.write_bytes(formula.to_bytes(replace(kept, micro=replace(kept.micro, outputs=np.array([10**6], np.int32)))))
    with pytest.raises(InputError, match="not a formula file"):
        formula.load(path)


# --- the difference without another trace -------------------------------------------------------------


def loop_difference(job, **loop):
    """Bytes by which the requested peak rises with another loop; None if the job's loop is known."""
    other = with_loop(job, **loop)
    return other and other.run(None).peak - job.run(None).peak


@pytest.mark.parametrize("keys", [{}, {"gradient_checkpointing": False}, {"gradient_accumulation_steps": 2},
                                  {"engine": "ddp", "data_parallel_size": 2}, {"zero_stage": 2, "data_parallel_size": 2},
                                  {"zero_stage": 3, "data_parallel_size": 2}, {"engine": "fsdp2", "data_parallel_size": 2}],
                         ids=str)
def test_the_difference_is_that_of_the_key(job, keys):
    known = job(keep_outputs="next_forward", **keys).run(None).peak - job(**keys).run(None).peak
    assert loop_difference(job(**keys)) == known


def test_the_difference_of_a_large_model_is_the_logits_and_the_features_of_its_images():
    asked = Workload(model="llava-1.5-7b", sequence_length=1024, gpu="h100-80gb", profile="none")
    assert loop_difference(dispatch.prepare(asked)) == 2 * 1024 * 32064 + 2 * 576 * 4096


def test_inference_has_no_loop():
    asked = Workload(model="llava-1.5-7b", sequence_length=1024, mode="inference", gpu="h100-80gb", profile="none")
    assert loop_difference(dispatch.prepare(asked)) is None


def test_the_difference_of_gradients_is_that_of_the_key(job):
    known = job(keep_outputs="next_forward", zero_grad="before_backward").run(None).peak
    assert loop_difference(job(), zero_grad="before_backward") == known - job().run(None).peak


def test_what_else_a_loop_may_do_is_said_with_the_bytes_that_it_reserves():
    keys = {"model": "llava-1.5-7b", "sequence_length": 1024, "per_device_train_batch_size": 4, "profile": "none",
            "allocator_conf": "expandable_segments:True"}
    plain = dispatch.prepare(Workload(**keys))
    before, with_outputs, with_gradients, with_both = (
        survival.judge(other.runs, other.setup.allocator, None).reserved.bytes for other in (
            plain, with_loop(plain), with_loop(plain, keep_outputs="none", zero_grad="before_backward"),
            with_loop(plain, zero_grad="before_backward")))
    tight = dispatch.prepare(Workload(**keys, capacity_bytes=before + plain.margin.runtime_high))
    cautions = list(other_loops(tight, 0))
    (outputs, one), (gradients, other) = ((caution.text, caution.more_bytes) for caution in cautions)
    assert "the model's output is assumed to be freed before backward" in outputs and "keep_outputs next_forward" in outputs
    assert "zero_grad before_backward" in gradients
    assert (one, other) == (with_outputs - before, with_gradients - before)
    assert 0 < one < other
    wider = dispatch.prepare(Workload(**keys, capacity_bytes=with_gradients + plain.margin.runtime_high))
    (both,) = other_loops(wider, with_gradients - before)
    assert both.name.endswith("(keep_outputs next_forward, zero_grad before_backward)")
    assert both.more_bytes == with_both - before
    known = dispatch.prepare(tight.workload.replace(keep_outputs="none"))
    assert list(other_loops(known, 0)) == []


def test_loops_of_a_run_with_too_many_events_are_bounded_and_not_simulated(monkeypatch):
    prepared = dispatch.prepare(Workload(model="llava-1.5-7b", sequence_length=1024, gpu="h100-80gb"))
    monkeypatch.setattr(answer_loops, "MOST_EVENTS", prepared.traced_events - 1)
    monkeypatch.setattr(answer_loops, "with_loop", None)
    most = answer_loops.most_bytes(prepared)
    (caution,) = other_loops(prepared, most - 1)
    assert caution.more_bytes == most and "were not simulated" in caution.text
    assert not list(other_loops(prepared, most))


def test_of_loops_that_keep_gradients_the_one_that_reserves_the_most_is_named():
    """With these sizes gradients that are freed before forward split more of the cache than those freed after it."""
    keys = {"model": "llama-3.1-8b", "sequence_length": 11264, "gpu": "h200", "mixed_precision": "bf16", "profile": "none"}
    plain = dispatch.prepare(Workload(**keys))
    reserved = {zeroing: with_loop(plain, keep_outputs="none", zero_grad=zeroing).judge().reserved.bytes for zeroing in ZEROING}
    least = plain.judge().reserved.bytes
    tight = dispatch.prepare(Workload(**keys, capacity_bytes=least + plain.margin.runtime_high + (1 << 20)))
    worst = max(reserved, key=reserved.get)
    (named,) = (caution for caution in other_loops(tight, 1 << 20) if "zero_grad" in caution.name)
    assert named.name == f"the loop keeps gradients (zero_grad {worst})"
    assert named.more_bytes == reserved[worst] - least


def test_the_loop_of_a_caution_no_longer_fits_when_it_is_typed():
    asked = Workload(model="llava-1.5-7b", sequence_length=2048, per_device_train_batch_size=28, zero_stage=2,
                     data_parallel_size=8, gpu="h100-80gb", profile="emulated")
    said = [caution.text for caution in predict(asked).cautions]
    named = [keep for keep in KEEPING if any(f"(keep_outputs {keep})" in text for text in said)]
    assert named == ["backward"]
    verdicts = {keep: with_loop(dispatch.prepare(asked), keep_outputs=keep).judge().verdict for keep in KEEPING}
    assert {keep for keep in KEEPING if verdicts[keep] != "fits"} == {"backward"}


def test_a_loop_that_was_not_compared_is_not_estimated(job):
    assert loop_difference(job(use_liger_kernel=True)) is None


@pytest.mark.parametrize(("read", "known"), [
    ({"model_name_or_path": "llava-hf/llava-1.5-7b-hf", "max_length": 1024, "output_dir": "x", "bf16": True}, True),
    ({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}, False),
], ids=["trainer", "deepspeed"])
def test_a_framework_has_a_loop_of_its_own_and_deepspeed_has_none(tmp_path, read, known):
    (tmp_path / "read.json").write_text(json.dumps(read))
    (tmp_path / "llama.json").write_text(json.dumps(small_llama(vocab_size=VOCABULARY)))
    keys, source = readers.read(path=str(tmp_path / "read.json"))
    small = {"model": str(tmp_path / "llama.json"), "sequence_length": TOKENS, "gpu": "h100-80gb"}
    asked = Workload.from_mapping(keys | small)
    assert (loop_difference(dispatch.prepare(asked.read_from(source))) is None) is known
    assert source.knows("keep_outputs") is source.knows("zero_grad") is known


@pytest.mark.parametrize("keys", [{"keep_outputs": "none"}, {"keep_outputs": "backward"}, {"zero_grad": "after_step"}], ids=str)
def test_a_loop_that_the_user_gave_makes_no_difference(job, keys):
    assert loop_difference(job(**keys)) is None

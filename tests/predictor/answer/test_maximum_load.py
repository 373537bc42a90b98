"""Maximum load: the longest prompt or context that fits, and the most sequences at once."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.answer import largest_size, maximum_load
from predictor.answer.predict import predict
from predictor.answer.remedies import with_remedies
from predictor.jobs import dispatch, inference_job
from predictor.jobs.survival import Peaks, Shortage
from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES
from predictor.report.inference import sentences
from predictor.report.verdict import verdict
from predictor.workload.conversation import MOST_TURNS
from tests.predictor.generating import MISTRAL, TALK, asked
from tests.predictor.small_models import TEXT

pytestmark = pytest.mark.usefixtures("formula_cache")


def test_what_is_said_to_fit_fits_and_no_more(model):
    workload = asked(model["llama"], sequence_length=64, max_new_tokens=8, per_device_eval_batch_size=8,
                     capacity_bytes=(1 << 30) + (40 << 20))
    found = predict(workload, maximum_load=True).inference
    for key, most, more in (("sequence_length", found.longest_prompt_tokens, 1),
                            ("per_device_eval_batch_size", found.concurrent_sequences, 1)):
        assert predict(workload.replace(**{key: most})).verdict == "fits"
        assert predict(workload.replace(**{key: most + more})).verdict != "fits"


def test_what_fits_is_said_to_be_of_no_paged_serving(model):
    found = predict(asked(model["llama"], sequence_length=100, max_new_tokens=29, gpu_memory_utilization=0.5,
                                   capacity_bytes=4 << 30), maximum_load=True).inference
    assert any("not for paged serving" in line for line in found.search_limits)


def test_the_bytes_that_explain_why_generate_holds_other_sequences_than_blocks_are_those_of_its_job(model):
    workload = asked(model["llama"], sequence_length=300, max_new_tokens=40, gpu_memory_utilization=0.9,
                     capacity_bytes=(1 << 30) + (400 << 20))
    found = predict(workload, maximum_load=True)
    most = found.inference.concurrent
    job = predict(workload.replace(per_device_eval_batch_size=most.sequences))
    assert most.sequences == found.inference.concurrent_sequences != found.inference.paged.sequences
    assert most.weights_bytes == job.inference.weights_bytes and most.reserved_bytes == job.reserved.bytes
    assert most.weights_bytes + most.cache_bytes + most.other_bytes == job.requested.bytes
    assert most.idle_bytes == job.reserved.bytes - job.requested.bytes
    assert most.cache_bytes > 0 and most.other_bytes > 0
    said, = (line for line in sentences(found) if line.startswith("Why the two differ: generate"))
    assert f"all {most.sequences:,} at once, in " in said and "of the GPU in all, copies nothing" in said


def test_paged_serving_without_room_is_cured_by_the_share_that_its_verdict_names(model):
    workload = asked(model["llama"], sequence_length=300, max_new_tokens=40, gpu_memory_utilization=0.01,
                     capacity_bytes=4 << 30)
    found = with_remedies(predict(workload), workload)
    assert (found.verdict, found.remedies) == ("does_not_fit", None)
    share = found.inference.paged.least_gpu_memory_utilization
    assert f"raise it to {share:g}." in verdict(found)
    assert predict(workload.replace(gpu_memory_utilization=share)).verdict == "fits"


def test_one_answer_alone_needs_no_explanation(model):
    keys = {"sequence_length": 100, "max_new_tokens": 29, "capacity_bytes": 4 << 30}
    alone = predict(asked(model["llama"], **keys), maximum_load=True)
    paged = predict(asked(model["llama"], gpu_memory_utilization=0.5, **keys))
    assert alone.inference.concurrent is None and paged.inference.concurrent is None
    assert not any("differ" in line for found in (alone, paged) for line in sentences(found))


def test_the_most_conversations_that_fit_are_found_without_a_trace_at_their_batch(model, seen):
    workload = asked(model["llama"], conversation=[{"tokens": 300, "new_tokens": 8}] * 2, capacity_bytes=8 << 30)
    most = predict(workload, maximum_load=True).inference.concurrent_sequences
    assert most > 100 and {key.regime.names().samples.strip("=") for key in seen} <= {"1", "many"}
    assert predict(workload.replace(per_device_eval_batch_size=most)).verdict == "fits"
    assert predict(workload.replace(per_device_eval_batch_size=most + 1)).verdict != "fits"


def test_a_short_prompt_that_fits_is_the_longest_where_positions_end(model, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TEXT["llama"] | {"max_position_embeddings": 24}))
    found = predict(asked(str(path), sequence_length=5, max_new_tokens=20, capacity_bytes=8 << 30),
                             maximum_load=True).inference
    assert found.longest_prompt_tokens == 24 + 1 - 20
    assert "24 positions" in found.search_limits[0]


def test_a_static_cache_grows_with_a_longer_prompt_as_long_as_positions_last(model):
    """``max_cache_len`` is the least that it has room for."""
    found = predict(asked(model["llama"], sequence_length=100, cache_implementation="static", max_cache_len=200,
                                   capacity_bytes=80 << 30), maximum_load=True).inference
    assert found.longest_context_tokens == 4096
    assert "4,096 positions" in found.search_limits[0]


def test_batches_too_small_to_be_predicted_do_not_end_the_search(model):
    """Layers of 4 bits with a bias that would see few tokens are refused: here in a batch of one."""
    found = predict(asked(model["llava"], sequence_length=60, max_new_tokens=3, per_device_eval_batch_size=64,
                                   quantization={"load_in_4bit": True}, capacity_bytes=1069 << 20), maximum_load=True)
    assert found.verdict != "fits" and 8 < found.inference.concurrent_sequences < 64


@pytest.mark.parametrize(("most", "longest"), [(150, 129), (194, 194)])
def test_prompts_that_are_not_predicted_end_the_search_only_if_the_next_does_not_fit(tmp_path, monkeypatch, most,
                                                                                     longest):
    """Replies of 128 tokens to prompts of 130 to 191 reach a window of 256 after more than 64."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MISTRAL | {"sliding_window": 256, "num_hidden_layers": 1}))
    monkeypatch.setattr("predictor.jobs.inference_job.InferenceJob.fitting", lambda job, ranks: (
        Peaks(0, 0, 0) if job.workload.sequence_length <= most else Shortage(0, 0)))
    monkeypatch.setattr("predictor.answer.largest_size.Tried.of", lambda job, before: largest_size.Tried(
        job, most - job.workload.sequence_length, before, 0, [0]))
    job = dispatch.prepare(asked(str(path), sequence_length=50, max_new_tokens=128, capacity_bytes=80 << 30))
    assert inference_job.unpredicted_prompts([256], 128) == [(130, 191)]
    assert maximum_load.longest_prompt(job).size == longest
    said = maximum_load._limits_of_prompt(job, longest)
    assert any("130 to 191" in line for line in said) == (longest == 129)


@pytest.mark.parametrize(("batch", "share"), [(1, 34 << 20), (16, 80 << 20)])
def test_a_conversation_goes_on_for_as_many_turns_as_fit(model, batch, share):
    workload = asked(model["llama"], conversation=TALK, per_device_eval_batch_size=batch,
                     capacity_bytes=share + ASSUMED_RUNTIME_BYTES)
    found = predict(workload, maximum_load=True)
    most, context = found.inference.most_turns, found.inference.longest_context_tokens
    assert 3 < most < MOST_TURNS and found.inference.longest_prompt_tokens is None
    assert context == 300 + 8 - 1 + (most - 1) * (200 + 8)
    assert f"Further turns like the last one that fit: {most - 2}. The context then" in " ".join(sentences(found))
    for number in (most, most + 1):
        going_on = workload.replace(conversation=[TALK[0]] + [TALK[1]] * (number - 1))
        assert (predict(going_on).verdict == "fits") == (number == most)


def test_a_conversation_that_does_not_fit_says_which_of_its_turns_do(model):
    talk = [TALK[0], {"tokens": 3000, "new_tokens": 8}]
    found = predict(asked(model["llama"], conversation=talk, per_device_eval_batch_size=8,
                                   capacity_bytes=(60 << 20) + ASSUMED_RUNTIME_BYTES), maximum_load=True)
    assert found.verdict != "fits" and found.inference.most_turns == 1
    assert "Of its turns only the first fits: a context of 307 tokens." in sentences(found)


def test_a_conversation_goes_on_until_positions_end(model):
    found = predict(asked(model["llama"], conversation=[{"tokens": 1000, "new_tokens": 24}] * 2,
                                   capacity_bytes=80 << 30), maximum_load=True).inference
    assert found.longest_context_tokens == 4 * 1024 - 1
    assert "4,096 positions" in found.search_limits[0]


@given(st.integers(1, 50), st.integers(0, 4000), st.floats(0.5, 2.5), st.integers(0, 10**6), st.integers(0, 10**5),
       st.integers(0, 10**6), st.integers(0, 10**5))
def test_the_largest_size_that_fits_is_found(least, more, power, limit, apart, led, suspected):
    """Room shrinks as a power of the size; what fits leaves more than none, and the last sizes are not predicted.

    The search is led by anything, and by a shortage that does not see all that fails.
    """
    def room(size: int) -> int | None:
        return None if size > least + more - 7 else limit - int(size ** power)

    expected = max((size for size in range(least, least + more - 6) if room(size) >= apart), default=least - 1)
    assert largest_size.largest(room, lambda size: room(size) >= apart, least, least + more,
                                lambda size: None if room(size) >= min(apart, suspected) else led) == expected


@given(st.integers(1, 20), st.integers(0, 80), st.integers(0, 60), st.sets(st.integers(0, 100)), st.integers(0, 40))
def test_where_fitting_is_not_monotone_the_largest_is_found_or_the_rest_is_said(least, more, end, fitting, most_tried):
    """Sizes up to ``end`` leave room; which of them fit is random."""
    def fits(size: int) -> bool:
        return size in fitting

    found = largest_size.largest_of_all(lambda size: 10 * (end - size), fits, least, least + more,
                                        lambda size: None if fits(size) or size % 3 == 0 else 7,
                                        most_tried=lambda size: most_tried)
    with_room = range(least, min(end, least + more) + 1)
    larger = {size for size in with_room if size > found.size and fits(size)}
    assert found.size == least - 1 or (found.size in with_room and fits(found.size))
    assert larger <= set(found.untried) <= set(with_room)
    assert len(with_room) > most_tried or not larger


def test_sizes_that_were_not_all_tried_are_said_in_one_sentence():
    assert largest_size.may_fit_too("Larger batches of", largest_size.Found(28, range(29, 1036))) == (
        "Larger batches of 29 to 1,035 were not all tried: some may fit too, as the allocator's blocks depend on every size.",)
    assert largest_size.may_fit_too("Larger batches of", largest_size.Found(28)) == ()


def test_one_size_that_was_not_tried_is_no_range():
    assert largest_size.may_fit_too("Micro batches of", largest_size.Found(1, range(2, 3))) == (
        "Micro batches of 2 were not tried, and may fit too.",)

"""Courses: a course of equal batches is the composed run, failures name their batch, and other settings are compared."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from predictor.allocator import AllocatorSettings
from predictor.allocator.simulate import Device
from predictor.answer.course_prediction import predict_course
from predictor.answer.loop_difference import KEEPING
from predictor.common.errors import InputError
from predictor.course import cures
from predictor.course.course import Chance, Failure, Request, Simulation
from predictor.course.cures import Setting
from predictor.course.evaluation import Evaluating
from predictor.course.intervals import exact
from predictor.course.parts import CutRun
from predictor.course.player import Player
from predictor.course.runs import Batch, BatchRuns
from predictor.course.sampler import Sampling
from predictor.events.sizes import Shape
from predictor.jobs import dispatch
from predictor.report.course import _advice, headline, sentences
from predictor.workload.samples import Samples
from predictor.workload.workload import Workload
from tests.predictor.small import small_llama

GIB = 1 << 30
LLAVA = {"model": "llava-1.5-7b", "sequence_length": 1024, "per_device_train_batch_size": 4, "profile": "none"}
JOBS = {
    "zero2": {"zero_stage": 2, "data_parallel_size": 8}, "zero2, accumulated": {
        "zero_stage": 2, "data_parallel_size": 8, "gradient_accumulation_steps": 5},
    "zero1": {"zero_stage": 1, "data_parallel_size": 8, "gradient_accumulation_steps": 3}, "lora": {"recipe": "lora"},
    "ddp": {"engine": "ddp", "data_parallel_size": 2, "gradient_accumulation_steps": 2},
    "late frees": {"zero_grad": "before_backward", "gradient_accumulation_steps": 2},
}


@pytest.mark.parametrize("keys", JOBS.values(), ids=JOBS)
def test_parts_of_one_run_in_turn_request_what_the_run_requests(keys):
    job = dispatch.prepare(Workload(**LLAVA, **keys))
    run, count = job.run(None), job.setup.gradient_accumulation_steps
    cut = CutRun(run.events, job.formula.micro, job.setup.micro_steps)
    player, peaks = Player(Device(AllocatorSettings())), []

    def sizes(rows: np.ndarray) -> np.ndarray:
        return run.row_bytes[run.events.buffers.size[rows]]

    player.play(cut.start, sizes)
    for step in range(1, 6):
        player.reset_peaks()
        parts = [cut.micro_step(step, index, count) for index in range(count)] + [cut.optimizer_step(step)]
        for part in parts:
            player.play(part, sizes, cut.first_only(part))
        peaks.append(player.state().peak_requested_bytes)
    expected = [int(run.live[run.events.step == step].max()) for step in (1, 2, 3)]
    assert peaks[:3] == expected and peaks[3:] == [expected[2]] * 2
    assert player.unmatched == 0


def lengths(count: int = 400, seed: int = 0, longest: int = 2048) -> Samples:
    tokens = np.clip(np.random.default_rng(seed).lognormal(6.9, 0.4, count).astype(int), 620, longest)
    return Samples(tokens, np.ones_like(tokens))


def simulation(**keys) -> Simulation:
    workload = Workload(**LLAVA | {"sequence_length": 2048, "zero_stage": 2, "data_parallel_size": 8} | keys)
    return Simulation(workload.fill(images_per_sample=1), lengths(), Request(steps=12, seeds=3))


def test_without_a_gpu_a_course_has_no_verdict_and_never_fails():
    course = simulation(rank=0).run()
    assert (course.verdict, course.failure, course.chance, course.trials, course.limit_bytes) == (None,) * 3 + ((), None)
    assert {len(column) for column in course.columns.values()} == {13}
    assert course.rank == 0 and course.steps_per_epoch == 13
    assert course.peak_reserved_bytes == max(course.columns["reserved_bytes"])


def test_the_first_failure_names_its_batch_and_the_chance_counts_seeds():
    free = simulation().run()
    short = simulation(capacity_bytes=free.peak_allocated_bytes + GIB // 2).run()
    failure, chance = short.failure, short.chance
    assert failure is not None and chance is not None and short.verdict == "does_not_fit"
    assert failure.step == len(short.columns["retries"]) - 1
    tokens = lengths().tokens[[number - 1 for number in failure.samples]]
    assert (len(tokens), failure.tokens, failure.images) == (4, tokens.max(), 4)
    assert failure.reserved_bytes + failure.requested_bytes > short.limit_bytes
    assert chance.failed == len(chance.failed_at) == len(chance.failed_seeds) == 3
    assert (chance.low, chance.high) == exact(3, 3)
    assert [trial.setting for trial in short.trials] == [cure.text for cure in cures.of(
        Setting("", None, Sampling()))]


def test_enough_memory_fits_and_needs_no_cure():
    course = simulation(capacity_bytes=80 * GIB).run()
    assert (course.verdict, course.failure, course.trials) == ("fits", None, ())
    assert course.chance is not None and (course.chance.failed, course.chance.low) == (0, 0.0)


def test_batches_in_the_file_s_order_have_no_chance():
    workload = Workload(**LLAVA | {"sequence_length": 2048}, capacity_bytes=20 * GIB).fill(images_per_sample=1)
    course = Simulation(workload, lengths(), Request(steps=3, sampling=Sampling("sequential"))).run()
    assert (course.verdict, course.chance) == ("does_not_fit", None)
    assert course.trials and all(trial.seeds == 0 for trial in course.trials)


def test_a_course_that_fails_is_told_by_its_failing_batch():
    workload = Workload(**LLAVA | {"sequence_length": 2048, "zero_stage": 2, "data_parallel_size": 8, "rank": 0})
    free = predict_course(workload.replace(capacity_bytes=80 * GIB), lengths(), Request(steps=12, seeds=1)).course
    short = workload.replace(capacity_bytes=free.peak_allocated_bytes + GIB // 2)
    prediction = predict_course(short, lengths(), Request(steps=12, seeds=1))
    failure, told = prediction.course.failure, prediction.out_of_memory
    assert prediction.workload["sequence_length"] == failure.tokens
    assert (told.step, told.rank, told.requested_bytes) == (failure.step, failure.rank, failure.requested_bytes)
    assert prediction.headroom_bytes is None


ON_RANK_0 = Workload(**LLAVA | {"sequence_length": 2048, "rank": 0, "zero_stage": 2, "data_parallel_size": 8})


def test_the_loops_of_a_course_are_courses_with_the_loop_s_keys():
    request = Request(steps=12)
    prediction = predict_course(ON_RANK_0, lengths(), request, loops=True)
    of_loop = {variant.loop.partition(" (keep_outputs ")[2]: variant.reserved_bytes for variant in prediction.loops}
    for keep in KEEPING:
        typed = predict_course(ON_RANK_0.replace(keep_outputs=keep), lengths(), request)
        assert of_loop[f"{keep})"] == typed.course.peak_reserved_bytes
    reserved = [variant.reserved_bytes for variant in prediction.loops]
    assert (prediction.reserved.low, prediction.reserved.high) == (min(reserved), max(reserved))
    assert reserved[0] == prediction.course.peak_reserved_bytes


def test_a_course_that_another_loop_ends_has_a_caution_that_says_where():
    """Between the most that both loops need, the assumed one runs and the other does not."""
    expandable = ON_RANK_0.replace(allocator_conf="expandable_segments:True")

    def needed(**keys) -> int:
        return predict_course(expandable.replace(**keys), lengths(), Request(steps=12)).course.peak_allocated_bytes
    middle = (needed() + needed(keep_outputs="next_forward")) // 2
    between = expandable.replace(capacity_bytes=simulation(rank=0).job.margin.capacity(middle))
    prediction = predict_course(between, lengths(), Request(steps=12, seeds=1))
    typed = predict_course(between.replace(keep_outputs="next_forward"), lengths(), Request(steps=12, seeds=1))
    (caution,) = prediction.cautions
    assert (prediction.verdict, typed.verdict) == ("fits", "uncertain")
    assert re.search(r"\(keep_outputs next_forward\), and then step [0-9]+ may run out of memory$", caution.text)
    assert caution.more_bytes >= needed(keep_outputs="next_forward") - needed()


def test_evaluations_are_as_long_as_their_own_samples():
    """Only a given ``sequence_length`` cuts them, not the longest sample of training."""
    workload = Workload(**LLAVA | {"sequence_length": None, "zero_stage": 2, "data_parallel_size": 8, "rank": 0})
    longer = lengths(longest=1800)

    def peak(**keys) -> int:
        asked = Request(steps=4, evaluating=Evaluating(2, longer, 2))
        return predict_course(workload.replace(**keys), lengths(longest=900), asked).course.peak_reserved_bytes
    assert peak() == peak(sequence_length=1800) > peak(sequence_length=900)


def test_a_longer_course_begins_with_the_shorter_one():
    workload = Workload(**LLAVA | {"sequence_length": 2048, "rank": 0, "zero_stage": 2, "data_parallel_size": 8}
                        ).fill(images_per_sample=1)
    short, long = (Simulation(workload, lengths(), Request(steps=steps)).run() for steps in (5, 9))
    assert long.columns["reserved_bytes"][:6] == short.columns["reserved_bytes"]


def test_a_prediction_has_the_course_and_its_reserved_memory():
    workload = Workload(**LLAVA | {"sequence_length": 1500, "zero_stage": 2, "data_parallel_size": 8},
                        capacity_bytes=80 * GIB)
    prediction = predict_course(workload, lengths(longest=1500), Request(epochs=0.5, seeds=1))
    course = prediction.course
    assert course is not None and course.steps == math.ceil(0.5 * course.steps_per_epoch)  # as the Trainer
    document = prediction.to_json()
    assert document["course"]["columns"]["reserved_bytes"] == list(course.columns["reserved_bytes"])
    assert document["peak_reserved_bytes"] == course.peak_reserved_bytes
    assert document["verdict"] == course.verdict == "fits"
    assert document["workload"]["sequence_length"] <= 1500


def test_a_packed_course_is_of_the_row_with_the_most_tokens(tmp_path, formula_cache):
    (tmp_path / "llama.json").write_text(json.dumps(small_llama()))
    workload = Workload(model=str(tmp_path / "llama.json"), padding="packed", per_device_train_batch_size=2,
                        sequence_length=256, profile="none", capacity_bytes=GIB)
    samples = Samples(np.arange(10, 80), np.zeros(70, int))
    prediction = predict_course(workload, samples, Request(steps=8, seeds=1, sampling=Sampling(packing="bfd")))
    assert prediction.course is not None
    assert prediction.peak_requested_bytes == max(prediction.course.columns["peak_requested_bytes"])
    assert json.loads(json.dumps(prediction.to_json()))["course"]["sampling"]["packing"] == "bfd"


def test_a_row_that_fails_is_told_by_its_samples_and_leads_to_its_prediction(tmp_path, formula_cache):
    (tmp_path / "llama.json").write_text(json.dumps(small_llama()))
    workload = Workload(model=str(tmp_path / "llama.json"), padding="packed", per_device_train_batch_size=1,
                        sequence_length=256, profile="none", capacity_bytes=GIB)
    samples, request = Samples(np.arange(10, 80), np.zeros(70, int)), Request(steps=4, seeds=1, sampling=Sampling(packing="bfd"))
    plain = predict_course(workload, samples, request).course
    capacity = GIB - plain.limit_bytes + plain.peak_allocated_bytes - 1
    prediction = predict_course(workload.replace(capacity_bytes=capacity), samples, request)
    failure, keys = prediction.course.failure, prediction.workload
    batch, length = keys["per_device_train_batch_size"], keys["sequence_length"]
    assert failure.packed and failure.tokens == sum(samples.tokens[number - 1] for number in failure.samples)
    assert (batch, length) == (len(failure.samples), math.ceil(failure.tokens / batch)) and batch > 1
    assert f"its batch is {batch} samples packed into one row of {failure.tokens} tokens" in sentences(prediction.course)[0]
    assert _advice(prediction)[-1].endswith(f"give --per-device-train-batch-size {batch} --sequence-length {length}.")


@pytest.mark.parametrize("keys, words", [
    ({"padding": "none"}, "packing bfd: .* padding is none: add padding packed"),
    ({"sequence_length": None}, "packing: needs sequence_length")])
def test_rows_to_pack_into_need_a_length_and_packed_samples(keys, words):
    workload = Workload(**LLAVA | {"sequence_length": 2048, "padding": "packed"} | keys)
    with pytest.raises(InputError, match=words):
        predict_course(workload, lengths(), Request(steps=2, sampling=Sampling(packing="bfd")))


@pytest.mark.parametrize("keys, words", [
    ({}, "--steps or --epochs"), ({"steps": 2, "epochs": 1.0}, "not both"), ({"steps": 0}, "steps 0"),
    ({"epochs": -1.0}, "epochs -1"), ({"steps": 5, "seeds": 0}, "seeds 0"),
    ({"steps": 5, "empty_cache_steps": -2}, "empty_cache_steps -2"), ({"steps": 5, "seeds": 10_001}, "at most 10,000"),
    ({"steps": 5, "seeds": 2, "sampling": Sampling("sequential")}, "the same with every seed"),
    ({"steps": 5, "sampling": Sampling(seed=-1)}, "seed -1: must be from 0 to 4294967295"),
    ({"steps": 5, "sampling": Sampling(seed=2**32)}, "seed 4294967296")])
def test_a_wrong_request_is_one_line(keys, words):
    with pytest.raises(InputError, match=words):
        Request(**keys)


@pytest.mark.parametrize("hits, trials, low, high", [
    (0, 10, 0.0, 1 - 0.025 ** (1 / 10)), (10, 10, 0.025 ** (1 / 10), 1.0), (5, 10, 0.1871, 0.8129), (1, 20, 0.0013, 0.2487)])
def test_the_interval_is_that_of_clopper_and_pearson(hits, trials, low, high):
    assert exact(hits, trials) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 200).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials))))
def test_the_interval_is_that_of_scipy(counted):
    expected = binomtest(*counted).proportion_ci(method="exact")
    assert exact(*counted) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_cures_leave_out_what_is_set_already():
    base = Setting("", None, Sampling())
    assert [cure.text for cure in cures.of(replace(base, conf="expandable_segments:True", empty_cache_steps=4))] == [
        "the longest batch first", "without torch_empty_cache_steps"]
    assert "max_split_size_mb:128" in [cure.text for cure in cures.of(base)]
    assert "the longest batch first" not in [cure.text for cure in cures.of(
        replace(base, sampling=Sampling(longest_first=True)))]


def test_a_batch_of_text_gets_the_images_of_the_shortest_sample_that_has_one_and_no_fewer_tokens():
    runs = Simulation(Workload(**LLAVA), Samples(np.array([60, 70, 900, 700]), np.array([0, 0, 2, 1])), Request(steps=1))._runs
    assert [runs.batch(np.array(indices)).shape for indices in ([0, 1], [0], [2, 0])] == [
        Shape(2, 700, 2), Shape(1, 700, 1), Shape(2, 900, 2)]


def test_batches_of_text_stay_without_images_where_images_train_nothing_and_in_a_dataset_of_text():
    some, none = Samples(np.array([60, 900]), np.array([0, 2])), Samples(np.array([60, 70]), np.array([0, 0]))
    frozen = Workload(**LLAVA | {"frozen": ["model.multi_modal_projector"]}).fill(images_per_sample=1)
    for workload, samples in ((frozen, some), (Workload(**LLAVA).fill(images_per_sample=0), none)):
        assert BatchRuns(workload, samples).batch(np.array([0])) == Batch(Shape(1, 60, 0), "none")


def test_pictures_that_fill_more_tokens_than_a_batch_keeps_are_refused():
    asked = Workload(model="qwen2.5-vl-7b", recipe="lora", sequence_length=255, profile="none").fill(images_per_sample=1)
    runs = BatchRuns(asked, Samples(np.array([255]), np.array([1]), (((448, 448),),)))
    with pytest.raises(InputError, match="no room for pictures that fill 256: .* let sequence_length leave 257"):
        runs.job(runs.batch(np.array([0])))


def test_idle_memory_is_in_pieces_only_if_one_piece_of_it_would_do():
    failure = Failure(0, 0, 0, 1, (), 0, 0, "init", "", "to", 3 * GIB, GIB, 2 * GIB)
    said = " ".join(sentences(replace(Simulation(Workload(**LLAVA), lengths(), Request(steps=1)).run(), failure=failure)))
    assert "of 2.00 GiB reserved 1.00 GiB are idle." in said


def test_start_up_that_reserves_more_than_the_steps_is_told():
    course = Simulation(Workload(**LLAVA), lengths(), Request(steps=1)).run()
    most, *others = course.columns["peak_reserved_bytes"]
    said = sentences(replace(course, columns=course.columns | {"peak_reserved_bytes": (100 * GIB, *others)}))[0]
    assert "(in start-up 100.00 GiB)" in said and most < others[0] and "start-up" not in sentences(course)[0]


def test_one_step_and_one_sample_are_singular():
    course = Simulation(Workload(**LLAVA), lengths(), Request(steps=1)).run()
    failure = Failure(0, 1, 1, 1, (7,), 900, 1, "forward", "", "to", 3 * GIB, GIB, 2 * GIB)
    chance = Chance(2, 1, 0.1, 0.9, (1,), (42,))
    said = " ".join(sentences(replace(course, failure=failure, chance=chance, eval_steps=1, eval_batches=1)))
    assert "1 x 900 tokens, 1 image (sample 7)." in said and "within 1 step," in said
    assert "After every step 1 batch is evaluated." in said


def test_a_dataset_of_text_trains_no_projector():
    asked = Workload(**LLAVA | {"recipe": "pretrain"})
    with pytest.raises(InputError, match="nothing that trains gets a gradient"):
        predict_course(asked, Samples(np.full(8, 60), np.zeros(8, dtype=np.int64)), Request(steps=1))


def test_batches_of_text_get_images_where_weights_are_sharded():
    frozen = Workload(**LLAVA | {"frozen": ["model.multi_modal_projector"], "engine": "fsdp2"}).fill(images_per_sample=1)
    runs = BatchRuns(frozen, Samples(np.array([60, 900]), np.array([0, 2])))
    assert runs.batch(np.array([0])).shape == Shape(1, 900, 2)


def test_a_course_that_runs_names_the_seeds_that_do_not():
    course = Simulation(Workload(**LLAVA, gpu="a100-80gb"), lengths(), Request(steps=1)).run()
    changed = replace(course, chance=Chance(6, 1, 0.03, 0.56, (7,), (3,)))
    assert headline(changed).startswith("The only step runs with seed 42, but 1 of 6 seeds runs out of memory: ")

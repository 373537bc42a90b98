"""Learning from recorded jobs: alignment, sizes, factors, the file, and jobs that are rejected."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest

from calibrate.commands import learn as command
from calibrate.commands.learn import check_placeholders
from calibrate.job.factors import NEVER, BufferLife, factor_of
from calibrate.learn import learn, recorded_job, sizes
from calibrate.learn.align import groups
from calibrate.learn.jobs import PLACEHOLDERS, RecordCache, ScriptSource, WorkloadSource
from calibrate.learn.shapes import plan
from predictor import Workload, predict
from predictor.cli import main
from predictor.common import storage
from predictor.common.errors import InputError
from predictor.common.gpus import find
from predictor.events.events import Factor, Moment
from predictor.events.sizes import Monomial, Shape
from predictor.formula import learned
from predictor.formula.fit import monomials, solver
from predictor.formula.learned_terms import Interpolated, Rounded
from tests.calibrate.learn_jobs import Source, job
from tests.predictor.small_models import ALL, MEDIA

SHAPES = [(2, 64), (3, 96), (4, 128), (2, 128), (4, 64), (3, 64), (2, 96), (4, 96)]
H100 = find("h100-80gb")


def made(jobs):
    found, differences = groups(jobs)
    return learn.assemble(Source(), found, differences, jobs)


def on_disk(tmp_path, jobs=None) -> str:
    path = str(tmp_path / "mine.npz")
    learned.save(path, made(jobs or [job(*shape) for shape in SHAPES]))
    return path


def size_at(size, shapes, where: Shape) -> int:
    """Bytes at a shape of one size that was fitted to a function of it."""
    _, table, _ = sizes.fit([tuple(size(shape) for shape in shapes)], shapes)
    return int(table.at(where, H100)[0])


# sizes ------------------------------------------------------------------------------------------------

def test_a_polynomial_is_found_and_holds_elsewhere():
    shapes = [Shape(b, s, 0) for b, s in SHAPES]
    assert size_at(lambda p: 7 + 3 * p.batch * p.sequence**2 + p.batch, shapes, Shape(9, 500, 0)) == \
        7 + 3 * 9 * 500**2 + 9


def test_a_sequence_that_is_rounded_up_is_found():
    shapes = [Shape(b, s - 5, 0) for b, s in SHAPES]
    assert size_at(lambda p: 4 * p.batch * (-(-p.sequence // 128) * 128), [*shapes, Shape(2, 300, 0)],
                   Shape(5, 513, 0)) == 4 * 5 * 640


def test_what_nothing_explains_is_interpolated_and_its_error_stated():
    shapes = [Shape(2, s, 0) for s in (10, 20, 30, 40, 50)]
    row, table, guesses = sizes.fit([(1000, 2000, 3500, 4000, 5000)], shapes)
    guess = guesses[int(row[0])]
    assert guess.error_bytes == 500 and int(table.at(Shape(2, 25, 0), H100)[0]) == 2750


def test_recorded_sizes_are_reproduced_even_when_interpolated():
    shapes = [Shape(b, s, 0) for b, s in SHAPES]
    versions = tuple(int(v) for v in np.random.default_rng(0).integers(1, 1 << 30, len(shapes)))
    row, table, _ = sizes.fit([versions], shapes)
    assert [int(table.at(shape, H100)[row[0]]) for shape in shapes] == list(versions)


def test_a_term_counts_from_the_rounded_sequence():
    assert Rounded((1, 2, 0), 64)((3, 65, 1)) == 3 * 128**2


def test_beyond_the_points_the_last_line_goes_on():
    line = Interpolated((0, 1, 0), ((10, 100), (20, 300)))
    assert [line((1, s, 1)) for s in (5, 10, 15, 25)] == [0, 100, 200, 400]


@pytest.mark.parametrize("batches, sequences, images", [
    ((2, 3, 4), (64, 128, 192, 256), (1,)), ((2, 4), (64, 128, 192), (1,)), ((2, 3, 4), (640, 704, 768), (1, 2))])
def test_planned_shapes_tell_every_monomial_apart_and_leave_one_to_check(batches, sequences, images):
    shapes = plan(batches, sequences, images, probe=True).shapes
    many = [shape for shape in shapes if shape.batch > 1]
    terms = monomials(many)
    assert solver(many, terms) is not None and len(many) > len(terms)


def planned(*words: str):
    """The plan of a workload's options."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command._workload(parser.parse_known_args(words)[0])[1]


def small(tmp_path, name: str) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps((ALL | MEDIA)[name]))
    return str(path)


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "whisper"])
def test_a_model_without_images_is_learned_without(tmp_path, name):
    shapes = planned(small(tmp_path, name), "--sequence-length", "64").shapes
    assert len(shapes) > 8 and {shape.images for shape in shapes} == {0}


@pytest.mark.parametrize("name", ["resnet", "mobilenet_v2"])
def test_a_model_without_tokens_is_learned_without(tmp_path, name):
    shapes = planned(small(tmp_path, name), "--no-gradient-checkpointing").shapes
    assert shapes == tuple(Shape(batch, 0, batch) for batch in (2, 3, 4, 1))


def test_no_job_is_longer_than_the_positions_that_a_model_knows():
    asked = planned("gpt2", "--sequence-length", "1024")
    assert max(shape.sequence for shape in asked.shapes) == 1024 == asked.longest


@pytest.mark.parametrize("words", [["--sequence-length", "2000"], ["--sequences", "512,2000"]])
def test_more_tokens_than_a_model_knows_positions_are_refused_before_a_job_runs(words):
    with pytest.raises(InputError, match="sequence_length 2000: the model knows 1,024 positions only"):
        planned("gpt2", *words)


def test_images_are_refused_where_a_model_takes_none():
    with pytest.raises(InputError, match="images_per_sample 2: gpt2 takes no images; leave it out"):
        planned("gpt2", "--sequence-length", "64", "--images", "2")


def test_without_a_length_it_says_what_is_missing():
    with pytest.raises(InputError, match="sequence_length is not given"):
        planned("gpt2")


def test_the_batch_of_a_workloads_file_stays(tmp_path):
    (tmp_path / "asked.yaml").write_text("model: gpt2\nsequence_length: 64\nper_device_train_batch_size: 9\n")
    assert max(shape.batch for shape in planned("--workload", str(tmp_path / "asked.yaml")).shapes) == 9


@pytest.mark.parametrize("longest, sequences", [(None, {160, 128, 192, 224}), (130, {130, 128})])
def test_larger_shapes_stay_within_the_positions_that_a_model_knows(longest, sequences):
    other = job(4, 128, operators=["aten::op0", "aten::sort", "aten::op2"])
    found, _ = groups([*(job(*shape) for shape in SHAPES[:2]), other])
    assert {shape.sequence for shape in learn.larger_shapes(found, longest)} == sequences


def test_larger_batches_are_tried_where_samples_have_no_tokens():
    other = job(4, 0, images=4, operators=["aten::op0", "aten::sort", "aten::op2"])
    found, _ = groups([*(job(batch, 0, images=batch) for batch in (2, 3)), other])
    assert learn.larger_shapes(found) == [Shape(batch, 0, batch) for batch in (5, 6, 7)]


# alignment --------------------------------------------------------------------------------------------

def test_frees_in_a_row_may_come_in_any_order():
    other = job(3, 96, events=[(1, 0), (1, 1), (1, 2), (-1, 2), (-1, 1)])
    found, differences = groups([job(2, 64), other])
    assert len(found) == 1 and differences == [] and found[0].moved_frees == 0


def test_other_streams_may_use_buffers_in_any_order():
    first, second = ([(1, 0), (1, 1), (1, 2), (17, a), (17, b), (-1, 1), (-1, 2)] for a, b in ((1, 2), (2, 1)))
    found, _ = groups([job(2, 64, events=first), job(3, 96, events=second)])
    assert len(found) == 1 and found[0].jobs[0].kind.tolist() == [1, 1, 1, 17, -1, 17, -1]


def test_the_same_operators_on_other_buffers_are_another_list():
    operators = ["aten::op"] * 3
    events = [(1, 0), (1, 1), (17, 0), (1, 2), (-1, 1), (-1, 2)], [(1, 0), (1, 1), (17, 1), (1, 2), (-1, 1), (-1, 2)]
    found, differences = groups([job(2, 64, events=e, operators=operators) for e in events])
    assert len(found) == 2 and "on other buffers" in differences[0]


def test_a_buffer_that_is_freed_at_another_point_is_held_until_the_latest():
    events = [(1, 0), (1, 1), (-1, 1), (1, 2), (-1, 2)]
    found, _ = groups([job(2, 64), job(3, 96, events=events)])
    assert len(found) == 1 and found[0].moved_frees == 1
    assert [run.kind.tolist() for run in found[0].jobs] == [[1, 1, 1, -1, -1]] * 2


def test_another_list_becomes_its_own_and_the_first_difference_is_told():
    other = job(1, 64, operators=["aten::op0", "aten::clone", "aten::op2"])
    found, differences = groups([job(2, 64), job(2, 96), other])
    assert [len(group.jobs) for group in found] == [2, 1]
    assert "1 x 64 tokens" in differences[0] and "allocation 2" in differences[0] and "aten::clone" in differences[0]


# factors ----------------------------------------------------------------------------------------------

INIT, FORWARD, BACKWARD, STEP, *_ = Moment


@pytest.mark.parametrize("factor, changes", [
    (Factor.PARAMETERS, {"born": (0, INIT), "died": NEVER}),
    (Factor.INPUTS, {"operator": "aten::to", "inside": False, "born": (1, FORWARD), "died": (2, FORWARD)}),
    (Factor.TEMPORARIES, {"brief": True}),
    (Factor.ACTIVATIONS, {}),
    (Factor.ACTIVATIONS, {"born": (1, BACKWARD), "died": (1, BACKWARD)}),  # recomputed
    (Factor.TEMPORARIES, {"born": (1, BACKWARD), "died": (1, BACKWARD), "inside": False}),
    (Factor.GRADIENTS, {"born": (1, BACKWARD), "died": (1, STEP), "inside": False}),
    (Factor.TEMPORARIES, {"died": NEVER}),  # cuBLAS keeps its workspace
    (Factor.OPTIMIZER_STATES, {"born": (1, STEP), "died": NEVER, "inside": False}),
    (Factor.TEMPORARIES, {"born": (1, STEP), "died": (1, STEP), "inside": False}),
    (Factor.COMMUNICATION, {"born": (1, BACKWARD), "died": (1, BACKWARD), "inside": False,
                            "stack": ("deepspeed/runtime/zero/stage_1_and_2.py:allreduce_bucket",)}),
    (Factor.COMMUNICATION, {"born": (0, INIT), "died": NEVER, "inside": False,
                            "stack": ("torch/nn/parallel/distributed.py:_ddp_init_helper",)}),
    (Factor.OPTIMIZER_STATES, {"operator": "aten::_to_copy", "born": (0, INIT), "died": NEVER, "inside": False,
                               "stack": ("deepspeed/runtime/zero/stage_1_and_2.py:__init__",)}),
    (Factor.OPTIMIZER_STATES, {"operator": "aten::clone", "born": (0, INIT), "died": NEVER, "inside": False,
                               "stack": ("deepspeed/runtime/zero/stage3.py:_create_fp32_partitions",)}),
    (Factor.TEMPORARIES, {"died": NEVER, "stack": ("deepspeed/runtime/zero/linear.py:forward",)}),
    (Factor.PARAMETERS, {"stack": ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py:alloc_storage",)}),
    (Factor.COMMUNICATION, {"died": (1, FORWARD), "stack": (
        "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:foreach_all_gather",)}),
    (Factor.GRADIENTS, {"born": (1, BACKWARD), "died": (1, STEP), "stack": (
        "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:foreach_reduce",)}),
])
def test_a_buffers_life_says_what_it_is_for(factor, changes):
    life = {"operator": "aten::mm", "module": "", "born": (1, FORWARD), "died": (1, BACKWARD), "brief": False,
            "inside": True, "stack": (), "is_parameter": False, "is_gradient": False}
    assert factor_of(BufferLife(**life | changes)) is factor


def test_a_noted_gradient_is_one_whenever_it_dies():
    life = BufferLife("aten::mm", "", (1, BACKWARD), (1, BACKWARD), True, False, (), False, True)
    assert factor_of(life) is Factor.GRADIENTS


# recording --------------------------------------------------------------------------------------------

def test_what_was_recorded_is_not_recorded_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path))
    shelf = RecordCache(ScriptSource(command=("no-such-command",), gpu="h100-80gb", capacity_bytes=None, world_size=1, pretends=False,
                               rank=0))
    shelf.directory.mkdir(parents=True)
    recorded_job.save(shelf.directory / "2-64-0.npz", job(2, 64))
    assert shelf.get(Shape(2, 64, 0)).peaks == job(2, 64).peaks  # the command would leave no record
    shelf.clear()
    with pytest.raises(InputError, match="command not found"):
        shelf.get(Shape(2, 64, 0))


def test_without_a_home_what_is_recorded_lies_in_a_directory_of_this_process(monkeypatch):
    monkeypatch.setattr("predictor.common.storage.cache_directory", lambda: None)
    shelf = RecordCache(ScriptSource(command=("no-such-command",), gpu="h100-80gb", capacity_bytes=None, world_size=1, pretends=False,
                               rank=0))
    shelf.directory.mkdir(parents=True)
    recorded_job.save(shelf.directory / "2-64-0.npz", job(2, 64))
    assert shelf.get(Shape(2, 64, 0)).peaks == job(2, 64).peaks
    assert shelf.directory.is_relative_to(storage.private_directory())
    shelf.clear()
    assert not shelf.directory.exists()


# the file and what it answers -------------------------------------------------------------------------

def test_the_maximum_load_of_a_learned_formula_fits_and_the_next_larger_does_not(tmp_path):
    asked = Workload(model=on_disk(tmp_path), per_device_train_batch_size=3, sequence_length=120, profile="none",
                     gpu="h100-80gb", capacity_bytes=(1 << 30) + (200 << 20))
    found = predict(asked, maximum_load=True).maximum_load
    for key in ("per_device_train_batch_size", "sequence_length"):
        most = getattr(found, key)
        assert [predict(asked.replace(**{key: size})).verdict == "fits" for size in (most, most + 1)] == [True, False]
    assert (f"Batch {found.per_device_train_batch_size:,} is less sure (extrapolated: batch "
            f"{found.per_device_train_batch_size:,} is outside the recorded 2 to 4).") in found.search_limits


def test_the_maximum_load_of_a_formula_learned_at_one_shape_says_that_others_are_not_predicted(tmp_path):
    asked = Workload(model=on_disk(tmp_path, [job(2, 64)]), per_device_train_batch_size=2, sequence_length=64,
                     profile="none", gpu="h100-80gb")
    found = predict(asked, maximum_load=True).maximum_load
    assert (found.per_device_train_batch_size, found.sequence_length) == (2, 64)
    assert [line.partition(" are not predicted")[0] for line in found.search_limits] == ["Larger batches", "Longer sequences"]


def test_a_learned_formula_answers_at_a_shape_that_was_not_recorded(tmp_path):
    answer = predict(Workload(model=on_disk(tmp_path), per_device_train_batch_size=3, sequence_length=120,
                              profile="none"))
    assert answer.peak_requested_bytes == 4096 + 8 * 3 * 120 + 1000 * 3 + 16 * 3 * 120**2


@pytest.fixture
def without_tokens(tmp_path) -> str:
    return on_disk(tmp_path, [job(batch, 0, images=batch, sizes=[4096, 8 * batch, 1000 * batch]) for batch in
                              (2, 3, 4)])


def test_what_was_learned_without_tokens_is_asked_without(without_tokens):
    answer = predict(Workload(model=without_tokens, per_device_train_batch_size=9, profile="none"))
    assert answer.peak_requested_bytes == 4096 + 1008 * 9
    assert (answer.workload["sequence_length"], answer.workload["images_per_sample"]) == (None, 1)


def test_tokens_are_refused_where_none_were_learned(without_tokens):
    with pytest.raises(InputError, match="sequence_length: .*was learned from a command without {sequence}: leave it"):
        predict(Workload(model=without_tokens, sequence_length=64))


def test_a_record_comes_back_as_it_was_saved(tmp_path):
    recorded_job.save(tmp_path / "job.npz", job(2, 64))
    again = recorded_job.load(tmp_path / "job.npz")
    assert again.shape == Shape(2, 64, 0) and again.size.tolist() == job(2, 64).size.tolist()


def test_the_file_comes_back_as_it_was_saved(tmp_path):
    path = on_disk(tmp_path, [*(job(*shape, sizes=[4096, 3, shape[0] ** 3 + shape[1] ** 4]) for shape in SHAPES)])
    again = learned.load(path)
    assert learned.to_bytes(again) == (tmp_path / "mine.npz").read_bytes()
    assert again.lists[0].interpolated[0]["operator"] == "aten::op2"


def test_a_key_that_would_change_the_job_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match="zero_stage 2: .*decides zero_stage itself"):
        predict(Workload(model=on_disk(tmp_path), sequence_length=64, per_device_train_batch_size=2, zero_stage=2))


def test_a_gpu_with_other_kernels_is_refused(tmp_path):
    with pytest.raises(InputError, match="learned on h100-80gb"):
        predict(Workload(model=on_disk(tmp_path), sequence_length=64, per_device_train_batch_size=2, gpu="a100-40gb"))


def test_a_formula_is_learned_of_one_picture_size():
    with pytest.raises(InputError, match="image_size 448,336: a formula is learned of one size"):
        WorkloadSource.of(Workload(model="qwen2.5-vl-3b", image_size="448,336", sequence_length=512), None, ())


def test_one_sample_is_not_answered_from_many(tmp_path):
    with pytest.raises(InputError, match="per_device_train_batch_size 1 .*learned from batches 2, 3, 4"):
        predict(Workload(model=on_disk(tmp_path), sequence_length=64))


def test_what_never_varied_cannot_be_asked_otherwise(tmp_path):
    path = on_disk(tmp_path, [job(2, sequence) for sequence in (64, 96, 128)])
    with pytest.raises(InputError, match="per_device_train_batch_size 3: learned at 2 only"):
        predict(Workload(model=path, sequence_length=64, per_device_train_batch_size=3))


def test_an_answer_outside_the_recorded_shapes_says_so(tmp_path):
    answer = predict(Workload(model=on_disk(tmp_path), sequence_length=512, per_device_train_batch_size=2))
    assert any("extrapolated: sequence 512 is outside the recorded 64 to 128" in note for note in answer.not_modelled)
    assert answer.assumptions[0].startswith("Extrapolated: sequence 512 is outside the recorded 64 to 128")


def test_intervals_hold_only_where_shapes_are_like_the_recorded_ones(tmp_path):
    # embedding's backward, for one, sorts its indices from 3,073 tokens on: a list without that allocates less
    path = on_disk(tmp_path)
    inside, beyond = (predict(Workload(model=path, sequence_length=sequence, per_device_train_batch_size=3,
                                       gpu="h100-80gb")) for sequence in (96, 1024))
    assert inside.peak_reserved_bytes_low < inside.peak_reserved_bytes < inside.peak_reserved_bytes_high
    assert beyond.peak_reserved_bytes_low is None and beyond.provenance["profile"]["level"] == {}
    assert any(note.startswith("no interval holds") for note in beyond.not_modelled)


@pytest.mark.parametrize("word, right", [("{Batch}", "batch"), ("--length={seq}", "sequence"), ("{image}", "images")])
def test_a_mistyped_placeholder_is_refused_with_the_right_one(capsys, word, right):
    assert main(["learn", "-o", "x.npz", "--", "python", "train.py", word]) == 2
    assert f'is no placeholder (did you mean "{right}"?): they are {{batch}}, {{sequence}}, {{images}}' in \
        capsys.readouterr().err


def test_inference_is_not_learned(capsys):
    assert main(["learn", "llama-3.1-8b", "--mode", "inference", "--sequence-length", "50", "-o", "x.npz"]) == 2
    assert capsys.readouterr().err == ("peakcast: error: mode inference: formulas are learned of training: use peakcast "
                                       "predict, or peakcast measure\n")


def test_other_braces_are_the_scripts_own():
    check_placeholders(["{foo}", "${BATCH}", '{"batch": 2}', "{batch}x{sequence}"], PLACEHOLDERS)


def test_more_gpus_than_were_recorded_are_refused_by_the_formula(tmp_path):
    with pytest.raises(InputError, match="data_parallel_size 4: .*decides data_parallel_size itself; leave it out"):
        predict(Workload(model=on_disk(tmp_path), sequence_length=64, data_parallel_size=4))


def test_a_sequence_between_the_multiples_that_were_recorded_says_so(tmp_path):
    answer = predict(Workload(model=on_disk(tmp_path), sequence_length=88, per_device_train_batch_size=2))
    assert any("multiples of 32, 88 is not" in note for note in answer.not_modelled)


def test_one_shape_is_a_replay_and_says_so(tmp_path):
    answer = predict(Workload(model=on_disk(tmp_path, [job(2, 64)]), sequence_length=64, per_device_train_batch_size=2))
    assert any("replay" in note for note in answer.not_modelled)


def test_another_list_answers_where_it_was_recorded(tmp_path):
    alone = [job(1, s, operators=["aten::op0", "aten::clone", "aten::op2"], sizes=[4096, 99 * s, 8]) for s in
             (64, 96, 128)]
    path = on_disk(tmp_path, [*(job(*shape) for shape in SHAPES), *alone])
    answer = predict(Workload(model=path, sequence_length=100, profile="none"))
    assert answer.peak_requested_bytes == 4096 + 99 * 100 + 8


@pytest.mark.parametrize("damage", [
    lambda e: e.kind.__setitem__(3, 5), lambda e: e.buffer.__setitem__(1, 99), lambda e: e.buffer.__setitem__(3, 2),
    lambda e: e.moment.__setitem__(0, 7), lambda e: e.buffers.size.__setitem__(0, 50)])
def test_a_file_that_contradicts_itself_is_refused(tmp_path, damage):
    broken = made([job(*shape) for shape in SHAPES])
    damage(broken.lists[0].events)
    learned.save(tmp_path / "broken.npz", broken)
    with pytest.raises(InputError, match="not a learned formula, or damaged"):
        learned.load(tmp_path / "broken.npz")


def test_a_cut_off_file_is_refused(tmp_path):
    path = on_disk(tmp_path)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "mine.npz").read_bytes()[:500])
    with pytest.raises(InputError, match="not a learned formula"):
        learned.load(path.replace("mine", "cut"))


def test_terms_are_those_of_the_shape():
    _, table, _ = sizes.fit([tuple(8 * b * s for b, s in SHAPES)], [Shape(b, s, 0) for b, s in SHAPES])
    assert table.terms == (Monomial((0, 0, 0)), Monomial((1, 1, 0)))

"""Messages and records of a training. No test here runs on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from calibrate.campaign import user_records as given_records
from calibrate.records.moment_peaks import MomentPeaks
from calibrate.records.record import InTraining, Predicted, PredictedMoment, RankChoice, read
from calibrate.records.record import Peak as RecordedPeak
from calibrate.regression import files
from calibrate.training import background_prediction, reading, training_record
from calibrate.training.memory_warning import DeviceMemory, low_memory
from calibrate.training.memory_warning import advice as advice_of
from calibrate.training.messages import RankMessages
from calibrate.training.phase_peaks import Boundaries, RunningPeaks
from calibrate.training.predictions import TrainingPredictions
from calibrate.training.watcher import Watcher
from predictor import Workload
from predictor.common.errors import InputError
from predictor.events.events import Moment
from predictor.model import models
from tests.calibrate.small_jobs import ROOT, record, sample

GIB = 1 << 30


def test_importing_calibrate_imports_neither_torch_nor_transformers():
    code = "import calibrate, sys; assert not {'torch', 'transformers', 'numpy'} & set(sys.modules); calibrate.nothing"
    job = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "AttributeError: module 'calibrate' has no attribute 'nothing'" in job.stderr


# --- what is said ---------------------------------------------------------------------------------------


SAID = background_prediction.Answer("fits", "Fits.", "text", (), Predicted(RecordedPeak(1, Moment.BACKWARD, 2), ()))


@pytest.fixture
def asked(monkeypatch):
    """Questions of the predicting process, each answered by its tokens: more than 100 do not fit."""
    questions = []

    def answer(question):
        questions.append(question)
        tokens = question.workload["sequence_length"]
        verdict = "fits" if tokens <= 100 else "does_not_fit"
        return replace(SAID, verdict=verdict, line=f"{tokens} {verdict}.", advice=() if verdict == "fits" else ("less",),
                       predicted=Predicted(RecordedPeak(tokens, Moment.BACKWARD, 2), ()))

    monkeypatch.setattr(background_prediction, "ask", answer)
    return questions


def foresight(lines: list[str], rank: int = 0, show: str = "line") -> TrainingPredictions:
    return TrainingPredictions(RankMessages(lines.append, rank), show, speaks=rank == 0)


READ = reading.Reading({"model": "llava-1.5-7b"}, {})


def test_only_larger_batches_are_predicted_and_a_danger_is_said_once(asked):
    lines: list[str] = []
    ahead_of = foresight(lines)
    ahead_of.start(lambda: READ, lambda: sample(tokens=64))
    for tokens in (64, 32, 90, 64, 120, 130):
        ahead_of.before_batch(sample(tokens=tokens))
    assert [question.workload["sequence_length"] for question in asked] == [64, 90, 120, 130]
    assert lines == ["64 fits.", "warning: the next batch, 2 x 120 tokens: 120 does_not_fit. Less memory: less"]
    assert ahead_of.largest == ("2 x 130 tokens",)
    assert ahead_of.for_record(may_predict=True)[0].sequence_length == 130


def test_the_record_is_of_the_largest_batch_that_ran_not_of_the_first_samples(asked):
    ahead_of = foresight([])
    ahead_of.start(lambda: READ, lambda: sample(tokens=90))
    ahead_of.before_batch(sample(tokens=64))
    workload, predicted, why = ahead_of.for_record(may_predict=True)
    assert (workload.sequence_length, predicted.peak_requested.bytes, why) == (64, 64, None)


def test_other_ranks_say_only_what_threatens_their_own_batches(asked):
    lines: list[str] = []
    ahead_of = foresight(lines, rank=3)
    ahead_of.start(lambda: READ, lambda: sample(tokens=128))
    assert lines == [] and not asked[0].worst
    ahead_of.before_batch(sample(tokens=256))
    assert lines[0].startswith("rank 3: warning: the next batch, 2 x 256 tokens")


@pytest.mark.parametrize(("show", "expected"), [("line", ["64 fits."]), ("full", ["\ntext"]), ("nothing", [])])
def test_how_much_is_said_is_the_users_choice(asked, show, expected):
    lines: list[str] = []
    foresight(lines, show=show).start(lambda: READ, lambda: sample(tokens=64))
    assert lines == expected


def test_a_given_workload_needs_no_batch_and_is_warned_of_larger_ones(asked):
    lines: list[str] = []
    ahead_of = foresight(lines)
    own = Workload(model="llava-1.5-7b", sequence_length=64, per_device_train_batch_size=2)
    ahead_of.start(lambda: reading.from_workload(own, None), lambda: pytest.fail("no batch is needed"))
    ahead_of.before_batch(sample(tokens=64))
    ahead_of.before_batch(sample(tokens=128))
    assert [question.workload["sequence_length"] for question in asked] == [64, 128]


def test_the_predicting_process_answers_in_the_predictors_words():
    keys = Workload(model="llava-1.5-7b", per_device_train_batch_size=16, sequence_length=1024, zero_stage=2, data_parallel_size=8,
                    rank=7, gpu="a100-40gb").resolved()
    found = background_prediction.ask(background_prediction.Question(keys, worst=True))
    assert found.verdict == "fits" and found.line.startswith("Fits a100-40gb: peak 33.60 GiB allocated")
    with pytest.raises(InputError, match="no-such-model"):
        background_prediction.ask(background_prediction.Question({"model": "no-such-model"}))


def test_danger_is_less_left_than_what_predict_calls_uncertain():
    calm = DeviceMemory(total=80 * GIB, others=GIB, allocated=70 * GIB, reserved=78 * GIB, retries=0)
    assert low_memory(calm) is None
    assert "1023.00 MiB were left" in low_memory(replace(calm, others=GIB + (1 << 20))).replace(",", "")
    assert "gave cached memory back 2 time(s)" in low_memory(replace(calm, retries=2))
    assert "expandable_segments:True (8.00 GiB are reserved and idle)" in advice_of(calm, None)


CALM = DeviceMemory(total=80 * GIB, others=GIB, allocated=GIB, reserved=GIB, retries=0)
ROWS = PredictedMoment(1, Moment.BACKWARD, 7), PredictedMoment(3, Moment.EVALUATION, 9)
EVALUATES = replace(SAID, predicted=Predicted(RecordedPeak(9, Moment.EVALUATION, 3), ROWS))


# --- the Trainer's evaluation ---------------------------------------------------------------------------


@pytest.mark.parametrize("predicted", [True, False])
def test_a_record_is_written_again_after_an_evaluation_if_that_is_predicted(tmp_path, monkeypatch, predicted):
    monkeypatch.setattr(background_prediction, "ask", lambda question: EVALUATES)
    monkeypatch.setattr(training_record, "record", lambda recorded, **values: values["in_training"])
    monkeypatch.setattr(training_record, "write", lambda path, made: wrote.append((made.steps, made.evaluations)))
    wrote: list[tuple] = []
    watcher = Watcher(loop="watch", record=str(tmp_path / "run.json"), steps=1, show="nothing", snapshot=None, tell=print)
    own = Workload(model="llava-1.5-7b", sequence_length=64, per_device_eval_batch_size=6 if predicted else None)
    watcher.begin(lambda: reading.from_workload(own, None), None, None, 0, 1, 1)
    watcher._peaks, watcher._ooms_before, watcher._device_memory = RunningPeaks(Counted()), 0, lambda: CALM
    watcher._boundaries = SimpleNamespace(close=lambda: None)
    model = torch.nn.Linear(1, 1)
    for follows in (False, True, False):
        watcher._before_forward(model.train(), (), sample())
        watcher.step(follows)
        if follows:
            watcher._before_forward(model.eval(), (), sample(6, 64, 6))
            watcher.micro_step()
    assert wrote == [(1, ()), (2, ("6 x 64 tokens",))][:1 + predicted]


def test_before_its_evaluation_a_training_is_recorded_without_it(monkeypatch):
    monkeypatch.setattr(background_prediction, "ask", lambda question: EVALUATES)
    found = foresight([])
    own = Workload(model="llava-1.5-7b", sequence_length=64, per_device_train_batch_size=2, per_device_eval_batch_size=6)
    found.start(lambda: reading.from_workload(own, None), lambda: None)
    found.before_batch(sample(tokens=64))
    workload, said, _ = found.for_record(may_predict=False)
    assert (workload.per_device_eval_batch_size, said) == (None, Predicted(RecordedPeak(7, Moment.BACKWARD, 1), ROWS[:1]))
    found.before_evaluation(sample(6, 64, 6))
    found.before_evaluation(sample(2, 64, 2))
    workload, said, _ = found.for_record(may_predict=False)
    assert (workload.per_device_eval_batch_size, said.peak_requested.bytes, found.evaluations) == (6, 9, ("6 x 64 tokens",))


def test_a_record_of_another_evaluation_than_the_workloads_is_refused():
    keys = {"model": "llava-1.5-7b", "sequence_length": 64, "per_device_eval_batch_size": 6}
    own = replace(TRAINED, evaluations=("6 x 64 tokens",))
    record(workload=keys, in_training=own).check_shapes()
    with pytest.raises(InputError, match="batches of 6 x 80 tokens were evaluated, but the workload has per_device_eval_batch_size 6"):
        record(workload=keys, in_training=replace(own, evaluations=("6 x 80 tokens",))).check_shapes()
    with pytest.raises(InputError, match="batches of 6 x 64 tokens were evaluated, but .* None"):
        record(workload=keys | {"per_device_eval_batch_size": None}, in_training=own).check_shapes()


# --- what is kept ---------------------------------------------------------------------------------------


class Counted:
    """Counters as a test sets them."""

    def __init__(self) -> None:
        self.requested = self.reserved = 0

    def statistics(self) -> dict[str, int]:
        return {"requested_bytes.all.peak": self.requested, "allocated_bytes.all.peak": self.requested,
                "reserved_bytes.all.peak": self.reserved}


def test_a_moment_has_a_row_if_it_raised_a_counter():
    counters = Counted()
    peaks = RunningPeaks(counters)
    for moment, step, requested, reserved in ((Moment.FORWARD, 1, 10, 20), (Moment.BACKWARD, 1, 30, 40), (Moment.FORWARD, 2, 30, 40),
                                              (Moment.BACKWARD, 2, 35, 40), (Moment.BACKWARD, 3, 35, 40)):
        peaks.enter(moment, step)
        counters.requested, counters.reserved = requested, reserved
    peaks.look()
    assert peaks.rows() == (MomentPeaks(1, Moment.FORWARD, 10, 10, 20), MomentPeaks(1, Moment.BACKWARD, 30, 30, 40),
                            MomentPeaks(2, Moment.BACKWARD, 35, 35, 40))


def test_boundaries_tell_each_outermost_backward_and_leave_pytorch_as_it_was():
    before = torch.autograd._engine_run_backward
    heard = []
    told = Boundaries(backward=lambda: heard.append("backward"), after_backward=lambda: heard.append("after"),
                      step=lambda: heard.append("step"), called=lambda model, arguments, keywords: heard.append(tuple(keywords)),
                      returned=lambda model, output: heard.append("returned"))
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    told.open(model, None)
    x = torch.ones(1, 2, requires_grad=True)
    torch.utils.checkpoint.checkpoint(model, x, use_reentrant=True).sum().backward()
    assert heard == [(), "returned", "backward", (), "returned", "after"]
    told.close()
    assert torch.autograd._engine_run_backward is before is torch.autograd.graph._engine_run_backward
    model(x).sum().backward()
    assert len(heard) == 6


@pytest.mark.parametrize(("path", "ranks", "expected"), [
    ("run.json", 1, "run.json"), ("run.json", 8, "run-rank7.json"), ("r{rank}.json", 8, "r7.json")])
def test_each_rank_has_a_file_of_its_own(path, ranks, expected):
    assert training_record.rank_path(path, 7, ranks) == expected


def test_a_directory_that_is_not_there_is_said_before_the_training():
    with pytest.raises(InputError, match="its directory does not exist"):
        training_record.rank_path("nowhere/run.json", 0, 1)


TRAINED = InTraining("transformers.Trainer", 3, ("2 x 64 tokens",), ())


def test_a_record_of_a_training_comes_back_from_its_file(tmp_path):
    made = record(in_training=TRAINED, rank_chosen_by=RankChoice.LAUNCHER)
    training_record.write(str(tmp_path / "run.json"), made)
    assert read(tmp_path / "run.json") == made
    assert json.loads((tmp_path / "run.json").read_text())["in_training"]["steps"] == 3


def test_a_record_of_several_shapes_is_skipped_by_name(tmp_path):
    several = replace(TRAINED, batches=("2 x 64 tokens",), smaller=("2 x 32 tokens",))
    for name, trained in (("one", TRAINED), ("several", several)):
        training_record.write(str(tmp_path / f"{name}.json"), record(in_training=trained))
    cases, skipped = files.read([tmp_path])
    assert [case.file for case in cases] == [str(tmp_path / "one.json")]
    assert "2 x 64 tokens, 2 x 32 tokens" in skipped[0].why and skipped[0].source.endswith("several.json")


def test_a_record_from_before_the_field_is_still_one(tmp_path):
    document = record().to_json()
    del document["in_training"]
    (tmp_path / "old.json").write_text(json.dumps(document))
    assert read(tmp_path / "old.json") == record()


def test_a_calibration_takes_a_record_as_a_held_out_job():
    keys = Workload(model="llava-1.5-7b", sequence_length=1024, gpu="h100-80gb").resolved()
    made = record(workload=keys, in_training=TRAINED, not_predicted=None, predicted=SAID.predicted)
    row = given_records.row_of(made, "run.json")
    assert (row.role, row.failed, row.record) == ("holdout", None, made)
    assert row.workload() == Workload.from_mapping({**keys, "rank": 0})
    with pytest.raises(InputError, match="run.json: it was not predicted"):
        given_records.row_of(replace(made, predicted=None), "run.json")
    several = replace(TRAINED, smaller=("2 x 32 tokens",))
    with pytest.raises(InputError, match="run.json: batches of several shapes .* 2 x 32 tokens: leave it out"):
        given_records.row_of(replace(made, in_training=several), "run.json")


# --- what a plain loop shows ----------------------------------------------------------------------------


def test_what_a_loop_shows_is_predicted_again_and_no_longer_assumed(monkeypatch):
    asked = []
    monkeypatch.setattr(background_prediction, "ask", lambda question: asked.append(question.workload) or SAID)
    lines: list[str] = []
    found = foresight(lines)
    found.start(lambda: reading.Reading({"model": "llava-1.5-7b"}, dict(models.find("llava-1.5-7b").document),
                                        {"gradient_accumulation_steps": 1}), lambda: None)
    found.check_autocast("bf16")
    batch = {"input_ids": torch.ones(2, 1024, dtype=torch.int64)}
    found.before_batch(batch)
    assert "assumed about the loop: gradient_accumulation_steps 1" in lines[-1]
    before = len(lines)
    found.set_keys(gradient_accumulation_steps=2)
    found.before_batch(batch)
    assert [(one["mixed_precision"], one["gradient_accumulation_steps"]) for one in asked] == [("bf16", 1), ("bf16", 2)]
    assert not [line for line in lines[before:] if "assumed" in line]
    found.before_batch({"input_ids": torch.ones(2, 512, dtype=torch.int64)})
    assert (found.largest, found.smaller) == (("2 x 1,024 tokens",), ("2 x 512 tokens",))


def watched_loop(lines: list[str], **keys) -> Watcher:
    """A watcher of a plain loop with these keys, between start-up and the first forward."""
    watcher = Watcher(loop="watch", record=None, steps=3, show="line", snapshot=None, tell=lines.append)
    watcher.begin(lambda: reading.Reading({"model": "llava-1.5-7b", **keys}, {}), None, None, 0, 1, 1)
    watcher._peaks = RunningPeaks(Counted())
    return watcher


def forward_of(watcher: Watcher):
    """A forward's output, as the watcher's hook sees it before the loop does."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    output = CausalLMOutputWithPast(loss=torch.zeros(()), logits=torch.zeros(2, 64, 2048))
    watcher._after_forward(torch.nn.Linear(1, 1), output)
    return output


def test_an_output_that_lives_through_backward_is_predicted_so():
    lines: list[str] = []
    watcher = watched_loop(lines)
    forward_of(watcher)
    watcher._before_backward()
    assert "keep_outputs" not in watcher._predictions.keys and lines == []
    output = forward_of(watcher)
    watcher._before_backward()
    assert watcher._predictions.keys["keep_outputs"] == "backward"
    assert lines == ["the model's output stays alive during backward (1.00 MiB): predicted again with keep_outputs; "
                     "loss = model(…).loss keeps only the loss"]
    del output
    forward_of(watcher)
    assert watcher._predictions.keys["keep_outputs"] == "backward"


def test_an_output_that_lives_through_the_next_forward_is_predicted_so():
    watcher = watched_loop([])
    output = forward_of(watcher)
    watcher._before_backward()
    output = forward_of(watcher)
    assert watcher._predictions.keys["keep_outputs"] == "next_forward"
    del output


def test_an_output_that_lives_through_backward_is_warned_of_where_it_is_not_predicted():
    lines: list[str] = []
    watcher = watched_loop(lines, use_liger_kernel=True)
    output = forward_of(watcher)
    watcher._before_backward()
    assert output and lines == ["warning: the model's output stays alive during backward: 1.00 MiB that are not predicted: "
                                "keep only the loss, as loss = model(…).loss does"]


@pytest.mark.parametrize(("zeroed", "expected"), [("before", None), ("between", "before_backward"), ("never", None)])
def test_gradients_that_live_through_forward_are_predicted_so(zeroed, expected):
    """``never``: set to zero, as zero_grad(set_to_none=False) does, and alive in backward, too."""
    model = torch.nn.Linear(1, 1)
    watcher = watched_loop([])
    watcher._model, watcher._step = model, 2
    model.weight.grad = torch.zeros_like(model.weight)
    if zeroed == "before":
        model.weight.grad = None
    watcher._before_forward(model, (), {})
    if zeroed == "between":
        model.weight.grad = None
    watcher._before_backward()
    assert watcher._predictions.keys.get("zero_grad") == expected


def test_a_loop_that_ends_too_early_is_said_to_leave_no_record(tmp_path):
    lines: list[str] = []
    watcher = Watcher(loop="watch", record=str(tmp_path / "run.json"), steps=3, show="line", snapshot=None, tell=lines.append)
    watcher.begin(lambda: READ, None, None, 0, 1, 1)
    watcher._boundaries = SimpleNamespace(close=lambda: None)
    watcher.broken_off(ValueError("boom"))
    assert lines == ["no record: the loop ended with ValueError before the record was written"]


def test_a_record_of_a_rank_is_named_where_that_of_all_is_looked_for(tmp_path):
    training_record.write(str(tmp_path / "run-rank0.json"), record())
    with pytest.raises(InputError, match=r"run.json: no such file or directory: there is .*run-rank0.json, of one rank"):
        files.read([tmp_path / "run.json"])


# --- never in the way -----------------------------------------------------------------------------------


def test_nothing_that_goes_wrong_reaches_the_training(tmp_path):
    lines: list[str] = []
    nowhere = tmp_path / "nowhere" / "run.json"
    watcher = Watcher(loop="watch", record=str(nowhere), steps=3, show="line", snapshot=None, tell=lines.append)
    watcher.count(None)

    def read():
        assert watcher.directory().parents[0] != nowhere.parent
        raise ValueError("a library's own")

    watcher.begin(read, torch.nn.Linear(1, 1), None, 0, 1, 1)
    for call in (watcher.step, watcher.micro_step, watcher.end, watcher.close):
        call()
    assert lines == [f"{nowhere}: its directory does not exist: create it first",
                     "stopped watching: ValueError: a library's own"]
    assert not nowhere.parent.exists()


def test_a_way_to_show_that_is_none_is_a_mistake_at_once():
    with pytest.raises(InputError, match="line, full, nothing"):
        Watcher(loop="watch", record=None, steps=3, show="loud", snapshot=None, tell=print)


def test_a_line_is_said_once():
    lines: list[str] = []
    found = RankMessages(lines.append, 0)
    for line in ("fits", "assumed", "fits"):
        found.say(line)
    assert lines == ["fits", "assumed"]

"""The callback and the context manager in real trainings on the emulated GPU: messages, records, no side effects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from calibrate.dryrun.dryrun import DryRun, Streams, dryrun
from calibrate.emulator import Machine, environment
from calibrate.records import record as records
from calibrate.records.record import Record
from calibrate.regression import files
from calibrate.regression.compare import compare
from predictor import Workload, snapshot
from predictor.answer.predict import predict
from predictor.events.events import Moment
from tests.calibrate.small_jobs import BATCH, SEQUENCE, needs_emulator
from tests.calibrate.trainer import FROZEN_TOWER, SCALARS_BYTES, ZERO2_CONFIG, train
from tests.predictor.small import small_config

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

NO_ROOM = 64 << 20
"""The weights fit, a step does not: it reserves 68 MiB."""
NO_ROOM_TO_EVALUATE = 80 << 20


@dataclass(frozen=True)
class Ran:
    """A training that was watched: what the dry run saw, what was recorded, what was said."""

    found: DryRun
    record: Record
    said: list[str]
    path: Path


def ran(directory: Path, name: str = "run.json", **arguments) -> Ran:
    directory.mkdir()
    with open(directory / "errors.txt", "w+") as errors:
        found = train(directory, callback=f"PeakcastCallback(record={str(directory / 'run.json')!r})",
                      errors=errors.fileno(), **arguments)
        errors.seek(0)
        said = [line.rstrip("\n") for line in errors if line.startswith("peakcast: ")]
    return Ran(found, records.read(directory / name), said, directory / name)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("trainings")


@pytest.fixture(scope="module")
def plain(directory, formula_cache) -> Ran:
    return ran(directory / "plain")


@pytest.fixture(scope="module")
def zero2(directory, formula_cache) -> Ran:
    return ran(directory / "zero2", "run-rank7.json", deepspeed=ZERO2_CONFIG, bf16=True, world_size=8, rank=7)


@pytest.fixture(scope="module")
def no_room(directory, formula_cache) -> Ran:
    return ran(directory / "no_room", machine=Machine(capacity_bytes=NO_ROOM), ends=1)


@pytest.fixture(params=["plain", "zero2"])
def finished(request) -> Ran:
    return request.getfixturevalue(request.param)


# --- what is recorded ---------------------------------------------------------------------------------


def test_the_recorded_peaks_are_those_that_a_watcher_of_the_whole_process_finds(finished):
    found = finished.found
    peaks = {name: finished.record.peak(name).bytes for name in ("requested_bytes", "allocated_bytes", "reserved_bytes")}
    assert peaks == {"requested_bytes": found.peak_requested_bytes, "allocated_bytes": found.peak_allocated_bytes,
                     "reserved_bytes": found.peak_reserved_bytes}
    at = finished.record.peak("requested_bytes")
    assert (at.moment.value, at.step) == (found.peak.moment, found.peak.step)


def test_the_record_is_as_predicted_but_for_the_trainers_scalars(finished):
    made, said = finished.record, finished.record.predicted.peak_requested
    at = made.peak("requested_bytes")
    assert 0 < at.bytes - said.bytes < SCALARS_BYTES
    assert (at.moment, at.step) == (said.moment, said.step)
    assert made.in_training.steps == 3 and made.in_training.warnings == ()


def test_predict_says_the_same_of_the_workload_that_was_read_off(finished):
    workload = Workload.from_mapping(dict(finished.record.workload))
    assert predict(workload).peak_requested_bytes == finished.record.predicted.peak_requested.bytes


def test_report_reads_the_record_and_agrees(finished):
    (case,), skipped = files.read([finished.path])
    comparison = compare(case)
    assert not skipped
    assert comparison.peaks["requested"].measured_bytes == finished.found.peak_requested_bytes
    assert comparison.peaks["requested"].predicted_bytes == finished.record.predicted.peak_requested.bytes
    assert comparison.peaks["reserved"].measured_bytes == comparison.peaks["reserved"].predicted_bytes
    assert comparison.moment_hit and comparison.verdict_hit


def test_what_the_workload_is_needs_no_words_of_the_user(zero2):
    workload = zero2.record.workload
    expected = {"recipe": "finetune", "per_device_train_batch_size": BATCH, "sequence_length": SEQUENCE, "engine": "deepspeed",
                "zero_stage": 2, "data_parallel_size": 8, "rank": 7, "dtype": "bf16", "gradient_checkpointing": True,
                "optim": "adamw_torch_fused", "gpu": "h100-80gb", "padding": "none"}
    assert {key: workload[key] for key in expected} == expected


EVALUATED = {"eval_strategy": "steps", "eval_steps": 4, "max_steps": 5, "per_device_eval_batch_size": 3 * BATCH, "prediction_loss_only": True}


def test_an_evaluation_after_the_record_was_written_is_recorded_with_it(directory):
    """Written after step 3, without the evaluation, and again after that of step 4, which is the peak."""
    made = ran(directory / "evaluated", **EVALUATED)
    at, said = made.record.peak("requested_bytes"), made.record.predicted.peak_requested
    assert (at.moment, at.step, said.moment) == (Moment.EVALUATION, 4, Moment.EVALUATION)
    assert 0 <= at.bytes - said.bytes < 4096  # losses of its batches
    assert made.record.workload["per_device_eval_batch_size"] == 3 * BATCH
    assert made.record.in_training.evaluations == (f"{3 * BATCH} x {SEQUENCE} tokens",)
    assert compare(files.read([made.path])[0][0]).moment_hit


def test_an_evaluation_that_finds_no_memory_is_recorded_as_the_end(directory):
    made = ran(directory / "died", machine=Machine(capacity_bytes=NO_ROOM_TO_EVALUATE), ends=1, **EVALUATED | {"per_device_eval_batch_size": 16 * BATCH})
    failure = made.record.job.out_of_memory
    assert (failure.moment, failure.step, made.record.predicted.peak_requested.moment) == (Moment.EVALUATION, 4, Moment.EVALUATION)
    comparison = compare(files.read([made.path])[0][0])
    assert comparison.verdict == "does_not_fit" and comparison.verdict_hit


KEEPING_TRAINER = FROZEN_TOWER + """
class Trainer(Trainer):
    def compute_loss(self, *arguments, return_outputs=False, **keywords):
        loss, self.outputs = super().compute_loss(*arguments, return_outputs=True, **keywords)
        return (loss, self.outputs) if return_outputs else loss
"""


@pytest.mark.parametrize("arguments", [{}, {"deepspeed": ZERO2_CONFIG, "bf16": True, "world_size": 8}], ids=["plain", "zero2"])
def test_a_trainer_that_keeps_the_output_is_predicted_so(directory, arguments):
    name = "run-rank0.json" if arguments else "run.json"
    made = ran(directory / f"keeping-{len(arguments)}", name, prepare=KEEPING_TRAINER, **arguments)
    at, said = made.record.peak("requested_bytes"), made.record.predicted.peak_requested
    assert made.record.workload["keep_outputs"] == "next_forward"
    assert (at.moment, at.step) == (said.moment, said.step)
    assert 0 < at.bytes - said.bytes < SCALARS_BYTES


# --- what is said ---------------------------------------------------------------------------------------


def test_one_line_at_the_start_and_nothing_else_but_where_a_ranks_own_record_goes(finished):
    *where, line = finished.said
    assert where == ([] if finished.path.name == "run.json" else
                     [f"peakcast: rank 7: the record of this rank goes to {finished.path}"])
    assert line.removeprefix("peakcast: ").removeprefix("rank 7: ").startswith("Fits h100-80gb: peak ")
    assert "The peak is in backward of step 2 on rank" in line


def test_what_will_not_fit_is_said_before_it_fails_and_recorded_when_it_does(no_room):
    line, = no_room.said
    assert line.startswith("peakcast: warning: Does not fit h100-80gb") and "Less memory: " in line
    failure = no_room.record.job.out_of_memory
    assert (failure.moment, failure.tried_to_allocate_bytes) == (
        Moment(no_room.found.out_of_memory[0].where.moment), no_room.found.out_of_memory[0].tried_to_allocate_bytes)
    assert no_room.record.in_training.warnings


# --- what is left alone -----------------------------------------------------------------------------------


def test_memory_statistics_are_the_same_without_the_callback(plain, tmp_path):
    without = train(tmp_path)
    assert plain.found.memory_stats == without.memory_stats


# --- a loop of the user's -------------------------------------------------------------------------------


LOOP = """
    import torch
    from calibrate import watch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, LlavaForConditionalGeneration
    config = AutoConfig.for_model({kind!r}, **{document!r})
    model = LlavaForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={{"use_reentrant": False}})
    model.cuda()
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
    ids = torch.full(({batch}, {sequence}), 1)
    ids[:, 1:5] = config.image_token_id
    inputs = {{"input_ids": ids, "pixel_values": torch.zeros({batch}, 3, 28, 28, dtype=torch.bfloat16), "labels": ids.clone()}}
    inputs = {{name: tensor.cuda() for name, tensor in inputs.items()}}
    with watch(model, optimizer=optimizer, record={record!r}, snapshot={snapshot!r}) as w:
        for _ in range(3):
            model(**inputs, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            w.step()
"""
KEEPING = """            outputs = model(**inputs, use_cache=False)
            loss = outputs.loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.step()
"""
"""The steps of a script that keeps the model's output, and the last step's gradients through forward."""


@pytest.fixture(scope="module")
def loop(directory, formula_cache) -> Ran:
    return watched(directory / "loop", LOOP)


def watched(made: Path, script: str) -> Ran:
    """A loop with ``watch`` on the emulated GPU."""
    document = small_config()
    made.mkdir()
    (made / "train.py").write_text(textwrap.dedent(script.format(
        kind=document.pop("model_type"), document=document, batch=BATCH, sequence=SEQUENCE, record=str(made / "run.json"),
        snapshot=str(made / "run.pickle"))))
    with open(made / "errors.txt", "w+") as errors:
        found = dryrun([sys.executable, str(made / "train.py")], streams=Streams(subprocess.DEVNULL, errors.fileno()))
        errors.seek(0)
        said = [line.rstrip("\n") for line in errors if line.startswith("peakcast: ")]
    assert found.exit_code == 0, (made / "errors.txt").read_text()
    return Ran(found, records.read(made / "run.json"), said, made / "run.json")


def test_a_loop_with_adapters_is_predicted_from_its_first_batch(loop):
    made, said = loop.record, loop.record.predicted.peak_requested
    assert made.workload["recipe"] == "lora" and made.workload["lora"]["r"] == 8
    assert made.in_training.batches == (f"{BATCH} x {SEQUENCE} tokens",)
    at = made.peak("requested_bytes")
    assert (at.moment, at.step) == (said.moment, said.step)
    assert abs(at.bytes - said.bytes) < SCALARS_BYTES


def test_a_loop_that_keeps_outputs_and_gradients_is_predicted_so(directory, formula_cache):
    head, _ = LOOP.split("            model(")
    ran = watched(directory / "keeping", (head + KEEPING).replace("range(3)", "range(4)"))
    assert (ran.record.workload["keep_outputs"], ran.record.workload["zero_grad"]) == ("next_forward", "before_backward")
    assert any("the model's output stays alive during backward" in line for line in ran.said)
    at, said = ran.record.peak("requested_bytes"), ran.record.predicted.peak_requested
    assert (at.moment, at.step) == (said.moment, said.step)
    assert abs(at.bytes - said.bytes) < SCALARS_BYTES


def test_the_memory_history_is_kept_where_it_is_asked_for_and_nobody_elses_is_stopped(loop):
    history = snapshot.read(loop.path.with_suffix(".pickle"))
    assert history.segments
    assert loop.found.peak.line.function == "<module>"  # the dry run's own went on


RECORDINGS = {
    "memory._record_memory_history(max_entries=100)": "alloc, then True",
    "memory._record_memory_history(max_entries=100); memory._record_memory_history(None)": "InputError, then False",
    "": "alloc, then False",
}
"""What a training may do after ``watch`` began, and how that ends."""


@pytest.fixture(scope="module")
def recordings(directory) -> dict[str, str]:
    """How each of :data:`RECORDINGS` ends, each in a process of its own."""
    script, path = directory / "recordings.py", directory / "recording.pickle"
    script.write_text(textwrap.dedent(f"""
        import json, os, pickle, sys, torch
        from calibrate.training.history import History
        memory = torch.cuda.memory
        for calls in {list(RECORDINGS)!r}:
            if os.fork():
                os.wait()
                continue
            history = History()
            exec(calls)
            kept = torch.empty(8, device="cuda")
            try:
                history.save({str(path)!r})
                found = pickle.load(open({str(path)!r}, "rb"))["device_traces"][0][-1]["action"]
            except Exception as error:
                found = type(error).__name__
            print(json.dumps([calls, f"{{found}}, then {{torch._C._cuda_isHistoryEnabled()}}"]), flush=True)
            os._exit(0)
    """))
    job = subprocess.run([sys.executable, str(script)], env={**os.environ, **environment(shadow_real_gpu=True)},
                         capture_output=True, text=True)
    assert job.returncode == 0, job.stderr
    return dict(map(json.loads, job.stdout.splitlines()))


@pytest.mark.parametrize(("calls", "expected"), RECORDINGS.items())
def test_a_recording_that_the_training_begins_later_is_neither_stopped_nor_emptied(recordings, calls, expected):
    assert recordings[calls] == expected

"""Measured jobs on the emulated GPU, from the command line and from Python."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from calibrate.measure.measure import _read as measured_answer
from calibrate.measure.measure import measure
from calibrate.records.record import MeasuredOn, RankChoice, Record, read
from calibrate.report import measurement
from predictor.cli import main
from predictor.common.errors import InputError
from predictor.events.events import Moment
from predictor.jobs import dispatch
from tests.calibrate.small_jobs import ROOT, needs_emulator, words, workload
from tests.predictor.small import facts_of, small_config

TOLERANCE = 0.003  # of requested bytes, the mean that measurements of real models are held to

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("measure")


@pytest.fixture(scope="module")
def plain(directory) -> Record:
    """Plain PyTorch."""
    return measure(workload(directory))


@pytest.fixture(scope="module")
def zero(directory) -> tuple[Record, list[dict]]:
    """The last of eight ranks under ZeRO-2, and its memory history."""
    path = directory / "history.pickle"
    made = measure(workload(directory, zero_stage=2, data_parallel_size=8, rank=7), snapshot=str(path))
    with open(path, "rb") as stream:
        return made, pickle.load(stream)["device_traces"][0]


def without_times(record: Record) -> Record:
    job = replace(record.job, started_at="", finished_at="", seconds=0.0)
    return replace(record, job=job, snapshot=None, command=())


def run(*arguments: str, **variables: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "predictor.cli", *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT), **variables})


def is_one_clear_line(text: str, *expected: str) -> bool:
    return len(text.strip().splitlines()) == 1 and all(word in text for word in expected)


# --- what is measured --------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["plain", "zero"])
def test_every_moment_is_as_predicted(engine, plain, zero):
    record = plain if engine == "plain" else zero[0]
    said = {(row.step, row.moment): row.requested_bytes for row in record.predicted.moments}
    found = {(row.step, row.moment): row.requested_bytes for row in record.job.moments}
    assert said.keys() == found.keys()
    assert all(said[at] == pytest.approx(found[at], rel=TOLERANCE) for at in found)


@pytest.mark.parametrize("engine", ["plain", "zero"])
def test_the_peak_is_in_the_predicted_moment(engine, plain, zero):
    record = plain if engine == "plain" else zero[0]
    said, found = record.predicted.peak_requested, record.peak("requested_bytes")
    assert (said.moment, said.step) == (found.moment, found.step)


def test_start_up_counts_the_flatten_copy_although_deepspeed_resets_the_counters(zero, directory):
    from calibrate.job.reference_loop import build_model

    tensors = facts_of(build_model(dispatch.resolve(workload(directory)).workload)).parameters
    flat = sum(t.numel for t in tensors if t.trainable and t.decay) * 2  # bf16, while the tensors still live
    init = next(row for row in zero[0].job.moments if row.moment is Moment.INIT)
    assert init.requested_bytes == pytest.approx(sum(t.bytes for t in tensors) + flat, abs=64 * 8)


def test_settings_that_are_not_predicted_yet_are_measured(directory):
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}, "data_types": {"grad_accum_dtype": "fp32"}}
    made = measure(workload(directory, data_parallel_size=2, rank=1, deepspeed=config))
    assert made.job.out_of_memory is None and {row.step for row in made.job.moments} == {0, 1, 2, 3}
    assert made.predicted is None and "grad_accum_dtype fp32 is not modelled yet" in made.not_predicted


def test_a_record_holds_what_is_needed_to_repeat_it(plain):
    job = plain.job
    assert (job.measured_on, job.process_group, job.device.event_completion) == (MeasuredOn.EMULATED, "none", "immediate")
    assert job.software["torch"] and job.software["transformers"] and job.software["deepspeed"]
    assert job.device.capacity_bytes == workload_capacity(plain)
    assert job.memory_stats["num_ooms"] == 0 and job.memory_stats["segment.all.peak"] > 0
    assert job.device_used_bytes >= plain.peak("reserved_bytes").bytes
    assert (plain.workload["optim"], plain.rank) == ("adamw_torch_fused", 0)


def workload_capacity(record: Record) -> int:
    from predictor.common import gpus

    return gpus.find(record.workload["gpu"]).capacity_bytes


def test_two_at_once_measure_what_one_alone_does(plain, directory):
    jobs = [run(*words(directory), "--json", "-o", str(directory / f"{number}.json")) for number in range(2)]
    assert [job.wait(timeout=120) for job in jobs] == [0, 0]
    for number in range(2):
        assert without_times(read(directory / f"{number}.json")) == without_times(plain)


def test_the_worst_rank_is_the_predictors(directory):
    made = measure(workload(directory, zero_stage=2, data_parallel_size=2))
    assert made.rank_chosen_by is RankChoice.PREDICTION
    assert made.rank in (0, 1) and made.job.process_group == "fake"


# --- jobs that cannot run ---------------------------------------------------------------------


def test_a_sample_without_room_for_its_images_is_refused_before_the_job_runs(directory):
    with pytest.raises(InputError, match=r"^sequence_length 4 has no room for 1 image\(s\), which fill 4 tokens: give at least 5$"):
        measure(workload(directory, sequence_length=4, engine="ddp", data_parallel_size=2, rank=0))


def test_a_job_that_fails_is_told_by_its_exception_and_not_by_what_libraries_print_after_it(tmp_path):
    job = workload(tmp_path, engine="ddp", data_parallel_size=2, rank=0)
    Path(job.model).write_text(json.dumps(small_config() | {"vision_feature_layer": 99}))
    with pytest.raises(InputError, match="^the measured job ended with exit code 1: IndexError: .* out of range"):
        measure(job)
    answer, log = tmp_path / "answer.json", tmp_path / "log.txt"
    answer.write_text(json.dumps({"error": "ValueError: why"}))
    log.write_text("ValueError: why\n[rank0]: Warning: destroy_process_group() was not called\n")
    with pytest.raises(InputError, match="exit code 1: ValueError: why "):
        measured_answer(answer, log, 1)


# --- the memory history -------------------------------------------------------------------------


def test_the_history_has_the_same_peak_as_the_record(zero):
    record, trace = zero
    live = peak = 0
    for entry in trace:
        live += {"alloc": 1, "free_completed": -1}.get(entry["action"], 0) * entry["size"]
        peak = max(peak, live)
    assert peak == record.peak("requested_bytes").bytes


def test_every_allocation_of_the_history_names_moment_and_operator(zero):
    tags = [json.loads(entry["user_metadata"]) for entry in zero[1] if entry["action"] == "alloc"]
    assert {tag["moment"] for tag in tags} == {"init", "forward", "backward", "optimizer_step"}
    assert all(tag["operator"] for tag in tags)
    assert [tag["step"] for tag in tags] == sorted(tag["step"] for tag in tags)


def test_the_history_names_the_module_in_forward_recomputation_and_backward(zero):
    tags = [json.loads(entry["user_metadata"]) for entry in zero[1] if entry["action"] == "alloc"]
    for moment in ("forward", "backward"):
        operators = {tag["operator"] for tag in tags
                     if tag["moment"] == moment and tag["module"].endswith("layers.1.mlp.down_proj")}
        assert "aten::mm" in operators


def test_later_steps_have_the_same_history(zero):
    def step(number):
        tags = ((json.loads(entry["user_metadata"]), entry["size"]) for entry in zero[1] if entry["action"] == "alloc")
        return [(tag["moment"], tag["module"], tag["operator"], size) for tag, size in tags if tag["step"] == number]

    assert step(2) == step(3)


# --- the command ---------------------------------------------------------------------------------


def test_the_table_shows_measured_beside_predicted(directory, capsys):
    assert main(words(directory)) == 0
    text = capsys.readouterr().out
    assert "predicted" in text and "optimizer_step" in text and "Emulated GPU" in text


def test_requested_that_still_counts_freed_blocks_is_compared_with_nothing(plain):
    row = plain.job.moments[-1]
    pending = replace(row, requested_bytes=row.allocated_bytes + 1)
    record = replace(plain, job=replace(plain.job, moments=(*plain.job.moments[:-1], pending)))
    assert list(measurement.moments(record).columns[-1].cells)[-1] == "pending frees"
    assert any(line.startswith("Pending frees: ") for line in measurement.notes(record))


def test_running_out_of_memory_is_a_complete_record_and_exit_code_1(directory):
    path = directory / "oom.json"
    assert main(words(directory, "--capacity-bytes", "48MiB", "--json", "-o", str(path))) == 1
    failure = read(path).job.out_of_memory
    assert "out of memory" in failure.message
    assert (failure.moment, failure.step) == (Moment.BACKWARD, 1)  # a cuBLAS workspace a thread: 32 MiB each
    assert failure.tried_to_allocate_bytes == 32 << 20


def test_a_killed_job_leaves_nothing(directory, tmp_path):
    command = run(*words(directory, "-o", str(tmp_path / "record"), "--snapshot", str(tmp_path / "history")))
    os.kill(job_of(command), signal.SIGKILL)
    _, stderr = command.communicate(timeout=60)
    assert command.returncode == 2 and is_one_clear_line(stderr, "SIGKILL", "nothing was written")
    assert not list(tmp_path.iterdir())


def test_a_killed_command_takes_its_job_with_it(directory, tmp_path, tmp_path_factory):
    command = run(*words(directory, "-o", str(tmp_path / "record"), "--snapshot", str(tmp_path / "history")),
                  TMPDIR=str(tmp_path_factory.mktemp("left")))  # what nobody was left to clean up
    job = job_of(command)
    command.kill()
    command.communicate()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{job}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{job}").exists()
    assert not list(tmp_path.iterdir())


def job_of(command: subprocess.Popen) -> int:
    """The process in which the command's job runs."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and command.poll() is None:
        for child in Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split():
            if b"calibrate.job.job" in Path(f"/proc/{child}/cmdline").read_bytes():
                time.sleep(0.5)  # it has begun, and has not ended
                return int(child)
        time.sleep(0.02)
    raise AssertionError(f"no job was started: {command.communicate()}")


# --- bad input and environment --------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "expected"), [
    (["--gpu", "h1000"], "h100-80gb"),
    (["--snapshot", "/no/such/place/history"], "directory does not exist"),
    (["--device", "tpu"], "tpu"),
    (["--events", "later"], "launches:N"),
])
def test_bad_input_is_one_clear_line(directory, capsys, arguments, expected):
    assert main(words(directory, *arguments)) == 2
    assert is_one_clear_line(capsys.readouterr().err, expected)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_a_missing_gpu_is_one_clear_line(directory, capsys):
    arguments = words(directory)
    arguments[arguments.index("emulated")] = "cuda"
    assert main(arguments) == 2
    assert is_one_clear_line(capsys.readouterr().err, "no CUDA device", "--device emulated")


def test_a_missing_compiler_is_one_clear_line(directory, capsys, monkeypatch, tmp_path):
    (tmp_path / "nm").symlink_to(shutil.which("nm"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # nothing is built there yet
    monkeypatch.delenv("CC", raising=False)
    assert main(words(directory)) == 2
    assert is_one_clear_line(capsys.readouterr().err, "no C compiler was found")


def test_a_cpu_only_pytorch_is_one_clear_line(directory, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    (tmp_path / "torch" / "version.py").write_text("__version__, cuda = '2.11.0+cpu', None\n")
    command = run(*words(directory), PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    _, stderr = command.communicate(timeout=60)
    assert command.returncode == 2 and is_one_clear_line(stderr, "CPU-only", "CUDA build")


def test_a_worst_rank_that_cannot_be_predicted_asks_for_one(directory, monkeypatch):
    def cannot(_):
        raise InputError("no formula")

    monkeypatch.setattr("predictor.jobs.dispatch.prepare", cannot)
    with pytest.raises(InputError, match="no formula.*with --rank 0 … 7"):
        measure(workload(directory, zero_stage=2, data_parallel_size=8))

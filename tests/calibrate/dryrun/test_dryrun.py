"""Dry runs: users' scripts, unchanged, on the emulated GPU."""

import io
import json
import os
import subprocess
import sys
import textwrap
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from calibrate.dryrun.dryrun import DryRun, Line, Streams, dryrun
from calibrate.dryrun.hooks.factors import UNATTRIBUTED
from calibrate.dryrun.played import Played
from calibrate.emulator import Machine
from calibrate.measure.measure import measure
from calibrate.records.record import MeasuredOn
from predictor.cli import main
from predictor.common.errors import InputError
from predictor.events.events import Factor
from tests.calibrate.small_jobs import ROOT, needs_emulator, workload
from tests.calibrate.trainer import SCALARS_BYTES, ZERO2_CONFIG, train

MIB = 1 << 20
LOOP = """
    import torch
    model = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(4):
        model(torch.empty(1024, 1024, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step)
"""

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]


def script(path: Path, text: str) -> list[str]:
    path.write_text(textwrap.dedent(text))
    return [sys.executable, str(path)]


def run(path: Path, text: str, **settings) -> DryRun:
    return dryrun(script(path / "train.py", text), streams=Streams(subprocess.DEVNULL), **settings)


# --- what is said of a run --------------------------------------------------------------------------


def test_the_peak_is_to_the_byte_at_the_line_that_made_it_whatever_the_script_resets(tmp_path):
    found = run(tmp_path, """\
        import torch
        kept = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
        def spike():
            return torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
        spike()
        torch.cuda.reset_peak_memory_stats()
        torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    """)
    assert found.measured_on is MeasuredOn.EMULATED
    assert found.peak_requested_bytes == found.peak_allocated_bytes == found.peak.requested_bytes == 12 * MIB
    assert (Path(found.peak.line.file).name, found.peak.line.number, found.peak.line.function) == ("train.py", 4, "spike")


def test_a_plain_loop_runs_unchanged_and_its_moments_are_known(tmp_path):
    found = run(tmp_path, LOOP)
    assert (found.exit_code, found.optimizer_steps, found.stopped) == (0, 4, False)
    # weight, output and its gradient, and the weight's gradient; the input dies with forward's graph
    assert (found.peak.moment, found.peak.line.number) == ("backward", 6)


def test_the_run_can_be_ended_after_some_steps(tmp_path):
    found = run(tmp_path, LOOP, optimizer_steps=2)
    assert (found.exit_code, found.optimizer_steps, found.stopped) == (0, 2, True)


def test_a_caught_out_of_memory_error_is_still_told(tmp_path, capfd):
    command = script(tmp_path / "train.py", """
        import torch
        try:
            torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass
    """)
    assert main(["dryrun", "--capacity", "1GiB", "--json", "--", *command]) == 1
    document = json.loads(capfd.readouterr().out)
    assert document["exit_code"] == 0
    refusal, = document["out_of_memory"]
    assert refusal["tried_to_allocate_bytes"] == 2 << 30
    assert refusal["where"]["line"]["number"] == 4


FRAGMENTED = """
    import torch
    MIB = 1 << 20
    large = torch.empty(120 * MIB, dtype=torch.uint8, device="cuda")
    del large
    kept = [torch.empty(20 * MIB, dtype=torch.uint8, device="cuda") for _ in range(6)]
    del kept[1::2]
    torch.empty({} * MIB, dtype=torch.uint8, device="cuda")
"""
"""Of 120 MiB in one segment three pieces of 20 MiB are idle."""


@pytest.fixture(scope="module")
def refused(tmp_path_factory, formula_cache) -> DryRun:
    """140 MiB are asked for on a device of 220 MiB that has 100 MiB free."""
    return run(tmp_path_factory.mktemp("refused"), FRAGMENTED.format(140), machine=Machine(capacity_bytes=220 * MIB))


def test_a_failed_allocation_says_who_held_the_memory(refused):
    failed, = refused.out_of_memory
    assert (failed.tried_to_allocate_bytes, failed.allocated_bytes, failed.reserved_bytes, failed.free_bytes) == (
        140 * MIB, 60 * MIB, 120 * MIB, 100 * MIB)
    assert failed.enough_bytes == 260 * MIB


def test_memory_that_is_said_to_be_enough_is_and_less_is_not(tmp_path):
    for capacity, survives in ((260 * MIB, True), (258 * MIB, False)):
        found = run(tmp_path, FRAGMENTED.format(140), machine=Machine(capacity_bytes=capacity))
        assert (not found.out_of_memory) == survives


def test_the_same_allocations_with_expandable_segments_reserve_what_the_script_reserves_with_them(
        refused, tmp_path, monkeypatch):
    assert refused.with_expandable_segments.survives
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    found = run(tmp_path, FRAGMENTED.format(140), machine=Machine(capacity_bytes=220 * MIB))
    assert found.peak_reserved_bytes == refused.with_expandable_segments.reserved_bytes


def test_expandable_segments_that_do_not_help_are_told_with_what_would_be_enough(tmp_path):
    found = run(tmp_path, FRAGMENTED.format(200), machine=Machine(capacity_bytes=220 * MIB))
    assert found.with_expandable_segments == Played(False, 260 * MIB)


def test_the_report_of_a_failed_allocation_names_its_line_once_and_what_would_help(refused, tmp_path):
    from rich.console import Console

    from calibrate.report.dryrun import report

    console = Console(width=200, record=True, file=io.StringIO())
    report(console, refused)
    text = " ".join(console.export_text().split())
    about_failure = text[text.index("Out of memory while"):text.index("Peak of")]
    assert about_failure.count("train.py:8") == 1
    assert "As it is it needs 260.00 MiB for PyTorch, which had 220.00 MiB. With PYTORCH_CUDA_ALLOC_CONF=" in about_failure


def test_the_report_of_a_failed_allocation_deep_in_a_package_fits_a_screen(refused):
    from rich.console import Console

    from calibrate.report.dryrun import report

    failed, = refused.out_of_memory
    stack = tuple(Line("/env/lib/python3.11/site-packages/torch/nn/functional.py", number, "linear") for number in range(8))
    every = dict.fromkeys([*(factor.value for factor in Factor), UNATTRIBUTED], 10 * MIB)
    console = Console(width=100, record=True, file=io.StringIO())
    report(console, replace(refused, peak=replace(refused.peak, frames=stack), factors=every, modules={"model": every},
                            out_of_memory=(replace(failed, where=replace(failed.where, frames=stack)),)))
    lines = console.export_text().splitlines()
    assert len(lines) <= 40
    assert [line for line in lines if line.startswith("    ")] == [
        f"    torch/nn/functional.py:{number} in linear" for number in range(4)]


def test_the_traceback_has_no_frames_of_the_emulated_gpu(tmp_path, capfd):
    command = script(tmp_path / "train.py", FRAGMENTED.format(140))
    dryrun(command, Machine(capacity_bytes=220 * MIB))
    files = [line for line in capfd.readouterr().err.splitlines() if line.lstrip().startswith("File ")]
    assert len(files) == 1 and "train.py" in files[0]


def test_a_script_that_fails_is_exit_code_2_and_one_line_beside_its_own(tmp_path, capfd):
    command = script(tmp_path / "train.py", """
        import torch
        torch.empty(1, device="cuda")
        raise ValueError("my own mistake")
    """)
    assert main(["dryrun", "--", *command]) == 2
    out, err = capfd.readouterr()
    ours = [line for line in err.splitlines() if line.startswith("peakcast")]
    assert len(ours) == 1 and "exit code 1 (ValueError: my own mistake)" in ours[0]
    assert "Traceback" in err  # the script's own
    assert "until then, peak" in " ".join(out.split())


def test_the_scripts_words_and_exit_code_are_its_own(tmp_path):
    (tmp_path / "train.py").write_text(
        "import sys, torch\ntorch.empty(1, device='cuda')\nsys.exit(0 if sys.argv[1:] == ['--learning_rate', '1'] else 3)\n")
    command = [sys.executable, "-m", "predictor.cli", "dryrun", "--", sys.executable, str(tmp_path / "train.py"),
               "--learning_rate", "1"]
    job = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert job.returncode == 0, job.stderr


# --- other ranks --------------------------------------------------------------------------------------


def test_a_script_of_many_ranks_runs_alone(tmp_path):
    found = run(tmp_path, """
        import os, torch, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        dist.init_process_group("nccl")
        assert (dist.get_rank(), dist.get_world_size()) == (7, 8) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.all_reduce(torch.ones(4))
        dist.barrier()
        words, mine, gathered = ["local"], [None], [None] * 8
        dist.broadcast_object_list(words)
        dist.scatter_object_list(mine, list("abcdefgh"))
        dist.all_gather_object(gathered, {"rank": 7})
        assert (words, mine, gathered) == (["local"], ["h"], [{"rank": 7}] * 8)
        dist.all_reduce(torch.ones(4, device="cuda"), group=dist.new_group([6, 7]))
        model = DistributedDataParallel(torch.nn.Linear(8, 8, device="cuda"))
        model(torch.empty(2, 8, device="cuda")).sum().backward()
    """, world_size=8, rank=7)
    assert (found.exit_code, found.rank, found.world_size) == (0, 7, 8)


@pytest.mark.parametrize(("world_size", "zero"), [(None, {}), (8, {"zero_stage": 2, "data_parallel_size": 8, "rank": 7})])
def test_hugging_faces_trainer_holds_a_few_bytes_more_than_the_reference_loop(tmp_path, world_size, zero):
    reference = measure(workload(tmp_path, **zero)).peak("requested_bytes")
    found = train(tmp_path, deepspeed=ZERO2_CONFIG if zero else None, bf16=bool(zero), world_size=world_size,
                  rank=7 if world_size else 0)
    assert 0 < found.peak_requested_bytes - reference.bytes < SCALARS_BYTES
    assert (found.peak.moment, found.peak.step) == (reference.moment.value, reference.step)


# --- bad input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "expected"), [
    ([], "a command is missing"),
    (["--", "no-such-program"], "no-such-program"),
    (["--gpu", "h1000", "--", "true"], "h100-80gb"),
    (["--rank", "8", "--world-size", "8", "--", "true"], "below the world size"),
    (["--optimizer-steps", "0", "--", "true"], "at least 1"),
    (["--", "true"], "before it used a GPU"),
])
def test_bad_input_is_one_clear_line(capsys, arguments, expected):
    assert main(["dryrun", *arguments]) == 2
    message = capsys.readouterr().err.strip()
    assert "\n" not in message and expected in message


def test_a_script_without_its_interpreter_is_told_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("pass")
    assert main(["dryrun", "train.py", "--batch", "8"]) == 2
    assert "train.py: is a Python script: put its command after --: peakcast dryrun -- python train.py …" in capsys.readouterr().err


def test_a_python_without_torch_is_told_what_to_install(tmp_path, capsys):
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare/bin/python")
    assert main(["dryrun", "--", python, "-c", "pass"]) == 2
    assert f"{python} has no PyTorch: run {python} -m pip install torch (a CUDA build)" in capsys.readouterr().err


def test_a_process_that_no_dry_run_started_is_left_alone(monkeypatch):
    import calibrate.dryrun.hooks

    monkeypatch.setattr(calibrate.dryrun.hooks, "_started", False)
    calibrate.dryrun.hooks.start()
    assert not calibrate.dryrun.hooks._started
    with pytest.raises(InputError):
        dryrun([])

"""``peakcast predict --run``: a job on the emulated GPU, answered as a prediction."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from predictor.cli import main
from tests.calibrate.small_jobs import needs_emulator
from tests.predictor.small import small_llama

pytestmark = needs_emulator
MIB = 1 << 20
SCRIPT = f"""
import torch
kept = torch.nn.Parameter(torch.zeros({MIB}, device="cuda"))
optimizer = torch.optim.SGD([kept], lr=0.1, momentum=0.9)
for step in range(9):
    kept.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SCALAR_BYTES = 4
PEAK_BYTES = 3 * 4 * MIB + SCALAR_BYTES
"""The parameter, its gradient and its momentum in fp32, and the scalar from which backward starts."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "train.py").write_text(SCRIPT)
    return ["--", sys.executable, str(tmp_path / "train.py")]


def asked(capfd, *words: str) -> tuple[int, dict]:
    code = main(["predict", "--run", "--json", *words])
    return code, json.loads(capfd.readouterr().out)


def error_of(capfd, *words: str) -> str:
    assert main(["predict", *words]) == 2
    out, error = capfd.readouterr()
    assert out == ""
    return error.splitlines()[-1].removeprefix("peakcast: error: ")


def test_a_command_is_answered_by_its_run(command, capfd):
    code, said = asked(capfd, "--gpu", "h100-80gb", *command)
    assert (code, said["verdict"], said["provenance"]["answered_by"]) == (0, "fits", "emulated run")
    assert abs(said["peak_requested_bytes"] - PEAK_BYTES) <= SCALAR_BYTES


def test_a_run_is_judged_by_the_memory_of_the_users_gpu(command, capfd):
    code, said = asked(capfd, "--capacity-bytes", f"{2 << 30}", *command)
    assert (code, said["verdict"]) == (0, "fits")
    code, said = asked(capfd, "--capacity-bytes", "1MiB", *command)
    assert (code, said["verdict"]) == (1, "does_not_fit")


def test_a_command_acts_as_the_rank_that_is_named(command, capfd):
    _, said = asked(capfd, "--data-parallel-size", "8", "--rank", "3", *command)
    assert (said["provenance"]["formula"]["rank"], said["provenance"]["formula"]["world_size"]) == (3, 8)


DDP = f"""
import os, torch
import torch.distributed as dist
dist.init_process_group("nccl")
assert (dist.get_rank(), os.environ["LOCAL_RANK"], torch.cuda.device_count()) == (0, "0", 1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear({MIB >> 10}, 1024, bias=False, device="cuda"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model(torch.ones(1, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("launch", [
    ("torchrun", "--nproc_per_node", "8"), ("accelerate", "launch", "--num_processes", "8", "--multi_gpu"),
    ("deepspeed", "--include", "localhost:0,1,2,3,4,5,6,7")], ids=lambda words: words[0])
def test_a_launcher_of_eight_starts_one_process_that_acts_as_one_of_them(tmp_path, capfd, launch):
    (tmp_path / "train.py").write_text(DDP)
    _, said = asked(capfd, "--", "OMP_NUM_THREADS=1", *launch, str(tmp_path / "train.py"))
    assert (said["provenance"]["formula"]["rank"], said["provenance"]["formula"]["world_size"]) == (0, 8)


def test_a_script_is_run_as_one_rank_of_those_that_it_starts(tmp_path, capfd):
    (tmp_path / "train.py").write_text(DDP)
    (tmp_path / "run.sh").write_text(f"GPUS=8\ntorchrun --nproc_per_node $GPUS {tmp_path}/train.py\n")
    _, said = asked(capfd, "--from", str(tmp_path / "run.sh"))
    assert said["provenance"]["formula"]["world_size"] == 8


def test_a_number_of_ranks_that_is_not_known_is_asked_for(capfd):
    assert error_of(capfd, "--run", "--", "torchrun", "--nproc_per_node", "$N", "train.py").endswith(
        "or give --data-parallel-size")


@pytest.mark.parametrize("command", [
    ("python", "train.py", "--depth", "3"), ("torchrun", "--nproc_per_node", "8", "train.py"),
    ("accelerate", "launch", "train.py"), ("deepspeed", "train.py"), ("uv", "run", "train.py")], ids=lambda words: words[0])
def test_a_command_that_no_reader_knows_is_answered_by_the_command_that_runs_it(capfd, command):
    assert f"; peakcast predict --run --gpu l4 -- {' '.join(command)} would run it on an emulated GPU" in error_of(
        capfd, "--gpu", "l4", "--", *command)


def test_a_run_leaves_only_what_it_allocated(command, capfd, tmp_path):
    asked(capfd, *command)
    assert [path.suffix for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [".npz"]


def test_a_workload_that_is_not_predicted_is_answered_by_the_command_that_its_error_names(tmp_path, capfd):
    (tmp_path / "llama.json").write_text(json.dumps(small_llama()))
    job = [str(tmp_path / "llama.json"), "--sequence-length", "64", "--gpu", "h100-80gb", "--keep-outputs", "backward",
           "--gradient-checkpointing-kwargs", "offload=true"]
    error = error_of(capfd, *job)
    assert error.endswith(f"peakcast predict --run {' '.join(job)} would run it on an emulated GPU")
    code, said = asked(capfd, *job)
    assert (code, said["verdict"], said["provenance"]["answered_by"]) == (0, "fits", "emulated run")


def test_the_command_that_an_error_names_has_no_options_of_a_course(tmp_path, capfd):
    (tmp_path / "lengths.csv").write_text("tokens\n300\n400\n")
    job = ["gpt2", "--gpu", "l4", "--padding", "packed"]
    course = ["--samples", str(tmp_path / "lengths.csv"), "--steps=3", "--drop_last"]
    for given, proposed in (("--packing", "bfd", "--sequence-length", "512"), "512"), ((), "N"):
        assert error_of(capfd, *job, *course, *given).endswith(
            f"peakcast predict --run {' '.join(job)} --sequence-length {proposed} would run it on an emulated GPU")


@pytest.mark.parametrize("words, error", [
    (["--run", "--sequence-length", "8", "--", "python", "train.py"],
     "--sequence-length: the command decides that itself: leave it out"),
    (["--run", "--rank", "8", "--data-parallel-size", "8", "--", "python", "train.py"],
     "--rank 8: --data-parallel-size says that there are 8: ranks begin at 0"),
    (["--run", "--"], "a command is missing after --: peakcast predict --run -- python train.py"),
    (["--run", "--maximum-load", "--", "python", "train.py"],
     "--maximum-load: --run runs the job once, as it is: leave one of them out"),
    (["--run", "--from", "lora.yaml"], '"lora.yaml" does not say which program trains with it: give the command '
     "itself, such as peakcast predict --run -- llamafactory-cli train lora.yaml"),
    (["--run", "gpt2", "--mode", "inference", "--sequence-length", "8"],
     "mode inference: --run runs a training: use peakcast measure"),
], ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "")
def test_a_mistake_is_one_line(capfd, words, error):
    assert error_of(capfd, *words) == error


def test_a_file_that_names_no_program_is_run_by_its_command(tmp_path, capfd):
    path = tmp_path / "arguments.json"
    path.write_text(json.dumps({"per_device_train_batch_size": 2, "torch_empty_cache_steps": 4}))
    assert error_of(capfd, "gpt2", "--from", str(path), "--sequence-length", "8").endswith(
        "; peakcast predict --run -- COMMAND, with the training's own command, would run it on an emulated GPU")

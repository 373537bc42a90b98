"""The emulated GPU from outside: building it, starting jobs on it, and messages for users' mistakes."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time

import pytest

from calibrate.emulator import Machine, build, environment, is_emulated
from calibrate.emulator.devices import find_gpu
from predictor.common.errors import InputError
from predictor.common.gpus import GPUS
from tests.calibrate.small_jobs import ROOT, needs_emulator


def run_job(script: str, *, extra: dict[str, str] | None = None, track_integers: bool = True, **machine) -> dict:
    """Run a script on an emulated GPU, in a process of its own; it calls `answer(dict)` at its end."""
    prelude = "import json, torch\ndef answer(facts): print('ANSWER' + json.dumps(facts), flush=True)\n"
    variables = {**os.environ, **environment(Machine(**machine), track_integers=track_integers), **(extra or {})}
    job = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(script)],
        env=variables, capture_output=True, text=True, cwd=ROOT, timeout=120,
    )  # fmt: skip
    lines = [line for line in job.stdout.splitlines() if line.startswith("ANSWER")]
    assert job.returncode == 0 and lines, job.stderr[-3000:]
    return json.loads(lines[-1][len("ANSWER") :])


def run_command(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    """`python -m calibrate.emulator`, as a user calls it."""
    return subprocess.run(
        [sys.executable, "-m", "calibrate.emulator", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def is_one_clear_line(job: subprocess.CompletedProcess, *words: str) -> bool:
    lines = job.stderr.strip().splitlines()
    return job.returncode == 2 and len(lines) == 1 and all(word in lines[0] for word in words)


@needs_emulator
def test_the_profiler_of_a_job_says_nothing_of_what_the_emulated_gpu_lacks():
    script = "import torch\nwith torch.profiler.profile(): torch.ones(1, device='cuda')"
    job = run_command("run", "--", sys.executable, "-W", "ignore", "-c", script)
    assert (job.returncode, job.stderr) == (0, "")


# --- devices ---------------------------------------------------------------


def test_every_gpu_holds_what_its_name_says():
    for name, gpu in GPUS.items():
        named = [int(part[:-2]) for part in name.split("-") if part.endswith("gb")]
        assert not named or 0.9 * named[0] * 10**9 < gpu.capacity_bytes < 1.1 * named[0] * 2**30
        assert find_gpu(name).gpu is gpu


def test_an_unknown_gpu_names_the_nearest_known_one():
    with pytest.raises(InputError, match="rtx-4090"):
        find_gpu("rtx-4091")


def test_an_unknown_gpu_on_the_command_line_is_one_clear_line():
    assert is_one_clear_line(run_command("run", "--gpu", "h100-80", "--", "true"), "h100-80gb")


def test_a_missing_command_is_one_clear_line():
    assert is_one_clear_line(run_command("run", "--", "no-such-program"), "no-such-program")


# --- the environment -------------------------------------------------------


def test_this_process_is_not_emulated():
    assert not is_emulated()


def test_a_real_driver_is_not_hidden_unasked(monkeypatch):
    monkeypatch.setattr("calibrate.emulator.job_environment.has_real_driver", lambda: True)
    with pytest.raises(InputError, match="shadow"):
        environment()


def test_an_unknown_event_setting_is_refused():
    with pytest.raises(InputError, match="launches:N"):
        environment(Machine(events="later"))


def test_a_context_larger_than_the_gpu_is_refused():
    with pytest.raises(InputError, match="below the capacity"):
        environment(Machine(capacity_bytes=2**30, context_bytes=2**30))


@needs_emulator
def test_what_the_user_preloads_stays(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "/opt/theirs.so")
    assert environment()["LD_PRELOAD"].endswith(":/opt/theirs.so")


@needs_emulator
def test_the_libraries_do_not_run_without_the_setting():
    variables = {**os.environ, "LD_PRELOAD": environment()["LD_PRELOAD"]}
    question = [
        sys.executable,
        "-c",
        "import ctypes; ctypes.CDLL(None).cudaGetDeviceCount(ctypes.byref(ctypes.c_int()))",
    ]
    assert is_one_clear_line(
        subprocess.run(question, env=variables, capture_output=True, text=True), "PEAKCAST_EMULATED_GPU"
    )


@needs_emulator
def test_the_exit_code_is_the_commands_own():
    assert run_command("run", "--", "sh", "-c", "exit 7").returncode == 7


@needs_emulator
def test_a_gpu_older_than_the_installed_pytorch_is_one_clear_line():
    assert is_one_clear_line(run_command("run", "--gpu", "v100-32gb", "--", "true"), "7.0")


# --- building --------------------------------------------------------------


def test_a_cpu_only_pytorch_is_one_clear_line(tmp_path):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "version.py").write_text("__version__ = '2.11.0+cpu'\ncuda = None\n")
    job = run_command("run", "--", "true", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert is_one_clear_line(job, "2.11.0+cpu", "CPU-only")


@needs_emulator
def test_no_compiler_is_one_clear_line(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nm").symlink_to(shutil.which("nm"))
    job = run_command("run", "--", "true", PATH=str(tools), CC="", XDG_CACHE_HOME=str(tmp_path))
    assert is_one_clear_line(job, "gcc")


@needs_emulator
def test_no_nm_is_one_clear_line(tmp_path):
    assert is_one_clear_line(run_command("run", "--", "true", PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path)), "binutils")


@needs_emulator
def test_a_cache_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    assert is_one_clear_line(run_command("run", "--", "true", XDG_CACHE_HOME=str(tmp_path / "file")), "XDG_CACHE_HOME")


@needs_emulator
def test_without_a_home_the_build_lies_in_a_directory_that_nobody_else_can_write(monkeypatch):
    def unknown():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", unknown)
    directory = build.ensure_built().directory
    private = directory.parents[1].stat()
    assert (private.st_uid, private.st_mode & 0o777) == (os.getuid(), 0o700)
    assert build.ensure_built().directory == directory


@needs_emulator
def test_a_relative_cache_setting_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build.cache_root().is_relative_to(tmp_path)


@needs_emulator
def test_a_killed_build_leaves_nothing_and_two_at_once_make_one(tmp_path):
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}
    command = [
        sys.executable,
        "-c",
        "from calibrate.emulator.build import ensure_built; print(ensure_built().directory)",
    ]
    root = tmp_path / "peakcast" / "emulator"

    killed = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL)
    while not list(root.glob("building-*/stubs.c")):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    assert not list(root.glob("torch-*"))

    both = [subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = {job.communicate()[0].strip() for job in both}
    assert [job.returncode for job in both] == [0, 0]
    assert answers == {str(path) for path in root.glob("torch-*")} and len(answers) == 1
    assert not list(root.glob("building-*"))

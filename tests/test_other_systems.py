"""The base install answers on macOS and Windows: no command that predicts calls what only Linux has.

A process in which those modules, functions and files are missing stands in for the other systems.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

MISSING = """
import builtins, io, os, select, sys
for name in ("resource", "fcntl", "pwd", "grp", "termios", "torch", "transformers", "scipy", "pandas", "deepspeed"):
    sys.modules[name] = None
for module, names in ((os, ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "fork", "readv", "getuid", "sched_getaffinity",
                            "posix_fadvise", "mkfifo")), (select, ("poll", "epoll"))):
    for name in names:
        delattr(module, name)
os.environ = {name: value for name, value in os.environ.items() if name not in ("LOGNAME", "USER", "LNAME")} | {
    "USERNAME": "somebody"}
really = io.open
def without_proc(file, *rest, **named):
    if str(file).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", str(file))
    return really(file, *rest, **named)
io.open = builtins.open = without_proc
sys.platform = "darwin"
from predictor.cli import main
sys.exit(main(sys.argv[1:]))
"""
JOB = ["llava-1.5-7b", "--sequence-length", "1024"]


def run(*words, cwd=None):
    return subprocess.run([sys.executable, "-X", "utf8", "-c", MISSING, *words], cwd=cwd, capture_output=True, text=True)


@pytest.mark.parametrize("words", [
    ["--help"], ["predict", *JOB, "--gpu", "rtx-4090"], ["predict", "--workload", "job.yaml"], ["explain", *JOB],
    ["models"], ["profiles"], ["oom", "train.log"],
    ["plan", *JOB, "--gpu", "h100-80gb", "--no-trace", "--keep", "engine,optim"]], ids=lambda words: words[0])
def test_a_command_answers_without_what_only_linux_has(words, tmp_path):
    (tmp_path / "job.yaml").write_text("model: llava-1.5-7b\nsequence_length: 1024\n")
    (tmp_path / "train.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
                                        "total capacity of 23.64 GiB of which 1.50 GiB is free. Process 1 has 22.13 GiB "
                                        "memory in use. Of the allocated memory 21.00 GiB is allocated by PyTorch, and "
                                        "600.00 MiB is reserved by PyTorch but unallocated.\n")
    done = run(*words, cwd=tmp_path)
    assert (done.returncode in (0, 1), done.stderr) == (True, "")


def test_the_answer_is_that_of_linux():
    words = ["predict", *JOB, "--gpu", "a100-40gb", "--json"]
    ours = subprocess.run([sys.executable, "-m", "predictor.cli", *words], capture_output=True, text=True)
    assert json.loads(run(*words).stdout) == json.loads(ours.stdout)


def test_a_snapshot_is_replayed_without_a_limit_of_the_address_space(tmp_path):
    file = tmp_path / "run.pickle"
    written = run("predict", *JOB, "--snapshot", str(file))
    replayed = run("replay", str(file))
    assert (written.returncode, replayed.returncode, replayed.stderr) == (0, 0, "")

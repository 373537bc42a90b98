"""A closed or full stdout or stderr changes neither the exit code nor any file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PREDICT = """
import os, subprocess, sys
import predictor.answer.predict
from predictor.cli import main
from predictor.report.console import console
from tests.predictor import samples

def predict(workload, **_):
    {meanwhile}
    return samples.prediction(workload)

predictor.answer.predict.predict = predict
sys.exit(main(["predict", "m", "--sequence-length", "9", *sys.argv[1:]]))
"""
SPEAKS = """print("tracing", file=sys.stderr, flush=True)
    console(sys.stderr, width=None if sys.stderr.isatty() else 80).print("a plan")"""
DEAF = ["2>&-", "2>/dev/full"]


def run(redirection: str, *words: str, cwd=ROOT) -> subprocess.CompletedProcess:
    """Python with these words, and what a shell does to its streams."""
    return subprocess.run(["sh", "-c", f'exec "$0" "$@" {redirection}', sys.executable, *words], cwd=cwd, text=True,
                          capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize("redirection", [*DEAF, ">&- 2>&-", "0<&- >&- 2>&-", ">/dev/full 2>/dev/full", ">/dev/full 2>&-"])
def test_an_error_that_nobody_hears_is_exit_code_2_and_nowhere_else(redirection):
    found = run(redirection, "-m", "predictor.cli", "nonsense")
    assert (found.returncode, found.stdout, found.stderr) == (2, "", "")


@pytest.mark.parametrize("redirection", [">/dev/full 2>/dev/full", ">/dev/full 2>&-"])
def test_an_answer_that_cannot_be_written_is_exit_code_2_though_nobody_hears_why(redirection):
    assert run(redirection, "-c", PREDICT.format(meanwhile="pass"), "--json").returncode == 2


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize("redirection", DEAF)
def test_what_is_said_meanwhile_changes_no_answer(redirection, form):
    quiet, found = (run(at, "-c", PREDICT.format(meanwhile=what), *form)
                    for at, what in (("", "pass"), (redirection, SPEAKS)))
    assert quiet.returncode == 0 and quiet.stdout
    assert (found.returncode, found.stdout) == (0, quiet.stdout)


@pytest.mark.parametrize("redirection", ["2>&-", ">&- 2>&-", "0<&- >&- 2>&-"])
def test_what_libraries_write_to_closed_streams_reaches_no_file(tmp_path, redirection):
    noise = """with open("kept", "w", buffering=1) as kept:
        for number in range(3):
            try:
                os.write(number, b"noise")
            except OSError:
                pass
        kept.write("mine")"""
    found = run(redirection, "-c", PREDICT.format(meanwhile=noise), "-o", "out.txt", cwd=tmp_path)
    assert found.returncode == 0
    assert (tmp_path / "kept").read_text() == "mine" and (tmp_path / "out.txt").read_text().startswith("Peak 43.50 GiB")


def test_a_process_that_is_started_has_every_stream(tmp_path):
    child = """subprocess.run([sys.executable, "-c", "import os; [os.fstat(number) for number in range(3)]"], check=True)"""
    assert run("0<&- >&- 2>&-", "-c", PREDICT.format(meanwhile=child), "-o", "out.txt", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("redirection", DEAF)
def test_a_training_does_not_notice_that_nobody_hears_us(redirection):
    training = "from calibrate.training.messages import on_stderr; on_stderr('predicted'); print('trained')"
    found = run(redirection, "-c", training)
    assert (found.returncode, found.stdout) == (0, "trained\n")


def test_a_training_s_line_shows_what_would_steer_the_terminal():
    found = run("", "-c", r"from calibrate.training.messages import on_stderr; on_stderr('a\x1b[2Jb\nc')")
    assert found.stderr == "peakcast: a\\x1b[2Jb c\n"


@pytest.mark.parametrize("redirection", DEAF)
def test_the_emulated_gpu_s_own_command_ends_with_2_too(redirection):
    found = run(redirection, "-m", "calibrate.emulator", "run", "--gpu", "nonsense", "--", "true")
    assert (found.returncode, found.stdout) == (2, "")

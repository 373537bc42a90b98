"""How far a dry run is, while it runs."""

import argparse
import io
import json
import subprocess
import sys
import textwrap

import pytest

from calibrate.commands import dryrun as command
from calibrate.dryrun.dryrun import Streams, dryrun
from calibrate.dryrun.progress import SUFFIX, Phase, Progress, read
from calibrate.report.dryrun import progress_text
from tests.calibrate.small_jobs import needs_emulator

LOOP = """
    import time, torch
    model = torch.nn.Linear(1024, 1024, device="cuda")
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(3):
        time.sleep(1.5)
        model(torch.ones(8, 1024, device="cuda")).sum().backward()
        optimizer.step()
"""


@needs_emulator
def test_the_phases_come_in_order_with_the_step_and_the_peak_so_far(tmp_path, formula_cache):
    (tmp_path / "train.py").write_text(textwrap.dedent(LOOP))
    states = []
    dryrun([sys.executable, str(tmp_path / "train.py")], optimizer_steps=3,
           streams=Streams(subprocess.DEVNULL, progress=states.append))
    phases = list(dict.fromkeys(state.phase for state in states))
    assert phases[0] is Phase.STARTING and phases == [phase for phase in Phase if phase in phases]
    steps = [state for state in states if state.phase is Phase.STEPPING]
    assert steps and all(1 <= state.step <= state.steps == 3 and state.peak_bytes > 4 << 20 for state in steps)
    assert [state.step for state in steps] == sorted(state.step for state in steps)


def test_of_several_processes_the_furthest_counts(tmp_path):
    assert read(tmp_path) == Progress(Phase.STARTING)
    for name, state in {"1": ("stepping", 2, 7), "2": ("stepping", 2, 9), "3": ("preparing", 0, 99)}.items():
        document = dict(zip(("phase", "step", "peak_bytes"), state)) | {"steps": None}
        (tmp_path / f"{name}{SUFFIX}").write_text(json.dumps(document))
    assert read(tmp_path) == Progress(Phase.STEPPING, 2, None, 9)


@pytest.mark.parametrize(("progress", "text"), [
    (Progress(Phase.STARTING), "the script starts"),
    (Progress(Phase.IMPORTED), "PyTorch is imported; the GPU is not in use yet"),
    (Progress(Phase.PREPARING), "preparing, before the first backward"),
    (Progress(Phase.PREPARING, peak_bytes=1 << 30), "preparing, before the first backward; peak so far 1.00 GiB"),
    (Progress(Phase.STEPPING, 2, 3, 1 << 30), "step 2 of 3; peak so far 1.00 GiB"),
    (Progress(Phase.STEPPING, 2, None, 1 << 30), "step 2; peak so far 1.00 GiB"),
])
def test_a_state_is_told_in_a_few_words(progress, text):
    assert progress_text(progress) == text


def test_a_line_is_written_for_each_phase_and_not_for_each_step(capsys):
    teller = command.Teller()
    for progress in (Progress(Phase.STARTING), Progress(Phase.STARTING), Progress(Phase.STEPPING, 1), Progress(Phase.STEPPING, 2)):
        teller.tell(progress)
    assert capsys.readouterr() == ("", "peakcast: the script starts\npeakcast: step 1\n")


@pytest.mark.parametrize("terminal", [True, False])
def test_the_state_is_asked_for_only_if_stderr_is_a_terminal(monkeypatch, tmp_path, terminal):
    class Stderr(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    given = {}

    def instead(words, machine, *, streams, **settings):
        given["streams"] = streams
        raise RuntimeError("enough")

    import calibrate.dryrun.dryrun

    monkeypatch.setattr(calibrate.dryrun.dryrun, "dryrun", instead)
    monkeypatch.setattr(sys, "stderr", Stderr())
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(RuntimeError, match="enough"):
        command.run(parser.parse_args(["--", "true"]))
    assert (given["streams"].progress is not None) is terminal

"""Kills: a command is killed at a random time and run again; its result is that of a run to the end.

Each kind of kill is a scene: a command, the result that counts, and what must be whole or absent after a kill.

    python -m tests.attack.kills SCENE SIGNAL FIRST KILLS
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.attack.processes import NotTried, all_gone, ended, start
from tests.attack.programs import ROOT

PEAKCAST = (sys.executable, "-m", "predictor")
INTERRUPTED = 130
ENDS_SECONDS = 120
"""So long after a signal a command, or what it started, may still run: a process that measures ends its job first, and the machine may be
busy."""


@dataclass(frozen=True)
class Scene:
    """A command that is killed.

    Attributes:
        words: the command; ``{directory}`` stands for the directory that it may write to.
        result: reads what counts of a directory where the command ended.
        whole: names of files that must be whole or absent at any time, with a function that reads each.
        prepare: makes the files that the command reads.
        codes: its exit codes.
    """

    words: tuple[str, ...]
    result: Callable[[Path], Any]
    whole: Mapping[str, Callable[[Path], Any]] = field(default_factory=dict)
    prepare: Callable[[Path], None] = lambda directory: None
    codes: tuple[int, ...] = (0, 1)


@dataclass(frozen=True)
class Kill:
    """What became of a command that was killed.

    Attributes:
        running: how many of the signals came while it ran, not after its end.
        wrong: what is wrong, a line each.
    """

    running: int
    wrong: list[str]


class Killer:
    """Kills the commands of scenes, and compares with runs to the end, which are made once."""

    def __init__(self) -> None:
        self._whole: dict[str, tuple[Any, float]] = {}

    def undisturbed(self, name: str) -> tuple[Any, float]:
        """The result of a scene's command that nobody kills, and how long it took in seconds.

        Raises:
            NotTried: the command fails.
        """
        if name not in self._whole:
            scene = SCENES[name]
            with tempfile.TemporaryDirectory(prefix="attack-") as place:
                directory = Path(place)
                scene.prepare(directory)
                begun = time.monotonic()
                code, said = ended(scene.words, directory)
                if code not in scene.codes:
                    raise NotTried(f"{name}: exit code {code}: {said[-2000:]}")
                self._whole[name] = scene.result(directory), time.monotonic() - begun
        return self._whole[name]

    def kill(self, name: str, number: int, how: signal.Signals = signal.SIGKILL) -> Kill:
        """Kills a scene's command at a random time, once or twice, and runs it again."""
        expected, seconds = self.undisturbed(name)
        scene, draw, running, wrong = SCENES[name], random.Random(number), 0, []
        with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as place:
            directory = Path(place)
            scene.prepare(directory)
            for _ in range(draw.choice((1, 1, 2))):
                process = start(scene.words, directory)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(draw.uniform(0.02, 1.02) * seconds)
                running += process.poll() is None
                wrong += _struck(scene, directory, process, how)
            wrong += run_again(scene, directory, expected)
        return Kill(running, wrong)


def run_again(scene: Scene, directory: Path, expected: Any) -> list[str]:
    """Runs a scene's command to its end in a directory that it was stopped in: what is wrong with its end, or its result."""
    code, said = ended(scene.words, directory)
    if code not in scene.codes:
        return [f"afterwards exit code {code}: {said[-800:]}"]
    try:
        found = scene.result(directory)
    except Exception as error:
        return [f"afterwards no result: {type(error).__name__}: {error}; {said[-800:]}"]
    return [] if found == expected else [f"afterwards another result: {str(found)[:300]}, not {str(expected)[:300]}"]


def unreadable(path: Path, reads: Callable[[Path], Any]) -> list[str]:
    """A line if a file that must be whole cannot be read."""
    try:
        reads(path)
    except Exception as error:
        return [f"{path.name} is half-written: {type(error).__name__}: {error}"]
    return []


def _struck(scene: Scene, directory: Path, process: subprocess.Popen, how: signal.Signals) -> list[str]:
    """Sends a signal to a scene's command, which may have ended just before: what is wrong afterwards."""
    wrong, was_running = [], process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how) if how is signal.SIGINT else process.send_signal(how)  # a terminal interrupts all processes
    try:
        _, said = process.communicate(timeout=ENDS_SECONDS)
    except subprocess.TimeoutExpired:
        wrong.append(f"still runs {ENDS_SECONDS} s after {how.name}")
        os.killpg(process.pid, signal.SIGKILL)
        said = process.communicate()[1]
    if how is signal.SIGINT and was_running:
        text = said.decode(errors="replace")
        if "Traceback" in text:
            wrong.append(f"a traceback after Ctrl-C: {text[-1500:]}")
        elif process.returncode not in (INTERRUPTED, -signal.SIGINT, *scene.codes):
            wrong.append(f"exit code {process.returncode} after Ctrl-C: {text[-300:]}")
    if not all_gone(process.pid):
        wrong.append("its child processes still run 15 s later")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for pattern, reads in scene.whole.items():
        wrong += [line for path in directory.glob(pattern) for line in unreadable(path, reads)]
    return wrong


# scenes ----------------------------------------------------------------------------------------------------------

def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def formula_of(path: Path) -> Any:
    from predictor.formula import formula

    return formula.load(path)


def _lengths(directory: Path) -> None:
    draw = random.Random(0)
    (directory / "l.csv").write_text("tokens,images\n" + "".join(f"{draw.randint(620, 3000)},1\n" for _ in range(400)))


def small_model(directory: Path) -> None:
    from tests.predictor.small import small_config

    (directory / "config.json").write_text(json.dumps(small_config()))


def answer(directory: Path) -> Any:
    document = read_json(directory / "out.json")
    return {name: value for name, value in document.items() if name not in ("provenance", "workload", "remedies") and "seconds" not in name}


def _cached(directory: Path) -> Any:
    return answer(directory), sorted(path.name for path in (directory / "cache" / "formulas").glob("*.npz"))


def _rows(directory: Path) -> Any:
    from calibrate.campaign.rows import read

    return [(row.id, row.unexplained_bytes) for row in read(directory / "rows.jsonl")]


def _batches(directory: Path) -> Any:
    timed = ("seconds", "wall_seconds", "clock_seconds", "bytes", "date")
    rows = [json.loads(line) for line in (directory / "r.jsonl").read_text().splitlines()]
    return sorted(json.dumps({name: value for name, value in row.items() if name not in timed}) for row in rows)


def _arrays(directory: Path) -> Any:
    from predictor.formula import learned

    found = learned.load(directory / "mine.npz")
    return [(events.shapes, events.events.kind.tolist(), events.events.sizes.coefficients.tolist()) for events in found.lists]


def _profile(directory: Path) -> Any:
    document = read_json(directory / "p.json")
    document.pop("provenance", None)
    return document


def _jobs(directory: Path) -> None:
    small_model(directory)
    jobs = [{"role": "fit", "workload": {"model": str(directory / "config.json"), "sequence_length": 64 + 32 * number,
             "per_device_train_batch_size": 2 + number % 2}} for number in range(3)]
    (directory / "jobs.json").write_text(json.dumps({"jobs": jobs}))


SIMULATION = (*PEAKCAST, "predict", "llava-1.5-7b", "--per-device-train-batch-size", "4", "--data-parallel-size", "8", "--zero-stage", "2", "--gpu", "h100-80gb",
              "--samples", "l.csv", "--steps", "60", "--seeds", "2", "--json", "-o", "out.json", "--force")
PRINTED = (*PEAKCAST, "predict", "config.json", "--sequence-length", "64", "--per-device-train-batch-size", "2", "--json")
TRACE = (*PRINTED, "-o", "out.json", "--force")
SCENES = {
    "simulation": Scene(SIMULATION, answer, {"out.json": read_json}, _lengths),
    "trace": Scene(TRACE, _cached, {"out.json": read_json, "cache/formulas/*.npz": formula_of}, small_model),
    "campaign": Scene((sys.executable, "-m", "tests.attack.campaign", "{directory}/rows.jsonl"), _rows),
    "check": Scene((sys.executable, str(ROOT / "scripts/check.py"), "attack", "--part", "fuzz", "--inputs", "30000", "--only", "gates", "--results", "{directory}/r.jsonl"), _batches),
    "learn": Scene((*PEAKCAST, "learn", "config.json", "--gpu", "h100-80gb", "--device", "emulated", "--batches", "2", "--sequences", "64,96", "--no-probe",
                    "--force", "-o", "mine.npz"), _arrays, {}, small_model),
    "calibrate": Scene((*PEAKCAST, "calibrate", "--device", "emulated", "--gpu", "h100-80gb", "--jobs-from", "jobs.json", "--force", "-o", "p.json"),
                       _profile, {"p.json": read_json}, _jobs),
}
"""Name -> scene."""
PLAN = (("simulation", signal.SIGKILL, 18), ("trace", signal.SIGKILL, 6), ("campaign", signal.SIGKILL, 14), ("check", signal.SIGKILL, 4), ("learn", signal.SIGKILL, 4),
        ("calibrate", signal.SIGKILL, 4), ("simulation", signal.SIGINT, 5), ("trace", signal.SIGINT, 3), ("check", signal.SIGINT, 3), ("learn", signal.SIGINT, 3),
        ("calibrate", signal.SIGINT, 3))
"""Scene, signal, and number of kills."""


def main(scene: str, how: str, first: str, count: str) -> None:
    killer = Killer()
    print(json.dumps({number: asdict(killer.kill(scene, number, signal.Signals[how])) for number in range(int(first), int(first) + int(count))}))


if __name__ == "__main__":
    main(*sys.argv[1:])

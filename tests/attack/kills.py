"""Kills: a command is killed at a random time and run again; its result is that of a run to the end.

Each kind of kill is a scene: a command, the result that counts, and what must be whole or absent after a kill. Other
scenes fill a disk, forbid to write, run a command twice at once on one cache, or give a file of 100 MB.

    python -m tests.attack.kills SCENE SIGNAL FIRST KILLS
    python -m tests.attack.kills DISTURBANCE
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tests.attack.page import NOT_RUN
from tests.attack.programs import ROOT

SECONDS = 300
"""After so many seconds a command counts as hanging."""
PEAKCAST = (sys.executable, "-m", "predictor")
INTERRUPTED = 130


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


def start(words: tuple[str, ...], directory: Path, **how: Any) -> subprocess.Popen:
    """Starts a command in a session of its own, with a cache in the directory."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PEAKCAST_CACHE": str(directory / "cache"), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    return subprocess.Popen([word.replace("{directory}", str(directory)) for word in words], cwd=directory, env=environment | how.pop("env", {}),
                            stdin=subprocess.DEVNULL, stdout=how.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE, start_new_session=True,
                            preexec_fn=how.pop("preexec_fn", _hear_interrupts), **how)


def _hear_interrupts() -> None:
    """Undoes that a shell has its background commands, such as a long attack, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ended(words: tuple[str, ...], directory: Path, **how: Any) -> tuple[int, str]:
    """Runs a command to its end: exit code, and what it said on stderr."""
    process = start(words, directory, **how)
    try:
        _, said = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return -1, f"took more than {SECONDS} s"
    return process.returncode, said.decode(errors="replace")


class Killer:
    """Kills the commands of scenes, and compares with runs to the end, which are made once."""

    def __init__(self) -> None:
        self._whole: dict[str, tuple[Any, float]] = {}

    def undisturbed(self, name: str) -> tuple[Any, float]:
        """The result of a scene's command that nobody kills, and how long it took in seconds."""
        if name not in self._whole:
            scene = SCENES[name]
            with tempfile.TemporaryDirectory(prefix="attack-") as place:
                directory = Path(place)
                scene.prepare(directory)
                begun = time.monotonic()
                code, said = ended(scene.words, directory)
                if code not in scene.codes:
                    raise RuntimeError(f"{name}: exit code {code}: {said[-2000:]}")
                self._whole[name] = scene.result(directory), time.monotonic() - begun
        return self._whole[name]

    def kill(self, name: str, number: int, how: signal.Signals = signal.SIGKILL) -> list[str]:
        """Kills a scene's command at a random time, runs it again, and says what is wrong."""
        expected, seconds = self.undisturbed(name)
        scene, draw, wrong = SCENES[name], random.Random(number), []
        with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as place:
            directory = Path(place)
            scene.prepare(directory)
            for _ in range(draw.choice((1, 1, 2))):
                wrong += self._struck(scene, directory, draw.uniform(0.02, 1.02) * seconds, how)
            code, said = ended(scene.words, directory)
            if code not in scene.codes:
                wrong.append(f"after the kill: exit code {code}: {said[-800:]}")
            elif (found := scene.result(directory)) != expected:
                wrong.append(f"after the kill another result: {str(found)[:300]}, not {str(expected)[:300]}")
        return wrong

    def _struck(self, scene: Scene, directory: Path, seconds: float, how: signal.Signals) -> list[str]:
        wrong = []
        process = start(scene.words, directory)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        was_running = process.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how) if how is signal.SIGINT else process.send_signal(how)  # a terminal interrupts all processes
        try:
            _, said = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            wrong.append(f"still runs 30 s after {how.name}")
            os.killpg(process.pid, signal.SIGKILL)
            said = process.communicate()[1]
        if how is signal.SIGINT and was_running:
            text = said.decode(errors="replace")
            if "Traceback" in text:
                wrong.append(f"a traceback after Ctrl-C: {text[-1500:]}")
            elif process.returncode not in (INTERRUPTED, -signal.SIGINT, *scene.codes):
                wrong.append(f"exit code {process.returncode} after Ctrl-C: {text[-300:]}")
        if not _all_gone(process.pid):
            wrong.append("its child processes still run 15 s later")
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for pattern, reads in scene.whole.items():
            for path in directory.glob(pattern):
                try:
                    reads(path)
                except Exception as error:
                    wrong.append(f"{path.name} is half-written: {type(error).__name__}: {error}")
        return wrong


def _all_gone(group: int) -> bool:
    """Whether no process of a session is left, after a while for them to end."""
    for _ in range(150):
        if not any(_runs(entry, group) for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
            return True
        time.sleep(0.1)
    return False


def _runs(entry: Path, session: int) -> bool:
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[3]) == session and fields[0] != "Z"


# scenes ----------------------------------------------------------------------------------------------------------

def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _formula(path: Path) -> Any:
    from predictor.formula import formula

    return formula.load(path)


def _lengths(directory: Path) -> None:
    draw = random.Random(0)
    (directory / "l.csv").write_text("tokens,images\n" + "".join(f"{draw.randint(620, 3000)},1\n" for _ in range(400)))


def _small_model(directory: Path) -> None:
    from tests.predictor.small import small_config

    (directory / "config.json").write_text(json.dumps(small_config()))


def _answer(directory: Path) -> Any:
    document = _json(directory / "out.json")
    return {name: value for name, value in document.items() if name not in ("provenance", "workload", "remedies") and "seconds" not in name}


def _cached(directory: Path) -> Any:
    answer = _answer(directory)
    return answer, sorted(path.name for path in (directory / "cache" / "formulas").glob("*.npz"))


def _rows(directory: Path) -> Any:
    from calibrate.campaign.rows import read

    return [(row.id, row.unexplained_bytes) for row in read(directory / "rows.jsonl")]


def _batches(directory: Path) -> Any:
    timed = ("seconds", "wall_seconds", "bytes", "date")
    rows = [json.loads(line) for line in (directory / "r.jsonl").read_text().splitlines()]
    return sorted(json.dumps({name: value for name, value in row.items() if name not in timed}) for row in rows)


def _arrays(directory: Path) -> Any:
    from predictor.formula import learned

    found = learned.load(directory / "mine.npz")
    return [(events.shapes, events.events.kind.tolist(), events.events.sizes.coefficients.tolist()) for events in found.lists]


def _profile(directory: Path) -> Any:
    document = _json(directory / "p.json")
    document.pop("provenance", None)
    return document


def _jobs(directory: Path) -> None:
    _small_model(directory)
    jobs = [{"role": "fit", "workload": {"model": str(directory / "config.json"), "sequence_length": 64 + 32 * number,
             "per_device_train_batch_size": 2 + number % 2}} for number in range(3)]
    (directory / "jobs.json").write_text(json.dumps({"jobs": jobs}))


SIMULATION = (*PEAKCAST, "predict", "llava-1.5-7b", "--per-device-train-batch-size", "4", "--data-parallel-size", "8", "--zero-stage", "2", "--gpu", "h100-80gb",
              "--samples", "l.csv", "--steps", "60", "--seeds", "2", "--json", "-o", "out.json", "--force")
PRINTED = (*PEAKCAST, "predict", "config.json", "--sequence-length", "64", "--per-device-train-batch-size", "2", "--json")
TRACE = (*PRINTED, "-o", "out.json", "--force")
SCENES = {
    "simulation": Scene(SIMULATION, _answer, {"out.json": _json}, _lengths),
    "trace": Scene(TRACE, _cached, {"out.json": _json, "cache/formulas/*.npz": _formula}, _small_model),
    "campaign": Scene((sys.executable, "-m", "tests.attack.campaign", "{directory}/rows.jsonl"), _rows),
    "check": Scene((sys.executable, str(ROOT / "scripts/check.py"), "attack", "--part", "fuzz", "--inputs", "30000", "--only", "gates", "--results", "{directory}/r.jsonl"), _batches),
    "learn": Scene((*PEAKCAST, "learn", "config.json", "--gpu", "h100-80gb", "--device", "emulated", "--batches", "2", "--sequences", "64,96", "--no-probe",
                    "--force", "-o", "mine.npz"), _arrays, {}, _small_model),
    "calibrate": Scene((*PEAKCAST, "calibrate", "--device", "emulated", "--gpu", "h100-80gb", "--jobs-from", "jobs.json", "--force", "-o", "p.json"),
                       _profile, {"p.json": _json}, _jobs),
}
"""Name -> scene."""
PLAN = (("simulation", signal.SIGKILL, 18), ("trace", signal.SIGKILL, 6), ("campaign", signal.SIGKILL, 14), ("check", signal.SIGKILL, 4), ("learn", signal.SIGKILL, 4),
        ("calibrate", signal.SIGKILL, 4), ("simulation", signal.SIGINT, 5), ("trace", signal.SIGINT, 3), ("check", signal.SIGINT, 3), ("learn", signal.SIGINT, 3),
        ("calibrate", signal.SIGINT, 3))
"""Scene, signal, and number of kills."""


# disks, files and caches -----------------------------------------------------------------------------------------

def _one_line(code: int, said: str, *codes: int) -> list[str]:
    if code not in codes or "Traceback" in said:
        return [f"exit code {code}, not {' or '.join(map(str, codes))}: {said[-1000:]}"]
    if code == 2 and sum(line.startswith("peakcast: error: ") for line in said.splitlines()) != 1:
        return [f"no single line of error: {said[-500:]}"]
    return []


def full_disk() -> list[str]:
    """Files that may not grow: results are refused in one line, and the ones before stay; a cache is only slower."""
    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))

    wrong = []
    with tempfile.TemporaryDirectory(prefix="attack-") as place:
        directory = Path(place)
        _small_model(directory)
        (directory / "out.json").write_text("before")
        wrong += _one_line(*ended(TRACE, directory, preexec_fn=small), 2)
        if not (directory / "out.json").exists() or (directory / "out.json").read_text() != "before":
            wrong.append("the result before is lost, or half-written")
        wrong += _one_line(*ended(PRINTED, directory, preexec_fn=small), 0)
        wrong += [f"half-written: {path.name}" for path in (directory / "cache").rglob("*.npz")]
        with open("/dev/full", "wb") as full:
            wrong += _one_line(*ended(PRINTED, directory, stdout=full), 2)
    return wrong


@contextlib.contextmanager
def _mounted(directory: Path, options: str) -> Iterator[Path | None]:
    """A file system in memory, at a subdirectory; None if this machine lets nobody mount one."""
    place = directory / "mounted"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], capture_output=True, check=True)


def full_file_system() -> list[str]:
    """The same on a small file system of its own."""
    with tempfile.TemporaryDirectory(prefix="attack-") as name, _mounted(Path(name), "size=16k") as mounted:
        directory = Path(name)
        if mounted is None:
            return [NOT_RUN]
        _small_model(directory)
        (mounted / "ballast").write_bytes(bytes(12 << 10))
        words = (*PRINTED, "-o", str(mounted / "out.json"))
        wrong = _one_line(*ended(words, directory, env={"PEAKCAST_CACHE": str(mounted / "cache")}), 2)
        words = (*PEAKCAST, "plan", "llava-1.5-7b", "--sequence-length", "1024", "--gpu", "h100-80gb", "--data-parallel-size", "4", "--write", str(mounted / "job"))
        wrong += _one_line(*ended(words, directory), 2)  # the first of its two files has room
        return wrong + [f"left on the full disk: {path}" for path in mounted.rglob("*") if path.is_file() and path.name != "ballast"]


def read_only_file_system() -> list[str]:
    """A file system that is mounted read-only."""
    with tempfile.TemporaryDirectory(prefix="attack-") as name, _mounted(Path(name), "ro") as mounted:
        if mounted is None:
            return [NOT_RUN]
        _small_model(Path(name))
        return [*_one_line(*ended(PRINTED, Path(name), env={"PEAKCAST_CACHE": str(mounted / "cache")}), 0),
                *_one_line(*ended((*PRINTED, "-o", str(mounted / "out.json")), Path(name)), 2)]


def read_only() -> list[str]:
    """A cache, a result and a directory that cannot be written."""
    with tempfile.TemporaryDirectory(prefix="attack-") as place:
        directory = Path(place)
        _small_model(directory)
        wrong = _one_line(*ended(PRINTED, directory, env={"PEAKCAST_CACHE": "/proc/none"}), 0)
        (directory / "file").touch()
        wrong += _one_line(*ended(PRINTED, directory, env={"PEAKCAST_CACHE": str(directory / "file")}), 0)
        for result in ("/proc/out.json", "none/out.json", "file/out.json", "/dev/null/x", "."):
            wrong += _one_line(*ended((*PRINTED, "-o", result), directory), 2)
    return wrong


def two_at_once() -> list[str]:
    """Two commands trace the same model into one cache at once: both answer alike, and the cache is whole."""
    with tempfile.TemporaryDirectory(prefix="attack-") as place:
        directory = Path(place)
        _small_model(directory)
        outs = [directory / f"{number}.json" for number in range(2)]
        running = [start((*PRINTED, "-o", str(path)), directory) for path in outs]
        wrong = [line for process in running for line in _one_line((process.communicate(timeout=SECONDS), process.returncode)[1], "", 0)]
        if wrong:
            return wrong
        first, second = ({name: size for name, size in _json(path).items() if name.startswith("peak_")} for path in outs)
        wrong += [] if first == second else [f"different answers: {first} and {second}"]
        files = list((directory / "cache/formulas").iterdir())
        wrong += [f"left in the cache: {path.name}" for path in files if path.suffix not in (".npz", ".split")]
        for path in files:
            if path.suffix == ".npz":
                _formula(path)
        return wrong


LARGE_BYTES = 100 << 20
LARGE = {"zeros": bytes(1), "lines": b"a: 1\n", "json": b"[", "records": b'{"job": {}}\n', "rows": b'{"text": "%s"}\n' % (b"a" * 1_000)}
"""Name -> what a file of 100 MB repeats."""
TRAINED = ("train.py", "--model_name_or_path", "gpt2", "--output_dir", "o", "--max_length", "64")
LARGE_READ: tuple[tuple[str, ...], ...] = (
    ("read", "c.yaml"), ("read", "s.sh"), ("workload", "w.json"), ("snapshot", "s.pickle"), ("formula", "f.npz"), ("learned", "f.npz"), ("profile", "p.json"), ("record", "r.json"),
    ("campaign", "m.jsonl"), ("measurements", "m.jsonl"), ("gates", "g.toml"), ("samples", "l.csv"), ("samples", "l.jsonl"), ("dataset", "d.jsonl"), ("dataset", "d.json"),
    ("dataset", "d.parquet"), ("log", "x.log"), ("model", "config.json"), ("words", "deepspeed", "--hostfile", "h", *TRAINED),
    ("words", "accelerate", "launch", "--config_file", "a.yaml", *TRAINED), ("words", "deepspeed", *TRAINED, "--deepspeed", "ds.json"), ("words", "bash", "s.sh"),
    ("command", "predict", "--workload", "w.yaml"), ("command", "predict", "--from", "s.sh"), ("command", "predict", "f.npz"), ("command", "oom", "x.log"), ("command", "fits", "c.yaml"),
    ("command", "replay", "s.pickle"), ("command", "profiles", "p.json"), ("command", "predict", "llava-1.5-7b", "--samples", "l.csv"))
"""Target and its words, of which the one with a file's ending, or else ``h``, names the file of 100 MB."""


def _file_of(words: tuple[str, ...]) -> str:
    return next(word for word in words if word == "h" or word != "train.py" and not word.startswith("llava") and "." in word)


def large_files() -> list[str]:
    """Files of 100 MB, for every reading function, are read or refused within the bounds of all inputs."""
    from tests.attack.inputs import Input
    from tests.attack.judge import judge
    from tests.attack.targets import nothing_traced

    wrong = []
    with tempfile.TemporaryDirectory(prefix="attack-") as place, nothing_traced():
        inside = Path(place) / "inside"
        inside.mkdir()
        for kind, piece in LARGE.items():
            for target, *words in LARGE_READ:
                file = _file_of(tuple(words))
                content = piece * (LARGE_BYTES // len(piece))
                given = Input(target, tuple(words), {file: content})
                del content
                os.chdir(place)
                found = judge(given, inside)
                peak = found.peak_bytes - LARGE_BYTES  # the content, which the attack holds itself
                if found.problem and not (found.problem.startswith("memory") and peak <= 500 << 20):
                    wrong.append(f"{target} of {' '.join(words)} with {kind}: {found.problem[-600:]}")
    return wrong


def _traced(directory: Path) -> tuple[Any, Path]:
    """The answer about a small model that is traced in this directory, and its formula's file in the cache.

    Raises:
        RuntimeError: it is not traced.
    """
    _small_model(directory)
    if (found := _one_line(*ended(TRACE, directory), 0)):
        raise RuntimeError("; ".join(found))
    return _answer(directory), next((directory / "cache/formulas").glob("*.npz"))


def damaged_cache() -> list[str]:
    """Any damage to a formula in the cache is noticed: the answer is that of the whole file."""
    wrong, draw = [], random.Random(1)
    with tempfile.TemporaryDirectory(prefix="attack-") as place:
        directory = Path(place)
        expected, file = _traced(directory)
        content = file.read_bytes()
        for _ in range(4):
            data = bytearray(content)
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            file.write_bytes(draw.choice((data, data, content[:draw.randrange(len(content))])))
            wrong += _one_line(*ended(TRACE, directory), 0)
            wrong += [] if _answer(directory) == expected else ["a damaged formula gave another answer"]
    return wrong


def with_other_content(file: Path, keeps_sum: bool = True) -> bytes:
    """A formula's file in which one size is another, as a zip archive without a fault: its own checksums hold.

    What is behind the archive, the sum of a cached formula, stays as it was or is left out.
    """
    import numpy as np

    stream = io.BytesIO()
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(stream, "w") as other:
        members = {part.filename: archive.read(part) for part in archive.infolist()}
        array = np.load(io.BytesIO(members["coefficients.npy"]))
        array.flat[array.size // 2] += 1
        changed = io.BytesIO()
        np.lib.format.write_array(changed, array, allow_pickle=False)
        members["coefficients.npy"] = changed.getvalue()
        for name, content in members.items():
            other.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_LZMA)
        other.comment = archive.comment if keeps_sum else b""
    return stream.getvalue()


def other_content() -> list[str]:
    """A formula whose numbers changed, though its archive is whole, is noticed by its sum: one in the cache is traced again, a shipped one is refused."""
    from predictor.common.errors import InputError
    from predictor.formula import shipped_sums, store

    wrong = []
    with tempfile.TemporaryDirectory(prefix="attack-") as place:
        directory = Path(place)
        expected, file = _traced(directory)
        content = with_other_content(file)
        file.write_bytes(content)
        wrong += _one_line(*ended(TRACE, directory), 0)
        wrong += [] if _answer(directory) == expected else ["a changed formula in the cache gave another answer"]
        wrong += [] if file.read_bytes() != content else ["a changed formula in the cache is still there"]
        shipped = directory / "shipped"
        shipped.mkdir()
        smallest = min(store.shipped_directory().glob("*.npz"), key=lambda path: (path.stat().st_size, path.name))
        for source in (smallest, store.shipped_directory() / shipped_sums.NAME):
            shutil.copy(source, shipped)
        (shipped / smallest.name).write_bytes(with_other_content(smallest, keeps_sum=False))
        with mock.patch.object(store, "shipped_directory", lambda: shipped), contextlib.suppress(InputError):
            store._load(shipped / smallest.name, 0)
            wrong.append("a changed shipped formula is read")
    return wrong


DISTURBANCES: dict[str, Callable[[], list[str]]] = {function.__name__: function for function in (
    full_disk, full_file_system, read_only, read_only_file_system, two_at_once, large_files, damaged_cache, other_content)}
"""Name -> a disturbance that is no kill."""


def torn() -> list[str]:
    """A last line that is cut off anywhere is run again, and the result is the same."""
    killer, wrong = Killer(), []
    for name, file in (("campaign", "rows.jsonl"), ("check", "r.jsonl")):
        expected, _ = killer.undisturbed(name)
        scene = SCENES[name]
        with tempfile.TemporaryDirectory(prefix="attack-") as place:
            directory = Path(place)
            code, said = ended(scene.words, directory)
            content = (directory / file).read_bytes()
            last = len(content) - content[:-1].rfind(b"\n") - 1
            for cut in (1, last // 2, last - 1):
                (directory / file).write_bytes(content[:-cut])
                code, said = ended(scene.words, directory)
                if code not in scene.codes or scene.result(directory) != expected:
                    wrong.append(f"{name}, the last line without {cut} bytes: exit code {code}: {said[-800:]}")
    return wrong


DISTURBANCES["torn"] = torn


def main(name: str, how: str = "", first: str = "0", count: str = "1") -> None:
    killer = Killer()
    kills = {str(number): killer.kill(name, number, signal.Signals[how]) for number in range(int(first), int(first) + int(count))} if how else {
        "": _disturbed(name)}
    print(json.dumps(kills))


def _disturbed(name: str) -> list[str]:
    try:
        return DISTURBANCES[name]()
    except RuntimeError as error:
        return [str(error)]


if __name__ == "__main__":
    main(*sys.argv[1:])

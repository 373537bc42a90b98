"""Disturbances that are no kill: a full or read-only disk, two commands on one cache, damaged and very large files.

    python -m tests.attack.disturbances NAME
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
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tests.attack.kills import (
    PEAKCAST,
    PRINTED,
    SCENES,
    TRACE,
    Killer,
    answer,
    formula_of,
    read_json,
    run_again,
    small_model,
    unreadable,
)
from tests.attack.processes import SECONDS, NotTried, ended, start


class NotAllowed(Exception):
    """This machine does not allow a disturbance."""


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
        small_model(directory)
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
def _mounted(directory: Path, options: str) -> Iterator[Path]:
    """A file system in memory, at a subdirectory.

    Raises:
        NotAllowed: this machine lets nobody mount one.
    """
    place = directory / "mounted"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True).returncode:
        raise NotAllowed("nothing may be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], capture_output=True, check=True)


def full_file_system() -> list[str]:
    """The same on a small file system of its own."""
    with tempfile.TemporaryDirectory(prefix="attack-") as name, _mounted(Path(name), "size=16k") as mounted:
        directory = Path(name)
        small_model(directory)
        (mounted / "ballast").write_bytes(bytes(12 << 10))
        words = (*PRINTED, "-o", str(mounted / "out.json"))
        wrong = _one_line(*ended(words, directory, env={"PEAKCAST_CACHE": str(mounted / "cache")}), 2)
        words = (*PEAKCAST, "plan", "llava-1.5-7b", "--sequence-length", "1024", "--gpu", "h100-80gb", "--data-parallel-size", "4", "--write", str(mounted / "job"))
        wrong += _one_line(*ended(words, directory), 2)  # the first of its two files has room
        return wrong + [f"left on the full disk: {path}" for path in mounted.rglob("*") if path.is_file() and path.name != "ballast"]


def read_only_file_system() -> list[str]:
    """A file system that is mounted read-only."""
    with tempfile.TemporaryDirectory(prefix="attack-") as name, _mounted(Path(name), "ro") as mounted:
        small_model(Path(name))
        return [*_one_line(*ended(PRINTED, Path(name), env={"PEAKCAST_CACHE": str(mounted / "cache")}), 0),
                *_one_line(*ended((*PRINTED, "-o", str(mounted / "out.json")), Path(name)), 2)]


def read_only() -> list[str]:
    """A cache, a result and a directory that cannot be written."""
    with tempfile.TemporaryDirectory(prefix="attack-") as place:
        directory = Path(place)
        small_model(directory)
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
        small_model(directory)
        outs = [directory / f"{number}.json" for number in range(2)]
        running = [start((*PRINTED, "-o", str(path)), directory) for path in outs]
        wrong = [line for process in running for line in _one_line((process.communicate(timeout=SECONDS), process.returncode)[1], "", 0)]
        if wrong:
            return wrong
        first, second = ({name: size for name, size in read_json(path).items() if name.startswith("peak_")} for path in outs)
        wrong += [] if first == second else [f"different answers: {first} and {second}"]
        files = list((directory / "cache/formulas").iterdir())
        wrong += [f"left in the cache: {path.name}" for path in files if path.suffix not in (".npz", ".split")]
        wrong += [line for path in files if path.suffix == ".npz" for line in unreadable(path, formula_of)]
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
    from tests.attack.judge import MEMORY, MOST_BYTES, judge
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
                if found.problem and not (found.problem.startswith(MEMORY) and peak <= MOST_BYTES):
                    wrong.append(f"{target} of {' '.join(words)} with {kind}: {found.problem[-600:]}")
    return wrong


def _traced(directory: Path) -> tuple[Any, Path]:
    """The answer about a small model that is traced in this directory, and its formula's file in the cache.

    Raises:
        NotTried: it is not traced.
    """
    small_model(directory)
    if (found := _one_line(*ended(TRACE, directory), 0)):
        raise NotTried("; ".join(found))
    return answer(directory), next((directory / "cache/formulas").glob("*.npz"))


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
            wrong += [] if answer(directory) == expected else ["a damaged formula gave another answer"]
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
        wrong += [] if answer(directory) == expected else ["a changed formula in the cache gave another answer"]
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


def torn() -> list[str]:
    """A last line that is cut off anywhere is run again, and the result is the same: of all commands that go on with lines of JSON.

    ``calibrate`` has the lines of a campaign, and ``learn`` keeps none: it starts anew.
    """
    killer, wrong = Killer(), []
    for name, file in (("campaign", "rows.jsonl"), ("calibrate", "p.jsonl"), ("check", "r.jsonl")):
        expected, _ = killer.undisturbed(name)
        scene = SCENES[name]
        with tempfile.TemporaryDirectory(prefix="attack-") as place:
            directory = Path(place)
            scene.prepare(directory)
            ended(scene.words, directory)
            content = (directory / file).read_bytes()
            last = len(content) - content[:-1].rfind(b"\n") - 1
            for cut in (1, last // 2, last - 1):
                (directory / file).write_bytes(content[:-cut])
                wrong += [f"{name}, the last line without {cut} bytes: {line}" for line in run_again(scene, directory, expected)]
    return wrong


DISTURBANCES: dict[str, Callable[[], list[str]]] = {function.__name__: function for function in (
    full_disk, full_file_system, read_only, read_only_file_system, two_at_once, large_files, damaged_cache, other_content, torn)}
"""Name -> a disturbance that is no kill."""


def disturbed(name: str) -> dict[str, Any]:
    """What is wrong after a disturbance, or why nothing is known: ``not_run`` if the machine does not allow it, ``not_tried``
    if what it disturbs does not work without it."""
    try:
        return {"disturbance": DISTURBANCES[name]()}
    except NotAllowed as error:
        return {"disturbance": [], "not_run": str(error)}
    except NotTried as error:
        return {"disturbance": [], "not_tried": str(error)}


if __name__ == "__main__":
    print(json.dumps(disturbed(sys.argv[1])))

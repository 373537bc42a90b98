"""Valid files near the limits of their readers: each is answered or refused in one line, and how much time and memory it took is kept.

Each is written by one process and read by another, whose memory is that of the reader alone.

    python -m tests.attack.valid_files
    python -m tests.attack.valid_files write KIND DIRECTORY
    python -m tests.attack.valid_files read KIND DIRECTORY
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.attack import programs
from tests.attack.programs import ROOT

MIB = 1 << 20
SECONDS = 300
"""Time of the clock that a file may take."""
MOST_TIMES, SPARE_BYTES = 20, 500_000_000
"""Memory that a reader may take: so many times the file's bytes (docs/SECURITY.md), and what any input may take."""


class Kind(NamedTuple):
    """A file and what reads it.

    Attributes:
        file: its name.
        write: writes it.
        readers: targets with their words (``tests.attack.targets``).
    """

    file: str
    write: Callable[[Path], None]
    readers: tuple[tuple[str, ...], ...]


def _repeated(piece: bytes, size: int) -> Callable[[Path], None]:
    """Writes a piece again and again, so many bytes in all."""
    def write(path: Path) -> None:
        with path.open("wb") as stream:
            for _ in range(size // len(piece)):
                stream.write(piece)

    return write


def _history(path: Path) -> None:
    """A memory history of 300,000 allocations and their frees, whole from its beginning: some 50 MB."""
    from predictor.snapshot.recording import RecordingAllocator

    allocator = RecordingAllocator()
    for number in range(100_000):
        blocks = [allocator.malloc(512 * (1 + number % 7 * times)) for times in (1, 100, 5_000)]
        for block in blocks:
            allocator.free(block)
    path.write_bytes(pickle.dumps(allocator.snapshot(), protocol=4))


def _formula(path: Path) -> None:
    """A learned formula with one array more, so that it unpacks to nearly as much as any may."""
    import numpy as np

    from predictor.common import arrays
    from tests.attack.recorded import learned_formula

    more = np.zeros(arrays.MOST_BYTES - 2 * MIB, np.uint8)
    with zipfile.ZipFile(path, "w") as archive:  # stored: to compress so much takes minutes
        for name, array in {**learned_formula(), "more": more}.items():
            with archive.open(f"{name}.npy", "w") as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def _parquet(path: Path) -> None:
    """Rows with a conversation of about a thousand characters, without compression: 100 MB."""
    import pyarrow as pa
    from pyarrow import parquet

    said = [[{"role": "user", "content": f"{number} " + "x" * 500}, {"role": "assistant", "content": "y" * 500}] for number in range(10_000)]
    table = pa.table({"messages": pa.array(said)})
    with parquet.ParquetWriter(path, table.schema, compression="none", use_dictionary=False) as writer:
        for _ in range(10):
            writer.write_table(table)


def _campaign(path: Path) -> None:
    """The rows of a campaign, again and again: 100 MB."""
    _repeated((ROOT / "profiles/h100-80gb/campaign.jsonl").read_bytes(), 100 * MIB)(path)


MESSAGE = (b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 512.00 MiB is free. "
           b"Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and "
           b"5.00 GiB is reserved by PyTorch but unallocated.\n")
LOG = (b"step 3 | loss 2" + b" " * 100 + b"\n") * 100 + MESSAGE
SAMPLE = b'{"tokens": 1812, "images": 1}\n'
KINDS = {
    "history": Kind("s.pickle", _history, (("snapshot", "s.pickle"), ("command", "replay", "s.pickle"))),
    "formula": Kind("f.npz", _formula, (("learned", "f.npz"), ("command", "predict", "f.npz", "--per-device-train-batch-size", "3", "--sequence-length", "96"))),
    "parquet": Kind("d.parquet", _parquet, (("dataset", "d.parquet"),)),
    "campaign": Kind("m.jsonl", _campaign, (("campaign", "m.jsonl"), ("measurements", "m.jsonl"))),
    "samples": Kind("l.jsonl", _repeated(SAMPLE, len(SAMPLE) << 20), (("samples", "l.jsonl"),)),
    "log": Kind("x.log", _repeated(LOG, (24 << 20) - 1), (("log", "x.log"), ("command", "oom", "x.log"))),
}
"""Name -> kind of file. Of samples there may be 1,048,576, of a log 24 MiB, and arrays of 256 MiB."""


def tried() -> dict[str, Any]:
    """What is wrong with the readers of all kinds of files, a line each, and the time and memory that each took."""
    wrong, files = [], []
    for kind, (file, _, readers) in KINDS.items():
        with tempfile.TemporaryDirectory(prefix="attack-") as directory:
            programs.answer("valid_files", "write", kind, directory)
            size = (Path(directory) / file).stat().st_size
            for number, words in enumerate(readers):
                found = read_by(kind, directory, number)
                files.append({"file": kind, "reader": " ".join(words), "file_bytes": size, **found})
                wrong += [f"{kind}, {' '.join(words)}: {line}" for line in problems(found, size)]
    return {"disturbance": wrong, "files": files}


def read_by(kind: str, directory: str, number: int) -> dict[str, Any]:
    try:
        return programs.answer("valid_files", "read", kind, directory, number, seconds=SECONDS)
    except programs.Died as error:
        return {"problem": str(error), "refused": None, "seconds": None, "bytes": None}


def problems(found: Mapping[str, Any], size: int) -> Iterator[str]:
    if found["problem"]:
        yield found["problem"]
    elif found["bytes"] > (most := MOST_TIMES * size + SPARE_BYTES):
        yield f"memory: {found['bytes'] / 1e6:.0f} MB, more than {most / 1e6:.0f} MB"


def read(kind: str, number: int, directory: Path) -> dict[str, Any]:
    """What one reader of a file made of it, and its time and memory."""
    from predictor.common.errors import InputError
    from tests.attack.judge import peak_bytes, wrong_line
    from tests.attack.targets import TARGETS, nothing_traced

    target, *words = KINDS[kind].readers[number]
    os.chdir(directory)
    problem, refused, begun = None, None, time.monotonic()
    try:
        with nothing_traced():
            TARGETS[target](*words)
    except InputError as error:
        refused, problem = str(error), wrong_line(str(error))
    except BaseException as error:  # SystemExit, too
        problem = f"{type(error).__name__}: {error}"
    return {"problem": problem, "refused": refused, "seconds": round(time.monotonic() - begun, 1), "bytes": peak_bytes()}


def main(how: str = "", kind: str = "", directory: str = "", number: str = "0") -> None:
    if how == "write":
        KINDS[kind].write(Path(directory) / KINDS[kind].file)
    print(json.dumps(tried() if not how else read(kind, int(number), Path(directory)) if how == "read" else {}))


if __name__ == "__main__":
    main(*sys.argv[1:])

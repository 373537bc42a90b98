"""Configuration files of an earlier revision of a Git repository, written to a directory of their own."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from predictor.common.errors import InputError
from predictor.common.suggestions import quoted

MOST_BYTES = 1 << 20
"""Larger files are no configurations, and are left out."""
MOST_FILES = 20_000
SECONDS = 60.0
REGULAR = "100"
"""How Git's mode of a regular file begins. Links are left out."""


@contextmanager
def in_revision(revision: str, suffixes: Sequence[str]) -> Iterator[Path]:
    """The directory that has, in a revision, the place of the current one. It is current inside the context.

    Args:
        revision: a branch, a tag or a commit.
        suffixes: of the files that are written, such as ``.yaml``; from everywhere in the repository, because
            configurations name others by relative paths.

    Raises:
        InputError: Git is missing, this is no repository of it, or it does not know the revision.
    """
    here = Path.cwd()
    top, commit = _top(), _commit(revision)
    with TemporaryDirectory(prefix="peakcast-") as folder:
        files = _listed(commit, suffixes)
        for (path, _), content in zip(files, _contents([object_id for _, object_id in files])):
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        place = Path(folder, os.path.relpath(here, top))
        place.mkdir(parents=True, exist_ok=True)
        os.chdir(place)
        try:
            yield place
        finally:
            os.chdir(here)


def names_in_revision(revision: str, files: Sequence[str]) -> dict[str, str]:
    """The name that each of these files has in a revision: another one if Git sees that the file was renamed since.

    Args:
        files: names of files, relative to the current directory or absolute.

    Returns:
        Name -> name in the revision, relative to the current directory. Files outside the repository are left out.

    Raises:
        InputError: as :func:`in_revision`.
    """
    here = os.getcwd()
    top = _top()
    renamed = _git("diff", "--name-status", "-z", "--find-renames", "--diff-filter=R", "--no-ext-diff", "--no-textconv",
                   _commit(revision), "--")
    rows = iter(renamed.decode(errors="surrogateescape").split("\0")[:-1])
    before = {now: old for _, old, now in zip(rows, rows, rows)}  # each row: how much is the same, and both names
    found = {}
    for file in files:
        folder, name = os.path.split(os.path.join(here, file))
        path = os.path.relpath(os.path.join(os.path.realpath(folder), name), top)
        if not path.startswith(os.pardir):
            found[file] = os.path.relpath(os.path.join(top, before.get(Path(path).as_posix(), path)), here)
    return found


def _top() -> Path:
    """The directory of the repository that the current directory is in."""
    return Path(_git("rev-parse", "--show-toplevel", problem="the current directory is in no Git repository: run this "
                     "in the repository that has the earlier revision").decode().strip())


def _commit(revision: str) -> str:
    return _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}",
                problem=f"{quoted(revision)} is no revision of this repository: fetch it first, or name another"
                ).decode().strip()


def _listed(commit: str, suffixes: Sequence[str]) -> list[tuple[str, str]]:
    """Path and object of each small regular file with one of the suffixes."""
    rows = _git("ls-tree", "-r", "-l", "-z", "--full-tree", commit).decode(errors="surrogateescape").split("\0")[:-1]
    found = []
    for about, _, path in (row.partition("\t") for row in rows):
        mode, _, object_id, size = about.split()
        if path.lower().endswith(tuple(suffixes)) and mode.startswith(REGULAR) and int(size) <= MOST_BYTES:
            found.append((path, object_id))
    return found[:MOST_FILES]


def _contents(object_ids: Sequence[str]) -> Iterator[bytes]:
    """The content of each object, read by one process: a line that ends with its size, the bytes, and a line break."""
    stream = io.BytesIO(_git("cat-file", "--batch", standard_input="\n".join(object_ids).encode()))
    for _ in object_ids:
        size = int(stream.readline().split()[-1])
        yield stream.read(size)
        stream.read(1)


def _git(*words: str, standard_input: bytes = b"", problem: str = "") -> bytes:
    try:
        return subprocess.run(["git", *words], input=standard_input, capture_output=True, check=True,
                              timeout=SECONDS).stdout
    except FileNotFoundError:
        raise InputError("git is not installed, which an earlier revision needs") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"git {words[0]} took longer than {SECONDS:.0f} seconds") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines() or [f"git {words[0]} failed"]
        raise InputError(problem or lines[0]) from None

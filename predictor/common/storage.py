"""Where peakcast keeps what it made for the next time. A user without a home directory has no such place."""

from __future__ import annotations

import atexit
import getpass
import os
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from predictor.common.errors import InputError


def cache_directory() -> Path | None:
    """``$PEAKCAST_CACHE``, or ``peakcast`` in the user's cache directory."""
    named = os.environ.get("PEAKCAST_CACHE")
    return Path(named) if named else of_user()


def of_user() -> Path | None:
    """``peakcast`` in the user's cache directory, which is an absolute path (XDG Base Directory Specification)."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "peakcast"
    try:
        home = Path.home()
    except RuntimeError:  # no HOME, and no user of this number
        return None
    return home / ".cache" / "peakcast" if home.is_absolute() else None


@lru_cache(maxsize=1)
def private() -> Path:
    """A directory that nobody else can write. It goes when this process ends, and stays if another program takes the
    process's place.

    Raises:
        InputError: there is no room for temporary files.
    """
    try:
        directory = tempfile.mkdtemp(prefix="peakcast-")
    except OSError as error:
        raise InputError(f"no temporary directory can be made ({error.strerror}): set XDG_CACHE_HOME to a directory "
                         "that can be written") from None
    atexit.register(_drop, directory, os.getpid())
    return Path(directory)


def name_user() -> None:
    """Give a user without a name the number for one: PyTorch names a directory of its own after the user, and parts of
    it cannot be imported otherwise (torch 2.11, torch/_inductor/runtime/cache_dir_utils.py, default_cache_dir)."""
    try:
        getpass.getuser()
    except (KeyError, OSError):  # OSError since Python 3.13
        os.environ["LOGNAME"] = str(os.getuid())


def _drop(directory: str, owner: int) -> None:
    if os.getpid() == owner:  # a process that was forked from it ends earlier
        shutil.rmtree(directory, ignore_errors=True)

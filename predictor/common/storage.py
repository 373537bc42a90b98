"""Directories for peakcast's cache and temporary files. A user without a home directory has no cache directory."""

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
    """``$PEAKCAST_CACHE``, or ``peakcast`` in the user's cache directory. None if there is neither."""
    chosen = os.environ.get("PEAKCAST_CACHE")
    return Path(chosen) if chosen else user_cache_directory()


def user_cache_directory() -> Path | None:
    """``peakcast`` in the user's cache directory (XDG Base Directory Specification). None without a home directory.

    The specification says that a relative ``XDG_CACHE_HOME`` is ignored.
    """
    cache_home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if cache_home.is_absolute():
        return cache_home / "peakcast"
    try:
        home = Path.home()
    except RuntimeError:  # HOME is not set, and the user id has no entry in the password database
        return None
    return home / ".cache" / "peakcast" if home.is_absolute() else None


@lru_cache(maxsize=1)
def private_directory() -> Path:
    """A temporary directory that only this user can write. It is removed when this process ends.

    It stays if the process calls ``exec``: another program then takes its place.

    Raises:
        InputError: no temporary directory can be made.
    """
    try:
        directory = tempfile.mkdtemp(prefix="peakcast-")
    except OSError as error:
        raise InputError(f"no temporary directory can be made ({error.strerror}): set XDG_CACHE_HOME to a directory "
                         "that can be written") from None
    atexit.register(_drop, directory, os.getpid())
    return Path(directory)


def ensure_user_name() -> None:
    """Sets ``LOGNAME`` to the user id where the user has no name.

    PyTorch names a directory after the user, and parts of it cannot be imported without a name (torch 2.11,
    torch/_inductor/runtime/cache_dir_utils.py, default_cache_dir).
    """
    try:
        getpass.getuser()
    except (KeyError, OSError, ImportError):  # OSError since Python 3.13; ImportError on Windows before that
        os.environ["LOGNAME"] = str(os.getuid()) if hasattr(os, "getuid") else "user"


def _drop(directory: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child runs this at its end, too, and must not remove its parent's directory
        shutil.rmtree(directory, ignore_errors=True)

"""Leads users who give an out-of-memory error to another command to ``peakcast oom``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from predictor.common.errors import InputError
from predictor.common.files import read_bytes
from predictor.common.suggestions import file_name, quoted
from predictor.oom import message
from predictor.oom.log import LARGEST_LOG_BYTES


def led(words: Sequence[str], error: str) -> str:
    """An error of a command line, with the way to ``peakcast oom`` if it is about an out-of-memory message or a log.

    Args:
        words: the command and its arguments.
        error: the error, which names the file that it is about (an unknown command may be cut).
    """
    ours = words[:words.index("--")] if "--" in words else words
    for word in ours:
        path = word.partition("=")[2] if word.startswith("--") else word
        if "oom" not in ours[:1] and (message.contains(path) or message.words(path)):
            return "this is an out-of-memory message: peakcast oom explains it, in quotes or on standard input"
        if ours[0] == "oom" and error.startswith(f"unknown argument {quoted(word)}") and is_log(word):
            return f"the log comes first: peakcast oom {shlex.quote(file_name(word))} MODEL …"
        there = f"peakcast oom {shlex.quote(file_name(path))}"
        if (file_name(path) in error or word is words[0]) and there not in error and is_log(path):
            return f"{error}; it holds an out-of-memory error: {there} explains it"
    return error


def is_log(path: str) -> bool:
    """Whether a file holds an out-of-memory message."""
    if not os.path.isfile(path):
        return False
    try:
        data = read_bytes(path, "the log", LARGEST_LOG_BYTES)
        return b"\0" not in data and message.contains(data.decode("utf-8", errors="replace"))
    except InputError:  # too large or not readable
        return False

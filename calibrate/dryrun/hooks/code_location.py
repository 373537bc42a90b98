"""Locates the running code: stacks, and the innermost line of the user's own code."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import FrameType, TracebackType

ROOT = Path(__file__).parents[3]
NOT_THE_USERS = tuple(os.path.realpath(path) + os.sep for path in {
    str(ROOT / "calibrate"), str(ROOT / "predictor"),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))})
OURS = ("calibrate/emulator/", "calibrate/dryrun/hooks/", "calibrate/job/outermost_backward.py")
"""Parts of paths whose frames are on the stack only because of the dry run."""
DISPATCHED = ("torch/_compile.py", "torch/_dynamo/eval_frame.py", "torch/_ops.py")
"""Frames through which PyTorch calls the emulated GPU for an operator, and through which that calls the operator."""
NOISE = ("<frozen ", "torch/_ops.py", "torch/utils/", "torch/_dynamo/", "torch/nn/modules/module.py",
         "torch/_compile.py", "torch/autograd/", "torch/_tensor.py", "torch/_utils.py", *OURS)
"""Parts of paths whose frames do not help to locate the code."""
NOT_PYTHON = ("??", ".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".S")
"""Suffixes of files of C++ frames, which are in a history only if the script asked for them."""
MOST_FRAMES = 8

Frame = tuple[str, int, str]
"""File, line, function."""


@lru_cache(maxsize=4096)
def is_users(filename: str) -> bool:
    """Whether a file belongs to the user: not to PyTorch, Python, an installed package or peakcast."""
    if filename.startswith("<") or not filename:
        return False
    return not os.path.realpath(filename).startswith(NOT_THE_USERS) and "site-packages" not in filename


def stack(frame: FrameType | None) -> list[Frame]:
    """A running frame and its callers, innermost first."""
    frames = []
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames


def recorded(frames: Iterable[dict]) -> list[Frame]:
    """The Python frames of an entry of PyTorch's memory history, innermost first."""
    return [(frame["filename"], frame["line"], frame["name"]) for frame in frames
            if frame["filename"] and not frame["filename"].endswith(NOT_PYTHON)]


def useful(frames: list[Frame]) -> list[Frame]:
    """The innermost helpful frames, with the user's innermost line among them."""
    helpful = [frame for frame in frames if not any(part in frame[0].replace("\\", "/") for part in NOISE)]
    line = users_line(helpful)
    innermost = helpful[:MOST_FRAMES]
    return innermost if line is None or line in innermost else [*innermost[:-1], line]


def without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback as it would be without the emulated GPU and the dry run."""
    chain = []
    while traceback is not None:
        chain.append(traceback)
        traceback = traceback.tb_next
    ours = (*OURS, *DISPATCHED) if any(_is_in(item, OURS) for item in chain) else ()
    for item in reversed([item for item in chain if not _is_in(item, ours)]):
        traceback = TracebackType(traceback, item.tb_frame, item.tb_lasti, item.tb_lineno)
    return traceback


def _is_in(item: TracebackType, parts: tuple[str, ...]) -> bool:
    path = item.tb_frame.f_code.co_filename.replace("\\", "/")
    return any(part in path for part in parts)


def users_line(frames: list[Frame]) -> Frame | None:
    """The innermost frame in the user's code, or None."""
    return next((frame for frame in frames if is_users(frame[0])), None)


def calling_line(depth: int = 2) -> Frame | None:
    """The user's line that is running now, or None."""
    return users_line(stack(sys._getframe(depth)))


def main_thread_stack() -> list[Frame]:
    """The stack of the main thread, from whatever thread calls."""
    identifier = threading.main_thread().ident
    return stack(sys._current_frames().get(identifier) if identifier is not None else None)

"""One request's calls go only downwards through the packages, from the command line to the answer."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from predictor.cli import main
from tests.test_layers import layers

MODEL = ["llava-1.5-7b", "--sequence-length", "1024", "--gpu", "h100-80gb"]
REQUESTS = [["predict", *MODEL, "--zero-stage", "2", "--data-parallel-size", "4"],
            ["explain", *MODEL]]


class Walk:
    """Collects calls from one package to another: the calling package and function, and the called ones."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str, str, str], None] = {}

    def __call__(self, frame: FrameType, event: str, _argument) -> None:
        called = package_of(frame)
        # A value that is made from a file is of a type that the caller passes down.
        if event != "call" or called is None or frame.f_code.co_name in ("<module>", "__init__"):
            return
        caller = frame.f_back
        while caller is not None and package_of(caller) is None:
            caller = caller.f_back
        if caller is not None and caller.f_code.co_name != "<module>" and package_of(caller) != called:
            self.calls[package_of(caller), caller.f_code.co_name, called, frame.f_code.co_name] = None


def package_of(frame: FrameType) -> str | None:
    """``answer`` of a function in ``predictor.answer.predict``."""
    parts = (frame.f_globals.get("__name__") or "").split(".")
    return parts[1] if parts[0] == "predictor" and len(parts) > 1 else None


@pytest.mark.parametrize("words", REQUESTS, ids=lambda words: " ".join(words[:1] + words[6:]))
def test_a_request_only_goes_down(words, capsys):
    walk, order = Walk(), layers("predictor")
    sys.setprofile(walk)
    try:
        assert main(words) in (0, 1)
    finally:
        sys.setprofile(None)
    assert len(walk.calls) > 20
    assert not [call for call in walk.calls if order.index(call[2]) < order.index(call[0])]

#!/usr/bin/env python3
"""Calibrate this cluster: measure some 130 short jobs on one GPU, fit them, and write a profile.

    pip install -e '.[calibrate]'
    python scripts/calibrate_cluster.py --gpu h100-80gb                  # plan, measurement, fit
    python scripts/calibrate_cluster.py --gpu h100-80gb --plan-only      # the plan and how long it takes
    torchrun --nnodes 2 --nproc-per-node 8 … scripts/calibrate_cluster.py --gpu h100-80gb     # NCCL's memory too

The profile goes to profiles/<gpu>/profile-device.json and the measurements beside it; interrupted, the same command
goes on where it was. Options are those of `peakcast calibrate`, which this calls. Nothing leaves this machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path

from predictor.cli import main
from predictor.common import gpus
from predictor.common.errors import InputError

PROFILES = Path(__file__).resolve().parents[1] / "profiles"


def run(given: list[str]) -> int:
    """The command; a directory that was made for its profile goes away if nothing came of it."""
    words, directory = arguments(given)
    if directory is None:
        return main(words)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return main(words)
    finally:
        if os.environ.get("RANK", "0") == "0":  # torchrun's first, which alone writes
            with suppress(OSError):  # it is not empty
                directory.rmdir()


def arguments(given: list[str]) -> tuple[list[str], Path | None]:
    """`peakcast calibrate` with what was not said: a real GPU, and the file that predictions look for, with its
    directory."""
    said, _ = _parser().parse_known_args(given)
    words = ["calibrate", *given, *([] if said.device else ["--device", "cuda"])]
    if said.gpu is None or said.output or said.plan_only or "--help" in given:
        return words, None
    try:
        directory = PROFILES / gpus.find(said.gpu).name
    except InputError:  # the command says so
        return words, None
    name = f"profile-{'emulated' if said.device == 'emulated' else 'device'}.json"
    return [*words, "-o", str(directory / name)], directory


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--device")
    parser.add_argument("--gpu")
    parser.add_argument("-o", "--output")
    parser.add_argument("--plan-only", action="store_true")
    return parser


if __name__ == "__main__":
    if sys.argv[1:] in ([], ["-h"], ["--help"]):
        print(__doc__)
    sys.exit(run(sys.argv[1:] or ["--help"]))

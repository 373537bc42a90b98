#!/usr/bin/env python3
"""Calibrate this cluster: measure some 130 short jobs on one GPU, fit them, and write a profile.

    pip install -e '.[calibrate]'
    python scripts/calibrate_cluster.py --gpu h100-80gb                  # plan, measurement, fit
    python scripts/calibrate_cluster.py --gpu h100-80gb --plan-only      # the plan and how long it takes
    torchrun --nnodes 2 --nproc-per-node 8 … scripts/calibrate_cluster.py --gpu h100-80gb     # NCCL's memory too

The profile goes to profiles/<gpu>/profile-device.json, and the measurements go beside it. After an interruption, the
same command continues. The options are those of `peakcast calibrate`, which this script calls. Nothing leaves this
machine.
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


def run(options: list[str]) -> int:
    """Runs the command, and removes the directory of its profile again if it stays empty."""
    words, directory = arguments(options)
    if directory is None:
        return main(words)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return main(words)
    finally:
        if os.environ.get("RANK", "0") == "0":  # torchrun's first rank, the only one that writes
            with suppress(OSError):  # it is not empty
                directory.rmdir()


def arguments(options: list[str]) -> tuple[list[str], Path | None]:
    """The command line of `peakcast calibrate`, and the directory of the profile. The defaults are a real GPU and the
    file that predictions look for."""
    parsed, _ = _parser().parse_known_args(options)
    words = ["calibrate", *options, *([] if parsed.device else ["--device", "cuda"])]
    if parsed.gpu is None or parsed.output or parsed.plan_only or "--help" in options:
        return words, None
    try:
        directory = PROFILES / gpus.find(parsed.gpu).name
    except InputError:  # the command reports it
        return words, None
    name = f"profile-{'emulated' if parsed.device == 'emulated' else 'device'}.json"
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

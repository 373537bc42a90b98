#!/usr/bin/env python3
"""Rebuild the formulas that peakcast ships, which answer known recipes without torch.

    pip install -e '.[test]'
    python scripts/build_formulas.py            # only what is missing
    python scripts/build_formulas.py --all      # all of them

Needs the pinned torch and transformers, no GPU. Files go to profiles/formulas/; their names are hashes of their keys.
They are the formulas of the models in MODELS, those that a plan of the first model tries, and those of the kept
measurements in profiles/, so that reports predict these without torch. Other files there are deleted.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

from rich.progress import track

from calibrate.regression import files
from predictor.common.errors import InputError
from predictor.events.regimes import Amount, Regime, Rows
from predictor.formula import store
from predictor.formula.formula_key import formula_key
from predictor.formula.tracing import trace_formula
from predictor.model import models
from predictor.model.model_config import ModelConfig
from predictor.model.request import Request
from predictor.plan.space import space
from predictor.workload.keys import PINNED

PROFILES = Path(__file__).resolve().parents[1] / "profiles"
TARGET, RECORDS = PROFILES / "formulas", [PROFILES / "h100-80gb", PROFILES / "a100-80gb"]
MODELS = ("llava-1.5-7b", "llava-1.5-13b")
RECIPES = ("pretrain", "finetune", "full")
CHECKPOINTING = ("on", "off")
BACKENDS = ("cudnn", "flash")
PLANNED_ON = ("h100-80gb", "a100-80gb")
"""GPUs of plans; together they cover all attention kernels."""
REGIMES = tuple(Regime(samples, images, Rows.WHOLE) for samples, images in (
    (Amount.MANY, Amount.MANY), (Amount.ONE, Amount.ONE), (Amount.ONE, Amount.MANY)))


def named_keys() -> list[tuple[ModelConfig, store.Key]]:
    """The formulas of the models in :data:`MODELS`."""
    return [
        (models.find(model), store.Key(
            fingerprint=models.find(model).fingerprint, recipe=recipe, trainable=(), frozen=(),
            padding="none", checkpointing=checkpointing, attn_implementation="sdpa", sdpa_backend=backend,
            regime=regime, torch=PINNED["torch"], transformers=PINNED["transformers"]))
        for regime, backend, model, checkpointing, recipe in product(REGIMES, BACKENDS, MODELS, CHECKPOINTING, RECIPES)
    ]


def planned_keys() -> Iterator[tuple[ModelConfig, store.Key]]:
    """The formulas of every setting that ``peakcast plan`` tries, with one sample and with several."""
    for gpu, number, batch in product(PLANNED_ON, (2, 4, 8), (1, 2)):
        keys = {"model": MODELS[0], "sequence_length": 1024, "gpu": gpu}
        for setting in space(keys, gpus=number).settings:
            workload = setting.workload(batch, 1, 1024).fill(images_per_sample=1)
            request = Request.of(workload)
            yield request.config, formula_key(request)


def record_keys() -> Iterator[tuple[ModelConfig, store.Key]]:
    """The formulas that predict the kept measurements."""
    for case in files.read(RECORDS)[0]:
        workload = case.workload.fill(images_per_sample=1)
        with contextlib.suppress(InputError):  # measured, but not predicted
            request = Request.of(workload)
            yield request.config, formula_key(request)


def build(name: str, config: ModelConfig, key: store.Key) -> None:
    """Traces one formula and writes its file."""
    store.save(trace_formula(config, key), TARGET / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also trace formulas that exist already")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N",
                        help="formulas at a time; default: one per core")
    arguments = parser.parse_args()
    required = {key.filename(): (config, key) for config, key in [*named_keys(), *planned_keys(), *record_keys()]}
    for path in TARGET.glob("*.npz"):
        if path.name not in required:
            path.unlink()
    missing = [name for name in required if arguments.all or not (TARGET / name).is_file()]
    os.chdir("/")  # spawned workers first look for modules in the current directory
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as workers:
        done = workers.map(build, missing, *zip(*(required[name] for name in missing)))
        for _ in track(done, description="Tracing formulas", total=len(missing)):
            pass
    total = sum(path.stat().st_size for path in TARGET.glob("*.npz"))
    print(f"{len(required)} formulas, {total / 1e6:.2f} MB, in {TARGET}")


if __name__ == "__main__":
    main()

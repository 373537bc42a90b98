#!/usr/bin/env python3
"""Rebuild the formulas that peakcast ships, so that known recipes answer without torch.

    pip install -e '.[test]'
    python scripts/build_formulas.py            # only what is missing
    python scripts/build_formulas.py --all      # everything anew

Needs the pinned torch and transformers, no GPU. Files go to profiles/formulas/, named by content;
those that no recipe asks for any more are deleted.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

from rich.progress import track

from predictor import models, store
from predictor.tracing import trace_formula
from predictor.workload import PINNED

TARGET = Path(__file__).resolve().parents[1] / "profiles" / "formulas"
MODELS = ("llava-1.5-7b", "llava-1.5-13b")
RECIPES = ("pretrain", "finetune", "full")
CHECKPOINTING = ("on", "off")
BACKENDS = ("cudnn", "flash")
REGIMES = (("many", "many", "whole"), ("1", "1", "whole"), ("1", "many", "whole"))


def shipped_keys() -> list[tuple[models.ModelConfig, store.Key]]:
    """Everything that answers from a base install."""
    return [
        (models.find(model), store.Key(
            fingerprint=models.find(model).fingerprint, recipe=recipe, trainable=(), frozen=(),
            padding="none", checkpointing=checkpointing, attn_implementation="sdpa", sdpa_backend=backend,
            regime=regime, torch=PINNED["torch"], transformers=PINNED["transformers"]))
        for regime, backend, model, checkpointing, recipe in product(REGIMES, BACKENDS, MODELS, CHECKPOINTING, RECIPES)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="trace those that are there already, too")
    anew = parser.parse_args().all
    keys = shipped_keys()
    wanted = {key.filename() for _, key in keys}
    for path in TARGET.glob("*.npz"):
        if path.name not in wanted:
            path.unlink()
    for config, key in track(keys, description="Tracing formulas"):
        path = TARGET / key.filename()
        if anew or not path.is_file():
            store.save(trace_formula(config, key), path)
    total = sum(path.stat().st_size for path in TARGET.glob("*.npz"))
    print(f"{len(wanted)} formulas, {total / 1e6:.2f} MB, in {TARGET}")


if __name__ == "__main__":
    main()

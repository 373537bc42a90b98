"""The jobs of the relations: measured ones, usual ones, and one of each of many further models."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from calibrate.regression import files
from predictor.answer.predict import predict
from predictor.answer.prediction import Prediction
from predictor.common.errors import InputError
from predictor.formula import store
from predictor.model import models
from predictor.workload.workload import Workload
from tests.attack.programs import ROOT
from tests.attack.rounds import name_of

CHECKED = ROOT / "calibrate/checks/models.json"
"""Jobs of the check ``models``."""
RECORDS = [ROOT / "profiles/h100-80gb", ROOT / "profiles/a100-80gb"]
USUAL = ("qwen2.5-vl-7b", "qwen2.5-vl-3b", "qwen3-vl-8b", "qwen3-vl-4b", "llama-3.1-8b", "qwen3-8b", "gemma-3-4b", "gemma-3-12b", "internvl3-8b",
         "llava-onevision-qwen2-7b")
"""Models of which usual jobs are shipped (``scripts/build_formulas.py``)."""
LLAVA = ("llava-1.5-7b", "llava-1.5-13b")
RECIPES: tuple[Mapping[str, Any], ...] = ({"recipe": "lora", "lora": {"r": 16}}, {"recipe": "full"}, {"recipe": "lora"})
FURTHER = ("qwen2-vl-2b", "qwen3-vl-2b", "llava-next-mistral-7b", "llava-next-video-7b", "llava-onevision-qwen2-0.5b", "internvl3-1b", "internvl3.5-1b", "idefics3-8b",
           "smolvlm-2.2b", "pixtral-12b", "paligemma-3b", "paligemma2-3b", "llama-3.2-11b-vision", "mistral-7b", "qwen2.5-7b", "gemma-2-2b", "phi-3-mini-4k", "olmo-2-7b",
           "glm-4-9b", "falcon-7b", "starcoder2-3b", "opt-1.3b", "bloom-560m", "gpt2-xl", "t5-base", "bert-base", "resnet-50", "vit-base")
"""Models of which nothing is shipped. Each is traced in 2 to 20 s, once on each of two kinds of GPUs, and then found in the user's cache."""
GPUS = ("h100-80gb", "a100-80gb", "a100-40gb", "rtx-4090", "l40s")
ENGINES: tuple[Mapping[str, Any], ...] = ({}, {"engine": "ddp"}, {"zero_stage": 1}, {"zero_stage": 2}, {"zero_stage": 2, "offload": "optimizer"})
OPTIMIZERS = ("adamw_torch_fused", "adamw_torch", "sgd", "adamw_8bit", "adafactor", "lion_32bit")
BATCHES = (1, 2, 2, 3, 4, 8, 16)
FEW_BATCHES = (1, 2, 2, 3, 4)
"""Of models that have a formula for each number of samples, those whose formulas are shipped."""
TRACED_BATCHES = (2, 2, 4)
"""Of models that are traced."""


@lru_cache
def measured() -> tuple[Workload, ...]:
    """Jobs that were measured, whose formulas are shipped."""
    return tuple(case.workload for case in files.read(RECORDS)[0] if case.workload.mode == "training")


@lru_cache
def usual() -> tuple[Workload, ...]:
    """Usual jobs, whose formulas are shipped."""
    return tuple(usual_job(model, recipe) for model in USUAL for recipe in RECIPES)


def usual_job(model: str, recipe: Mapping[str, Any]) -> Workload:
    """A usual job of a model. One that takes pictures of any size has a size whose formulas are shipped, and one that cuts a picture into many
    tiles has room for them."""
    config = models.find(model)
    size = {"image_size": "768x1024"} if config.kind.has_media and config.image_size is None else {}
    return Workload(model=model, sequence_length=8192 if size and not model.startswith("qwen") else 2048, gpu="h100-80gb", **size, **recipe)


@lru_cache
def replies() -> tuple[Workload, ...]:
    """Replies of LLaVA-1.5 and of the usual models, whose formulas are shipped."""
    return tuple(usual_job(model, {"mode": "inference", "max_new_tokens": 64}) for model in (*LLAVA, *USUAL))


@lru_cache
def shipped() -> tuple[Workload, ...]:
    """The first job of each model of which formulas are shipped, of its worst rank."""
    first: dict[str, Workload] = {}
    for job in (*usual(), *measured()):
        first.setdefault(name_of(job), job)
    return tuple(job.replace(rank="worst") for job in first.values())


@lru_cache
def further() -> tuple[Workload, ...]:
    """A job of each further model: the first that the check ``models`` has of it, with a length that is a multiple of eight."""
    first: dict[str, dict[str, Any]] = {}
    for row in (row for rows in json.loads(CHECKED.read_text()).values() for row in rows):
        first.setdefault(row["model"], row)
    found = []
    for model in FURTHER:
        keys = {name: first[model].get(name) for name in ("image_size", "sequence_length", "recipe", "lora", "gradient_checkpointing", "padding")}
        if keys["sequence_length"]:
            keys["sequence_length"] = -(-keys["sequence_length"] // 8) * 8
        found.append(Workload(model=model, per_device_train_batch_size=2, **{name: value for name, value in keys.items() if value is not None}))
    return tuple(found)


def base(number: int, draw: random.Random) -> tuple[Workload, bool]:
    """A round's job, some keys changed so that its formula still holds where the change keeps to one list of events.

    Returns:
        The job, and whether it may be traced: it is one of the further ones, which have every third round in turn.

    Raises:
        InputError: the keys do not go together.
    """
    traced = number % 3 == 0
    job = further()[number // 3 % len(FURTHER)] if traced else draw.choice(usual() if number % 3 == 1 else (*measured(), *usual()))
    keys: dict[str, Any] = {"gpu": draw.choice(GPUS), "capacity_bytes": None, "rank": "worst", "profile": draw.choice((None, "none"))}
    if draw.random() < 0.7 and job.engine in ("torch", "ddp"):
        keys |= {"data_parallel_size": draw.choice((1, 2, 4, 8)), **draw.choice(ENGINES)}
    if draw.random() < 0.5:
        keys["optim"] = draw.choice(OPTIMIZERS)
    keys["per_device_train_batch_size"] = draw.choice(TRACED_BATCHES if traced else FEW_BATCHES if job.model.startswith("qwen") else BATCHES)
    if job.sequence_length:
        keys["sequence_length"] = job.sequence_length + 8 * draw.choice((0, 0, 1, 16, 100))
    return job.replace(**keys), traced


def answered(job: Workload, traced: bool = False) -> Prediction | None:
    """The prediction of a job; None if it is refused, or needs a trace that it may not have."""
    try:
        with store.existing_only(not traced):
            return predict(job)
    except InputError:
        return None


def changed(job: Workload, **keys: Any) -> Workload | None:
    """A job with other keys; None if they do not go together."""
    try:
        return job.replace(**keys)
    except InputError:
        return None

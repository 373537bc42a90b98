#!/usr/bin/env python3
"""Rebuild the formulas that peakcast ships, which answer known recipes without torch.

    pip install -e '.[test]'
    python scripts/build_formulas.py            # only what is missing
    python scripts/build_formulas.py --all      # all of them

Needs the pinned torch and transformers, no GPU. Files go to profiles/formulas/; their names are hashes of their keys.
They are the formulas of the models in MODELS, those that a plan of the first model tries, those of usual jobs of the
models in USUAL, of their replies and of a plan of its first, those of LLaVA's own scripts, and those of the kept
measurements in profiles/, so that reports predict these without torch. Other files there are deleted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import track

from calibrate.regression import files
from predictor import readers
from predictor.common.errors import InputError
from predictor.events.regimes import Amount, NotOneRegime, Regime, Rows, regimes_from_widest
from predictor.formula import shipped_sums, store
from predictor.formula.formula_key import formula_key
from predictor.formula.tracing import trace_formula
from predictor.jobs import dispatch, inference_job, training_job
from predictor.model import models
from predictor.model.model_config import ModelConfig
from predictor.model.request import Request
from predictor.plan.space import space
from predictor.workload import generation
from predictor.workload.generation import TRACED_TOKENS
from predictor.workload.keys import PINNED
from predictor.workload.workload import Workload

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


USUAL = (
    "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen3-VL-8B-Instruct",
    "Qwen/Qwen3-VL-4B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B", "google/gemma-3-4b-it",
    "google/gemma-3-12b-it", "OpenGVLab/InternVL3-8B-hf", "llava-hf/llava-onevision-qwen2-7b-ov-hf")
"""Models that people ask about most, each in the usual jobs."""
USUAL_ON = ("rtx-4090", "h100-80gb")
"""GPUs of the usual jobs; all from Ampere on have the attention kernels of one of them."""
USUAL_SIZES = ("768x1024", "1024")
"""Sizes of their pictures, for models that take any size, before LLaMA-Factory's limit."""
USUAL_LENGTHS = (2048, 512)
"""Sequence lengths: beyond Gemma's sliding window, and within."""
BY_OPTIONS: tuple[dict[str, Any], ...] = (
    {"recipe": "lora", "lora": {"r": 16}}, {"recipe": "full"}, {"recipe": "lora"})
BY_LLAMAFACTORY = ("llamafactory-cli train --stage sft --do_train --finetuning_type lora --lora_rank 8 "
                   "--lora_target all --image_max_pixels 262144 --bf16 --model_name_or_path")
"""A command with the flags of LLaMA-Factory's examples (0.9.5, examples/train_lora/qwen2_5vl_lora_sft.yaml)."""


USUALLY_PLANNED = {"model": USUAL[0], **BY_OPTIONS[0], "image_size": USUAL_SIZES[0],
                   "sequence_length": USUAL_LENGTHS[0], "gpu": USUAL_ON[0]}
"""A plan on one GPU whose settings are all shipped."""
BY_LLAVA = (
    "deepspeed llava/train/train_mem.py --version v1 --vision_tower openai/clip-vit-large-patch14-336 --output_dir out "
    "--mm_projector_type mlp2x_gelu --mm_vision_select_layer -2 --bf16 True --model_max_length 2048 "
    "--gradient_checkpointing True --model_name_or_path")
"""A command with the flags of LLaVA's own scripts (1.2.2, scripts/v1_5/finetune.sh, without its DeepSpeed config)."""
LLAVA_STAGES = ("--tune_mm_mlp_adapter True", "",
                "--lora_enable True --lora_r 128 --lora_alpha 256 --mm_projector_lr 2e-5")
"""What the flags of its scripts add: pretrain.sh, finetune.sh and finetune_lora.sh."""
VICUNAS = ("lmsys/vicuna-7b-v1.5", "lmsys/vicuna-13b-v1.5")


OF_ONE_MODEL = 4
"""Formulas that a process traces in a row: often of one model, which is then prepared once."""


class Wanted(NamedTuple):
    """A formula to ship: that of the first of these keys, from the widest regime on, which is one regime."""

    config: ModelConfig
    keys: tuple[store.Key, ...]

    @classmethod
    def by(cls, workload: Workload) -> Wanted:
        """The formula of a workload, if it holds for several shapes."""
        request = dispatch.resolve(workload)
        assert request.config is not None  # only learned formulas have none
        key = formula_key(request)
        regimes = [regime for regime in regimes_from_widest(key.regime, request.shape) if not regime.is_alone]
        return cls(request.config, tuple(replace(key, regime=regime) for regime in regimes))

    @classmethod
    def at(cls, request: Request, key: store.Key) -> Wanted:
        """The formula of a request with this key, if need be for its shape alone."""
        assert request.config is not None  # only learned formulas have none
        return cls(request.config, tuple(replace(key, regime=regime)
                                         for regime in regimes_from_widest(key.regime, request.shape)))

    @property
    def names(self) -> list[str]:
        """The names that its file may have."""
        return [key.filename() for key in self.keys]


def wanted() -> list[Wanted]:
    """All formulas to ship, each once."""
    exact = (Wanted(config, (key,)) for config, key in [*named_keys(), *planned_keys()])
    return list({one.names[0]: one for one in [*exact, *of_records(), *usual(), *replies(), *by_llava()]}.values())


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


def of_records() -> Iterator[Wanted]:
    """The formulas that predict the kept measurements, at their shapes only where no wider regime has one."""
    for case in files.read(RECORDS)[0]:
        with contextlib.suppress(InputError):  # measured, but not predicted
            request = dispatch.resolve(case.workload)
            yield Wanted.at(request, formula_key(request))
            if request.workload.per_device_eval_batch_size:
                evaluated = training_job.evaluated(request)
                yield Wanted.at(evaluated, training_job.evaluation_key(evaluated))


def usual() -> Iterator[Wanted]:
    """The formulas of the usual jobs, and of a plan, with one sample in a micro-batch and with several."""
    for job, model in product((_by_llamafactory, *(partial(_by_options, keys) for keys in BY_OPTIONS)), USUAL):
        config = models.find(model)
        sizes = USUAL_SIZES if config.kind.has_media and config.image_size is None else (None,)
        lengths = USUAL_LENGTHS if config.windows else USUAL_LENGTHS[:1]
        for size, gpu, length, batch in product(sizes, USUAL_ON, lengths, (1, 2)):
            keys = job(model, {"image_size": size} if size else {})
            keys |= {"gpu": gpu, "sequence_length": length, "per_device_train_batch_size": batch}
            yield Wanted.by(Workload.from_mapping(keys))
    for setting, batch in product(space(USUALLY_PLANNED, gpus=1).settings, (1, 2)):
        with contextlib.suppress(InputError):  # tried by the plan, but not predicted
            if not setting.cuts:
                yield Wanted.by(setting.workload(batch, 1, USUALLY_PLANNED["sequence_length"]))


def replies() -> Iterator[Wanted]:
    """The formulas of replies of the usual models, to one prompt and to several, beyond a sliding window."""
    for model, gpu, batch in product((*USUAL, *MODELS), USUAL_ON, (1, 2)):
        config = models.find(model)
        sizes = {"image_size": USUAL_SIZES[0]} if config.kind.has_media and config.image_size is None else {}
        request = inference_job.resolve(Workload.from_mapping({
            "model": model, "mode": "inference", "sequence_length": USUAL_LENGTHS[0], "gpu": gpu,
            "per_device_eval_batch_size": batch, "max_new_tokens": TRACED_TOKENS, **sizes}))
        key, _ = inference_job.key_of(request, generation.turns(request.workload)[0])
        yield Wanted.at(request, key)


def by_llava() -> Iterator[Wanted]:
    """The formulas of LLaVA's own scripts under ZeRO-2 and ZeRO-3, with one sample and with several."""
    with tempfile.TemporaryDirectory() as directory:
        for zero in (2, 3):
            config = Path(directory, f"zero{zero}.json")
            config.write_text(json.dumps({"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": zero}}))
            for model, stage, gpu, batch in product(VICUNAS, LLAVA_STAGES, PLANNED_ON, (1, 2)):
                words = [*BY_LLAVA.split(), model, *stage.split(), "--deepspeed", str(config)]
                options = {"gpu": gpu, "per_device_train_batch_size": batch, "data_parallel_size": 8}
                yield Wanted.by(Workload.from_mapping(readers.read(words=words, options=options)[0] | options))


def _by_options(job: Mapping[str, Any], model: str, pictures: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": model, **job, **pictures}


def _by_llamafactory(model: str, pictures: Mapping[str, Any]) -> dict[str, Any]:
    return readers.read(words=[*BY_LLAMAFACTORY.split(), model], options=pictures)[0]


def sizes_of(required: Iterable[Wanted]) -> str:
    """The text of :data:`store.SIZES`."""
    sizes: dict[str, list[tuple[int, int]]] = {}
    for key in (one.keys[0] for one in required if len(one.keys[0].image_sizes) == 1):
        sizes.setdefault(replace(key, image_sizes=()).filename(), []).extend(key.image_sizes)
    lines = (f"{json.dumps(name)}: {json.dumps(sorted(sizes[name]))}" for name in sorted(sizes))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def build(one: Wanted) -> None:
    """Traces one formula and writes its file."""
    for key in one.keys:
        with contextlib.suppress(NotOneRegime):
            store.save(trace_formula(one.config, key), TARGET / key.filename())
            return
    raise InputError(f"model {one.config.name}: no regime of {one.keys[0].document()} can be shipped")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also trace formulas that exist already")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N",
                        help="formulas at a time; default: one per core")
    arguments = parser.parse_args()
    required = wanted()
    known = {name for one in required for name in one.names}
    for path in TARGET.glob("*.npz"):
        if arguments.all or path.name not in known:
            path.unlink()
    missing = [one for one in required if not any((TARGET / name).is_file() for name in one.names)]
    os.chdir("/")  # spawned workers first look for modules in the current directory
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as workers:
        done = workers.map(build, missing, chunksize=OF_ONE_MODEL)
        for _ in track(done, description="Tracing formulas", total=len(missing)):
            pass
    (TARGET / store.SIZES).write_text(sizes_of(required))
    (TARGET / shipped_sums.NAME).write_text(shipped_sums.text(TARGET))
    files_made = list(TARGET.glob("*.npz"))
    print(f"{len(files_made)} formulas, {sum(path.stat().st_size for path in files_made) / 1e6:.2f} MB, in {TARGET}")


if __name__ == "__main__":
    main()

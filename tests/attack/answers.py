"""Relations between the ways to an answer: page, command and Python, files and workloads, shipped formulas and traces."""

from __future__ import annotations

import contextlib
import json
import os
import random
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

from predictor import readers
from predictor.answer.predict import predict
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.value_types import thaw
from predictor.explore import content, settings
from predictor.formula import store
from predictor.workload.workload import Workload
from tests.attack import commands
from tests.attack.inputs import Input
from tests.attack.jobs import FURTHER, RECIPES, USUAL, answered, further, replies, shipped, usual_job
from tests.attack.predictions import COUNTERS, as_workload, command_answers
from tests.attack.rounds import Round, name_of

# pages -----------------------------------------------------------------------------------------------------------

PAGE_ROUNDS = 6
"""Rounds of each page, one after the other: a page takes seconds to make."""


SETTINGS, SETTINGS_TRIED = 10, 2_000
"""Settings of a round that are compared, and that are tried for it."""
ANSWER = "setting => (({answer, refused}) => ({answer, refused}))(predict(data, setting))"
"""The page's answer, or why it refuses one, without the run's curves."""
LEFT_OUT = "see: left out"
"""What a page says of a setting whose formula it has not. Pages made from shipped formulas alone lack many."""


@lru_cache
def pages() -> tuple[Workload, ...]:
    """Jobs of which pages are made, from shipped formulas alone."""
    return (Workload(model="llava-1.5-7b", gradient_checkpointing=False), usual_job("qwen2.5-vl-7b", RECIPES[0]), usual_job("llama-3.1-8b", RECIPES[0]),
            usual_job("qwen3-8b", RECIPES[1]))


@lru_cache(maxsize=1)
def _page(job: Workload) -> tuple[dict[str, Any], Any]:
    """A page's document, and its scripts."""
    from tests.predictor.explore_scripts import Scripts

    with store.existing_only():
        made = content.content(settings.find(job, (1, 4)), [job.model])
    return json.loads(json.dumps(made.document)), Scripts(made)


def page(number: int) -> Round:
    """A page of ``peakcast explore`` answers as Python does, and so does the command, at some settings."""
    from tests.predictor.explore_scripts import of_setting

    job = pages()[number // PAGE_ROUNDS % len(pages())]
    draw, found, (document, scripts) = random.Random(number), Round(models={job.model}), _page(job)
    relation = f"the page of {job.model} answers as Python does"
    for _ in range(SETTINGS_TRIED):
        setting = _setting(draw, document)
        told = scripts(ANSWER, setting)
        if LEFT_OUT in told.get("refused", ""):
            continue
        asked = of_setting(job, setting)
        prediction = answered(asked)
        answer, expected = told.get("answer"), json.loads(json.dumps(prediction.to_json())) if prediction else {}
        found.check(relation, bool(answer) and _says_the_same(answer, expected, setting["gpu"]), asked, setting=setting,
                    refused=told.get("refused"), different=[name for name in answer or () if answer[name] != expected.get(name)])
        if prediction:
            command_answers(found, asked, expected)
        if found.checked[relation] == SETTINGS:
            return found
    raise LookupError(f"the page of {job.model} answers fewer than {SETTINGS} of {SETTINGS_TRIED} settings")


def _setting(draw: random.Random, document: dict[str, Any]) -> dict[str, Any]:
    """A setting that the page has."""
    first, limits, engine = document["first"], document["limits"], draw.choice(document["engines"])
    batch = draw.choice(limits["batches"] or (1, 2, 3, 8, 31))
    shipped = batch > 1 or engine["traced"] == document["engines"][0]["traced"]  # formulas of one sample with several images
    images = draw.choice((1, 1, 2, 3)) if limits["images"] and shipped else first["images"]
    least = limits["room"][images] + images + 1
    sequence = draw.randint(least, 4096) if draw.random() < 0.5 else 8 * draw.randint(-(-least // 8), 512)
    return first | {"batch": batch, "images": images, "sequence": sequence, "engine": engine["name"],
                    "degree": draw.choice(engine["degrees"]), "gpu": draw.choice(document["gpus"])["name"]}


FEW_BYTES = 64 << 10
"""Most by which the requested bytes of a moment may differ on other GPUs than the page's own, for which engines' own temporaries are
composed. On its own GPU the page must agree to the last byte. The results' page says so, too."""


def _says_the_same(answer: dict, expected: dict, gpu: str) -> bool:
    """Whether all that the page says is Python's answer, but for :data:`FEW_BYTES` of a moment on another GPU. What it leaves out is not compared."""
    few = 0 if gpu == gpus.DEFAULT else FEW_BYTES
    for moment, point in answer["moments"].items() if expected else ():
        point["requested_bytes"] += next((
            by for by in [expected["moments"][moment]["requested_bytes"] - point["requested_bytes"]] if abs(by) <= few), 0)
    return bool(expected) and answer == {name: expected[name] for name in answer}


# files and commands ----------------------------------------------------------------------------------------------

COMMAND = ("llamafactory-cli train --stage sft --do_train --finetuning_type lora --lora_rank 8 --lora_target all --image_max_pixels 262144 --bf16 "
           "--output_dir o --dataset d --template t --cutoff_len 4096 --model_name_or_path {} --per_device_train_batch_size {} --gradient_accumulation_steps {}")
"""A command whose formulas are shipped for every usual model (``scripts/build_formulas.py``)."""


def reader(number: int) -> Round:
    """A file or command that a reader reads is the workload that it says: its keys, written and read, have its answer."""
    from tests.attack.formats import WITH_READERS, each

    found, draw, model = Round(), random.Random(number), USUAL[number % len(USUAL)]
    with tempfile.TemporaryDirectory() as directory, _inside(directory):
        each(WITH_READERS[number % len(WITH_READERS)], 1_000 + number, 60, lambda one: _read_again(found, one))
    found.asked.add(model)
    for _ in range(4):
        words = COMMAND.format(model, draw.choice((1, 2, 3, 8)), draw.choice((1, 2, 4))).split()
        _same_as_its_file(found, "--gpu", draw.choice(("h100-80gb", "rtx-4090")), "--", *words)
    return found


def _read_again(found: Round, one: Input) -> None:
    """Compares what a reader reads with what it says, written and read."""
    if one.target not in ("read", "words"):
        return
    one.write(Path.cwd())
    try:
        values, source = readers.read(path=one.words[0]) if one.target == "read" else readers.read(words=one.words)
        job = Workload.from_mapping(values).read_from(source)
    except InputError:
        return
    keys = json.loads(json.dumps({name: thaw(value) for name, value in values.items()}))
    found.check("a reader's keys, written and read, are the workload", Workload.from_mapping(keys).resolved() == job.resolved(), job)
    found.check("a complete workload, written and read, is itself", as_workload(json.loads(json.dumps(job.resolved()))).resolved() == job.resolved(), job)
    if one.target == "words":
        _same_as_its_file(found, "--", *one.words)
    else:
        _same_as_its_file(found, "--from", *one.words[:1], *(("--from-format", one.words[1]) if len(one.words) > 1 else ()))


def _same_as_its_file(found: Round, *words: str) -> None:
    """Compares the answer to a file or command with that of the workload which the answer shows, where both are known."""
    told = commands.predicted(*words)
    if told is None:
        return
    shown = as_workload(told["workload"])
    again = answered(shown)
    document = json.loads(json.dumps(again.to_json())) if again else {}
    peaks = {name: size for name, size in told.items() if name.startswith("peak_")}
    found.models.add(name_of(shown))
    found.check("a file's prediction is that of the workload which it shows", all(document.get(name) == size for name, size in peaks.items()), shown,
                told=peaks, again={name: document.get(name) for name in peaks})


@contextlib.contextmanager
def _inside(directory: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


# traces ----------------------------------------------------------------------------------------------------------

def adapters(number: int) -> Round:
    """Adapters of a higher rank request no less: of a usual model, whose formulas are shipped, or of a further one, which is traced.

    Every fifth round, those of more layers too, on a small model that is traced.
    """
    found, pairs = Round(), adapted()
    if number % 5 == 0:
        _small_adapters(found, random.Random(number))
    small, large = pairs[number % len(pairs)]
    traced = small.model in FURTHER
    found.asked.add(small.model)
    low, high = answered(small, traced), answered(large, traced)
    if low and high:
        found.models.add(small.model)
        for counter in COUNTERS[:2]:
            found.check("larger adapters request no less", getattr(low, counter) <= getattr(high, counter), small, large, counter=counter)
    return found


@lru_cache
def adapted() -> tuple[tuple[Workload, Workload], ...]:
    """Two jobs for each model that adapters are made for, with ranks 8 and 16."""
    return (*((usual_job(model, RECIPES[2]), usual_job(model, RECIPES[0])) for model in USUAL),
            *(tuple(job.replace(recipe="lora", lora={"r": rank}) for rank in (8, 16)) for job in further() if job.sequence_length))


def _small_adapters(found: Round, draw: random.Random) -> None:
    from tests.predictor.small import small_config

    found.models.add("small LLaVA")
    with _empty_cache() as directory:
        path = directory / "config.json"
        path.write_text(json.dumps(small_config()))
        keys: dict[str, Any] = {"model": str(path), "sequence_length": draw.choice((64, 128)), "per_device_train_batch_size": draw.choice((2, 4)), "recipe": "lora",
                                "gradient_checkpointing": draw.choice((True, False))}
        rows = [Workload(**keys, lora={"r": rank, "target_modules": layers}) for layers in (["q_proj"], ["q_proj", "v_proj", "up_proj"]) for rank in (4, 16)]
        peaks = [(predict(job).peak_requested_bytes, job) for job in rows]
    for smaller, larger in ((0, 1), (2, 3), (0, 2), (1, 3)):
        found.check("larger adapters request no less", peaks[smaller][0] <= peaks[larger][0], peaks[smaller][1], peaks[larger][1])


def fresh_trace(number: int) -> Round:
    """A shipped formula has the answer of a fresh trace: that of the first job of each model of which formulas are shipped, and that of replies."""
    wanted = (*shipped(), *replies())
    found, job = Round(), wanted[number % len(wanted)]
    found.asked.add(name_of(job))
    known = answered(job)
    if known is None:
        return found
    found.models.add(name_of(job))
    with _empty_cache() as directory, mock.patch.object(store, "shipped_directory", lambda: directory / "none"):
        traced = predict(job)
    for counter in COUNTERS:
        found.check("a shipped formula answers as a fresh trace", getattr(traced, counter) == getattr(known, counter), job, counter=counter,
                    traced=getattr(traced, counter), shipped=getattr(known, counter))
    return found


@contextlib.contextmanager
def _empty_cache() -> Iterator[Path]:
    """A directory, which is peakcast's cache inside the context."""
    with tempfile.TemporaryDirectory() as directory, mock.patch.dict("os.environ", {"PEAKCAST_CACHE": directory}):
        yield Path(directory)

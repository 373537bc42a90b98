"""Metamorphic relations: what must hold between predictions of related jobs, whatever their numbers are.

A round is decided by its number. It takes a job whose formula is shipped, changes some of its keys, predicts it, and
then jobs that differ from it in one key. Nothing is traced but in :func:`fresh_trace` and :func:`adapters`.

    python -m tests.attack.relations KIND FIRST ROUNDS [--until-first]
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from calibrate.regression import files
from predictor import cli
from predictor.answer.predict import predict
from predictor.answer.prediction import Prediction
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.value_types import thaw
from predictor.events.events import Moment
from predictor.formula import store
from predictor.jobs import dispatch
from predictor.model import models
from predictor.workload.workload import Workload

ROOT = Path(__file__).parents[2]
RECORDS = [ROOT / "profiles/h100-80gb", ROOT / "profiles/a100-80gb"]
USUAL = ("qwen2.5-vl-7b", "qwen2.5-vl-3b", "qwen3-vl-8b", "qwen3-vl-4b", "llama-3.1-8b", "qwen3-8b", "gemma-3-4b", "gemma-3-12b", "internvl3-8b",
         "llava-onevision-qwen2-7b")
"""Models of which usual jobs are shipped (``scripts/build_formulas.py``)."""
RECIPES: tuple[Mapping[str, Any], ...] = ({"recipe": "lora", "lora": {"r": 16}}, {"recipe": "full"}, {"recipe": "lora"})
GPUS = ("h100-80gb", "a100-80gb", "a100-40gb", "rtx-4090", "l40s")
ENGINES: tuple[Mapping[str, Any], ...] = ({}, {"engine": "ddp"}, {"zero_stage": 1}, {"zero_stage": 2}, {"zero_stage": 2, "offload": "optimizer"})
OPTIMIZERS = ("adamw_torch_fused", "adamw_torch", "sgd", "adamw_8bit", "adafactor", "lion_32bit")
VERDICTS = ("does_not_fit", "uncertain", "fits")


@dataclass
class Round:
    """What one round found.

    Attributes:
        checked: relation -> how often it was checked.
        violations: each with its relation, the jobs and the numbers.
        models: the models of the jobs that were answered.
        asked: the models of all jobs, those that no shipped formula answers among them.
    """

    checked: Counter[str] = field(default_factory=Counter)
    violations: list[dict[str, Any]] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)

    def check(self, relation: str, holds: bool, *jobs: Workload, **numbers: Any) -> None:
        """Counts a relation, and keeps the jobs if it does not hold."""
        self.checked[relation] += 1
        if not holds:
            self.violations.append({"relation": relation, "numbers": numbers, "jobs": [given(job) for job in jobs]})


def given(job: Workload) -> dict[str, Any]:
    """The keys of a job that differ from the defaults."""
    return {name: thaw(value) for name, value in job.resolved().items() if name not in job.filled_in}


@lru_cache
def jobs() -> tuple[Workload, ...]:
    """Jobs whose formulas are shipped: those that were measured, and usual ones."""
    measured = [case.workload for case in files.read(RECORDS)[0] if case.workload.mode == "training"]
    usual = [usual_job(model, recipe) for model in USUAL for recipe in RECIPES]
    return (*measured, *usual)


def usual_job(model: str, recipe: Mapping[str, Any]) -> Workload:
    """A usual job of a model. One that takes pictures of any size has a size whose formulas are shipped."""
    config = models.find(model)
    size = {"image_size": "768x1024"} if config.kind.has_media and config.image_size is None else {}
    return Workload(model=model, sequence_length=8192 if size and "qwen" not in _family(model) else 2048, gpu="h100-80gb", **size, **recipe)


def _family(model: str) -> str:
    """The first word of a model's name. Those that cut a picture into many tiles need longer sequences for one."""
    return model.partition("-")[0]


def base(draw: random.Random) -> Workload:
    """A job, changed so that its formula still holds where the change keeps to one list of events."""
    known = jobs()
    job = draw.choice(known[-len(USUAL) * len(RECIPES):] if draw.random() < 0.5 else known)
    keys: dict[str, Any] = {"gpu": draw.choice(GPUS), "capacity_bytes": None, "rank": "worst", "profile": draw.choice((None, "none"))}
    if draw.random() < 0.7 and job.engine in ("torch", "ddp"):
        keys |= {"data_parallel_size": draw.choice((1, 2, 4, 8)), **draw.choice(ENGINES)}
    if draw.random() < 0.5:
        keys["optim"] = draw.choice(OPTIMIZERS)
    keys["per_device_train_batch_size"] = draw.choice((1, 2, 2, 3, 4) if "q" in _name(job) else (1, 2, 2, 3, 4, 8, 16))
    if job.sequence_length:
        keys["sequence_length"] = job.sequence_length + 8 * draw.choice((0, 0, 1, 16, 100))
    return job.replace(**keys)


def _name(job: Workload) -> str:
    """The model's known name, or that of its file."""
    return Path(job.model).stem if job.model.endswith(".json") else job.model


def answered(job: Workload, **how: Any) -> Prediction | None:
    """The prediction of a job; None if it is refused or needs a trace."""
    try:
        with store.existing_only():
            return predict(job, **how)
    except InputError:
        return None


def changed(job: Workload, **keys: Any) -> Workload | None:
    """A job with other keys; None if they do not go together."""
    try:
        return job.replace(**keys)
    except InputError:
        return None


def alone(found: Round, job: Workload, prediction: Prediction) -> None:
    """Relations within one prediction."""
    p, document = prediction, prediction.to_json()
    requested, allocated, reserved = p.peak_requested_bytes, p.peak_allocated_bytes, p.peak_reserved_bytes
    found.check("factors add up to the allocated peak", sum(p.factors.values()) == allocated, job, factors=sum(p.factors.values()), allocated=allocated)
    for name in ("modules", "modules_attributed"):
        total = sum(sum(split.values()) for split in getattr(p, name).values())
        found.check(f"{name} add up to the allocated peak", total == allocated, job, total=total, allocated=allocated)
    found.check("no factor is negative", min(p.factors.values()) >= 0, job, factors={k.value: v for k, v in p.factors.items()})
    found.check("requested <= allocated <= reserved", requested <= allocated <= reserved, job, requested=requested, allocated=allocated, reserved=reserved)
    for name in ("requested", "allocated", "reserved", "device"):
        bound = getattr(p, name)
        if bound is not None and bound.low is not None:
            found.check("low <= value <= high", bound.low <= bound.bytes <= bound.high, job, counter=name, low=bound.low, bytes=bound.bytes, high=bound.high)
    highest = max(row["requested_bytes"] for row in p.moments.values())
    found.check("the highest moment is the requested peak", highest == requested or p.requested.low is not None, job, highest=highest, requested=requested)
    if p.verdict is not None:
        found.check("what does not fit names the failing allocation or more than the capacity", p.verdict != "does_not_fit" or p.out_of_memory is not None
                    or reserved > p.capacity_bytes or p.reserved.high is not None and p.reserved.high > p.capacity_bytes, job, verdict=p.verdict)
        found.check("what fits allocates less than the capacity", p.verdict != "fits" or allocated <= p.capacity_bytes, job, allocated=allocated)
    found.check("the answer is JSON", json.loads(json.dumps(document, allow_nan=False)) is not None, job)


GROWING = {"per_device_train_batch_size": lambda n, draw: n + draw.choice((1, 1, 2, 5)), "sequence_length": lambda n, draw: n + draw.choice((8, 64, 512)),
           "images_per_sample": lambda n, draw: n + 1}


def growing(found: Round, job: Workload, prediction: Prediction, draw: random.Random) -> None:
    """More samples, tokens or images request as much or more, within one list of events."""
    for name, more in GROWING.items():
        size = prediction.workload[name]
        if not size or name == "per_device_train_batch_size" and size == 1:  # one sample has another list of events
            continue
        larger = changed(job, **{name: more(size, draw)})
        grown = larger and answered(larger)
        if larger and grown:
            alone(found, larger, grown)
            found.check(f"more {name} requests no less", grown.peak_requested_bytes >= prediction.peak_requested_bytes, job, larger,
                        smaller=prediction.peak_requested_bytes, larger=grown.peak_requested_bytes)


def ranks(found: Round, job: Workload, prediction: Prediction, draw: random.Random) -> None:
    """The worst rank's peaks are as high as those of each rank."""
    degree = job.data_parallel_size
    for rank in {0, degree - 1, draw.randrange(degree)} if degree > 1 else ():
        one = changed(job, rank=rank)
        single = one and answered(one)
        if one and single:
            for counter in ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes"):
                found.check("the worst rank is no lower than each", getattr(single, counter) <= getattr(prediction, counter), one, counter=counter,
                            rank=getattr(single, counter), worst=getattr(prediction, counter))


def capacities(found: Round, job: Workload, prediction: Prediction, draw: random.Random) -> None:
    """A larger GPU has no worse verdict, and the least capacity that is found fits while one page less does not."""
    reserved = prediction.peak_reserved_bytes
    limits = sorted(int(reserved * share) >> 21 << 21 for share in (0.5, 0.9, 0.97, 1.01, 1.1, 1.5))
    verdicts = []
    for limit in draw.sample(limits, 3):
        other = changed(job, capacity_bytes=max(limit, 1 << 28))
        judged = other and answered(other)
        if other and judged:
            verdicts.append((limit, VERDICTS.index(judged.verdict or "fits"), other))
    verdicts.sort(key=lambda row: row[0])
    for (_, lower, one), (_, upper, two) in zip(verdicts, verdicts[1:]):
        found.check("a larger capacity has no worse verdict, but where less makes PyTorch empty its cache", lower <= upper or _empties_cache(one),
                    one, two, verdicts=(VERDICTS[lower], VERDICTS[upper]))


def _empties_cache(job: Workload) -> bool:
    """Whether the driver refuses memory, so that PyTorch empties its cache, with which a job may survive that dies with more memory."""
    with store.existing_only():
        return dispatch.prepare(job).judge().simulation.refused


def same(found: Round, job: Workload, prediction: Prediction, draw: random.Random) -> None:
    """A workload said by its result, a YAML file, a JSON file and options is the same; so is the command's answer."""
    del draw
    document = json.loads(json.dumps(prediction.to_json()))
    peaks = {name: document[name] for name in document if name.startswith("peak_")}
    keys = {name: value for name, value in document["workload"].items() if name != "torch_compile"}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "w.json"
        path.write_text(json.dumps({name: value for name, value in given(job).items()}))
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), store.existing_only():
            code = cli.main(["predict", "--workload", str(path), "--json"])
        told = json.loads(out.getvalue()) if code in (0, 1) else {}
        found.check("the command answers as Python does", all(told.get(name) == document[name] for name in document if name != "remedies"), job,
                    different=[name for name in document if told.get(name) != document[name]][:5], code=code)
    again = answered(Workload.from_mapping({name: value for name, value in keys.items() if value is not None}))
    found.check("the workload of an answer has that answer", again is not None and all(
        again.to_json()[name] == size for name, size in peaks.items()), job)
    twice = answered(job)
    found.check("the same job has the same answer", twice is not None and twice.to_json() == prediction.to_json(), job)


def degrees(found: Round, job: Workload, prediction: Prediction, draw: random.Random) -> None:
    """Under ZeRO a rank of more ranks holds no more in start-up, where all states are but those of the optimizer."""
    del draw
    if job.engine != "deepspeed" or job.data_parallel_size < 2:
        return
    wider = changed(job, data_parallel_size=job.data_parallel_size * 2)
    more = wider and answered(wider)
    if wider and more:
        alone(found, wider, more)
        before, after = (answer.moments[Moment.INIT]["requested_bytes"] for answer in (prediction, more))
        found.check("twice the ranks of ZeRO request no more in start-up, but for alignment", after <= before + ALIGNMENT * wider.world_size, job, wider,
                    before=before, after=after)


ALIGNMENT = 256
"""Bytes for each rank by which flat buffers may be longer: DeepSpeed pads each group of parameters to two elements a rank
(runtime/zero/stage_1_and_2.py, ``nccl_start_alignment_factor``), in the parameters, their fp32 copy and two states."""

PAIRS: tuple[Callable[[Round, Workload, Prediction, random.Random], None], ...] = (growing, ranks, capacities, same, degrees)
"""Relations between a prediction and those of other jobs."""


def play(number: int, pairs: tuple[Callable, ...] = PAIRS) -> Round:
    """One round."""
    draw, found = random.Random(number), Round()
    job = prediction = None
    while prediction is None:
        with contextlib.suppress(InputError):
            job = base(draw)
            found.asked.add(_name(job))
            prediction = answered(job)
    assert job is not None
    found.models.add(_name(job))
    alone(found, job, prediction)
    for relation in pairs:
        relation(found, job, prediction, draw)
    return found


# other programs that answer ----------------------------------------------------------------------------------------

def page(number: int) -> Round:
    """The page of ``peakcast explore`` answers as Python does, at ten settings of LLaVA."""
    from tests.predictor.explore import test_explore_scripts as scripts

    found = Round(models={scripts.MODEL})
    for setting in scripts.settings(10 * (number + 1))[-10:]:
        answer, expected = scripts.scripts()(scripts.ANSWER, setting), scripts.predicted(setting)
        found.check("the page answers as Python does", _says_the_same(answer, expected, setting["gpu"]), scripts.asked(setting))
    return found


FEW_BYTES = 64 << 10
"""Most by which moments may differ on other GPUs than the page's own, for which engines' own temporaries are composed."""


def _says_the_same(answer: dict, expected: dict, gpu: str) -> bool:
    """Whether an answer of the page is Python's, but for what the page says that it leaves out."""
    few = 0 if gpu == gpus.DEFAULT else FEW_BYTES
    for moment, point in answer["moments"].items():
        point["requested_bytes"] += next((
            by for by in [expected["moments"][moment]["requested_bytes"] - point["requested_bytes"]] if abs(by) <= few), 0)
    return answer == {name: expected[name] for name in answer}


def reader(number: int) -> Round:
    """A file or command that a reader reads is the workload that it says: its keys, written and read, have its answer."""
    import hypothesis

    from predictor import readers
    from tests.attack.formats import GRAMMARS
    from tests.attack.inputs import Input

    found, names = Round(), [name for name in GRAMMARS if name.endswith((" file", " command")) or name == "shell"]
    with tempfile.TemporaryDirectory() as directory, _inside(directory):
        @hypothesis.seed(1_000 + number)
        @hypothesis.settings(max_examples=60, database=None, deadline=None, phases=[hypothesis.Phase.generate], suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(GRAMMARS[names[number % len(names)]].strategy())
        def run(one: Input) -> None:
            one.write(Path(directory))
            try:
                values, source = readers.read(path=one.words[0]) if one.target == "read" else readers.read(words=one.words) if one.target == "words" else ({}, None)
                job = Workload.from_mapping(values).read_from(source) if values else None
            except InputError:
                return
            if job is not None:
                told = Workload.from_mapping(json.loads(json.dumps({name: thaw(value) for name, value in values.items()})))
                found.check("a reader's keys, written and read, are the workload", told.resolved() == job.resolved(), job)
                again = {name: value for name, value in job.resolved().items() if value is not None and name != "torch_compile"}
                _same_as_its_file(found, one)
                found.check("a complete workload, written and read, is itself", Workload.from_mapping(json.loads(json.dumps(again))).resolved() == job.resolved(), job)
        run()
        draw, model = random.Random(number), USUAL[number % len(USUAL)]
        found.asked.add(model)
        for _ in range(4):
            usual = COMMAND.format(model, draw.choice((1, 2, 3, 8)), draw.choice((1, 2, 4)))
            _same_as_its_file(found, Input("words", tuple(usual.split())), "--gpu", draw.choice(("h100-80gb", "rtx-4090")))
    return found


COMMAND = ("llamafactory-cli train --stage sft --do_train --finetuning_type lora --lora_rank 8 --lora_target all --image_max_pixels 262144 --bf16 "
           "--output_dir o --dataset d --template t --cutoff_len 4096 --model_name_or_path {} --per_device_train_batch_size {} --gradient_accumulation_steps {}")
"""A command whose formulas are shipped for every usual model (``scripts/build_formulas.py``)."""


def _same_as_its_file(found: Round, one: Any, *options: str) -> None:
    """Compares the answer to a file or command with that of the workload which the answer shows, where both are known."""
    form = ("--from-format", one.words[1]) if one.target == "read" and len(one.words) > 1 else ()
    words = ("--from", one.words[0], *form) if one.target == "read" else ("--", *one.words)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), store.existing_only():
        code = cli.main(["predict", "--json", *options, *words])
    if code not in (0, 1):
        return
    told = json.loads(out.getvalue())
    shown = Workload.from_mapping({name: value for name, value in told["workload"].items() if value is not None and name != "torch_compile"})
    again = answered(shown)
    peaks = {name: size for name, size in told.items() if name.startswith("peak_")}
    document = json.loads(json.dumps(again.to_json())) if again else {}
    found.models.add(_name(shown))
    found.check("a file's prediction is that of the workload which it shows", all(document.get(name) == size for name, size in peaks.items()), shown,
                told=peaks, again={name: document.get(name) for name in peaks})


def adapters(number: int) -> Round:
    """Adapters of a higher rank, and of more layers, request more: traced on a small model, and of two models whose formulas are shipped."""
    from tests.predictor.small import small_config

    draw, found = random.Random(number), Round(models={"small LLaVA"})
    with tempfile.TemporaryDirectory() as directory, _cache(directory):
        path = Path(directory) / "config.json"
        path.write_text(json.dumps(small_config()))
        keys: dict[str, Any] = {"model": str(path), "sequence_length": draw.choice((64, 128)), "per_device_train_batch_size": draw.choice((2, 4)), "recipe": "lora",
                                "gradient_checkpointing": draw.choice((True, False))}
        rows = [(rank, Workload(**keys, lora={"r": rank, "target_modules": layers})) for layers in (["q_proj"], ["q_proj", "v_proj", "up_proj"]) for rank in (4, 16)]
        peaks = [(predict(job).peak_requested_bytes, job) for _, job in rows]
        for smaller, larger in ((0, 1), (2, 3), (0, 2), (1, 3)):
            found.check("larger adapters request no less", peaks[smaller][0] <= peaks[larger][0], peaks[smaller][1], peaks[larger][1])
    for model in USUAL[2 * number % len(USUAL):][:2]:
        found.asked.add(model)
        ranked = [(job, answered(job)) for job in (usual_job(model, RECIPES[2]), usual_job(model, RECIPES[0]))]  # ranks 8 and 16
        (small, few), (large, many) = ranked
        if few and many:
            found.models.add(model)
            for counter in ("peak_requested_bytes", "peak_allocated_bytes"):
                found.check("larger adapters request no less", getattr(few, counter) <= getattr(many, counter), small, large, counter=counter)
    return found


def fresh_trace(number: int) -> Round:
    """A shipped formula has the answer of a fresh trace."""
    found, job = Round(), jobs()[-1 - number * 7 % (len(jobs()))]
    shipped = answered(job)
    if shipped is None:
        return found
    found.models.add(_name(job))
    from unittest import mock

    with tempfile.TemporaryDirectory() as directory, _cache(directory), mock.patch.object(store, "shipped_directory", lambda: Path(directory) / "none"):
        traced = predict(job)
    for counter in ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes"):
        found.check("a shipped formula answers as a fresh trace", getattr(traced, counter) == getattr(shipped, counter), job, counter=counter,
                    traced=getattr(traced, counter), shipped=getattr(shipped, counter))
    return found


@contextlib.contextmanager
def _inside(directory: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _cache(directory: str) -> Iterator[None]:
    from unittest import mock

    with mock.patch.dict("os.environ", {"PEAKCAST_CACHE": directory}):
        yield


KINDS: dict[str, Callable[[int], Round]] = {"prediction": play, "page": page, "reader": reader, "adapters": adapters, "fresh trace": fresh_trace}
"""Kind of round -> what plays one."""


def rounds(kind: str, first: int, count: int, until_first: bool = False) -> dict[str, Any]:
    """Plays rounds, and adds up what they found. A round that raises is a violation."""
    checked, violations, answered_for, asked = Counter[str](), [], set(), set()
    for number in range(first, first + count):
        try:
            found = KINDS[kind](number)
        except Exception as error:
            violations.append({"relation": "a round ends", "numbers": {"round": number, "error": f"{type(error).__name__}: {error}"[:1000]}, "jobs": []})
        else:
            checked += found.checked
            violations += found.violations
            answered_for |= found.models
            asked |= found.asked
        if violations and until_first:
            break
    return {"checked": dict(checked), "violations": violations, "models": sorted(answered_for), "unanswered": sorted(asked - answered_for)}


if __name__ == "__main__":
    print(json.dumps(rounds(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "--until-first" in sys.argv), default=str))

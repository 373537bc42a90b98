"""Relations between the predictions of related jobs: what must hold whatever their numbers are.

A round is decided by its number. It takes a job, changes some of its keys, predicts it, and then jobs that differ from it
in one key.
"""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from predictor.answer.prediction import Prediction
from predictor.common.errors import InputError
from predictor.events.events import Moment
from predictor.formula import store
from predictor.jobs import dispatch
from predictor.workload.workload import Workload
from tests.attack import commands
from tests.attack.jobs import answered, base, changed, shipped
from tests.attack.rounds import Round, given, name_of

VERDICTS = ("does_not_fit", "uncertain", "fits")
COUNTERS = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
TRIES = 50
"""Jobs of a round, of which the first that is answered is taken."""


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
            for counter in COUNTERS:
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
    """A workload said by its result, and by a file, is the same; so is the command's answer."""
    del draw
    document = json.loads(json.dumps(prediction.to_json()))
    command_answers(found, job, document)
    again = answered(as_workload(document["workload"]))
    found.check("the workload of an answer has that answer", again is not None and all(
        again.to_json()[name] == size for name, size in document.items() if name.startswith("peak_")), job)
    twice = answered(job)
    found.check("the same job has the same answer", twice is not None and twice.to_json() == prediction.to_json(), job)


def command_answers(found: Round, job: Workload, expected: Mapping[str, Any]) -> None:
    """Compares the command's answer to a job, given as a file, with Python's, as JSON data. The command has remedies besides."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "w.json"
        path.write_text(json.dumps(given(job)))
        told = commands.predicted("--workload", str(path)) or {}
    different = [name for name in expected if name != "remedies" and told.get(name) != expected[name]]
    found.check("the command answers as Python does", not different, job, different=different[:5])


def as_workload(resolved: Mapping[str, Any]) -> Workload:
    """A workload of all its keys, as an answer shows them."""
    return Workload.from_mapping({name: value for name, value in resolved.items() if value is not None and name != "torch_compile"})


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


def play(number: int) -> Round:
    """One round."""
    draw, found = random.Random(number), Round()
    for _ in range(TRIES):
        with contextlib.suppress(InputError):
            job, traced = base(number, draw)
            found.asked.add(name_of(job))
            prediction = answered(job, traced)
            if prediction is not None:
                break
    else:
        raise LookupError(f"none of {TRIES} jobs is answered")
    _relate(found, job, prediction, draw)
    return found


def of_shipped(number: int) -> Round:
    """One round of a model of which formulas are shipped: its job as it is, which needs no trace."""
    job, found = shipped()[number], Round()
    found.asked.add(name_of(job))
    prediction = answered(job)
    found.check("a model of which formulas are shipped is answered without a trace", prediction is not None, job)
    if prediction is not None:
        _relate(found, job, prediction, random.Random(number))
    return found


def _relate(found: Round, job: Workload, prediction: Prediction, draw: random.Random) -> None:
    found.models.add(name_of(job))
    alone(found, job, prediction)
    for relation in PAIRS:
        relation(found, job, prediction, draw)

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
from predictor.jobs.survival import Outcome
from predictor.workload.workload import Workload
from tests.attack import commands
from tests.attack.jobs import answered, base, changed, shipped
from tests.attack.rounds import Round, given, name_of

VERDICTS = ("does_not_fit", "uncertain", "fits")
COUNTERS = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
TRIES = 50
"""Jobs of a round, of which the first that is answered is taken."""


def alone(found: Round, job: Workload, prediction: Prediction) -> None:
    """Relations within one prediction. Each is counted only where it could be violated."""
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
    if p.requested.low is None:  # else the peak is that of a range
        found.check("the highest moment is the requested peak", highest == requested, job, highest=highest, requested=requested)
    if p.verdict == "does_not_fit":
        found.check("what does not fit names the failing allocation or more than the capacity", p.out_of_memory is not None
                    or reserved > p.capacity_bytes or p.reserved.high is not None and p.reserved.high > p.capacity_bytes, job, verdict=p.verdict)
    if p.verdict == "fits":
        found.check("what fits allocates less than the capacity", allocated <= p.capacity_bytes, job, allocated=allocated)
    json.dumps(document, allow_nan=False)  # raises if the answer is no JSON, and a round that raises is a violation


GROWING = {"per_device_train_batch_size": lambda n, draw: n + draw.choice((1, 1, 2, 5)), "sequence_length": lambda n, draw: n + draw.choice((8, 64, 512)),
           "images_per_sample": lambda n, draw: n + 1}


def growing(found: Round, job: Workload, prediction: Prediction, draw: random.Random) -> None:
    """More samples, tokens or images request as much or more.

    So do two samples or images after one, although one has a list of events of its own: it lacks copies that several
    need, because a dimension of one is contiguous either way (``predictor.events.regimes``).
    """
    for name, more in GROWING.items():
        size = prediction.workload[name]
        if not size:
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


PAGE_BYTES = 2 << 20
"""Capacities that are tried are whole pages of the driver: what PyTorch reserves is."""
LEAST_CAPACITY = 1 << 28


def capacities(found: Round, job: Workload, prediction: Prediction, draw: random.Random) -> None:
    """A larger GPU has no worse verdict, near the least capacity that a bisection finds to fit, and above it.

    This holds only where the driver refuses nothing: a job may survive because PyTorch then empties its cache, and die
    with more memory. So the least capacity is one without a refusal, and a pair is counted only where the smaller
    capacity has none, and a better verdict than the worst.
    """
    least = _least_fitting(job, prediction)
    if least is None:
        return
    near = (-draw.randint(2, 64), -1, 0, 1, draw.randint(2, 64), draw.randint(65, 1_000), int(least * draw.uniform(0.1, 1)))
    limits = [max((least + pages) * PAGE_BYTES, LEAST_CAPACITY) for pages in near]
    judged = [(one, verdict) for one in (job.replace(capacity_bytes=limit) for limit in sorted(limits)) for verdict in [_verdict(one)] if verdict is not None]
    for (one, lower), (two, upper) in zip(judged, judged[1:]):
        if lower > 0 and not _outcome(one).simulation.refused:
            found.check("a larger capacity has no worse verdict", lower <= upper, one, two, verdicts=(VERDICTS[lower], VERDICTS[upper]))


def _verdict(job: Workload) -> int | None:
    """The place of a job's verdict among :data:`VERDICTS`; None if it is refused."""
    judged = answered(job)
    return None if judged is None else VERDICTS.index(judged.verdict)


def _least_fitting(job: Workload, prediction: Prediction) -> int | None:
    """The least capacity, in pages, that fits without a refusal by the driver; None if the largest that is tried does not."""
    low = max(prediction.peak_allocated_bytes // 2, LEAST_CAPACITY) // PAGE_BYTES
    high = max(2 * (prediction.reserved.high or prediction.peak_reserved_bytes), 4 << 30) // PAGE_BYTES
    if not _fits(job, high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(job, middle) else (middle, high)
    return high


def _fits(job: Workload, pages: int) -> bool:
    outcome = _outcome(job.replace(capacity_bytes=pages * PAGE_BYTES))
    return outcome.verdict == "fits" and not outcome.simulation.refused


def _outcome(job: Workload) -> Outcome:
    """A job's verdict, and the simulation that it is from: a fraction of the time of the whole answer."""
    with store.existing_only():
        return dispatch.prepare(job).judge()


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

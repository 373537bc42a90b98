"""Run each method of a plan on the emulated GPU: data parallel, fully sharded, tensor parallel, combined.

    pip install -e '.[test]'
    python scripts/check.py methods                 # four models on three clusters: half an hour
    python scripts/check.py methods --table-only    # the saved results

No GPU is needed. If a configuration of a method fits, the cheapest one runs with all memory of the GPU, once for each
rank that may have the highest peak, and must survive. One sample more than fits in its setting must die; that job runs
without the memory that a plan reserves for CUDA and NCCL. If no configuration fits, the smallest job of the closest
setting must die: with all memory, or without the reserved memory if the plan calls the job uncertain. Settings that
offload are left out, because they need as much memory of this host. Where DeepSpeed would flatten weights on the host,
DDP's closest setting runs instead. A method that cannot be planned has the reason in its row. Results go to
profiles/evidence/methods.jsonl, one line per method, with the date. Methods in that file are not run again. The table
is profiles/pages/methods.md.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import lru_cache
from itertools import groupby
from typing import Any

from calibrate.checks.directories import EVIDENCE, PAGES
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import Kept, Row
from calibrate.measure import measure as measuring
from calibrate.records.record import MeasuredOn
from predictor.jobs.dispatch import prepare
from predictor.plan import Plan, Wanted, plan
from predictor.plan.maxima import largest_batch
from predictor.plan.memory import Memory
from predictor.plan.plan import workload_of
from predictor.plan.search import Configuration
from predictor.plan.setting import SHARINGS, Setting
from predictor.workload.workload import Workload

PAGE = PAGES / "methods.md"
MODELS: tuple[dict[str, Any], ...] = (
    {"model": "llava-1.5-7b", "sequence_length": 1024}, {"model": "llama-3.1-8b", "sequence_length": 2048},
    {"model": "smolvlm-2.2b", "sequence_length": 2048, "image_size": 384},
    {"model": "llama-3.2-1b", "sequence_length": 2048})
CLUSTERS: tuple[tuple[int, dict[str, Any]], ...] = (
    (4, {"gpu": "l4", "capacity_bytes": "16GB"}), (4, {"gpu": "a100-40gb"}), (8, {"gpu": "h100-80gb"}))
"""Number of GPUs, and the keys of the GPU. No GPU of 16 GB is in the table, so an L4 with less memory stands for it."""
FLATTENED_ON_HOST = "zero::placeholder"
"""Operator name of the events in which DeepSpeed's stages 0 to 2 flatten weights on the host
(predictor/engine/zero2_init.py)."""
EXPECTED = {"cheapest": True, "one more": False, "closest": False}
"""Job -> whether it survives."""
HEAD = """# Methods that plans choose, on emulated GPUs

Of each method the cheapest configuration that fits ran with all memory of its GPU, as each rank that may decide; one
sample more than fits in its setting, with the memory taken away that a plan leaves to CUDA and NCCL. Of a method of
which none fits, the smallest job of the setting that comes closest ran. In bold is what the plan proposes. Settings
that offload are left out, and where DeepSpeed flattens weights on the host DDP's closest ran, as both need the host's
memory for real. Made by `python scripts/check.py methods` from `evidence/methods.jsonl`. Of {jobs} jobs {right} came
out as planned.

| GPUs | model | method | configuration | jobs |
| --- | --- | --- | --- | --- |
"""


def jobs(args: Namespace) -> list[Row]:
    """All methods of all plans. The methods of one plan are neighbours, so that it is made once."""
    return [{"gpus": gpus, "given": model | keys, "kind": method}
            for gpus, keys in CLUSTERS for model in MODELS for method in SHARINGS]


def tried(job: Mapping[str, Any]) -> Row:
    """The row of a method: what the plan proposes, and the outcomes of its jobs."""
    gpus, keys, name = job["gpus"], job["given"], job["kind"]
    chosen = planned(gpus, json.dumps(keys))
    method = next(method for method in chosen.methods if method.kind == name)
    outcomes: Iterable[dict] = ()
    if method.cheapest:
        outcomes = accepted(chosen, method.cheapest)
    elif method.closest:
        outcomes = rejected(method.closest, name, gpus, keys)
    return {"schema_version": 1, "date": date.today().isoformat(), "measured_on": "emulated", "gpus": gpus,
            "given": keys, "kind": name, "proposed": chosen.proposed is not None and chosen.proposed == method.cheapest,
            "cheapest": method.cheapest and method.cheapest.setting.name,
            "closest": method.closest and method.closest.name, "least_bytes": method.least_bytes,
            "why_none": method.why_none, "jobs": list(outcomes)}


@lru_cache(maxsize=1)
def planned(gpus: int, keys: str) -> Plan:
    """The plan of a workload, whose keys come as JSON so that the cache can compare them."""
    return plan(json.loads(keys) | {"offload": "none"}, Wanted(gpus=gpus, top=1))


def accepted(chosen: Plan, cheapest: Configuration) -> Iterator[dict]:
    """Outcomes of the cheapest configuration, and of one sample more than fits in its setting."""
    best, name = workload_of(cheapest), cheapest.setting.name
    capacity = best.capacity
    assert capacity is not None  # plans are made for GPUs of the table
    for rank in prepare(best).ranks(capacity):
        yield ran("cheapest", name, best.replace(rank=rank), capacity)
    more = best.replace(per_device_train_batch_size=largest_batch(cheapest, chosen.goal, Memory()).size + 1)
    yield ran("one more", name, more, prepare(more).margin.limits(capacity)[0])


def rejected(closest: Setting, name: str, gpus: int, keys: dict) -> Iterator[dict]:
    """Outcome of the smallest job of the closest setting."""
    least = closest.workload(1, 1, keys["sequence_length"])
    capacity = least.capacity
    assert capacity is not None  # plans are made for GPUs of the table
    job = prepare(least)
    if FLATTENED_ON_HOST in job.composed(capacity, job.rank).names:
        others = plan(keys | {"offload": "none", "engine": "ddp"}, Wanted(gpus=gpus, top=1)).methods
        of_ddp = next(method for method in others if method.kind == name).closest
        assert of_ddp is not None  # DDP needs at least as much memory: it does not fit either
        yield from rejected(of_ddp, name, gpus, keys)
        return
    fails = job.judge().verdict == "does_not_fit"
    yield ran("closest", closest.name, least, capacity if fails else job.margin.limits(capacity)[0])


def ran(name: str, setting: str, workload: Workload, capacity_bytes: int) -> dict:
    """Runs one job on a GPU of ``capacity_bytes``; without a rank, the one with the highest predicted peak."""
    record = measuring.measure(workload.replace(capacity_bytes=capacity_bytes), device=MeasuredOn.EMULATED)
    died = record.job.out_of_memory
    return {"job": name, "setting": setting,
            "per_device_train_batch_size": workload.per_device_train_batch_size, "rank": record.rank,
            "capacity_bytes": capacity_bytes, "survived": died is None,
            "out_of_memory": died and {"moment": died.moment.value, "step": died.step},
            "measured_reserved_bytes": record.peak("reserved_bytes").bytes}


measure = Kept(EVIDENCE / "methods.jsonl", tried, known_by=("gpus", "given", "kind"), forked=True)


def table(rows: list[Row], args: Namespace) -> Outcome:
    """The page of all methods and the outcomes of their jobs."""
    right = [(job["survived"] == EXPECTED[job["job"]]) for row in rows for job in row["jobs"]]
    head = HEAD.format(jobs=len(right), right=sum(right))
    return Outcome({"jobs that came out otherwise": right.count(False)}, {PAGE: head + "".join(map(line_of, rows))})


def line_of(row: dict) -> str:
    """A row of the page."""
    label = row["given"].get("capacity_bytes", "").replace("GB", " GB") or row["given"]["gpu"]
    choice = row["cheapest"] or (f"none; closest: {row['closest']}" if row["closest"] else f"none: {row['why_none']}")
    cell = ("**" + choice + "**") if row["proposed"] else choice
    jobs = []
    for name, group in groupby(row["jobs"], lambda job: job["job"]):
        first, *others = group
        of = "" if first["setting"] in choice else f" of {first['setting']}"
        ranks = " and ".join(str(job["rank"]) for job in (first, *others))
        end = "survived" if all(job["survived"] for job in (first, *others)) else "died"
        jobs.append(f"{name}{of}, batch {first['per_device_train_batch_size']}, rank {ranks}: {end}")
    return f"| {row['gpus']} × {label} | {row['given']['model']} | {row['kind']} | {cell} | {'; '.join(jobs)} |\n"

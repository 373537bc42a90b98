"""Does what a plan says of each method hold on the emulated GPU: data parallel, fully sharded, tensor, combined?

    pip install -e '.[test]'
    python scripts/check.py methods                 # four models on three clusters: half an hour
    python scripts/check.py methods --table-only    # the saved results

No GPU is needed. Of each method the cheapest configuration that fits runs with all memory, as every rank that may
decide, and must survive; one sample more than fits in it must die with the memory that a plan leaves to CUDA and NCCL
taken away. Of a method of which none fits, the smallest job of the setting that comes closest must die; with that
memory, unless the plan calls it uncertain. Settings that offload are left out, as they need that memory of this host;
where DeepSpeed would flatten weights there, too, DDP's closest setting runs instead. A method that cannot be planned
says why. Results go to profiles/evidence/methods.jsonl, one line a method with its date; those that are there are not
made again. The table is profiles/pages/methods.md.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
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
from predictor.plan.memory import Memory
from predictor.plan.methods import Method
from predictor.plan.plan import largest, workload_of
from predictor.plan.space import KINDS
from predictor.workload.workload import Workload

PAGE = PAGES / "methods.md"
MODELS = ({"model": "llava-1.5-7b", "sequence_length": 1024}, {"model": "llama-3.1-8b", "sequence_length": 2048},
          {"model": "smolvlm-2.2b", "sequence_length": 2048, "image_size": 384},
          {"model": "llama-3.2-1b", "sequence_length": 2048})
CLUSTERS = ((4, {"gpu": "l4", "capacity_bytes": "16GB"}), (4, {"gpu": "a100-40gb"}), (8, {"gpu": "h100-80gb"}))
"""GPUs, and keys of each: no GPU of 16 GB is in the table, so an L4 with less memory."""
FLATTENED_THERE = "zero::placeholder"
"""Operator of events where DeepSpeed's stages 0 to 2 flatten weights on the host (predictor/engine/zero2_init.py)."""
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


def jobs(given: Namespace) -> list[Row]:
    """The methods of one plan come one after another."""
    return [{"gpus": gpus, "given": model | keys, "kind": kind}
            for gpus, keys in CLUSTERS for model in MODELS for kind in KINDS]


def tried(job: Mapping[str, Any]) -> Row:
    """What a plan says of a method, and what became of its jobs."""
    gpus, given, kind = job["gpus"], job["given"], job["kind"]
    made = planned(gpus, json.dumps(given))
    method = next(one for one in made.methods if one.kind == kind)
    found = accepted(made, method) if method.cheapest else rejected(method, gpus, given) if method.closest else ()
    return {"schema_version": 1, "date": date.today().isoformat(), "measured_on": "emulated", "gpus": gpus,
            "given": given, "kind": kind, "proposed": made.proposed is not None and made.proposed == method.cheapest,
            "cheapest": method.cheapest and method.cheapest.setting.name,
            "closest": method.closest and method.closest.name, "least_bytes": method.least_bytes,
            "why_none": method.why_none, "jobs": list(found)}


@lru_cache(maxsize=1)
def planned(gpus: int, given: str) -> Plan:
    """The plan of keys, given as JSON."""
    return plan(json.loads(given) | {"offload": "none"}, Wanted(gpus=gpus, top=1))


def accepted(made: Plan, method: Method) -> Iterator[dict]:
    """What became of the cheapest configuration, and of one sample more than fits in its setting."""
    best, name = workload_of(method.cheapest), method.cheapest.setting.name
    for rank in prepare(best).ranks(best.capacity):
        yield ran("cheapest", name, best.replace(rank=rank), best.capacity)
    more = best.replace(per_device_train_batch_size=largest(method.cheapest, made.goal, Memory()).batch + 1)
    yield ran("one more", name, more, prepare(more).margin.limits(more.capacity)[0])


def rejected(method: Method, gpus: int, given: dict) -> Iterator[dict]:
    """What became of the smallest job of the closest setting."""
    least = method.closest.workload(1, 1, given["sequence_length"])
    job = prepare(least)
    if FLATTENED_THERE in job.composed(least.capacity, job.rank).names:
        other = plan(given | {"offload": "none", "engine": "ddp"}, Wanted(gpus=gpus, top=1)).methods
        yield from rejected(next(one for one in other if one.kind == method.kind), gpus, given)
        return
    fails = job.judge().verdict == "does_not_fit"
    yield ran("closest", method.closest.name, least, least.capacity if fails else job.margin.limits(least.capacity)[0])


def ran(name: str, setting: str, workload: Workload, capacity_bytes: int) -> dict:
    """One job, of the worst rank if it names none, on a GPU of so much memory."""
    record = measuring.measure(workload.replace(capacity_bytes=capacity_bytes), device=MeasuredOn.EMULATED)
    died = record.job.out_of_memory
    return {"job": name, "setting": setting,
            "per_device_train_batch_size": workload.per_device_train_batch_size, "rank": record.rank,
            "capacity_bytes": capacity_bytes, "survived": died is None,
            "out_of_memory": died and {"moment": died.moment.value, "step": died.step},
            "measured_reserved_bytes": record.peak("reserved_bytes").bytes}


measure = Kept(EVIDENCE / "methods.jsonl", tried, known_by=("gpus", "given", "kind"), forked=True)


def table(rows: list[Row], given: Namespace) -> Outcome:
    """All methods, and what became of their jobs."""
    found = [(job["survived"] == EXPECTED[job["job"]]) for row in rows for job in row["jobs"]]
    head = HEAD.format(jobs=len(found), right=sum(found))
    return Outcome({"jobs that came out otherwise": found.count(False)}, {PAGE: head + "".join(map(line_of, rows))})


def line_of(row: dict) -> str:
    """A row of the table."""
    label = row["given"].get("capacity_bytes", "").replace("GB", " GB") or row["given"]["gpu"]
    said = row["cheapest"] or (f"none; closest: {row['closest']}" if row["closest"] else f"none: {row['why_none']}")
    told = ("**" + said + "**") if row["proposed"] else said
    jobs = []
    for name, group in groupby(row["jobs"], lambda job: job["job"]):
        first, *others = group
        of = "" if first["setting"] in said else f" of {first['setting']}"
        ranks = " and ".join(str(job["rank"]) for job in (first, *others))
        end = "survived" if all(job["survived"] for job in (first, *others)) else "died"
        jobs.append(f"{name}{of}, batch {first['per_device_train_batch_size']}, rank {ranks}: {end}")
    return f"| {row['gpus']} × {label} | {row['given']['model']} | {row['kind']} | {told} | {'; '.join(jobs)} |\n"

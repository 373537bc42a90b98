"""Run the maximum load that ``predict --maximum-load`` finds, then one more, on an emulated GPU.

    pip install -e '.[test]'
    python scripts/check.py maximum_load                # measures missing jobs, then the table: some minutes
    python scripts/check.py maximum_load --table-only   # the table of the saved results

The maximum load must survive and one more must die. No GPU is needed. A prediction leaves room for memory outside
PyTorch's allocator (CUDA context, libraries). The emulated GPU has none of that, so each job runs with that much less
memory. Results go to profiles/evidence/maximum_load.jsonl, one line per job. Jobs in that file are not run again. The
table is profiles/pages/maximum_load.md.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

from calibrate.checks import results_file
from calibrate.checks.directories import EVIDENCE, PAGES
from calibrate.checks.measured_peaks import name_of
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import Row
from calibrate.measure import measure as measuring
from predictor.allocator.settings import EXPANDABLE
from predictor.answer import maximum_load
from predictor.answer.predict import predict
from predictor.answer.prediction import Prediction
from predictor.common.errors import InputError
from predictor.jobs import dispatch
from predictor.workload.workload import Workload

PAGE = PAGES / "maximum_load.md"
SHARED: dict[str, Any] = {"mode": "inference", "profile": "none"}
HEAD = """# What is said to fit, tried

The most that `peakcast predict --maximum-load` says to fit, then one more, each run on an emulated GPU with what the
prediction leaves to PyTorch. Of several ranks two run: the one with the highest predicted peak, and the first one
that is predicted to die with one more. The most must survive on both. *Expandable* is the largest batch with
`expandable_segments:True`. Of a conversation *turns* are those of its file, gone on with turns like the last one. Made
by `python scripts/check.py maximum_load` on {date} from `evidence/maximum_load.jsonl`, which has the date of each
measurement. {right} of {all} came out as predicted.

| job | what is searched | found | the most | one more |
| --- | --- | ---: | --- | --- |
"""


def jobs(args: Namespace) -> list[Row]:
    """The jobs of the JSON list beside this module."""
    return results_file.listed(__file__)


def searched(job: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a job: its searches, with the date."""
    return {"measured_on": "emulated", "date": date.today().isoformat(), "searches": list(searches(job))}


def searches(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each search of a job that memory ends: its maximum, and the outcomes of that load and of one more."""
    workload = Workload(**{**SHARED, **job})
    assert workload.capacity is not None  # every job of the list names a GPU
    share, _ = dispatch.prepare(workload).margin.limits(workload.capacity)
    for what, most, at in loads(workload, predict(workload, maximum_load=True)):
        try:
            ranks = ranks_to_run(at(most + 1), share)
        except InputError:
            continue  # what is not predicted need not die
        outcomes = [outcome([at(size).replace(capacity_bytes=share, rank=rank) for rank in ranks])
                    for size in (most, most + 1)]
        yield {"what": what, "most": most, "ranks": ranks, "outcomes": outcomes}


def ranks_to_run(too_large: Workload, share_bytes: int) -> list[int]:
    """The rank with the highest predicted peak, and the first one that is predicted to die if that is another.

    Ranks whose peaks are equal may leave different gaps between their blocks.

    Args:
        share_bytes: what PyTorch certainly gets of the GPU.
    """
    ranks = dispatch.prepare(too_large).ranks(share_bytes)
    dies = next(rank for rank in ranks if not dispatch.prepare(too_large.replace(rank=rank)).fits())
    return list(dict.fromkeys((ranks[0], dies)))


def outcome(workloads: Sequence[Workload]) -> dict[str, Any] | None:
    """Where the first of these jobs that dies runs out of memory; None if all survive."""
    for workload in workloads:
        died = measuring.measure(workload).job.out_of_memory
        if died is not None:
            return {"moment": died.moment.value, "call": died.step}
    return None


def loads(workload: Workload, prediction: Prediction) -> Iterator[tuple[str, int, Callable[[int], Workload]]]:
    """Each maximum that was searched: its name, its size, and the workload of a size."""
    def keyed(key: str, **others: Any) -> Callable[[int], Workload]:
        return lambda size: workload.replace(**{key: size}, **others)

    inference, training = prediction.inference, prediction.maximum_load
    found: tuple[tuple[str, int | None, Callable[[int], Workload]], ...] = ()
    if inference is not None:
        found = (("prompt", inference.longest_prompt_tokens, keyed("sequence_length")),
                 ("turns", inference.most_turns, partial(maximum_load.going_on, workload)),
                 ("at once", inference.concurrent_sequences, keyed("per_device_eval_batch_size")))
    if training is not None:
        batch = "per_device_train_batch_size"
        found = (("batch", training.per_device_train_batch_size, keyed(batch)),
                 ("expandable", training.per_device_train_batch_size_expandable,
                  keyed(batch, allocator_conf=EXPANDABLE)),
                 ("sequence", training.sequence_length, keyed("sequence_length")))
    yield from ((what, most, at) for what, most, at in found if most is not None)


measure = results_file.Kept(EVIDENCE / "maximum_load.jsonl", results_file.compact_row(searched), forked=True)


def table(rows: list[Row], args: Namespace) -> Outcome:
    """The page of all searches and their outcomes."""
    lines, right = [], []
    for row in rows:
        for search in row["searches"]:
            right.append([died is None for died in search["outcomes"]] == [True, False])
            step = "call" if "mode" not in row["job"] else "step"
            outcomes = ["survived" if died is None else f"died in {died['moment']} of {step} {died['call']}"
                     for died in search["outcomes"]]
            lines.append(f"| {name_of(row['job'])} | {search['what']} | {search['most']:,} | "
                         f"{' | '.join(outcomes)} |\n")
    head = HEAD.format(date=date.today().isoformat(), right=sum(right), all=len(right))
    return Outcome({"jobs that came out otherwise": right.count(False)}, {PAGE: head + "".join(lines)})

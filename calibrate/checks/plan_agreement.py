"""Compare what a plan says about its configurations with what ``predict`` says about each.

    pip install -e '.[test]'
    python scripts/check.py plan_agreement                 # 200 configurations of random plans: ten minutes
    python scripts/check.py plan_agreement --table-only    # the saved results

Nothing runs and nothing is traced. A plan is made for random keys of LLaVA-1.5-7B. Each configuration that it lists,
those that fit and the closest that does not, is predicted by the command line that the plan prints for it. Peaks and
verdict must be the same. Results go to profiles/evidence/plan_agreement.jsonl, one line per plan. Plans in
that file are not made again.
"""

from __future__ import annotations

import random
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date
from typing import Any

from rich.table import Table

from calibrate.checks.directories import EVIDENCE
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import Kept, Row
from predictor.answer.predict import predict
from predictor.commands.options import add_workload, workload
from predictor.common.errors import InputError
from predictor.plan import Wanted, plan
from predictor.plan.plan import workload_of
from predictor.plan.search import Configuration
from predictor.workload.command_line import command_line
from predictor.workload.workload import Workload

LEAST, SEED = 200, 20261123
PLANS = 44
KEYS: Mapping[str, tuple[Any, ...]] = {
    "gpu": ("h100-80gb", "a100-80gb", "a100-40gb", "rtx-4090", "l40s", "h200"),
    "sequence_length": (700, 1024, 1500, 2048, 4096), "recipe": ("finetune", "finetune", "pretrain", "lora")}
GPUS = (1, 2, 4, 8)
FIGURES = ("verdict", "peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "headroom_bytes")


def jobs(args: Namespace) -> Iterator[Row]:
    """Random plans, the same in every run."""
    draw = random.Random(SEED)
    for _ in range(PLANS):
        gpus = draw.choice(GPUS)
        total = draw.choice((None, 16 * gpus, 64))
        yield {"given": {"model": "llava-1.5-7b"} | {key: draw.choice(values) for key, values in KEYS.items()},
               "searched": {"gpus": gpus, "global_batch_size": total}}


def compared(job: Mapping[str, Any]) -> Row:
    """The row of a plan: of each listed configuration, the figures of the plan and those of ``predict``."""
    listed: list[Configuration] = []
    with suppress(InputError):  # no formula of such a job is shipped
        made = plan(job["given"], Wanted(**job["searched"]), trace=False)
        listed = [*made.found.fitting, *made.found.cheapest.values(), *([made.closest] if made.closest else [])]
    return {"schema_version": 1, "date": date.today().isoformat(), "measured_on": "predicted", **job,
            "configurations": list({row.setting.name: _both(row) for row in listed}.values())}


def _both(row: Configuration) -> dict[str, Any]:
    asked = predict(typed(command_line(workload_of(row))))
    return {"setting": row.setting.name, "per_device_train_batch_size": row.candidate.batch,
            "plan": {name: getattr(row.prediction, name) for name in FIGURES},
            "predict": {name: getattr(asked, name) for name in FIGURES}}


def typed(line: str) -> Workload:
    """The workload of ``peakcast predict …``, as the command reads it."""
    parser = ArgumentParser()
    add_workload(parser)
    return workload(parser.parse_args(shlex.split(line)[2:]))


measure = Kept(EVIDENCE / "plan_agreement.jsonl", compared, known_by=("given", "searched"))


def table(rows: list[Row], args: Namespace) -> Outcome:
    """The table of all plans, with the number of configurations that differ."""
    shown = Table("GPUs", "GPU", "recipe", "sequence", "global batch", "configurations", "differ")
    differ = total = 0
    for row in rows:
        others = sum(one["plan"] != one["predict"] for one in row["configurations"])
        differ, total = differ + others, total + len(row["configurations"])
        given, searched = row["given"], row["searched"]
        shown.add_row(str(searched["gpus"]), given["gpu"], given["recipe"], str(given["sequence_length"]),
                      str(searched["global_batch_size"] or ""), str(len(row["configurations"])), str(others))
    return Outcome({"configurations that differ": differ, "configurations short of 200": max(0, LEAST - total)},
                   shown=(shown, f"{total} configurations"))

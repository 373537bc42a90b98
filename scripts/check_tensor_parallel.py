#!/usr/bin/env python3
"""Measure tensor-parallel jobs on the emulated H100, first and last ranks, and put predictions beside them.

    pip install -e '.[test]'
    python scripts/check_tensor_parallel.py                # what is not measured yet, then the table: an hour
    python scripts/check_tensor_parallel.py --table-only   # the table from what is saved: formulas are traced

No GPU is needed. The jobs are those of scripts/tensor_parallel.json; what was measured goes to
profiles/checks/tensor_parallel.jsonl, one line a job; jobs that are there are not run again. The table is
profiles/tensor_parallel.md. Exit code 1: a prediction is off by more than 1 % of requested bytes.
"""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path

from check_recipes import bar, line_of, measure_missing

from calibrate.measure import warm
from calibrate.regression import files
from calibrate.regression.compare import compare

HERE = Path(__file__).resolve().parent
JOBS = HERE / "tensor_parallel.json"
TARGET = HERE.parent / "profiles" / "checks" / "tensor_parallel.jsonl"
TABLE = HERE.parent / "profiles" / "tensor_parallel.md"
COUNTERS = ("requested", "allocated", "reserved")
MOST = 0.01
"""Error of requested peaks, as a fraction."""
HEAD = """# Tensor parallelism, measured and predicted

Peaks in bytes of one rank on the emulated H100 (400 GiB of memory, so that each is measured to its end), and predicted
less measured. transformers shards the model by its own `tp_plan`; with `engine ddp` PyTorch's DistributedDataParallel
goes around it, over a mesh of data-parallel x tensor-parallel ranks. The lines of AutoTP are DeepSpeed's: it shards by
that plan too, and ZeRO (`zero_stage`) goes over the data-parallel ranks. The group is PyTorch's `fake` one; under DDP
it is NCCL's own with nobody behind it. Made by `python scripts/check_tensor_parallel.py` on {date} from
`checks/tensor_parallel.jsonl`, which has the date and software of each measurement. {jobs} jobs, off by at most:
{worst}.

| line | job | requested | off by | allocated | off by | reserved | off by |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def main() -> int:
    with warm.jobs():
        measure_missing(__doc__, JOBS, TARGET)
    cases, skipped = files.read([TARGET])
    for one in skipped:
        print(f"{one.source}: {one.why}", file=sys.stderr)
    groups = list(json.loads(JOBS.read_text()))
    found = [compare(case) for case in bar(sorted(cases, key=lambda case: groups.index(case.group)), "Predicting")]
    worst = {counter: max(abs(one.error(counter)) for one in found) for counter in COUNTERS}
    TABLE.write_text(HEAD.format(date=date.today().isoformat(), jobs=len(found),
                                 worst=", ".join(f"{counter} {error:.4%}" for counter, error in worst.items()))
                     + "".join(map(line_of, found)))
    return int(worst["requested"] > MOST or bool(skipped))


if __name__ == "__main__":
    sys.exit(main())

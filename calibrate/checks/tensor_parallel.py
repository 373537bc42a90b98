"""Measure the first and last ranks of tensor-parallel jobs on the emulated H100, and compare predictions.

    pip install -e '.[test]'
    python scripts/check.py tensor_parallel                # measures missing jobs, then the table: an hour
    python scripts/check.py tensor_parallel --table-only   # the table of the saved results: traces formulas

No GPU is needed. The jobs are in calibrate/checks/tensor_parallel.json. Measurements go to
profiles/evidence/tensor_parallel.jsonl, one line per job. Jobs in that file are not run again. The table is
profiles/pages/tensor_parallel.md.
"""

from __future__ import annotations

from argparse import Namespace
from datetime import date

from calibrate.checks import measured_peaks, results_file
from calibrate.checks.directories import EVIDENCE, PAGES
from calibrate.checks.outcome import Outcome
from calibrate.checks.results_file import Row

FILE, PAGE = EVIDENCE / "tensor_parallel.jsonl", PAGES / "tensor_parallel.md"
HEAD = """# Tensor parallelism, measured and predicted

Peaks in bytes of one rank on the emulated H100 (400 GiB of memory, so that each is measured to its end), and predicted
less measured. transformers shards the model by its own `tp_plan`; with `engine ddp` PyTorch's DistributedDataParallel
goes around it, over a mesh of data-parallel x tensor-parallel ranks. The lines of AutoTP are DeepSpeed's: it shards by
that plan too, and ZeRO (`zero_stage`) goes over the data-parallel ranks. The group is PyTorch's `fake` one; under DDP
it is NCCL's own with nobody behind it. Made by `python scripts/check.py tensor_parallel` on {date} from
`evidence/tensor_parallel.jsonl`, which has the date and software of each measurement. {jobs} jobs, off by at most:
{worst}.

| line | job | requested | off by | allocated | off by | reserved | off by |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def jobs(args: Namespace) -> list[Row]:
    """The jobs of the JSON list beside this module."""
    return results_file.listed(__file__)


measure = results_file.Kept(FILE, results_file.compact_row(measured_peaks.measured), forked=True)


def table(rows: list[Row], args: Namespace) -> Outcome:
    """The page of all measured jobs beside predictions, in the order of the list."""
    cases, skipped = measured_peaks.cases(FILE)
    groups = list(dict.fromkeys(job["group"] for job in jobs(args)))
    comparisons = measured_peaks.compared(cases, by=lambda case: groups.index(case.group))
    worst = measured_peaks.worst(comparisons)
    head = HEAD.format(date=date.today().isoformat(), jobs=len(comparisons),
                       worst=", ".join(f"{counter} {error:.4%}" for counter, error in worst.items()))
    return Outcome({"requested": worst["requested"], "rows that cannot be read": skipped},
                   {PAGE: head + "".join(map(measured_peaks.line_of, comparisons))})

"""Regression reports: compare measurements with today's predictions, explain errors, and check them against gates.

    cases, skipped = files.read(["profiles/h100-80gb"])
    made = report.make(cases, skipped)
    made.overall.errors["allocated"].mape
    gates.check(gate, made.comparisons)

``files`` reads measurements, ``file_formats`` knows their formats, and ``cases`` has the form that all of them become.
``compare`` predicts a case, ``statistics`` sums up, ``causes`` explains the worst cases, and ``report`` is the whole
report as data. ``baselines`` has other people's methods. Needs numpy only, unless a model must be traced.

Known limitations:

- A job that ran out of memory counts only for its verdict: its peaks are lower bounds and have no error.
- Emulated GPUs have no CUDA context and no libraries, so ``device`` peaks are compared only for real GPUs.
- Verdicts are judged only for jobs whose capacity is at most that of their GPU.
- xMem's second run is not made: an estimate fails if it leaves PyTorch less than the measured reserved bytes.
- Measurements of a GPU that was changed on purpose (``injected``) are skipped.
- Baselines predict allocated bytes of one GPU only; some say nothing about some engines or models.
"""

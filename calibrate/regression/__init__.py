"""Regression reports: measurements beside today's predictions, what is off and why, and gates against worse.

    cases, skipped = files.read(["profiles/h100-80gb"])
    made = report.make(cases, skipped)
    made.overall.errors["allocated"].mape
    gates.check(gate, made.comparisons)

``files`` reads, ``forms`` knows the forms that measurements are kept in, ``cases`` what all of them become, ``compare``
predicts one, ``statistics`` sums up, ``causes`` explains the worst, ``report`` is all of it as data. Needs numpy only.
"""

"""A regression report shown: ``words`` and ``tables`` are what it says, the rest is one form each.

``text`` for a terminal, ``markdown``, ``document`` (JSON), ``page`` (HTML, with ``figures`` drawn by ``chart``);
``files`` writes them. Nothing here computes what ``calibrate.regression`` has not.
"""

from calibrate.report.regression.text import report

__all__ = ["report"]

"""Presents a regression report as terminal text, Markdown, HTML and files.

``words`` and ``tables`` hold the content that all forms share. ``text`` prints it on a terminal, ``markdown`` makes
Markdown, and ``page`` makes HTML with ``figures``, ``breakdown`` and ``paper``, drawn by ``chart``. ``files`` writes a
directory with every form; ``calibrate.regression.document`` makes the JSON. Nothing here computes new numbers.
"""

from calibrate.report.regression.text import report

__all__ = ["report"]

"""Renders whether configuration files fit: a line for each, or a table in Markdown for a comment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from predictor.answer.fit import Fit
from predictor.common.safe_text import printable
from predictor.report.remedies import remedy_text
from predictor.report.units import size_text

WORDS = {"fits": "fits", "uncertain": "may not fit", "does_not_fit": "does not fit"}
MARKS = {"fits": "✅", "uncertain": "⚠️", "does_not_fit": "❌", None: "❔"}
MOST_CHANGES = 4
MOST_CHARACTERS = 40
"""Of a value in a list of changes."""


def line(row: Fit, base: str = "") -> str:
    """The answer in one line.

    Args:
        base: the name of the revision that the file was compared with.
    """
    if row.problem:
        return f"{row.file}: not predicted: {row.problem}"
    parts = [f"{row.file}: {WORDS[row.verdict or 'fits']} {_gpu(row)}: {_size(row)}"]
    if row.is_new:
        parts.append(f"new since {base}")
    elif row.before_problem:
        parts.append(f"not predicted at {base}")
    elif row.before_bytes is not None:
        parts.append(f"{_difference(row)}{f' {row.before_file}' * bool(row.before_file)} at {base}"
                     + (f" ({changes})" if (changes := _changes(row)) else ""))
    parts += map(_lower, map(assumption, row.assumptions))
    if row.remedy:
        parts.append(f"it {_lower(remedy_text(row.remedy))}")
    return "; ".join(parts)


def assumption(sentence: str) -> str:
    """An assumption in few words: what is assumed, and what to give instead."""
    what, _, why = sentence.rstrip(".").partition(":")
    what = what.partition(";")[0]
    to_give = why.rpartition(": ")[2].strip()
    return f"{what} ({to_give})" if to_give.startswith("give ") else what


def markdown(rows: Sequence[Fit], base: str = "") -> str:
    """A table for a comment on a pull request."""
    heads = ["", "configuration", "GPU", "reserved peak", *([f"since {_cell(base)}"] if base else []), "would fit"]
    lines = ["### GPU memory, predicted by peakcast", "", _row(heads), _row(["---"] * len(heads))]
    for row in rows:
        since = _since(row)
        size = f"`{_cell(row.problem)}`" if row.problem else _size(row)
        lines.append(_row([MARKS[row.verdict], f"`{_cell(row.file)}`", row.gpu or "", size,
                           *([since] if base else []), _plain(remedy_text(row.remedy)) if row.remedy else ""]))
    assumed = [f"- `{_cell(row.file)}`: {_plain('; '.join(map(assumption, row.assumptions)))}"
               for row in rows if row.assumptions]
    return "\n".join([*lines, *([""] if assumed else []), *assumed]) + "\n"


def _since(row: Fit) -> str:
    """What changed since the earlier state, for a cell."""
    if row.is_new or row.before_problem:
        return "new" if row.is_new else "not predicted there"
    was = f"was `{_cell(row.before_file)}`: " if row.before_file else ""
    changes = _changes(row)
    listed = f" (`{_cell(changes)}`)" if changes else ""
    return was + _difference(row, short=True) + listed if row.before_bytes else ""


def _size(row: Fit) -> str:
    assert row.peak_reserved_bytes is not None and row.capacity_bytes is not None
    return f"{size_text(row.peak_reserved_bytes)} reserved of {size_text(row.capacity_bytes)}"


def _gpu(row: Fit) -> str:
    return row.gpu or "the given capacity"


def _difference(row: Fit, *, short: bool = False) -> str:
    assert row.peak_reserved_bytes is not None and row.before_bytes is not None
    more = row.peak_reserved_bytes - row.before_bytes
    if not more:
        return "same" if short else "the same as"
    sign, word = ("+", "more") if more > 0 else ("−", "less")
    return f"{sign}{size_text(abs(more))}" if short else f"{size_text(abs(more))} {word} than"


def _changes(row: Fit) -> str:
    shown = [f"{change.key} {_value(change.before)} → {_value(change.now)}" for change in row.changes[:MOST_CHANGES]]
    rest = len(row.changes) - len(shown)
    return ", ".join([*shown, *([f"{rest} more"] if rest else [])])


def _value(value: Any) -> str:
    text = "not given" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS - 1] + "…"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _plain(text: str) -> str:
    """Text in which Markdown finds no marks and GitHub no names of people, for a cell or a line."""
    return re.sub(r"[\\`*<>|\[\]~#&]", r"\\\g<0>", printable(text)).replace("@", "@\u200b")


def _cell(text: str) -> str:
    """Text for a code span in a cell."""
    return printable(text).replace("|", "\\|").replace("`", "'")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace(chr(10), ' ') for cell in cells)} |"

"""Renders cautions and remedies as sentences."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.answer.prediction import Caution, Remedy
from predictor.report.units import size_text

MOST = 3
"""Remedies in the short answer."""
MOST_NAMED = 6
"""Changes that one sentence of the short answer names."""
BY_PREDICT = "peakcast predict … --remedies checks it"
"""For answers of commands that have no such option."""
LONG = 100
"""Characters of the user's own words, such as a whole DeepSpeed config; longer ones follow what they mean."""


def caution(row: Caution) -> str:
    """A caution as a sentence, with its bytes."""
    then = "it would no longer surely fit" if row.verdict == "fits" else "it would surely not fit"
    return (f"Caution: {row.text}. With {size_text(row.free_bytes)} more than predicted {then}; this may take "
            f"{size_text(row.more_bytes)} more.")


def short(judged: Sequence[Remedy] | None, mode: str = "training", *, to_check: str = "add --remedies",
          brief: bool = False, most: int = MOST, most_named: int = MOST_NAMED) -> list[str]:
    """The first remedies that fit, or the one that comes closest, and what was not checked; empty without remedies.

    Args:
        mode: the workload's key.
        to_check: what the user can do to have the rest checked.
        brief: leave long words of the user's own to ``--details``.
        most: remedies that are listed.
        most_named: changes that one sentence names.
    """
    if not judged:
        return []
    fitting = [remedy for remedy in judged if remedy.fits]
    lines = [remedy_text(remedy, mode, brief=brief) for remedy in fitting[:most]] or [_nothing(judged, brief)]
    slow, later = ([remedy for remedy in judged if getattr(remedy, name)] for name in ("needs_trace", "needs_time"))
    if len(fitting) < MOST or not (slow or later):
        lines += _named("Checked, and not enough alone",
                        [remedy for remedy in judged if remedy.fits is False and len(remedy.changes) == 1], most_named)
    if len(fitting) < MOST:
        lines += _named(f"Not checked, as each needs a trace ({to_check})", slow, most_named)
        lines += _named(f"Not checked, to answer soon ({to_check})", later, most_named)
    else:
        lines += _named(f"Not checked ({to_check})", [*slow, *later], most_named)
    if not slow and not later:
        lines += _named("Not predicted (--details says why)",
                        [remedy for remedy in judged if remedy.fits is None], most_named)
    return lines


def _named(what: str, remedies: Sequence[Remedy], most: int) -> list[str]:
    """A sentence that names the first changes; none without changes."""
    changes = [_changes(remedy) if len(remedy.own_words) > LONG else change_text(remedy) for remedy in remedies]
    more = f" and {len(changes) - most} more" if len(changes) > most else ""
    return [f"{what}: {'; '.join(changes[:most])}{more}."] if changes else []


def remedy_text(remedy: Remedy, mode: str = "training", *, brief: bool = False) -> str:
    """A remedy as a sentence: what changes, what it needs then, and its price. Arguments as for :func:`short`."""
    change = change_text(remedy, brief=brief)
    if remedy.fits is None:
        return f"Not checked: {change}: {remedy.why_not}."
    if not remedy.fits:
        return f"Does not surely fit: {change}: {_need(remedy)}."
    costs = [cost for cost in remedy.costs if not cost.startswith("nothing")]
    notes = [f"price: {' and '.join(costs)}" if costs else "",
             f"changes {mode}: {', '.join(remedy.differs)}" if remedy.differs else ""]
    note = "; ".join(filter(None, notes))
    unless = "".join(f", unless {row.name or row.text}" for row in remedy.cautions[:1])
    return f"Fits with {change}: {_reserved(remedy)} reserved{f' ({note})' if note else ''}{unless}."


def _reserved(remedy: Remedy) -> str:
    """The reserved peak, with the upper end of its interval where that is shown as another size."""
    here, most = size_text(remedy.peak_reserved_bytes or 0), size_text(remedy.peak_reserved_bytes_high or 0)
    return here if remedy.peak_reserved_bytes_high is None or here == most else f"{here} (up to {most})"


def change_text(remedy: Remedy, *, brief: bool = False) -> str:
    """The changes, in the words of the user's own file where it has some; after the changes if those are long.

    ``brief`` is as for :func:`short`.
    """
    if not remedy.own_words:
        return _changes(remedy)
    said = own_text(remedy.own_words, remedy.where)
    if len(remedy.own_words) <= LONG:
        return said
    there = f"{remedy.where}: " if remedy.where else ""
    return f"{_changes(remedy)} ({there}see --details)" if brief else f"{_changes(remedy)}: {said}"


def own_text(words: str, where: str) -> str:
    """The user's own words with their file, unless they name it."""
    return words if where in words else f"{words} ({where})"


def _changes(remedy: Remedy) -> str:
    return " and ".join(remedy.changes)


def _nothing(remedies: Sequence[Remedy], brief: bool) -> str:
    judged = [remedy for remedy in remedies if remedy.peak_requested_bytes is not None]
    if not judged:
        return "No change could be checked."
    closest = min(judged, key=lambda remedy: remedy.peak_requested_bytes or 0)
    change = change_text(closest, brief=brief)
    return f"Nothing that was tried surely fits. Closest: {change}, with which {_need(closest)}."


def _need(remedy: Remedy) -> str:
    """Why a change does not surely fit: its tensors alone, or the idle memory between them."""
    requested, room = remedy.peak_requested_bytes or 0, remedy.room_bytes
    if room is None:
        return f"tensors alone need {size_text(requested)}"
    surely = f"the {size_text(requested + room)} that PyTorch surely gets"
    if room < 0:
        return f"tensors alone need {size_text(requested)}, more than {surely}"
    return f"tensors need {size_text(requested)} of {surely}, but with idle memory (fragmentation) it reserves more"


"""Renders the size of a moment as a formula of the shape, so that a reader can insert other shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from predictor.answer.prediction import Candidate
from predictor.events.events import Moment
from predictor.report.units import size_text


def shape_of(workload: Mapping[str, Any]) -> dict[str, int]:
    """Values of the symbols in a formula's terms, for a conversation those of its first turn."""
    batch = workload.get("per_device_train_batch_size") or workload.get("per_device_eval_batch_size") or 1
    first = (workload.get("conversation") or (None,))[0]
    tokens, images = (first["tokens"], first["images"]) if first else (
        workload.get("sequence_length") or 0, workload.get("images_per_sample", 1) or 0)
    return {"batch": batch, "sequence": tokens, "images": batch * images}


EVALUATION = "an evaluation of this shape"
"""Replaces the terms of an evaluation, whose batch is not the training batch."""


def terms_of(candidate: Candidate) -> dict[str, int]:
    """Coefficients by term, in the form of the result JSON."""
    return {f"{EVALUATION}()": 1} if candidate.moment is Moment.EVALUATION else dict(candidate.terms)


def formula_text(candidate: Candidate, workload: Mapping[str, Any]) -> str:
    """``13.16 GiB + 65,536 B·batch·sequence [1.00 GiB] + …``, the largest part first.

    Brackets hold a term's value at this shape. Workspaces are functions of the shape but not polynomials, so the
    formula only names them; their value is the size minus all other terms.
    """
    if candidate.moment is Moment.EVALUATION:
        return f"{EVALUATION} [{size_text(candidate.requested_bytes)}]"
    shape = shape_of(workload)
    parts, workspaces = [], []
    for term, coefficient in candidate.terms.items():
        if not coefficient:
            continue
        value = _value(term, shape)
        if value is None:
            name = term.removesuffix("()")
            workspaces.append(name if coefficient == 1 else f"{coefficient:,} x {name}")
        elif term == "1":
            parts.append((coefficient, size_text(coefficient)))
        else:
            size = coefficient * value
            parts.append((size, f"{coefficient:,} B·{term.replace('*', '·')} [{size_text(size)}]"))
    if workspaces:
        rest = candidate.requested_bytes - sum(size for size, _ in parts)
        parts.append((rest, f"{' + '.join(workspaces)} [{size_text(rest)}]"))
    text = " + ".join(part for _, part in sorted(parts, key=lambda part: -part[0])) or "0 B"
    return text.replace("+ -", "- ")


def _value(term: str, shape: Mapping[str, int]) -> int | None:
    """The value of a term such as ``batch·sequence^2`` at a shape; None for a term that is not a monomial."""
    if term == "1":
        return 1
    factors = [factor.partition("^") for factor in term.replace("*", "·").split("·")]
    if not all(name in shape and (not power or power.isdecimal()) for name, _, power in factors):
        return None
    return math.prod(shape[name] ** int(power or 1) for name, _, power in factors)

"""Which method for several GPUs, as LLMem chooses one: of each kind the cheapest that fits, or why none does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from predictor.plan.memory import Memory
from predictor.plan.search import Configuration, Found, Queue
from predictor.plan.space import KINDS, Setting


@dataclass(frozen=True)
class Method:
    """One kind.

    Attributes:
        kind: one of :data:`KINDS`.
        cheapest: the first that fits, in the order of the ranking.
        closest: where none fits, the setting that needs least; None if nothing is known of any.
        least_bytes: what its smallest shape surely needs.
        why_none: why nothing of it was looked at; empty otherwise.
    """

    kind: str
    cheapest: Configuration | None
    closest: Setting | None = None
    least_bytes: int | None = None
    why_none: str = ""


def methods(found: Found, queues: Sequence[Queue], memory: Memory) -> tuple[Method, ...]:
    """One for each kind, after the walk."""
    needs = {one.setting: max(memory.least.get(one.setting, 0), one.states_bytes) for one in queues}
    return tuple(_method(kind, found, needs) for kind in KINDS)


def _method(kind: str, found: Found, needs: dict[Setting, float]) -> Method:
    if kind in found.cheapest:
        return Method(kind, found.cheapest[kind])
    failed = [one for one in found.failed if one.kind == kind]
    if failed:
        closest = min(reversed(failed), key=lambda one: needs[one] or math.inf)  # of equals those that come later
        return Method(kind, None, closest, int(needs[closest]) or None)
    reasons = [why for one, why in found.left_out if one.kind == kind]
    return Method(kind, None, why_none=reasons[0] if reasons else "the keys that are given leave none")

"""Methods to train on several GPUs: for each one the cheapest configuration that fits, or why none fits (as LLMem)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from predictor.plan.memory import Memory
from predictor.plan.search import Configuration, Found, Queue
from predictor.plan.setting import SHARINGS, Setting


@dataclass(frozen=True)
class Method:
    """One way to share the work among GPUs, with its best result.

    Attributes:
        kind: one of :data:`predictor.plan.setting.SHARINGS`.
        cheapest: the first configuration that fits, in order of the ranking; None if none fits.
        closest: if none fits, the setting that needs the least; None if none could be examined.
        least_bytes: bytes that its smallest shape needs at least; None if unknown.
        why_none: the reason why no setting was examined; empty otherwise.
    """

    kind: str
    cheapest: Configuration | None
    closest: Setting | None = None
    least_bytes: int | None = None
    why_none: str = ""


def methods(found: Found, queues: Sequence[Queue], memory: Memory) -> tuple[Method, ...]:
    """One method for each way to share the work, from the result of the walk."""
    needs = {queue.setting: max(memory.least.get(queue.setting, 0), queue.states_bytes) for queue in queues}
    return tuple(_method(sharing, found, needs) for sharing in SHARINGS)


def _method(sharing: str, found: Found, needs: dict[Setting, float]) -> Method:
    if sharing in found.cheapest:
        return Method(sharing, found.cheapest[sharing])
    failed = [setting for setting in found.failed if setting.sharing == sharing]
    if failed:
        closest = min(reversed(failed), key=lambda setting: needs[setting] or math.inf)  # the last of equal ones
        return Method(sharing, None, closest, int(needs[closest]) or None)
    reasons = [reason for setting, reason in found.left_out if setting.sharing == sharing]
    return Method(sharing, None, why_none=reasons[0] if reasons else "the keys that are given leave none")

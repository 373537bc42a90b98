"""The largest micro batches that fit in the proposed setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from predictor.allocator.settings import EXPANDABLE, with_expandable_segments
from predictor.answer import largest_size
from predictor.plan.memory import Memory, Point
from predictor.plan.search import Candidate, Configuration
from predictor.plan.setting import Setting
from predictor.workload.limits import MOST_TOKENS

MOST_BATCH = 4_096
"""Samples; the largest micro batch that is tried, unless the user sets it."""


@dataclass(frozen=True)
class Maximum:
    """The largest micro batches of one setting.

    Attributes:
        candidate: the largest shape that fits among those of the user's job, whose optimizer steps have as many samples
            as the user wants.
        micro_batch: the largest micro batch that fits where a step may have any number of samples.
        search_limits: sentences about larger micro batches that were not all tried, so that one may fit too.
    """

    candidate: Candidate
    micro_batch: int
    search_limits: tuple[str, ...] = ()


def maximum(best: Configuration, shapes: Sequence[Candidate] | None, goal: str, memory: Memory) -> Maximum:
    """The largest micro batches in the setting of a configuration that fits.

    Args:
        shapes: shapes with the wanted number of samples in a step; None: any number is wanted.
        goal: one of :data:`predictor.plan.search.GOALS`.
    """
    chosen = best.candidate
    if goal != "sequence" and memory.is_known_to_exceed(best.setting, Point(chosen.batch + 1, chosen.sequence),
                                                        chosen.accumulation):
        return Maximum(chosen, chosen.batch)
    found = largest_batch(best, goal, memory)
    limits = largest_size.may_fit_too("Micro batches of", found)
    if shapes is None:
        return Maximum(replace(chosen, batch=max(found.size, chosen.batch)), found.size, limits)
    larger = sorted((shape for shape in shapes if shape.sequence == chosen.sequence and shape.batch > chosen.batch),
                    key=lambda shape: -shape.batch)
    kept = next((shape for shape in larger if _fits(best.setting, shape, memory)), chosen)
    return Maximum(kept, max(found.size, kept.batch), limits)


def with_expandable(best: Configuration) -> Configuration | None:
    """The configuration with expandable segments; None if it has them already."""
    conf = with_expandable_segments(best.setting.keys.get("allocator_conf"))
    if conf is None:
        return None
    keys = {**best.setting.keys, "allocator_conf": conf}
    return replace(best, setting=replace(best.setting, rest=(*best.setting.rest, EXPANDABLE), keys=keys))


def largest_batch(best: Configuration, goal: str, memory: Memory) -> largest_size.Found:
    """The largest micro batch that fits, at any number of samples of a step, as of ``--maximum-load``."""
    chosen = best.candidate
    if goal == "sequence":
        return largest_size.Found(chosen.batch)
    attempt = largest_size.attempts(
        lambda size: memory.job(best.setting, Point(size, chosen.sequence), chosen.accumulation))
    return largest_size.largest_that_fits(attempt, chosen.batch, most_batch(chosen.sequence))


def most_batch(length: int | None) -> int:
    """The largest micro batch that is tried with samples of so many tokens."""
    return min(MOST_BATCH, MOST_TOKENS // (length or 1))


def _fits(setting: Setting, shape: Candidate, memory: Memory) -> bool:
    attempt = largest_size.attempts(lambda size: memory.job(setting, Point(size, shape.sequence), shape.accumulation))
    return largest_size.fits(attempt, shape.batch)

"""A whole course in other training loops: what each reserves, and whether one would run out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from predictor.answer import loop_difference
from predictor.answer.cautions import free_bytes
from predictor.answer.loop_variants import AHEAD
from predictor.answer.prediction import Bound, Caution, LoopVariant
from predictor.course.course import Course, Simulation
from predictor.course.simulate import RankCourse
from predictor.jobs.survival import FITS
from predictor.jobs.training_job import Job

ONE, TWO = "each micro-step brings its batch and replaces the last one", "the loader is one batch ahead"


def course_variants(simulation: Simulation, course: Course) -> Iterator[LoopVariant]:
    """The course in each loop, that of the course itself first; without loops that were not compared for its job."""
    yield LoopVariant(ONE, None if course.failure else course.peak_reserved_bytes,
                      course.failure.step if course.failure else None)
    yield _variant(TWO, simulation.ends(course.limit_bytes, held=AHEAD))
    for loop in reversed(loop_difference.loops(simulation.job)):
        other = simulation.in_loop(loop)
        name = loop_difference.said(loop)
        yield _variant(f"the loop keeps {name}", other.ends(course.limit_bytes))
        if loop == loop_difference.OUTPUTS[0]:
            yield _variant(f"the loop keeps {name}, and {TWO}", other.ends(course.limit_bytes, held=AHEAD))


def _variant(loop: str, ended: RankCourse) -> LoopVariant:
    if ended.failure:
        return LoopVariant(loop, None, ended.failure.step)
    return LoopVariant(loop, int(ended.memory.peak_reserved_bytes.max()))


def course_cautions(simulation: Simulation, course: Course, job: Job, reserved: Bound) -> Iterator[Caution]:
    """The loop that takes the most beyond the assumed one, if the course runs out of memory with it.

    Its bytes are the blocks that the loop needs more; where that is less than what is free, pieces of the cache are too
    small for them.

    Args:
        job: that of the course's heaviest batch. Nothing is simulated if no other loop takes more than is free.
        reserved: the course's reserved peak.
    """
    free, loops = free_bytes(job, course.verdict, reserved), loop_difference.loops(job)
    if free is None or not loops or loop_difference.most_bytes(job) <= free:
        return
    assert job.workload.capacity is not None and course.verdict is not None  # else nothing is free
    free, other = max(0, free), simulation.in_loop(loops[0])
    failure = other.ends(job.margin.limits(job.workload.capacity)[0 if course.verdict == FITS else 1]).failure
    if failure is None:
        return
    more = int(other.ends(None).memory.peak_allocated_bytes.max()) - course.peak_allocated_bytes
    found = loop_difference.caution(loops[0], max(free, more), free, course.verdict)
    yield replace(found, text=f"{found.text}, and runs out of memory at step {failure.step:,}")

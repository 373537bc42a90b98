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
    if course.failure and not course.failure.step:  # start-up is the same in every loop
        return
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
    """The least that another loop must keep for the course to run out of memory: outputs, gradients, or both.

    ``more_bytes`` is the most that any other loop keeps, and ``free_bytes`` what is free where the course reserves the
    most, though an allocator that is short of memory gives back its cache.

    Args:
        job: that of the course's heaviest batch. Nothing is simulated if no other loop takes more than is free.
        reserved: the course's reserved peak.
    """
    free, known = free_bytes(job, course.verdict, reserved), loop_difference.loops(job)
    if free is None or not known or (most := loop_difference.most_bytes(job)) <= free:
        return
    assert job.workload.capacity is not None and course.verdict is not None  # else nothing is free
    limit = job.margin.limits(job.workload.capacity)[0 if course.verdict == FITS else 1]
    for loop in (kind[0] for kind in (loop_difference.OUTPUTS, loop_difference.GRADIENTS, loop_difference.BOTH)):
        failure = simulation.in_loop(loop).ends(limit).failure if loop in known else None
        if failure is not None:
            found = loop_difference.caution(loop, most, max(0, free), course.verdict)
            yield replace(found, text=f"{found.text}, and then step {failure.step:,} may run out of memory")
            return

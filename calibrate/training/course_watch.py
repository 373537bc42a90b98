"""Compares a running training with its simulated course, and says early that it is heading for an error.

The course is a file of ``peakcast predict … --samples FILE --epochs E --json -o course.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calibrate.training.messages import RankMessages
from predictor.common.errors import InputError
from predictor.common.files import parse_json, read_text
from predictor.common.suggestions import file_name
from predictor.report.units import batch_text, size_text

LARGEST_FILE_BYTES = 1 << 28
AHEAD = 10
"""Steps before a simulated error at which it is said again."""
TOLERANCE = 0.01
"""Reserved memory that is off by a larger part than this has left the simulated course."""


@dataclass(frozen=True)
class SimulatedCourse:
    """What a course's file says of one rank.

    Attributes:
        reserved_bytes: after start-up and after each step.
        failure: the simulated out-of-memory error; None if the course survives.
        cures: settings with which no simulated course runs out of memory.
        eval_steps: steps between two simulated evaluations, each of which counts to the step before; None for none.
    """

    rank: int
    reserved_bytes: tuple[int, ...]
    failure: dict[str, Any] | None
    cures: tuple[str, ...]
    eval_steps: int | None = None


def read(path: str) -> SimulatedCourse:
    """Reads the course in the JSON of ``peakcast predict``.

    Raises:
        InputError: the file cannot be read, or has no course.
    """
    name = file_name(path)
    document = parse_json(read_text(path, "the course", LARGEST_FILE_BYTES), name)
    try:
        course = document["course"]
        cures = tuple(trial["setting"] for trial in course["trials"]
                      if trial["failed_at"] is None and not trial["failed"])
        return SimulatedCourse(int(course["rank"]), tuple(map(int, course["columns"]["reserved_bytes"])),
                               course["failure"], cures, int(course.get("eval_steps") or 0) or None)
    except (KeyError, TypeError, ValueError):
        raise InputError(f"{name}: has no course: make it with peakcast predict … --samples FILE --epochs 1 --json "
                         f"-o {name}") from None


class CourseWatch:
    """Follows a training on one rank. Other ranks than the course's draw other batches, and are not compared.

    Nor is the reserved memory of a training that resumes from a checkpoint, because PyTorch's cache begins empty there.

    Args:
        done: steps that were done before the training resumed.
    """

    def __init__(self, course: SimulatedCourse, messages: RankMessages, rank: int, done: int = 0) -> None:
        self._course, self._messages, self._done = course, messages, done
        self._is_on_course = self._applies = rank == course.rank

    def begin(self) -> None:
        """Says at the start what the course ends with."""
        failure = self._course.failure
        if not self._applies or self._done >= len(self._course.reserved_bytes):
            return
        if self._done:
            self._messages.say(f"the training resumes after step {self._done:,} with an empty cache, so its reserved "
                               "memory is not compared with the simulated course")
        if failure is not None and failure["step"] > self._done:
            self._messages.say(f"the simulated course {self._error()}{self._prevented()}")

    def after_step(self, step: int, reserved_bytes: int) -> None:
        """Compares reserved memory after a step, and warns where the course has left or nears its error.

        Args:
            step: of this run, from 1 on.
            reserved_bytes: what PyTorch holds now.
        """
        expected = self._course.reserved_bytes
        if not self._is_on_course:
            return
        failure, step = self._course.failure, self._done + step
        if failure is not None and failure["step"] + bool(failure.get("evaluated")) == step:
            self._is_on_course = False
            return self._messages.say(f"step {step:,} survived, although the simulated course {self._error()}: this "
                                      "training differs from the simulated one")
        if step >= len(expected):
            return
        evaluates = self._course.eval_steps is not None and step % self._course.eval_steps == 0  # after this call
        if not (evaluates or self._done) and abs(reserved_bytes - expected[step]) > TOLERANCE * expected[step]:
            self._is_on_course = False
            more = "more" if reserved_bytes > expected[step] else "less"
            return self._messages.say(
                f"step {step:,}: PyTorch reserves {size_text(reserved_bytes)}, {more} than the simulated "
                f"{size_text(expected[step])}: batches or loop differ from the simulated ones, and the course is no "
                "longer followed")
        if failure is not None and failure["step"] - AHEAD <= step <= failure["step"]:
            so_far = f"step {step:,} is done" if self._done else f"step {step:,} is as simulated"
            self._messages.warn("course", f"{so_far}, and the simulated course {self._error()}{self._prevented()}")

    def _error(self) -> str:
        failure = self._course.failure
        assert failure is not None  # callers have looked
        evaluation = "the evaluation after " if failure.get("evaluated") else ""
        batch = batch_text(len(failure["samples"]), failure["tokens"], packed=failure.get("packed", False))
        return f"runs out of memory at {evaluation}step {failure['step']:,}, with a batch of {batch}"

    def _prevented(self) -> str:
        return f"; prevented by {self._course.cures[0]}" if self._course.cures else ""

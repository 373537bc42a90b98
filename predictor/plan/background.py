"""Answers questions of a walk in other processes, in advance, so that formulas are traced on all cores.

A process traces the formulas that its question needs, and writes them to the cache. The walk asks every question
again, and then finds the formulas there: what it proposes does not depend on these processes, nor on their failures.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from typing import IO, NamedTuple

from predictor.common import start, streams
from predictor.common.errors import InputError
from predictor.common.progress import Progress
from predictor.common.storage import cache_directory
from predictor.formula import interpreter, tracing
from predictor.formula.interpreter import Interpreter
from predictor.plan.memory import Memory, Question
from predictor.plan.setting import Setting

MOST = 3
"""Processes, beside the one that walks."""
BYTES_EACH = 4 << 30
"""Memory of the machine for each process. It takes a quarter of that; the rest is for the others."""
TELLING_SECONDS = 1


class Order(NamedTuple):
    """A question, with what matters to which formulas are traced for it.

    Attributes:
        short: as :attr:`Memory.short`.
        chosen: the interpreter in which models are traced; None: the process itself.
    """

    question: Question
    short: frozenset[tuple[str, ...]]
    chosen: Interpreter | None


def traced_for(order: Order | None, progress: Progress | None = None) -> int:
    """Answers a question, and returns the number of formulas that were traced for it. Without an order, only loads what
    all traces need."""
    if order is None:
        tracing.load()
        return 0
    memory = Memory(progress, short=set(order.short))
    with (suppress(InputError),  # the walk names what cannot be predicted
          interpreter.tracing_in(order.chosen) if order.chosen else nullcontext()):
        memory.answer(order.question)
    return memory.counts.traced


class Task(NamedTuple):
    """An order, and the number of formulas that were traced for it, once there is an answer."""

    order: Order
    traced: Future[int]


class Background:
    """Processes that answer questions, until the block ends. They start when a question will come, or is there.

    Attributes:
        later: questions of the next walk.
    """

    def __init__(self, memory: Memory) -> None:
        self.later: Sequence[Question] = ()
        self._memory = memory
        self._tasks: dict[Hashable, Task] = {}
        self._asked: set[Hashable] = set()
        self._seen: set[tuple[Setting, int]] = set()
        self._processes: list[subprocess.Popen] = []
        self._of_thread = threading.local()
        self._number = _processes() if memory.trace and cache_directory() else 0
        self._threads = ThreadPoolExecutor(max(1, self._number))
        self._is_over = False

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_error) -> None:
        self._is_over = True
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.wait()
        self._tasks = {key: task for key, task in self._tasks.items() if not task.traced.cancelled()}
        self._count()

    def warm(self) -> None:
        """Starts the processes, which load what traces need before there is a question for them."""
        for _ in range(0 if interpreter.CHOSEN.get() else self._number):
            self._threads.submit(self._answer, None)

    def begin(self, questions: Sequence[Question], *, with_later: bool = False) -> None:
        """Hands out the questions that need formulas which nobody traces yet, and then those of the next walk."""
        for question in [*questions, *(self.later if with_later else ())] if self._number else ():
            seen = question.setting, question.micro_steps
            key = None if seen in self._seen else self._memory.missing(question)
            self._seen.add(seen)
            if key is not None and key not in self._asked:
                self._asked.add(key)
                order = Order(question, frozenset(self._memory.short), interpreter.CHOSEN.get())
                self._tasks[key] = Task(order, self._threads.submit(self._answer, order))

    def finish(self, question: Question, tell: Callable[[], None]) -> None:
        """Returns when no other process traces what a question needs. Meanwhile, this one answers other questions.

        Args:
            tell: is called about every second while there is nothing else to do.
        """
        if not self._tasks:
            return
        self._count()
        key = self._memory.missing(question)
        self._asked.add(key)
        task = self._tasks.get(key)
        if task is None:
            return
        if task.traced.cancel():
            del self._tasks[key]
            return
        while not task.traced.done():
            free = next((key for key, other in self._tasks.items() if other.traced.cancel()), None)
            if free is None:
                wait([task.traced], TELLING_SECONDS)
                tell()
            else:
                self._memory.counts.traced += traced_for(self._tasks.pop(free).order, self._memory.progress)
        self._count()

    def _count(self) -> None:
        """Counts what was traced for the tasks that are done, and forgets them."""
        for key in [key for key, task in self._tasks.items() if task.traced.done()]:
            self._memory.counts.traced += self._tasks.pop(key).traced.result()

    def _answer(self, order: Order | None) -> int:
        """Hands an order to the process of this thread, and returns the number of formulas that were traced for it."""
        if self._is_over:
            return 0
        process: subprocess.Popen | None = getattr(self._of_thread, "process", None)
        try:
            if process is None:
                process = self._of_thread.process = _started()
                self._processes.append(process)
                if self._is_over:  # after __exit__ looked
                    process.kill()
            pickle.dump(order, _pipe(process.stdin))
            _pipe(process.stdin).flush()
            return pickle.load(_pipe(process.stdout))
        except (OSError, EOFError, pickle.UnpicklingError):
            if not self._is_over:
                self._is_over = True
                streams.say("peakcast: a process that traced models in the background ended"
                            f"{'' if process is None else f' with exit code {process.wait()}'}: going on without it")
            return 0


def _processes() -> int:
    """The number of processes for which there are cores and memory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else BYTES_EACH
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(0, min(cores - 1, MOST, memory // BYTES_EACH))


def _started() -> subprocess.Popen:
    words = [sys.executable, start.__file__, "predictor.plan.background_process"]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # both streams of a process are pipes
    return pipe

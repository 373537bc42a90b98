"""The maximum load of a GPU in inference: the longest prompt or conversation, and the most concurrent sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.answer.prediction import ConcurrentMemory, Inference
from predictor.common.errors import InputError
from predictor.engine.generation import extended_call
from predictor.events import timeline
from predictor.events.events import MOMENTS, Factor
from predictor.jobs.inference_job import InferenceJob, prepare, unpredicted_prompts
from predictor.model.models import find
from predictor.workload.conversation import MOST_TOKENS, MOST_TURNS, turns
from predictor.workload.limits import MOST_IMAGES, MOST_SAMPLES
from predictor.workload.limits import MOST_TOKENS as MOST_TOTAL
from predictor.workload.workload import Workload

if TYPE_CHECKING:
    from predictor.common.progress import Progress

STEP_TOKENS = 8
"""Tokens; the first step of a prompt search, because rows of attention masks are padded to multiples of 8."""
LEAPS = 12
"""Sizes that are tried by extrapolating along a line; after that the search halves."""


def searched(job: InferenceJob, details: Inference, progress: Progress | None = None) -> Inference:
    """Adds the maximum load to the details of an inference prediction.

    Each limit is searched alone; all other settings stay those of the workload.

    Raises:
        InputError: the workload names no GPU.
    """
    workload = job.workload
    prompt: int | None
    talk: int | None
    if workload.capacity is None:
        raise InputError("maximum_load needs a GPU: add --gpu NAME or --capacity-bytes SIZE")
    if workload.conversation is None:
        prompt, talk = longest_prompt(job, progress), None
        assert workload.max_new_tokens is not None  # a single prompt has it
        context = prompt and prompt + workload.max_new_tokens - 1
        limits = _limits_of_prompt(job, prompt)
    else:
        prompt, talk = None, most_turns(job, progress)
        context = talk and turns(going_on(workload, talk))[-1].cached
        limits = _limit("More turns", partial(going_on, workload, talk + 1)) if talk < MOST_TURNS else (
            f"More than {MOST_TURNS} turns are not predicted.",)
    most = concurrent_sequences(job, progress)
    limits += _limit("More sequences at once", lambda: workload.replace(per_device_eval_batch_size=most + 1))
    concurrent = None
    if workload.gpu_memory_utilization is not None:
        if most:
            concurrent = _memory(prepare(workload.replace(per_device_eval_batch_size=most), one_length=True))
        limits += ("These limits are for generate's own cache, not for paged serving.",)
    return replace(details, longest_prompt_tokens=prompt, most_turns=talk, longest_context_tokens=context,
                   concurrent_sequences=most, search_limits=limits, concurrent=concurrent)


def _memory(job: InferenceJob) -> ConcurrentMemory:
    """The memory of a job that fits, split at its requested peak."""
    outcome = job.judge()
    run, reserved = outcome.run, outcome.reserved.bytes
    peak = int(np.argmax(run.live))
    by_factor = timeline.by_factor(run.events, run.row_bytes)
    weights, cache = (int(by_factor[factor][peak]) for factor in (Factor.PARAMETERS, Factor.KV_CACHE))
    return ConcurrentMemory(job.shape.batch, MOMENTS[run.events.moment[peak]].value, reserved, weights, cache,
                            run.peak - weights - cache, reserved - run.peak)


def longest_prompt(job: InferenceJob, progress: Progress | None = None) -> int:
    """Tokens of the longest prompt that fits with the job's batch, images and reply; 0 if none fits.

    Some lengths are not predicted (:func:`unpredicted_prompts`). Such a prompt fits if the next longer predicted one
    fits.
    """
    workload = job.workload
    config, images, new_tokens = find(workload.model), workload.images_per_sample, workload.max_new_tokens
    assert images is not None and new_tokens is not None and workload.sequence_length is not None  # a resolved prompt
    most = (job.positions or MOST_TOKENS) - new_tokens + 1
    least = job.formula.facts.room(images) + images + 1  # text between images
    least = workload.sequence_length if _fits(job) else least
    gaps = unpredicted_prompts(config.windows, new_tokens)

    def workload_at(tokens: int) -> Workload:
        for first, last in gaps:
            tokens = last + 1 if first <= tokens <= last else tokens
        return workload.replace(sequence_length=tokens)

    longest = STEP_TOKENS * _search(lambda steps: workload_at(STEP_TOKENS * steps), -(-least // STEP_TOKENS),
                                    most // STEP_TOKENS, progress)
    first = longest + 1 if longest else least
    rest = range(min(most, -(-first // STEP_TOKENS) * STEP_TOKENS - 1), first - 1, -1)
    return next((tokens for tokens in rest if _search(workload_at, tokens, tokens, progress)), longest)


def most_turns(job: InferenceJob, progress: Progress | None = None) -> int:
    """Number of turns that fit if the conversation goes on with turns like its last one; 0 if not even one fits."""
    workload, positions = job.workload, job.positions or MOST_TOKENS
    within = sum(turn.cached <= positions for turn in turns(going_on(workload, MOST_TURNS)))
    return _search(lambda number: going_on(workload, number), len(job.turns) if _fits(job) else 1, within, progress)


def going_on(workload: Workload, number: int) -> Workload:
    """The workload with ``number`` turns: the conversation's own, then repetitions of its last one."""
    conversation = workload.conversation
    assert conversation is not None  # only conversations have turns to repeat
    return workload.replace(
        conversation=conversation[:number] + conversation[-1:] * (number - len(conversation)))


def concurrent_sequences(job: InferenceJob, progress: Progress | None = None) -> int:
    """The largest number of concurrent sequences like the workload's that fit; 0 if no predicted number fits."""
    workload = job.workload
    assert workload.capacity is not None  # searched() checks it
    images, tokens = max(turn.images for turn in job.turns), job.turns[-1].cached
    sequence_bytes = extended_call(job.pieces[-1], job.gpu).cache_bytes // job.shape.batch

    def workload_at(batch: int) -> Workload:
        return workload.replace(per_device_eval_batch_size=batch)

    doubled = [1 << power for power in range(job.shape.batch.bit_length())]  # small batches may not be predicted
    least = job.shape.batch if _fits(job) else next(size for size in (*doubled, job.shape.batch)
                                                    if _problem(partial(workload_at, size)) is None)
    most = min(MOST_SAMPLES, MOST_IMAGES // max(images, 1), MOST_TOTAL // tokens, workload.capacity // sequence_bytes)
    return _search(workload_at, least, most, progress, one_length=True)


def _limits_of_prompt(job: InferenceJob, longest: int) -> tuple[str, ...]:
    """Sentences that say why no longer prompt was found, if memory is not the reason."""
    if not longest:
        return ()
    assert job.workload.max_new_tokens is not None  # a single prompt has it
    gaps = unpredicted_prompts(find(job.workload.model).windows, job.workload.max_new_tokens)
    return tuple(f"Prompts of {first:,} to {last:,} tokens, whose replies reach a sliding window after many tokens, "
                 "are not predicted: some may fit." for first, last in gaps if first == longest + 1) or _limit(
        "Longer prompts", lambda: job.workload.replace(sequence_length=longest + 1))


def _limit(what: str, workload: Callable[[], Workload]) -> tuple[str, ...]:
    """A sentence that says why a workload is not predicted; empty if it is predicted."""
    problem = _problem(workload)
    return () if problem is None else (f"{what} are not predicted: {problem}.",)


def _problem(workload: Callable[[], Workload]) -> InputError | None:
    """The reason why a workload is not predicted; None if it is predicted."""
    try:
        prepare(workload())
        return None
    except InputError as error:
        return error


def _fits(job: InferenceJob) -> bool:
    return job.judge().verdict == "fits"


def _room(job: InferenceJob) -> int:
    """Bytes that the requested peak leaves of what PyTorch certainly gets; negative if the job cannot fit.

    This needs no simulation of the allocator.
    """
    assert job.workload.capacity is not None  # searched() checks it
    certain, _ = job.margin.limits(job.workload.capacity)
    return certain - job.run(None).peak


def _search(workload_at: Callable[[int], Workload], least: int, most: int, progress: Progress | None,
            one_length: bool = False) -> int:
    """The largest size whose workload fits; 0 if not even ``least`` fits. A workload that is not predicted counts as
    one that does not fit."""
    def evaluated(function: Callable[[InferenceJob], Any], size: int) -> Any:
        try:
            return function(prepare(workload_at(size), progress, one_length=one_length))
        except InputError:
            return None

    size = largest(lambda size: evaluated(_room, size), lambda size: bool(evaluated(_fits, size)), least, most)
    return size if size >= least else 0


def largest(room: Callable[[int], int | None], fits: Callable[[int], bool], least: int, most: int) -> int:
    """The largest size from ``least`` to ``most`` that fits; ``least - 1`` if none fits.

    The search starts at the largest size with room, and goes up or down from there.

    Args:
        room: an upper bound on the bytes that a size leaves free: negative if it cannot fit; None if it is not
            predicted. Quick.
        fits: whether a size fits. Slow.
    """
    def holds(size: int) -> bool:
        left = room(size)
        return left is not None and left >= 0 and fits(size)

    low, high, step = least - 1, most + 1, 1
    if least <= (size := _end_of_room(room, least, most)) and holds(size):
        low = size
        while low + step < high and holds(low + step):
            low, step = low + step, 2 * step
        high = min(low + step, high)
    else:
        high = max(size, least)
        while high - step > low and not holds(high - step):
            high, step = high - step, 2 * step
        low = max(high - step, low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _end_of_room(room: Callable[[int], int | None], least: int, most: int) -> int:
    """About the largest size from ``least`` to ``most`` that leaves room; ``least - 1`` if none does.

    Room shrinks almost linearly as sizes grow. So the next size to try is the zero of the line through the last two
    sizes. It is at most four times the largest size that left room, because much larger sizes may take long to trace.
    """
    low, high = least - 1, most + 1
    tried: list[tuple[int, int | None]] = []
    while high - low > 1:
        size = (_zero(*tried[-2:]) if 1 < len(tried) <= LEAPS else None) or (low + high) // 2
        if tried and size == low:
            break
        size = max(low + 1, min(size, 4 * low, high - 1)) if tried else least
        left = room(size)
        low, high = (low, size) if left is None or left < 0 else (size, high)
        tried.append((size, left))
    return low


def _zero(first: tuple[int, int | None], second: tuple[int, int | None]) -> int | None:
    """The zero of the line through two sizes and their room, rounded down; None if room does not shrink."""
    (smaller, more), (larger, less) = sorted((first, second))
    if more is None or less is None or more <= less:
        return None
    return larger + less * (larger - smaller) // (more - less)

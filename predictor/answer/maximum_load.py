"""How much a GPU serves: the longest prompt or context, and the most sequences at once, that fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from predictor.answer.prediction import Inference
from predictor.common.errors import InputError
from predictor.engine.generation import longer
from predictor.jobs.inference_job import InferenceJob, prepare, unpredicted_prompts
from predictor.model.models import find
from predictor.workload.conversation import MOST_TOKENS, MOST_TURNS, turns
from predictor.workload.limits import MOST_IMAGES, MOST_SAMPLES
from predictor.workload.limits import MOST_TOKENS as MOST_TOTAL
from predictor.workload.workload import Workload

if TYPE_CHECKING:
    from predictor.common.progress import Progress

STEP_TOKENS = 8
"""Prompts are searched in such steps first: rows of masks are padded to multiples of 8."""
LEAPS = 12
"""Sizes that are tried where a line meets the limit; halves after that."""


def searched(job: InferenceJob, held: Inference, progress: Progress | None = None) -> Inference:
    """With what fits beside the rest of the workload.

    Raises:
        InputError: the workload names no GPU.
    """
    workload = job.workload
    if workload.capacity is None:
        raise InputError("maximum_load needs a GPU: add --gpu NAME or --capacity-bytes SIZE")
    if workload.conversation is None:
        prompt, talk = longest_prompt(job, progress), None
        context = prompt and prompt + workload.max_new_tokens - 1
        limits = _limits_of_prompt(job, prompt)
    else:
        prompt, talk = None, most_turns(job, progress)
        context = talk and turns(going_on(workload, talk))[-1].cached
        limits = _limit("More turns", lambda: going_on(workload, talk + 1)) if talk < MOST_TURNS else (
            f"More than {MOST_TURNS} turns are not predicted.",)
    most = concurrent_sequences(job, progress)
    limits += _limit("More at once", lambda: workload.replace(per_device_eval_batch_size=most + 1))
    if workload.gpu_memory_utilization is not None:
        limits += ("What fits is of generate's own cache, not of paged serving.",)
    return replace(held, longest_prompt_tokens=prompt, most_turns=talk, longest_context_tokens=context,
                   concurrent_sequences=most, search_limits=limits)


def longest_prompt(job: InferenceJob, progress: Progress | None = None) -> int:
    """Tokens of the longest prompt that fits with the job's batch, images and reply; 0 if none does. A prompt that is
    not predicted fits if the next longer one that is does."""
    workload = job.workload
    config, images = find(workload.model), workload.images_per_sample
    most = (job.positions or MOST_TOKENS) - workload.max_new_tokens + 1
    least = job.formula.facts.room(images) + images + 1  # text between images
    least = workload.sequence_length if _fits(job) else least
    gaps = unpredicted_prompts(config.windows, workload.max_new_tokens)

    def of(tokens: int) -> Workload:
        for first, last in gaps:
            tokens = last + 1 if first <= tokens <= last else tokens
        return workload.replace(sequence_length=tokens)

    found = STEP_TOKENS * _search(lambda steps: of(STEP_TOKENS * steps), -(-least // STEP_TOKENS),
                                  most // STEP_TOKENS, progress)
    first = found + 1 if found else least
    rest = range(min(most, -(-first // STEP_TOKENS) * STEP_TOKENS - 1), first - 1, -1)
    return next((tokens for tokens in rest if _search(of, tokens, tokens, progress)), found)


def most_turns(job: InferenceJob, progress: Progress | None = None) -> int:
    """How many turns of the job's conversation fit, which goes on with turns like its last one; 0 if not one does."""
    workload, positions = job.workload, job.positions or MOST_TOKENS
    within = sum(turn.cached <= positions for turn in turns(going_on(workload, MOST_TURNS)))
    return _search(lambda number: going_on(workload, number), len(job.turns) if _fits(job) else 1, within, progress)


def going_on(workload: Workload, number: int) -> Workload:
    """With so many turns: the conversation's own, then more like its last one."""
    said = workload.conversation
    return workload.replace(conversation=said[:number] + said[-1:] * (number - len(said)))


def concurrent_sequences(job: InferenceJob, progress: Progress | None = None) -> int:
    """The most sequences at once that fit, each as the workload's; 0 if none does that is predicted."""
    workload = job.workload
    images, tokens = max(turn.images for turn in job.turns), job.turns[-1].cached
    each = longer(job.pieces[-1], job.gpu).cache_bytes // job.shape.batch

    def of(batch: int) -> Workload:
        return workload.replace(per_device_eval_batch_size=batch)

    doubled = [1 << power for power in range(job.shape.batch.bit_length())]  # small ones may not be predicted
    least = job.shape.batch if _fits(job) else next(size for size in (*doubled, job.shape.batch)
                                                    if _problem(lambda size=size: of(size)) is None)
    return _search(of, least,
                   min(MOST_SAMPLES, MOST_IMAGES // max(images, 1), MOST_TOTAL // tokens, workload.capacity // each),
                   progress, one_length=True)


def _limits_of_prompt(job: InferenceJob, longest: int) -> tuple[str, ...]:
    """Why no longer prompt than this was found, where that is not for lack of memory."""
    if not longest:
        return ()
    gaps = unpredicted_prompts(find(job.workload.model).windows, job.workload.max_new_tokens)
    return tuple(f"Prompts of {first:,} to {last:,} tokens, whose replies reach a sliding window after many tokens, "
                 "are not predicted: some may fit." for first, last in gaps if first == longest + 1) or _limit(
        "Longer prompts", lambda: job.workload.replace(sequence_length=longest + 1))


def _limit(what: str, of: Callable[[], Workload]) -> tuple[str, ...]:
    """The sentence that a workload is not predicted, if it is not."""
    problem = _problem(of)
    return () if problem is None else (f"{what} are not predicted: {problem}.",)


def _problem(of: Callable[[], Workload]) -> InputError | None:
    """Why a workload is not predicted; None if it is."""
    try:
        prepare(of())
        return None
    except InputError as error:
        return error


def _fits(job: InferenceJob) -> bool:
    return job.judge().verdict == "fits"


def _room(job: InferenceJob) -> int:
    """Bytes that requested ones surely leave, which need no simulation; negative where they do not fit."""
    surely, _ = job.margin.limits(job.workload.capacity)
    return surely - job.run(None).peak


def _search(of: Callable[[int], Workload], least: int, most: int, progress: Progress | None,
            one_length: bool = False) -> int:
    """The largest size whose workload fits, 0 if not even the least does; one that is not predicted does not."""
    def asked(what: Callable[[InferenceJob], Any], size: int) -> Any:
        try:
            return what(prepare(of(size), progress, one_length=one_length))
        except InputError:
            return None

    found = largest(lambda size: asked(_room, size), lambda size: bool(asked(_fits, size)), least, most)
    return found if found >= least else 0


def largest(room: Callable[[int], int | None], fits: Callable[[int], bool], least: int, most: int) -> int:
    """The largest size in ``least … most`` that fits, ``least - 1`` if none does: from where room ends, up or down.

    Args:
        room: bytes that a size leaves at least if it fits, negative if it cannot; None if it is not predicted. Quick.
        fits: whether it does. Slow.
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
    """About the largest size in ``least … most`` that leaves room, ``least - 1`` if none does. Room shrinks as sizes
    grow, nearly on a line: what is tried next is where the line through the last two sizes meets zero, at most four
    times as large as any that left room, as much larger ones may take long to trace."""
    low, high, tried = least - 1, most + 1, []
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
    """Where the line through two sizes and their room meets zero, rounded down; None without such a line."""
    (smaller, more), (larger, less) = sorted((first, second))
    if more is None or less is None or more <= less:
        return None
    return larger + less * (larger - smaller) // (more - less)

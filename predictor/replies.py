"""What a prediction of inference says besides: weights, cache, each turn, and how much a GPU serves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from predictor import timeline
from predictor.engine.generation import longer
from predictor.errors import InputError
from predictor.events import MOMENTS, Factor, Moment
from predictor.inference import InferenceJob, positions_of, prepare, unpredicted_prompts
from predictor.models import find
from predictor.prediction import Inference, Paged, TurnMemory
from predictor.turns import MOST_TOKENS
from predictor.workload import Workload
from predictor.workload_rules import MOST_IMAGES, MOST_SAMPLES
from predictor.workload_rules import MOST_TOKENS as MOST_TOTAL

if TYPE_CHECKING:
    from predictor.pipeline import Progress
    from predictor.run import Run

STEP_TOKENS = 8
"""Prompts are searched in such steps first: rows of masks are padded to multiples of 8."""


def inference(job: InferenceJob, maximum_load: bool = False, progress: Progress | None = None) -> Inference:
    """Of a job.

    Raises:
        InputError: paged serving, or the maximum load, of a workload without a GPU.
    """
    workload, run = job.workload, job.run(job.workload.capacity)
    calls = [longer(piece, job.gpu) for piece in job.pieces]
    last, sequences = calls[-1], job.shape.batch
    per_token = last.growth_bytes or last.cache_bytes // job.turns[-1].cached
    weights = int(run.live[np.flatnonzero(run.events.step == 0)[-1]])
    longest = most = None
    limits: tuple[str, ...] = ()
    if maximum_load:
        if workload.capacity is None:
            raise InputError("maximum_load needs a GPU: add --gpu NAME or --capacity-bytes SIZE")
        longest, most = longest_prompt(job, progress), concurrent_sequences(job, progress)
        limits = search_limits(job, longest, most)
    return Inference(
        weights_bytes=weights, cache_bytes=last.cache_bytes, cache_bytes_per_token=per_token // sequences,
        turns=tuple(TurnMemory(number, turn.role, turn.tokens, turn.images, turn.new_tokens, turn.cached,
                               call.cache_bytes, _highest(run, Moment.PREFILL, number),
                               _highest(run, Moment.DECODE, number))
                    for number, (turn, call) in enumerate(zip(job.turns, calls), 1)),
        longest_prompt_tokens=longest, concurrent_sequences=most, search_limits=limits,
        paged=_paged(job, run, weights, per_token // sequences))


def _highest(run: Run, moment: Moment, turn: int) -> int | None:
    """Requested bytes; what the moment finds counts as its own."""
    inside = np.flatnonzero((run.events.step == turn) & (run.events.moment == MOMENTS.index(moment)))
    return int(run.live[inside[0] - 1:inside[-1] + 1].max()) if len(inside) else None


def longest_prompt(job: InferenceJob, progress: Progress | None = None) -> int | None:
    """Tokens of the longest prompt that fits with the job's batch, images and reply; 0 if none does, None of a
    conversation. A prompt that is not predicted fits if the next longer one that is does."""
    workload = job.workload
    if workload.conversation is not None:
        return None
    config, images = find(workload.model), workload.images_per_sample
    end = min(filter(None, (positions_of(config), workload.max_cache_len)), default=MOST_TOKENS)
    most = end - workload.max_new_tokens + 1
    least = job.formula.facts.room(images) + images + 1  # text between images
    least = workload.sequence_length if _fits(job) else least
    gaps = unpredicted_prompts(config.windows, workload.max_new_tokens)

    def of(tokens: int) -> Workload:
        for first, last in gaps:
            tokens = last + 1 if first <= tokens <= last else tokens
        return workload.replace(sequence_length=tokens)

    found = STEP_TOKENS * _largest(lambda steps: of(STEP_TOKENS * steps), -(-least // STEP_TOKENS),
                                   most // STEP_TOKENS, progress)
    first = found + 1 if found else least
    rest = range(min(most, -(-first // STEP_TOKENS) * STEP_TOKENS - 1), first - 1, -1)
    return next((tokens for tokens in rest if _holds(_fits, of(tokens), progress)), found)


def concurrent_sequences(job: InferenceJob, progress: Progress | None = None) -> int:
    """The most sequences at once that fit, each as the workload's; 0 if none does."""
    workload = job.workload
    images, tokens = max(turn.images for turn in job.turns), job.turns[-1].cached
    each = longer(job.pieces[-1], job.gpu).cache_bytes // job.shape.batch
    return _largest(lambda batch: workload.replace(per_device_eval_batch_size=batch),
                    job.shape.batch if _fits(job) else 1,
                    min(MOST_SAMPLES, MOST_IMAGES // max(images, 1), MOST_TOTAL // tokens, workload.capacity // each),
                    progress)


def search_limits(job: InferenceJob, longest: int | None, most: int) -> tuple[str, ...]:
    """Why more than what was found is not known, where that is not for lack of memory; in sentences."""
    workload, found = job.workload, []
    if longest:
        gaps = unpredicted_prompts(find(workload.model).windows, workload.max_new_tokens)
        found += [f"Prompts of {first:,} to {last:,} tokens, whose replies reach a sliding window after many tokens, "
                  "are not predicted: some may fit." for first, last in gaps if first == longest + 1] or [
            f"Longer prompts are not predicted: {error}." for error in _refused(job, sequence_length=longest + 1)]
    return (*found, *(f"More at once are not predicted: {error}."
                      for error in _refused(job, per_device_eval_batch_size=most + 1)))


def _refused(job: InferenceJob, **keys: int) -> list[str]:
    """Why the workload with other values is not predicted, if it is not."""
    try:
        prepare(job.workload.replace(**keys))
        return []
    except InputError as error:
        return [str(error)]


def _fits(job: InferenceJob) -> bool:
    return job.judge().verdict == "fits"


def _needs_less(job: InferenceJob) -> bool:
    """By requested bytes, which need no simulation."""
    surely, _ = job.margin.limits(job.workload.capacity)
    return job.run(None).peak <= surely


def _holds(what: Callable[[InferenceJob], bool], workload: Workload, progress: Progress | None) -> bool:
    """Whether something holds of a workload; not of one that is not predicted."""
    try:
        return what(prepare(workload, progress))
    except InputError:
        return False


def _largest(of: Callable[[int], Workload], least: int, most: int, progress: Progress | None) -> int:
    """The largest size whose workload fits, 0 if not even the least does: by requested bytes first, doubling from the
    least as much larger ones may take long to trace, then downwards from there."""
    def needs_less(size: int) -> bool:
        return _holds(_needs_less, of(size), progress)

    def fits(size: int) -> bool:
        return _holds(_fits, of(size), progress)

    low, high = least - 1, least
    while high < most and needs_less(high):
        low, high = high, min(2 * high, most)
    high = _bisect(needs_less, low + 1, min(high, most), known=low)
    low, step = high, 1
    while low >= least and not fits(low):
        high, low, step = low - 1, low - step, 2 * step
    return _bisect(fits, low + 1, high, known=low) if low >= least else 0


def _bisect(holds: Callable[[int], bool], low: int, high: int, known: int) -> int:
    """The largest size in ``low … high`` for which something holds, as if it did up to there; ``known`` if for none."""
    while low <= high:
        middle = (low + high) // 2
        if holds(middle):
            known, low = middle, middle + 1
        else:
            high = middle - 1
    return known


def _paged(job: InferenceJob, run: Run, weights: int, token_bytes: int) -> Paged | None:
    """vLLM's accounting: what ``gpu_memory_utilization`` of the GPU leaves beside weights, what a forward of the
    prompts takes, and the runtime (vllm/v1/worker/gpu_worker.py, determine_available_memory), in blocks of all layers
    (vllm/v1/core/kv_cache_utils.py, get_num_blocks)."""
    workload = job.workload
    utilization, block = workload.gpu_memory_utilization, workload.block_size
    if utilization is None:
        return None
    if workload.capacity is None:
        raise InputError("gpu_memory_utilization: of which GPU? add --gpu NAME or --capacity-bytes SIZE")
    if find(workload.model).windows:
        raise InputError("gpu_memory_utilization: the model has sliding windows, whose blocks are not predicted: leave "
                         "it out")
    first = (run.events.step == 1) & (run.events.moment == MOMENTS.index(Moment.PREFILL))
    peak = int(np.argmax(np.where(first, run.live, -1)))
    held = timeline.by_factor(run.events, run.row_bytes)
    activations = int(run.live[peak] - held[Factor.PARAMETERS][peak] - held[Factor.KV_CACHE][peak])
    runtime = job.margin.runtime_high
    reserved = max(0, int(workload.capacity * utilization) - weights - activations - runtime)
    blocks, each = reserved // (token_bytes * block), -(-job.turns[-1].cached // block)
    least = weights + activations + runtime + each * token_bytes * block
    return Paged(utilization, block, token_bytes * block, activations, runtime, reserved,
                 math.ceil(100 * least / workload.capacity) / 100, blocks, blocks * block, blocks // each)

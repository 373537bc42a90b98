"""What a prediction of inference says besides: weights, cache, each turn, and how much a GPU serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from predictor import timeline
from predictor.engine.generation import longer
from predictor.errors import InputError
from predictor.events import MOMENTS, Factor, Moment
from predictor.inference import InferenceJob, positions_of, prepare
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
"""Prompts are searched in such steps: rows of masks are padded to multiples of 8."""


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
    if maximum_load:
        if workload.capacity is None:
            raise InputError("maximum_load needs a GPU: add --gpu NAME or --capacity-bytes SIZE")
        longest, most = longest_prompt(job, progress), concurrent_sequences(job, progress)
    return Inference(
        weights_bytes=weights, cache_bytes=last.cache_bytes, cache_bytes_per_token=per_token // sequences,
        turns=tuple(TurnMemory(number, turn.role, turn.tokens, turn.images, turn.new_tokens, turn.cached,
                               call.cache_bytes, _highest(run, Moment.PREFILL, number),
                               _highest(run, Moment.DECODE, number))
                    for number, (turn, call) in enumerate(zip(job.turns, calls), 1)),
        longest_prompt_tokens=longest, concurrent_sequences=most,
        paged=_paged(job, run, weights, per_token // sequences))


def _highest(run: Run, moment: Moment, turn: int) -> int | None:
    """Requested bytes; what the moment finds counts as its own."""
    inside = np.flatnonzero((run.events.step == turn) & (run.events.moment == MOMENTS.index(moment)))
    return int(run.live[inside[0] - 1:inside[-1] + 1].max()) if len(inside) else None


def longest_prompt(job: InferenceJob, progress: Progress | None = None) -> int | None:
    """Tokens of the longest prompt that fits with the job's batch, images and reply, in steps of 8; 0 if none does,
    None of a conversation."""
    workload = job.workload
    if workload.conversation is not None:
        return None
    end = min(filter(None, (positions_of(find(workload.model)), workload.max_cache_len)), default=MOST_TOKENS)
    images = workload.images_per_sample
    least = (job.formula.facts.room(images) + images) // STEP_TOKENS + 1  # text between images
    most = (end - workload.max_new_tokens + 1) // STEP_TOKENS
    return STEP_TOKENS * _largest(lambda steps: workload.replace(sequence_length=STEP_TOKENS * steps), least, most,
                                  progress)


def concurrent_sequences(job: InferenceJob, progress: Progress | None = None) -> int:
    """The most sequences at once that fit, each as the workload's; 0 if none does."""
    workload = job.workload
    images, tokens = max(turn.images for turn in job.turns), job.turns[-1].cached
    return _largest(lambda batch: workload.replace(per_device_eval_batch_size=batch), 1,
                    min(MOST_SAMPLES, MOST_IMAGES // max(images, 1), MOST_TOTAL // tokens), progress)


def _largest(of: Callable[[int], Workload], least: int, most: int, progress: Progress | None) -> int:
    """The largest size whose workload fits, 0 if not even the least does: by requested bytes first, which need no
    simulation, then downwards from there."""
    def needs_less(size: int) -> bool:
        job = prepare(of(size), progress)
        surely, _ = job.margin.limits(job.workload.capacity)
        return job.run(None).peak <= surely

    def fits(size: int) -> bool:
        return prepare(of(size), progress).judge().verdict == "fits"

    high = _bisect(needs_less, least, most)
    low, step = high, 1
    while low >= least and not fits(low):
        high, low, step = low - 1, low - step, 2 * step
    return _bisect(fits, low + 1, high, known=low) if low >= least else 0


def _bisect(holds: Callable[[int], bool], low: int, high: int, known: int | None = None) -> int:
    """The largest size in ``low … high`` for which something holds, as if it did up to there; ``known`` if for none."""
    found = low - 1 if known is None else known
    while low <= high:
        middle = (low + high) // 2
        if holds(middle):
            found, low = middle, middle + 1
        else:
            high = middle - 1
    return found


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
    reserved = int(workload.capacity * utilization) - weights - activations - runtime
    blocks = max(0, reserved // (token_bytes * block))
    each = -(-job.turns[-1].cached // block)
    return Paged(utilization, block, token_bytes * block, activations, runtime, reserved, blocks, blocks * block,
                 blocks // each)

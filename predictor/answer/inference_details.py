"""What a prediction of inference says besides: weights, cache, each turn, and blocks of paged serving."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from predictor.answer.prediction import Inference, Paged, TurnMemory
from predictor.common.errors import InputError
from predictor.engine.generation import Call, longer
from predictor.events import timeline
from predictor.events.events import MOMENTS, Factor, Moment
from predictor.jobs.inference_job import InferenceJob
from predictor.model.models import find

if TYPE_CHECKING:
    from predictor.events.composed_run import Run


def inference(job: InferenceJob) -> Inference:
    """Of a job.

    Raises:
        InputError: paged serving of a workload without a GPU.
    """
    run = job.run(job.workload.capacity)
    calls = [longer(piece, job.gpu) for piece in job.pieces]
    last, sequences = calls[-1], job.shape.batch
    per_token = _token_bytes(job, last)
    weights = int(run.live[np.flatnonzero(run.events.step == 0)[-1]])
    highest = {place: int(run.live[at]) for place, at in timeline.highest_by_moment(
        run.live, run.events.step, run.events.moment).items()}
    return Inference(
        weights_bytes=weights, cache_bytes=last.cache_bytes, cache_bytes_per_token=per_token // sequences,
        turns=tuple(TurnMemory(number, turn.role, turn.tokens, turn.images, turn.new_tokens, turn.cached,
                               call.cache_bytes, highest.get((number, Moment.PREFILL)),
                               highest.get((number, Moment.DECODE)))
                    for number, (turn, call) in enumerate(zip(job.turns, calls), 1)),
        paged=_paged(job, run, weights, per_token // sequences))


def _token_bytes(job: InferenceJob, last: Call) -> int:
    """What the last token of all sequences added to the cache, if two decode steps tell; of a static cache, or else,
    the share of each that it has room for."""
    if job.workload.cache_implementation == "dynamic" and last.growth_bytes is not None:
        return last.growth_bytes
    return last.cache_bytes // max(job.turns[-1].cached, job.workload.max_cache_len or 0)


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

"""Details of an inference prediction: weights, KV cache, each turn of the conversation, and paged serving."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from predictor.answer.prediction import Inference, Paged, TurnMemory
from predictor.common.errors import InputError
from predictor.engine.generation import cache_bytes
from predictor.events import timeline
from predictor.events.events import FACTORS, MOMENTS, Factor, Moment
from predictor.jobs.inference_job import InferenceJob
from predictor.model.models import find

if TYPE_CHECKING:
    from predictor.events.composed_run import Run


def inference(job: InferenceJob) -> Inference:
    """Weights, cache, turns and paged blocks of an inference job, in bytes.

    Raises:
        InputError: paged serving of a workload without a GPU.
    """
    run = job.run(job.workload.capacity)
    caches, sequences = [cache_bytes(piece, job.gpu) for piece in job.pieces], job.shape.batch
    per_token = _token_bytes(job, *caches[-1])
    weights = int(run.live[np.flatnonzero(run.events.step == 0)[-1]])
    highest = {place: int(run.live[at]) for place, at in timeline.highest_by_moment(
        run.live, run.events.step, run.events.moment).items()}
    return Inference(
        weights_bytes=weights, cache_bytes=caches[-1][0], cache_bytes_per_token=per_token // sequences,
        turns=tuple(TurnMemory(number, turn.role, turn.tokens, turn.images, turn.new_tokens, turn.cached,
                               held, highest[number, Moment.PREFILL],
                               highest.get((number, Moment.DECODE)))
                    for number, (turn, (held, _)) in enumerate(zip(job.turns, caches), 1)),
        paged=_paged(job, run, weights, per_token // sequences))


def _token_bytes(job: InferenceJob, held: int, growth: int | None) -> int:
    """Cache bytes that one more token of all sequences takes.

    With a dynamic cache it is the growth between the last two decode steps. With a static cache, or with too few decode
    steps, it is the cache's size divided by the tokens that it has room for.

    Args:
        held, growth: as :func:`predictor.engine.generation.cache_bytes` gives them for the last turn.
    """
    if job.workload.cache_implementation == "dynamic" and growth is not None:
        return growth
    return held // max(job.turns[-1].cached, job.workload.max_cache_len or 0)


def _paged(job: InferenceJob, run: Run, weights: int, token_bytes: int) -> Paged | None:
    """The paged KV cache by vLLM's accounting; None without ``gpu_memory_utilization``.

    The cache gets that fraction of the GPU, minus weights, the activations of a forward pass over the prompts, and the
    runtime (vllm/v1/worker/gpu_worker.py, determine_available_memory). It is divided into blocks of all layers
    (vllm/v1/core/kv_cache_utils.py, get_num_blocks).
    """
    workload = job.workload
    utilization, block = workload.gpu_memory_utilization, workload.block_size
    if utilization is None:
        return None
    assert block is not None  # the workload fills it in together with gpu_memory_utilization
    if workload.capacity is None:
        raise InputError("gpu_memory_utilization: of which GPU? add --gpu NAME or --capacity-bytes SIZE")
    if find(workload.model).windows:
        raise InputError("gpu_memory_utilization: the model has sliding windows, whose blocks are not predicted: leave "
                         "it out")
    first = (run.events.step == 1) & (run.events.moment == MOMENTS.index(Moment.PREFILL))
    peak = int(np.argmax(first & (run.live == run.live.max(where=first, initial=-1))))
    buffers = run.events.buffers
    alive = timeline.alive_buffers(run.events, peak)
    others = ~np.isin(buffers.factor[alive], [FACTORS.index(factor) for factor in (Factor.PARAMETERS, Factor.KV_CACHE)])
    activations = int(run.row_bytes[buffers.size[alive[others]]].sum())
    runtime = job.margin.runtime_high
    reserved = max(0, int(workload.capacity * utilization) - weights - activations - runtime)
    blocks, per_sequence = reserved // (token_bytes * block), -(-job.turns[-1].cached // block)
    least = weights + activations + runtime + per_sequence * token_bytes * block
    return Paged(utilization, block, token_bytes * block, activations, runtime, reserved,
                 math.ceil(100 * least / workload.capacity) / 100, blocks, blocks * block, blocks // per_sequence)

"""The maximum load of a GPU in inference: the longest prompt or conversation, and the most concurrent sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from predictor.answer import largest_size
from predictor.answer.largest_size import Found, attempts, least_predicted, may_fit_too, not_predicted, reason
from predictor.answer.prediction import ConcurrentMemory, Inference
from predictor.common.progress import Progress, Tell, silent
from predictor.engine.generation import cache_bytes
from predictor.events import timeline
from predictor.events.events import MOMENTS, Factor
from predictor.jobs.inference_job import InferenceJob, prepare, unpredicted_prompts
from predictor.model.models import find
from predictor.workload.conversation import MOST_TOKENS, MOST_TURNS
from predictor.workload.generation import turns
from predictor.workload.limits import MOST_IMAGES, MOST_SAMPLES
from predictor.workload.limits import MOST_TOKENS as MOST_TOTAL
from predictor.workload.workload import Workload


def searched(job: InferenceJob, details: Inference, progress: Progress | None = None, tell: Tell = silent) -> Inference:
    """Adds the maximum load to the details of an inference prediction.

    Each limit is searched alone; all other settings stay those of the workload. The workload has a capacity.
    """
    workload = job.workload
    prompt: int | None
    talk: int | None
    if workload.conversation is None:
        found, talk = longest_prompt(job, progress, tell), None
        prompt = found.size
        assert workload.max_new_tokens is not None  # a single prompt has it
        context = prompt and prompt + workload.max_new_tokens - 1
        limits = may_fit_too("Prompts of", found) + _limits_of_prompt(job, prompt)
    else:
        prompt, found = None, most_turns(job, progress, tell)
        talk = found.size
        context = talk and turns(going_on(workload, talk))[-1].cached
        limits = _limit("More turns", partial(going_on, workload, talk + 1)) if talk < MOST_TURNS else (
            f"More than {MOST_TURNS} turns are not predicted.",)
        limits = may_fit_too("Numbers of turns from", found) + limits
    found = concurrent_sequences(job, progress, tell)
    most = found.size
    limits += may_fit_too("Numbers of sequences from", found)
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
    by_factor = timeline.by_factor(run.events, run.row_bytes, [peak])
    weights, cache = (int(by_factor[factor][0]) for factor in (Factor.PARAMETERS, Factor.KV_CACHE))
    return ConcurrentMemory(job.shape.batch, MOMENTS[run.events.moment[peak]].value, reserved, weights, cache,
                            run.peak - weights - cache, reserved - run.peak)


def longest_prompt(job: InferenceJob, progress: Progress | None = None, tell: Tell = silent) -> Found:
    """Tokens of the longest prompt that fits with the job's batch, images and reply; 0 if none fits.

    Some lengths are not predicted (:func:`unpredicted_prompts`). Such a prompt fits if the next longer predicted one
    fits.
    """
    workload = job.workload
    config, images, new_tokens = find(workload.model), workload.images_per_sample, workload.max_new_tokens
    assert images is not None and new_tokens is not None and workload.sequence_length is not None  # a resolved prompt
    most = (job.positions or MOST_TOKENS) - new_tokens + 1
    least = job.formula.facts.room(images) + images + 1  # text between images
    least = workload.sequence_length if job.fits() else least
    gaps = unpredicted_prompts(config.windows, new_tokens)

    def workload_at(tokens: int) -> Workload:
        for first, last in gaps:
            tokens = last + 1 if first <= tokens <= last else tokens
        return workload.replace(sequence_length=tokens)

    attempt = attempts(lambda tokens: prepare(workload_at(tokens), progress), tell, "prompt of")
    return largest_size.longest_that_fits(attempt, least, most)


def most_turns(job: InferenceJob, progress: Progress | None = None, tell: Tell = silent) -> Found:
    """Number of turns that fit if the conversation goes on with turns like its last one; 0 if not even one fits."""
    workload, positions = job.workload, job.positions or MOST_TOKENS
    within = sum(turn.cached <= positions for turn in turns(going_on(workload, MOST_TURNS)))
    attempt = attempts(lambda number: prepare(going_on(workload, number), progress), tell, "turns:")
    return largest_size.largest_that_fits(attempt, len(job.turns) if job.fits() else 1, within)


def going_on(workload: Workload, number: int) -> Workload:
    """The workload with ``number`` turns: the conversation's own, then repetitions of its last one."""
    conversation = workload.conversation
    assert conversation is not None  # only conversations have turns to repeat
    return workload.replace(
        conversation=conversation[:number] + conversation[-1:] * (number - len(conversation)))


def concurrent_sequences(job: InferenceJob, progress: Progress | None = None, tell: Tell = silent) -> Found:
    """The largest number of concurrent sequences like the workload's that fit; 0 if no predicted number fits."""
    workload = job.workload
    assert workload.capacity is not None  # predict() checks it
    images, tokens = max(turn.images for turn in job.turns), job.turns[-1].cached
    sequence_bytes = cache_bytes(job.pieces[-1], job.gpu)[0] // job.shape.batch

    attempt = attempts(lambda batch: prepare(workload.replace(per_device_eval_batch_size=batch), progress,
                                             one_length=True), tell, "concurrent sequences:")
    least = job.shape.batch if job.fits() else least_predicted(attempt, 1, job.shape.batch)
    most = min(MOST_SAMPLES, MOST_IMAGES // max(images, 1), MOST_TOTAL // tokens, workload.capacity // sequence_bytes)
    return largest_size.largest_that_fits(attempt, least, most)


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
    return not_predicted(what, reason(attempts(lambda _: prepare(workload())), 0))

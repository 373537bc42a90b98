"""Inference jobs: calls of ``generate`` in place of training steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from predictor.common.errors import InputError
from predictor.common.gpus import Gpu
from predictor.common.progress import Progress
from predictor.common.recent_results import RecentResults
from predictor.engine.generation import Piece, compose
from predictor.engine.setup import Setup
from predictor.events.composed_run import Run, evaluate
from predictor.events.model_facts import ModelFacts
from predictor.events.regimes import regime_of
from predictor.events.sizes import Shape
from predictor.formula import store
from predictor.formula.formula import Formula
from predictor.formula.formula_key import check_pictures, formula_key
from predictor.formula.lookup import formula_of
from predictor.jobs.training_job import Job
from predictor.model import code_models, models, quantization
from predictor.model.model_config import Modality, ModelConfig
from predictor.model.request import Request, gpu_of
from predictor.profile import corrections, profile
from predictor.profile.job_traits import traits_of
from predictor.profile.reach import versions_of
from predictor.workload.generation import TRACED_TOKENS, Generation, Turn, check_positions, turns
from predictor.workload.workload import Workload

LOOP = ("data loading, sampling other than greedy, stopping at an end-of-sequence token, prompts that are padded to "
        "one length, and torch.compile, which generate applies by itself to a static cache")

OFTEN = 3
"""From this many turns on that differ only in the length of their context, one formula is traced for all of them, at
four shapes or more. Fewer turns are traced one by one."""
MOST_UNTIL_WINDOW = 64
"""Most decode steps that are traced one by one until a sliding window is reached."""


@dataclass(frozen=True)
class InferenceJob(Job):
    """Calls of ``generate`` in place of training steps. ``formula`` and ``shape`` are those of the first call.

    Attributes:
        turns: the calls of ``generate``, in order.
        pieces: the same calls with their formulas.
    """

    turns: tuple[Turn, ...] = ()
    pieces: tuple[Piece, ...] = ()

    @property
    def positions(self) -> int | None:
        """Positions of the language model, by its configuration and its weights; None if neither limits them."""
        known = _config_of(self.request).positions, self.formula.facts.positions
        return min(filter(None, known), default=None)

    @property
    def rank(self) -> int:
        """Always 0: inference runs on one GPU."""
        return 0

    def ranks(self, limit_bytes: int | None) -> list[int]:
        """Always 0: inference runs on one GPU."""
        return [0]

    @property
    def traced_events(self) -> int:
        """All events: there is no engine."""
        return len(self.run(None).events)

    def run(self, limit_bytes: int | None, rank: int | None = None) -> Run:
        """Start-up and all calls. They do not depend on the limit."""
        return _run_of(self.pieces, self.setup, self.gpu, corrections.coefficients(self.profile))

    def described(self) -> Mapping[str, Any]:
        """Every key of the workload with its value."""
        return self.workload.resolved()

    def notes(self) -> tuple[str, ...]:
        """Notes for the user on what is assumed or not modelled in this job."""
        paged = ("paged serving: blocks are counted as vLLM counts them (v1/worker/gpu_worker.py, "
                 "determine_available_memory), with this prompt as its profiling run: assumed, never measured")
        rows = self.shape.batch * max(turn.tokens for turn in self.turns)
        return ((paged,) if self.workload.gpu_memory_utilization else ()) + quantization.notes(
            self.workload, self.formula.facts, rows)

    @property
    def loop(self) -> str | None:
        """Text for the user: what the reference loop of inference leaves out."""
        return LOOP


def _last_run() -> RecentResults[[tuple[Piece, ...], Setup, Gpu, tuple[float, ...] | None], Run]:
    """The function that gives the run of calls. The last one alone is kept: that of a long reply takes much memory."""
    def run(pieces: tuple[Piece, ...], setup: Setup, gpu: Gpu, coefficients: tuple[float, ...] | None) -> Run:
        return evaluate(compose(pieces, setup, gpu), 0, pieces[0].shape, gpu, coefficients)

    return RecentResults(run, size=lambda *_: 1, most=1)


_run_of = _last_run()


def prepare(workload: Workload, progress: Progress | None = None, *, one_length: bool = False) -> InferenceJob:
    """Prepares the job of an inference workload: finds or traces the formula of every turn.

    Args:
        one_length: the caller will not ask for other prompt lengths. Then a regime that does not hold for all batches
            is traced at this shape only.

    Raises:
        InputError: an unknown model, a turn without room for its images, a cache longer than the model's positions,
            or a setting that is not predicted.
    """
    request = resolve(workload)
    workload, config, gpu = request.workload, _config_of(request), request.gpu
    all_turns = turns(workload)
    check_positions(all_turns, config.positions, workload.max_cache_len, config.name)
    pieces, formulas, times = [], [], Counter(map(_alike, all_turns))
    for turn in all_turns:
        formula = find_formula(request, turn, progress, often=times[_alike(turn)] >= OFTEN,
                               one_length=one_length)
        check_room(workload, turn, formula.facts)
        pieces.append(Piece(formula.micro, shape_of(workload, turn), turn.new_tokens))
        formulas.append(formula)
    first, shape = formulas[0], pieces[0].shape
    check_positions(all_turns, first.facts.positions, workload.max_cache_len, config.name)
    quantization.check_rows(workload, first.facts, shape, gpu)
    chosen = profile.choose(workload.profile, gpu.name, versions_of(workload), profile.quantities(shape, 1),
                            traits_of(request, first))
    setup = Setup(facts=first.facts, engine="torch", optim="", param_groups="single", max_grad_norm=0.0,
                  gradient_accumulation_steps=1, data_parallel_size=1, zero=None, capacity_bytes=workload.capacity,
                  allocator=corrections.allocator_settings(workload.allocator_conf, chosen), gpu=gpu,
                  quantization=workload.quantization, versions=workload.versions)
    return InferenceJob(request, first, setup, chosen, turns=all_turns, pieces=tuple(pieces))


def resolve(workload: Workload) -> Request:
    """The request of a workload at the shape of its first turn, with the defaults that depend on the model.

    Raises:
        InputError: the model does not generate, or does not take such prompts.
    """
    config = models.find(workload.model)
    if isinstance(config, code_models.CodeModel):
        raise InputError(f"mode inference: {config.name} is a function of yours, whose generate is not known: name a "
                         "model of transformers")
    if config.kind not in (Modality.TEXT, Modality.IMAGE_TEXT):
        raise InputError(f"mode inference: {config.name} is of kind {config.kind.value}, which is not predicted: only "
                         "text and image-text models are")
    if workload.conversation is None and workload.sequence_length is None:
        raise InputError("sequence_length is not given: add --sequence-length, the tokens of a prompt with its images")
    images = [workload.images_per_sample or 0, *(turn["images"] for turn in workload.conversation or ())]
    if any(images) and not config.kind.has_media:
        key = "images_per_sample" if workload.conversation is None else "conversation: images"
        raise InputError(f"{key} {max(images)}: {config.name} takes no images; leave it out")
    check_pictures(workload, config)
    if workload.conversation is None:
        workload = workload.fill(images_per_sample=int(config.kind.has_media))
    return Request(workload, config, gpu_of(workload), shape_of(workload, turns(workload)[0]))


def _config_of(request: Request) -> ModelConfig:
    assert request.config is not None  # resolve() looked it up; only learned formulas have none
    return request.config


def shape_of(workload: Workload, turn: Turn) -> Shape:
    """The shape of a turn's first forward: the tokens that it attends to, cached ones included, and its images."""
    batch = workload.per_device_eval_batch_size
    assert batch is not None  # inference has a default
    return Shape(batch, turn.seen, batch * turn.images)


def traced_tokens(turn: Turn, windows: list[int]) -> int:
    """Number of tokens of a reply that are traced. If the reply reaches a sliding window, those until then are added.

    Args:
        windows: lengths of the model's sliding windows, in tokens.

    Raises:
        InputError: too many decode steps would be traced.
    """
    until = max((window - turn.seen for window in windows if turn.seen < window < turn.cached), default=0)
    window = turn.seen + until
    if until > MOST_UNTIL_WINDOW:
        raise InputError(f"max_new_tokens {turn.new_tokens}: the reply reaches the sliding window of {window:,} "
                         f"tokens after {until:,} tokens, which is predicted up to {MOST_UNTIL_WINDOW}: give a prompt "
                         f"of at least {window - MOST_UNTIL_WINDOW:,} tokens, or a reply that does not reach it")
    return min(turn.new_tokens, TRACED_TOKENS + until)


def unpredicted_prompts(windows: list[int], new_tokens: int) -> list[tuple[int, int]]:
    """Ranges of prompt lengths, first and last, in tokens, for which :func:`traced_tokens` raises an error."""
    return [(max(1, window - new_tokens + 2), window - MOST_UNTIL_WINDOW - 1) for window in sorted(windows)
            if window - new_tokens + 2 < window - MOST_UNTIL_WINDOW]


def generation_of(workload: Workload, turn: Turn, tokens: int) -> Generation:
    """The call of ``generate`` of a turn, with ``tokens`` new tokens."""
    if workload.cache_implementation == "static":
        length = max(turn.cached, workload.max_cache_len or 0)
        return Generation(tokens, "static", length - turn.tokens)
    return Generation(tokens, brings=turn.tokens if turn.past else 0, kept=workload.conversation is not None)


def _alike(turn: Turn) -> tuple[int, int, int, bool]:
    """A key that is equal for turns whose traces differ only in the length of the context.

    Whether that length is a multiple of 8 is part of the key, because the rows of masks are padded to 8.
    """
    return turn.tokens, turn.images, turn.new_tokens, turn.seen % 8 > 0


def find_formula(request: Request, turn: Turn, progress: Progress | None = None, *,
                 often: bool = False, one_length: bool = False) -> Formula:
    """The formula of a turn. It is traced now if it is neither shipped nor cached.

    A turn that begins with cached keys and values is traced at its exact context length, unless there are ``often``
    such turns. A turn that reaches a sliding window always is.
    """
    key, exact_shape = key_of(request, turn)
    exact_shape &= not (turn.past and often and not _config_of(request).windows)
    return formula_of(_config_of(request), key, shape_of(request.workload, turn), request.workload.dtype, progress,
                      exact_shape=exact_shape, one_length=one_length)


def key_of(request: Request, turn: Turn) -> tuple[store.Key, bool]:
    """The key of a turn's formula, and whether it is traced at its exact shape.

    Raises:
        InputError: as :func:`traced_tokens`.
    """
    workload, config, shape = request.workload, _config_of(request), shape_of(request.workload, turn)
    key = formula_key(request.at(shape))
    generation = generation_of(workload, turn, traced_tokens(turn, config.windows))
    key = replace(key, recipe="full", checkpointing="off", checkpointing_kwargs=(), generation=generation)
    if turn.past:  # attention has a mask
        return replace(key, regime=regime_of(shape, pads_masks=True, windows=config.windows)), True
    padded = generation.cache == "static" and shape.sequence % 8 > 0  # masks' rows are padded to 8
    return key, padded or generation.tokens > TRACED_TOKENS


def check_room(workload: Workload, turn: Turn, facts: ModelFacts) -> None:
    """Checks that a prompt holds the tokens of its images and one token of text.

    Raises:
        InputError: it is too short.
    """
    filled = facts.room(turn.images)
    if turn.images and turn.tokens <= filled:
        name = "sequence_length" if workload.conversation is None else "conversation: tokens"
        raise InputError(f"{name} {turn.tokens}: no room for {turn.images} image(s), which fill {filled} tokens: give "
                         f"at least {filled + 1}")


def build(workload: Workload):
    """Builds the workload's model on the meta device."""
    from predictor.model import parser

    return parser.build(models.find(workload.model), attn_implementation=workload.attn_implementation, recipe="full",
                        dtype=workload.dtype, quantization=quantization.quantized(workload))


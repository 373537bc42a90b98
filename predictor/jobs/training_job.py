"""A training job: a workload with its formula, its engine and its GPU."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from predictor.common.errors import InputError
from predictor.common.gpus import Gpu
from predictor.common.progress import Progress
from predictor.engine.engines import Engine, load
from predictor.engine.evaluation import with_evaluation
from predictor.engine.setup import STEPS, Setup
from predictor.events import regimes
from predictor.events.composed_run import Run, evaluate, sizes_at
from predictor.events.events import EventList
from predictor.events.micro_step import MicroStep
from predictor.events.model_facts import ModelFacts, modality
from predictor.events.sizes import Shape
from predictor.formula import store
from predictor.formula.formula import Formula
from predictor.formula.formula_key import check_pictures, formula_key
from predictor.formula.lookup import formula_of
from predictor.jobs import survival
from predictor.model import code_models, models, quantization
from predictor.model.model_config import Kind
from predictor.model.request import Request, gpu_of, shape_of
from predictor.profile import corrections, profile
from predictor.profile.corrections import Margin
from predictor.profile.job_traits import kinds
from predictor.profile.profile import Choice
from predictor.workload import deepspeed_config
from predictor.workload.engines import ENGINES, UNUSED, name_of
from predictor.workload.optimizers import OPTIMIZERS
from predictor.workload.workload import Workload

MOST_EVENTS = 1 << 22
"""Of all simulated ranks, about: a hundred ranks of a model of 7 B, whose simulation takes some six seconds."""



@dataclass(frozen=True)
class Job:
    """A request with everything that answers for it; ``evaluation`` is what follows the steps, if anything does."""

    request: Request
    formula: Formula
    setup: Setup
    profile: Choice | None = None
    evaluation: tuple[MicroStep, Shape] | None = field(default=None, kw_only=True)

    @property
    def workload(self) -> Workload:
        """What was asked."""
        return self.request.workload

    @property
    def shape(self) -> Shape:
        """The shape that is answered for."""
        return self.request.shape

    @property
    def gpu(self) -> Gpu:
        """The GPU whose kernels run."""
        return self.request.gpu

    @property
    def rank(self) -> int:
        """The asked rank, or the one with the highest requested peak at the workload's own capacity."""
        return self.ranks(self.workload.capacity)[0]

    def described(self) -> Mapping[str, Any]:
        """Every key with its value; ``images_per_sample`` is the mean where samples differ."""
        images, batch = self.shape.images, self.shape.batch
        return self.workload.resolved() | {"images_per_sample": images / batch if images % batch else images // batch}

    def notes(self) -> tuple[str, ...]:
        """What is not modelled of this job."""
        notes = ENGINES[self.setup.engine].notes + (self.setup.zero.notes if self.setup.zero else ())
        if self.workload.ddp and self.workload.ddp.get("find_unused_parameters"):
            notes += (UNUSED,)
        if self.workload.attn_implementation == "flash_attention_2":
            notes += ("flash-attn: assumed to allocate as its sources say (release 2.8), never measured",)
        if self.workload.offload:
            notes += (engine_of(self.formula, self.setup).host().note(),)
        notes += quantization.notes(self.workload, self.formula.facts, self.shape.batch * self.shape.sequence)
        if self.workload.rank == "worst":
            notes += self._left_out()
        return notes + OPTIMIZERS[self.setup.optim].not_modelled

    @property
    def loop(self) -> str | None:
        """What the recorded loop leaves out; None for the reference loop."""
        return None

    def lowest(self) -> Shape:
        """Every shape of the formula's regime is at least this."""
        return regimes.lowest(self.formula.regime, self.formula.facts.room(1))

    def module_of(self, layer: str) -> str:
        """What a layer is reported under."""
        return modality(layer)

    @property
    def margin(self) -> Margin:
        """How far off the prediction may be."""
        return corrections.margin(self.profile, self.setup.world_size)

    def ranks(self, limit_bytes: int | None) -> list[int]:
        """Ranks that decide whether it survives: the one that requests the most first; or the asked one alone."""
        if self.workload.rank != "worst" or self.setup.world_size == 1:
            return [0 if self.workload.rank == "worst" else self.workload.rank]
        engine = engine_of(self.formula, replace(self.setup, capacity_bytes=limit_bytes))
        different = self.different_ranks()
        if len(different) == 1:
            return different
        traced = self.formula.micro.events
        peaks = engine.peaks(different, sizes_at(traced, self.shape, self.gpu)[traced.buffers.size])
        return list(dict.fromkeys([different[peaks.index(max(peaks))], *self.judged_ranks()]))

    def different_ranks(self) -> list[int]:
        """The first of the ranks that have equal events, of all that there are."""
        engine = engine_of(self.formula, replace(self.setup, capacity_bytes=None))
        parts: dict[Hashable, int] = {}
        for rank in range(self.setup.world_size):
            parts.setdefault(engine.part(rank), rank)
        return list(parts.values())

    def judged_ranks(self) -> list[int]:
        """Those of :meth:`different_ranks` that are simulated at every shape: all, or some from the first to the last
        where they are more than :data:`MOST_EVENTS` allow."""
        different = self.different_ranks()
        most = max(2, MOST_EVENTS // (STEPS * self.setup.micro_steps * len(self.formula.micro.events)))
        if len(different) <= most:
            return different
        return [different[place * (len(different) - 1) // (most - 1)] for place in range(most)]

    def _left_out(self) -> tuple[str, ...]:
        """A note on ranks that differ and are not simulated."""
        different, judged = len(self.different_ranks()), len(self.judged_ranks())
        if judged == different:
            return ()
        return (f"{different - judged} of the {different} ranks whose memory differs: the others, and the one that "
                "requests the most, were simulated, and one of these may allocate or reserve a little more",)

    def run(self, limit_bytes: int | None, rank: int | None = None) -> Run:
        """Events of a rank (None: the worst) where PyTorch can have so many bytes (None: without limit)."""
        rank = self.ranks(limit_bytes)[0] if rank is None else rank
        return evaluate(self.composed(limit_bytes, rank), rank, self.shape, self.gpu,
                        corrections.coefficients(self.profile))

    def composed(self, limit_bytes: int | None, rank: int) -> EventList:
        """The events of :meth:`run`, right at every shape of the formula's regime."""
        events = compose(self.formula, replace(self.setup, capacity_bytes=limit_bytes), rank)
        return with_evaluation(events, *self.evaluation, self.gpu) if self.evaluation else events

    def runs(self, limit_bytes: int | None) -> list[Run]:
        """The runs of :meth:`ranks`."""
        return [self.run(limit_bytes, rank) for rank in self.ranks(limit_bytes)]

    def judge(self) -> survival.Outcome:
        """Whether it fits its GPU."""
        return survival.judge(self.runs, self.setup.allocator, self.workload.capacity, self.margin)

    def minimum_capacity(self, tell: Callable[[int], None] = lambda _: None) -> int:
        """Smallest GPU memory that it survives in, in bytes; ``tell`` hears of each limit that is tried."""
        return survival.minimum_capacity(self.runs, self.setup.allocator, self.margin, tell)


def prepare(workload: Workload, progress: Progress | None = None) -> Job:
    """A workload of training with its formula, and with the defaults that only the model could settle.

    Raises:
        InputError: as :func:`predictor.answer.predict.predict`.
    """
    request = resolve(workload)
    job = at(request, progress)
    check_shape(request, job.formula)
    return job


def resolve(workload: Workload) -> Request:
    """The request of a workload, with what a sample has, as far as the model settles it: tokens, images.

    Raises:
        InputError: an unknown model, or one that does not take such samples.
    """
    config = models.find(workload.model)
    tokens, images = (config.kind is not Kind.IMAGE), config.kind.has_media
    if tokens and workload.sequence_length is None:
        raise InputError("sequence_length is not given: say how many tokens a sample has, image tokens included")
    if config.kind is Kind.SPEECH and workload.padding == "packed":
        raise InputError(f"padding packed: {config.name} hears one clip for each sample, which does not pack: use none "
                         "or right")
    if not tokens and workload.sequence_length is not None:
        raise InputError(f"sequence_length {workload.sequence_length}: {config.name} takes no tokens; leave it out")
    asked = workload.images_per_sample
    if asked is not None and (bool(asked) != images or (not tokens and asked > 1)):
        media = "clips of sound" if config.kind is Kind.AUDIO_TEXT else "images"
        takes = "one image a sample" if not tokens else "one clip a sample" if config.kind is Kind.SPEECH else \
            f"{media}, and samples without are not predicted yet" if images else "no images"
        raise InputError(f"images_per_sample {asked}: {config.name} takes {takes}; leave it out")
    check_pictures(workload, config)
    checkpoints = {"gradient_checkpointing": False} if isinstance(config, code_models.CodeModel) else {}
    workload = workload.fill(images_per_sample=int(images), **checkpoints)
    sizes, number = len(workload.image_sizes), shape_of(workload).images
    if sizes > max(number, 1):
        raise InputError(f"image_size {workload.image_size}: {sizes} sizes, but a micro-batch has {number} image(s): "
                         "leave some out")
    return Request(workload, config, gpu_of(workload), shape_of(workload))


def at(request: Request, progress: Progress | None = None) -> Job:
    """As :func:`prepare`, of a request whose shape is not checked against the model."""
    workload, shape, gpu = request.workload, request.shape, request.gpu
    formula, evaluation = find_formula(request, progress), None
    chosen = profile.choose(workload.profile, gpu.name, workload.versions,
                            profile.quantities(shape, workload.data_parallel_size), kinds(request, formula))

    def with_workspaces(micro: MicroStep, shape: Shape) -> MicroStep:
        if not (chosen and chosen.profile.workspaces):
            return micro
        return corrections.with_workspaces(micro, chosen.profile.workspaces, shape, gpu)

    micro = with_workspaces(formula.micro, shape)
    formula = formula if micro is formula.micro else replace(formula, micro=micro)
    if workload.per_device_eval_batch_size:
        batch = workload.per_device_eval_batch_size
        evaluated = Shape(batch, workload.sequence_length or 0, batch * workload.images_per_sample)
        found = find_formula(request.at(evaluated), progress, evaluation=True)
        evaluation = with_workspaces(found.micro, evaluated), evaluated
    setup = replace(setup_of(workload, formula), gpu=gpu,
                    allocator=corrections.allocator_settings(workload.allocator_conf, chosen))
    return Job(request, formula, setup, chosen, evaluation=evaluation)


def needs_trace(request: Request) -> bool:
    """Whether a request has no formula yet, neither shipped nor kept.

    Raises:
        InputError: as :func:`predictor.answer.predict.predict`.
    """
    key = formula_key(request)
    return not store.has(replace(key, regime=regime) for regime in regimes.narrowing(key.regime, request.shape))


def find_formula(request: Request, progress: Progress | None = None, *, evaluation: bool = False) -> Formula:
    """The formula that answers for a request's regime, or for its evaluation's; traced now if nobody has it."""
    key = formula_key(request)
    if evaluation:
        key = replace(key, evaluation="trainer", checkpointing="off", checkpointing_kwargs=())
    return formula_of(request.config, key, request.shape, request.workload.dtype, progress)


def check_shape(request: Request, formula: Formula) -> None:
    """The sequence must have room for its images, and the kernels of 4-bit layers for its rows."""
    check_room(request, formula.facts)
    quantization.check_rows(request.workload, formula.facts, request.shape, request.gpu)


def check_room(request: Request, facts: ModelFacts) -> None:
    """The sequence must hold the image tokens and one of text, and be within the positions that the model knows."""
    workload = request.workload
    tokens = facts.room(workload.images_per_sample)
    if workload.sequence_length is not None and workload.sequence_length <= tokens:
        media = "clip(s) of sound" if request.config.kind is Kind.AUDIO_TEXT else "image(s)"
        raise InputError(f"sequence_length {workload.sequence_length} has no room for {workload.images_per_sample} "
                         f"{media}, which fill {tokens} tokens: give at least {tokens + 1}")
    if facts.positions is not None and (workload.sequence_length or 0) > facts.positions:
        raise InputError(f"sequence_length {workload.sequence_length}: the model knows {facts.positions:,} positions "
                         "only")


def setup_of(workload: Workload, formula: Formula) -> Setup:
    """What the engine needs to know."""
    zero = deepspeed_config.read(workload, formula.facts.hidden_size) if workload.engine == "deepspeed" else None
    return Setup(
        facts=formula.facts, engine=name_of(workload.engine, workload.zero_stage), optim=workload.optim,
        optim_args=workload.optim_args, weight_decay=workload.weight_decay,
        param_groups=workload.param_groups, max_grad_norm=workload.max_grad_norm,
        gradient_accumulation_steps=workload.gradient_accumulation_steps,
        data_parallel_size=workload.data_parallel_size, zero=zero, capacity_bytes=workload.capacity, ddp=workload.ddp,
        fsdp=workload.fsdp, loss_scaling=workload.mixed_precision == "fp16",
        quantization=workload.quantization, tensor_parallel_size=workload.tensor_parallel_size,
        autocast_adapter_dtype=bool(workload.lora and workload.lora["autocast_adapter_dtype"]))


@lru_cache(maxsize=8)
def engine_of(formula: Formula, setup: Setup) -> Engine:
    """The engine's part of a run, independent of the shape."""
    return load(setup.engine)(formula.micro, setup)


@lru_cache(maxsize=32)
def compose(formula: Formula, setup: Setup, rank: int) -> EventList:
    """The events of a whole run of one rank, independent of the shape."""
    return engine_of(formula, setup).rank(rank)

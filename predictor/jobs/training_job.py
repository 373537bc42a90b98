"""Training jobs: a workload with its formula, its engine and its GPU."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

from predictor.allocator import AllocatorSettings
from predictor.common.errors import InputError
from predictor.common.gpus import Gpu
from predictor.common.progress import Progress
from predictor.common.recent_results import RecentResults
from predictor.common.value_types import FrozenMap
from predictor.engine import loop
from predictor.engine.engines import Engine, Offloading, load
from predictor.engine.evaluation import with_evaluation
from predictor.engine.setup import STEPS, Setup
from predictor.events import regimes
from predictor.events.composed_run import Run, evaluate, sizes_at
from predictor.events.events import EventList
from predictor.events.micro_step import MicroStep
from predictor.events.model_facts import ModelFacts, modality
from predictor.events.sizes import Shape
from predictor.formula import interpreter, store, tracing
from predictor.formula.formula import Formula
from predictor.formula.formula_key import check_pictures, formula_key
from predictor.formula.lookup import formula_of
from predictor.jobs import survival
from predictor.jobs.survival import Peaks, Shortage
from predictor.model import code_models, models, quantization
from predictor.model.model_config import Modality
from predictor.model.request import Request, gpu_of, shape_of
from predictor.profile import corrections, outside_pytorch, profile
from predictor.profile.calibration import OperatorWorkspace
from predictor.profile.corrections import Margin
from predictor.profile.job_traits import traits_of
from predictor.profile.profile import Choice
from predictor.profile.reach import reaches, versions_of
from predictor.workload import deepspeed_config
from predictor.workload.engines import ENGINES, UNUSED_PARAMETERS_NOTE, communicators, name_of
from predictor.workload.optimizers import OPTIMIZERS
from predictor.workload.workload import Workload

Result = TypeVar("Result")
KEPT_EVENTS = 1 << 22
"""Limit of the events of all runs together that are kept composed: some 100 MB."""
MOST_EVENTS = 1 << 21
"""Approximate limit of the events of all simulated ranks together. It is reached by some fifty ranks of a
7 B model, whose simulation takes one or two seconds."""
IMAGES = {Modality.IMAGE: 1, Modality.TEXT: 0, Modality.SPEECH: 0}
"""What ``images_per_sample`` must be, for models that do not take any number of images."""
LINEAR_ATTENTION_NOTE = ("linear attention runs on PyTorch's operators, as in transformers without "
                         "flash-linear-attention and causal-conv1d: with their kernels it takes other memory")
"""Of models such as Qwen3.5 (transformers 5.17, models/qwen3_5/modeling_qwen3_5.py, torch_chunk_gated_delta_rule)."""


@dataclass(frozen=True)
class Job:
    """A request with everything that predicts it.

    Attributes:
        profile: the calibration that corrects the prediction; None for none.
        evaluation: the forward of an evaluation after the training steps, and its shape; None for none.
    """

    request: Request
    formula: Formula
    setup: Setup
    profile: Choice | None = None
    evaluation: tuple[MicroStep, Shape] | None = field(default=None, kw_only=True)

    @property
    def workload(self) -> Workload:
        """The request's workload."""
        return self.request.workload

    @property
    def shape(self) -> Shape:
        """The shape that is predicted."""
        return self.request.shape

    @property
    def gpu(self) -> Gpu:
        """The GPU whose kernels run."""
        return self.request.gpu

    @property
    def rank(self) -> int:
        """The workload's rank; for ``worst``, the rank with the highest requested peak at the workload's capacity."""
        return self.ranks(self.workload.capacity)[0]

    def described(self) -> Mapping[str, Any]:
        """Every key of the workload with its value; ``images_per_sample`` is the mean where samples differ."""
        images, batch = self.shape.images, self.shape.batch
        return self.workload.resolved() | {"images_per_sample": images / batch if images % batch else images // batch}

    def notes(self) -> tuple[str, ...]:
        """Notes for the user on what is assumed or not modelled in this job."""
        notes = ENGINES[self.setup.engine].notes + (self.setup.zero.notes if self.setup.zero else ())
        if self.workload.ddp and self.workload.ddp.get("find_unused_parameters"):
            notes += (UNUSED_PARAMETERS_NOTE,)
        if self.workload.attn_implementation == "flash_attention_2":
            notes += ("flash-attn: assumed to allocate as its sources say (release 2.8), never measured",)
        if any(".linear_attn." in parameter.name for parameter in self.formula.facts.parameters):
            notes += (LINEAR_ATTENTION_NOTE,)
        if self.workload.offload:
            notes += (cast(Offloading, engine_of(self.formula, self._setup_at(self.workload.capacity))).host().note(),)
        notes += quantization.notes(self.workload, self.formula.facts, self.shape.batch * self.shape.sequence)
        if self.workload.rank == "worst":
            notes += self._left_out()
        return notes + OPTIMIZERS[self.setup.optim].not_modelled

    @property
    def loop(self) -> str | None:
        """Text for the user: what the recorded loop leaves out; None for the reference loop."""
        return None

    def lowest(self) -> Shape:
        """The smallest shape of the formula's regime, symbol by symbol."""
        return regimes.smallest_shape(self.formula.regime, self.formula.facts.room(1))

    def module_of(self, layer: str) -> str:
        """The modality that a layer is reported under."""
        return modality(layer)

    def with_workspaces(self, workspaces: Sequence[OperatorWorkspace]) -> Job:
        """The job with a profile's workspaces in its training steps and in its evaluation."""
        if not workspaces:
            return self
        micro = corrections.with_workspaces(self.formula.micro, workspaces, self.shape, self.gpu)
        evaluation = self.evaluation
        if evaluation:
            forward, shape = evaluation
            evaluation = corrections.with_workspaces(forward, workspaces, shape, self.gpu), shape
        return replace(self, formula=replace(self.formula, micro=micro), evaluation=evaluation)

    @property
    def margin(self) -> Margin:
        """How far off the prediction may be."""
        return self.margin_with(self.communicators)

    def _setup_at(self, limit_bytes: int | None) -> Setup:
        """The setup with a limit and an allocator, if they matter: events of equal setups are composed once.

        Before transformers loads weights to the GPU it allocates no more than there is (``quantized_loading``).
        """
        if load(self.setup.engine).depends_on_capacity or self.setup.quantization is not None or self.setup.device_map:
            return replace(self.setup, capacity_bytes=limit_bytes)
        return replace(self.setup, capacity_bytes=None, allocator=AllocatorSettings())

    @property
    def communicators(self) -> int:
        """NCCL communicators that each rank uses."""
        return communicators(self.setup.engine, self.setup.data_parallel_size, self.setup.tensor_parallel_size)

    def margin_with(self, communicators: int) -> Margin:
        """How far off the prediction may be, if each rank uses so many NCCL communicators."""
        ranks = self.setup.world_size if communicators else 1
        gpu = self.gpu if self.workload.gpu else None
        return corrections.margin(self.profile, ranks, outside_pytorch.assumed(gpu, ranks, communicators),
                                  self.workload.zero_stage)

    def ranks(self, limit_bytes: int | None) -> list[int]:
        """The ranks to simulate for the verdict.

        If the workload names a rank, only that one. For ``worst``, the rank with the highest requested peak first, then
        :meth:`judged_ranks`.

        Args:
            limit_bytes: bytes that PyTorch can reserve; None for no limit.
        """
        rank = self.workload.rank
        if rank != "worst" or self.setup.world_size == 1:
            return [0 if isinstance(rank, str) else rank]
        engine = engine_of(self.formula, self._setup_at(limit_bytes))
        different = self.different_ranks(limit_bytes)
        if len(different) == 1:
            return different
        traced = self.formula.micro.events
        peaks = engine.peaks(different, sizes_at(traced, self.shape, self.gpu)[traced.buffers.size])
        return list(dict.fromkeys([different[peaks.index(max(peaks))], *self.judged_ranks(limit_bytes)]))

    def different_ranks(self, limit_bytes: int | None = None) -> list[int]:
        """One rank, the first, of each set of ranks with equal events. They are the same for every limit.

        Args:
            limit_bytes: a limit whose engine is at hand; composing another one takes time.
        """
        if self.setup.world_size == 1:
            return [0]
        return list(different_ranks(engine_of(self.formula, self._setup_at(limit_bytes)), self.setup.world_size))

    def judged_ranks(self, limit_bytes: int | None = None) -> list[int]:
        """The ranks of :meth:`different_ranks`, with its argument, that are always simulated.

        These are all of them, or an even selection from the first to the last where :data:`MOST_EVENTS` would be
        exceeded.
        """
        different = self.different_ranks(limit_bytes)
        if len(different) <= 2:
            return different
        buffers = len(compose(self.formula, self._setup_at(limit_bytes), different[0]).buffers)
        most = max(2, MOST_EVENTS // max(self.traced_events, buffers))  # on many GPUs an engine's buffers are the most
        if len(different) <= most:
            return different
        return [different[place * (len(different) - 1) // (most - 1)] for place in range(most)]

    def _left_out(self) -> tuple[str, ...]:
        """A note for the user on ranks that differ from all simulated ones."""
        different, judged = len(self.different_ranks()), len(self.judged_ranks())
        if judged == different:
            return ()
        return (f"{different - judged} of the {different} ranks whose memory differs: they may allocate or reserve a "
                "little more than the simulated ranks, which include the one that requests the most",)

    def run(self, limit_bytes: int | None, rank: int | None = None) -> Run:
        """The run of a rank, with the bytes of its buffers.

        Args:
            limit_bytes: bytes that PyTorch can reserve; None for no limit.
            rank: None for the rank that :meth:`ranks` gives first.
        """
        rank = self.ranks(limit_bytes)[0] if rank is None else rank
        return evaluate(self.composed(limit_bytes, rank), rank, self.shape, self.gpu,
                        corrections.coefficients(self.profile))

    def composed(self, limit_bytes: int | None, rank: int) -> EventList:
        """The events of :meth:`run`; they hold for every shape of the formula's regime."""
        events = compose(self.formula, self._setup_at(limit_bytes), rank)
        return with_evaluation(events, *self.evaluation, self.gpu) if self.evaluation else events

    @property
    def micro(self) -> MicroStep:
        """The traced micro-step that a run repeats."""
        return _in_loop(self.formula.micro, self.setup.keep_outputs)

    @property
    def traced_events(self) -> int:
        """Number of events of a run that were traced; its engine adds the others."""
        return _traced_events(self.formula, self.setup)

    def runs(self, limit_bytes: int | None) -> list[Run]:
        """The runs of all of :meth:`ranks`."""
        return [self.run(limit_bytes, rank) for rank in self.ranks(limit_bytes)]

    def judge(self) -> survival.Outcome:
        """Judges whether the job fits its GPU."""
        return survival.judge(self.runs, self.setup.allocator, self.workload.capacity, self.margin)

    @property
    def sure_bytes(self) -> int:
        """What PyTorch certainly gets of the memory of the workload's GPU."""
        assert self.workload.capacity is not None  # the workload names a GPU
        return self.margin.limits(self.workload.capacity)[0]

    def fitting(self, ranks: Sequence[int]) -> Peaks | Shortage:
        """The peaks over some ranks if they surely fit the workload's GPU; else the first of them that does not."""
        assert self.workload.capacity is not None  # the workload names a GPU
        peaks = Peaks(0, 0, 0)
        for rank in ranks:
            of_rank = survival.surviving(partial(self.run, rank=rank), self.setup.allocator, self.workload.capacity,
                                         self.margin)
            if isinstance(of_rank, Shortage):
                return of_rank
            peaks = peaks.or_higher(of_rank)
        return peaks

    def fits(self) -> bool:
        """Whether the job surely fits its GPU; false without a GPU."""
        return self.workload.capacity is not None and isinstance(self.fitting(self.ranks(self.sure_bytes)), Peaks)

    def minimum_capacity(self, tell: Callable[[int], None] = lambda _: None) -> int:
        """The smallest GPU memory that the job fits, in bytes; ``tell`` is called with each limit that is tried."""
        return survival.minimum_capacity(self.runs, self.setup.allocator, self.margin, tell)


def prepare(workload: Workload, progress: Progress | None = None, *, one_length: bool = False) -> Job:
    """Prepares the job of a training workload: finds its formula, and fills in the defaults that depend on the model.

    Args:
        one_length: as :func:`predictor.jobs.dispatch.prepare`.

    Raises:
        InputError: as :func:`predictor.answer.predict.predict`.
    """
    request = resolve(workload)
    job = job_of_request(request, progress, one_length=one_length)
    check_shape(request, job.formula)
    return job


def resolve(workload: Workload) -> Request:
    """The request of a workload, with the defaults that depend on the model, such as images per sample.

    Raises:
        InputError: the model is unknown, or does not take such samples.
    """
    config = models.find(workload.model)
    tokens, images = (config.kind is not Modality.IMAGE), config.kind.has_media
    if tokens and workload.sequence_length is None:
        raise InputError("sequence_length is not given: add --sequence-length, the tokens of a sample with its images")
    if config.kind is Modality.SPEECH and workload.padding == "packed":
        raise InputError(f"padding packed: {config.name} takes one audio clip for each sample, and clips cannot be "
                         "packed: use none or right")
    if not tokens and workload.sequence_length is not None:
        raise InputError(f"sequence_length {workload.sequence_length}: {config.name} takes no tokens; leave it out")
    per_sample = workload.images_per_sample
    if per_sample is not None and config.kind in IMAGES and per_sample != IMAGES[config.kind]:
        takes = "one image a sample" if not tokens else \
            "one audio clip a sample" if config.kind is Modality.SPEECH else "no images"
        raise InputError(f"images_per_sample {per_sample}: {config.name} takes {takes}; leave it out")
    check_pictures(workload, config)
    checkpoints = {"gradient_checkpointing": False} if isinstance(config, code_models.CodeModel) else {}
    workload = workload.fill(images_per_sample=int(images), **checkpoints)
    sizes, number = len(workload.image_sizes), shape_of(workload).images
    if sizes > max(number, 1):
        raise InputError(f"image_size {workload.image_size}: {sizes} sizes, but a micro-batch has {number} image(s): "
                         "leave some out")
    return Request(workload, config, gpu_of(workload), shape_of(workload))


def job_of_request(request: Request, progress: Progress | None = None, *, one_length: bool = False) -> Job:
    """The job of a request, as :func:`prepare` makes it, but without checking the shape against the model."""
    workload, shape, gpu = request.workload, request.shape, request.gpu
    formula, evaluation = find_formula(request, progress, one_length=one_length), None
    chosen = profile.choose(workload.profile, gpu.name, versions_of(workload),
                            profile.quantities(shape, workload.data_parallel_size), traits_of(request, formula),
                            reaches(request, formula))

    if workload.per_device_eval_batch_size:
        of_evaluation = evaluated(request)
        forward = find_formula(of_evaluation, progress, evaluation=True, one_length=one_length)
        evaluation = forward.micro, of_evaluation.shape
    setup = replace(setup_of(workload, formula), gpu=gpu,
                    allocator=corrections.allocator_settings(workload.allocator_conf, chosen))
    job = Job(request, formula, setup, chosen, evaluation=evaluation)
    return job.with_workspaces(chosen.workspaces) if chosen else job


def job_of_evaluation(request: Request, progress: Progress | None = None) -> Job:
    """A request's evaluation alone: the job's formula is that of the forward, and no profile corrects it."""
    formula = find_formula(request, progress, evaluation=True)
    return Job(request, formula, replace(setup_of(request.workload, formula), gpu=request.gpu))


def needs_trace(request: Request, *, evaluation: bool = False) -> bool:
    """Whether the formula of a request, or of its evaluation, must be traced: it is neither shipped nor cached.

    Raises:
        InputError: as :func:`predictor.answer.predict.predict`.
    """
    key = evaluation_key(request) if evaluation else formula_key(request)
    return not store.has(replace(key, regime=regime)
                         for regime in regimes.regimes_from_widest(key.regime, request.shape))


def traceable(workload: Workload) -> Workload:
    """The workload, if its formula exists or can be traced with the installed releases.

    Raises:
        OtherReleases: it must be traced with other releases than those that are installed.
        InputError: a package is missing, or the workload cannot be predicted.
    """
    request = resolve(workload)
    if request.config is not None and needs_trace(request) and not interpreter.CHOSEN.get():
        tracing.require(request.config, formula_key(request))
    return workload


def find_formula(request: Request, progress: Progress | None = None, *, evaluation: bool = False,
                 one_length: bool = False) -> Formula:
    """The formula of a request's regime, or of its evaluation. It is traced now if it is neither shipped nor cached."""
    assert request.config is not None  # only learned formulas have none, and they are not traced
    key = evaluation_key(request) if evaluation else formula_key(request)
    return formula_of(request.config, key, request.shape, request.workload.dtype, progress, one_length=one_length)


def evaluated(request: Request) -> Request:
    """The request at the shape of its evaluation."""
    workload, batch = request.workload, request.workload.per_device_eval_batch_size
    assert batch is not None and workload.images_per_sample is not None  # it evaluates, and its defaults are filled in
    return request.at(Shape(batch, workload.sequence_length or 0, batch * workload.images_per_sample))


def evaluation_key(request: Request) -> store.Key:
    """The key of the forward of an evaluation, of a request at its shape."""
    return replace(formula_key(request), evaluation="trainer", checkpointing="off", checkpointing_kwargs=())


def check_shape(request: Request, formula: Formula) -> None:
    """Checks that the sequence has room for its images, and that the kernels of 4-bit layers can take its rows.

    Raises:
        InputError: one of them does not hold.
    """
    check_room(request, formula.facts)
    quantization.check_rows(request.workload, formula.facts, request.shape, request.gpu)


def check_room(request: Request, facts: ModelFacts) -> None:
    """Checks that the sequence holds the image tokens and one token of text, and is within the model's positions.

    Raises:
        InputError: one of them does not hold.
    """
    workload, config = request.workload, request.config
    assert config is not None and workload.images_per_sample is not None  # a request to trace has both
    tokens = facts.room(workload.images_per_sample)
    if workload.sequence_length is not None and workload.sequence_length <= tokens:
        media = "audio clip(s)" if config.kind is Modality.AUDIO_TEXT else "image(s)"
        raise InputError(f"sequence_length {workload.sequence_length} has no room for {workload.images_per_sample} "
                         f"{media}, which fill {tokens} tokens: give at least {tokens + 1}")
    if facts.positions is not None and (workload.sequence_length or 0) > facts.positions:
        raise InputError(f"sequence_length {workload.sequence_length}: the model knows {facts.positions:,} positions "
                         "only")


def loads_by_device_map(workload: Workload) -> bool:
    """True if the trainer loads the model straight to the GPU: TRL does on a single GPU."""
    return workload.loss == "trl_sft" and workload.engine == "torch" and workload.world_size == 1


def setup_of(workload: Workload, formula: Formula) -> Setup:
    """The engine's settings, from a workload and its formula."""
    zero = deepspeed_config.read(workload, formula.facts.hidden_size) if workload.engine == "deepspeed" else None
    return Setup(
        facts=formula.facts, engine=name_of(workload.engine, workload.zero_stage), optim=workload.optim,
        optim_args=workload.optim_args, weight_decay=workload.weight_decay,
        param_groups=workload.param_groups, max_grad_norm=workload.max_grad_norm,
        gradient_accumulation_steps=workload.gradient_accumulation_steps,
        data_parallel_size=workload.data_parallel_size, zero=zero, capacity_bytes=workload.capacity, ddp=workload.ddp,
        fsdp=workload.fsdp, fsdp1=workload.fsdp1,
        mixed_precision=workload.mixed_precision if workload.fsdp1 else "none",
        loss_scaling=workload.mixed_precision == "fp16",
        quantization=workload.quantization, versions=workload.versions if workload.quantization else FrozenMap({}),
        reentrant_checkpoints=workload.gradient_checkpointing_kwargs["use_reentrant"],
        tensor_parallel_size=workload.tensor_parallel_size,
        keep_outputs=workload.keep_outputs, zero_grad=workload.zero_grad,
        device_map=loads_by_device_map(workload),
        autocast_adapter_dtype=bool(workload.lora and workload.lora["autocast_adapter_dtype"]))


def engine_of(formula: Formula, setup: Setup) -> Engine:
    """The engine of a run; its events are independent of the shape. It is kept as :data:`KEPT_EVENTS` allows.

    Raises:
        InputError: nothing gets a gradient, or the engine does not model the run.
    """
    return _engine_of(formula, setup)


def _new_engine(formula: Formula, setup: Setup) -> Engine:
    if not len(formula.micro.ready):
        raise InputError("nothing that trains gets a gradient, such as a projector from samples of text alone "
                         "(images_per_sample 0): train the language model too")
    return load(setup.engine)(_in_loop(formula.micro, setup.keep_outputs), setup)


def _traced_events(formula: Formula, setup: Setup) -> int:
    """Number of events of a run that were traced; its engine adds the others."""
    return STEPS * setup.micro_steps * len(formula.micro.events)


def _kept(new: Callable[..., Result]) -> RecentResults[..., Result]:
    """A function of a formula, a setup and perhaps more, whose results are kept as :data:`KEPT_EVENTS` allows."""
    return RecentResults(lambda *given: new(*given), lambda formula, setup, *_: _traced_events(formula, setup),
                         KEPT_EVENTS)


_engine_of = _kept(_new_engine)


@lru_cache(maxsize=8)
def _in_loop(micro: MicroStep, keep_outputs: str) -> MicroStep:
    """The micro-step of a loop that keeps outputs so long; always the same one, as its pages compare by identity."""
    return micro if keep_outputs == "none" else micro.keeping_outputs()


@lru_cache(maxsize=8)
def different_ranks(engine: Engine, world_size: int) -> tuple[int, ...]:
    """One rank, the first, of each set of ranks with equal events."""
    first_ranks: dict[Hashable, int] = {}
    for rank in range(world_size):
        first_ranks.setdefault(engine.rank_key(rank), rank)
    return tuple(first_ranks.values())


def compose(formula: Formula, setup: Setup, rank: int) -> EventList:
    """The events of a whole run of one rank, independent of the shape. It is kept as :data:`KEPT_EVENTS` allows."""
    return _composed(formula, setup, rank)


def _new_composed(formula: Formula, setup: Setup, rank: int) -> EventList:
    return loop.with_frees(engine_of(formula, setup).rank(rank), formula.micro, setup)


_composed = _kept(_new_composed)

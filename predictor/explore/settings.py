"""Settings of a page: its GPUs, engines, degrees and regimes with their formulas, and why others are left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from predictor.allocator import AllocatorSettings
from predictor.answer.model_page import default_length
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.gpus import Gpu
from predictor.common.progress import Progress
from predictor.events.regimes import Regime, Rows
from predictor.events.sizes import Shape
from predictor.formula import learned
from predictor.formula.formula_key import regimes_at
from predictor.jobs import dispatch, training_job
from predictor.jobs.training_job import Job
from predictor.model import models
from predictor.model.model_config import Modality
from predictor.profile import corrections, profile
from predictor.profile.profile import Choice
from predictor.workload import code_names
from predictor.workload.contradictions import CHECKPOINTING_KEYS
from predictor.workload.engines import ENGINES, name_of
from predictor.workload.value_sources import OVERRIDDEN
from predictor.workload.workload import Workload

LABELS = {"torch": "plain PyTorch", "ddp": "DDP", "fsdp1": "FSDP1", "fsdp2": "FSDP2", "zero0": "ZeRO-0",
          "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3"}
TRACED_APART = ("fsdp1", "fsdp2", "zero3")
"""Engines that shard weights: the model is traced as it gathers them."""
TENSOR_PARALLEL = (1, 2, 4, 8)
"""Tensor-parallel sizes of a page by default, where their formulas are shipped."""
UNSHIPPED = ("no formula of it is shipped for this model and recipe, and a page traces only its own engine and those "
             "without a trace of their own: make a page with that engine's options, or use peakcast predict")
AUTOTP = "DeepSpeed's AutoTP shards layers otherwise than transformers, and is traced apart; use peakcast predict"
BY_CONFIG = ("the DeepSpeed config says the engine and its stage: make a page with another config, or without one "
             "(--deepspeed, --zero-stage)")
DEGREES = (1, 2, 4, 8)
"""Data-parallel sizes of a page by default."""
TOKENS = 1024
"""Sequence length by default, where the images leave room for text."""
FEW_BATCHES = (1, 2, 4, 8)
"""Batches of a page, with the workload's own, where each has a formula of its own."""
MOST_IMAGES = 8
"""Images of a sample; the largest choice of the page's control."""
PAGES_OWN = ("per_device_train_batch_size", "sequence_length", "images_per_sample", "gradient_checkpointing", "engine",
             "zero_stage", "data_parallel_size", "tensor_parallel_size", "gpu")
"""Keys that the page's controls set."""
LEFT_OUT = {
    "quantization": "layers of 4 or 8 bits", "offload": "offloading", "per_device_eval_batch_size": "an evaluation",
    "rank": "one rank (the page shows the worst)", "video_frames": "videos",
}
"""Keys that must have their defaults in a page."""


class EngineChoice(NamedTuple):
    """One choice of the page's engine control: an engine of :data:`LABELS`, and how many GPUs share each layer."""

    engine: str
    tensor: int

    @property
    def name(self) -> str:
        return self.engine if self.tensor == 1 else f"{self.engine}-tp{self.tensor}"

    @property
    def label(self) -> str:
        return LABELS[self.engine] + (f" + tensor parallel {self.tensor}" if self.tensor > 1 else "")

    @property
    def keys(self) -> dict[str, Any]:
        """The keys of a workload with this choice."""
        staged = ENGINES[self.engine].chosen_by
        return {"engine": staged or self.engine, "zero_stage": int(self.engine[-1]) if staged else None,
                "tensor_parallel_size": self.tensor}

    @property
    def option(self) -> list[str]:
        """The options of a command line with this choice; tensor parallelism only if it is used."""
        words = ["--zero-stage", self.engine[-1]] if ENGINES[self.engine].chosen_by else ["--engine", self.engine]
        return words + (["--tensor-parallel-size", str(self.tensor)] if self.tensor > 1 else [])


class Controls(NamedTuple):
    """The choices of the page's controls that need a job of their own."""

    engine: EngineChoice
    degree: int
    checkpointing: bool
    backend: str
    regime: Regime


class RowsFrom(NamedTuple):
    """Names of the regimes' rows for sequences from ``start`` tokens on: for multiples of 8, and for other lengths."""

    start: int
    whole: str
    ragged: str


@dataclass
class Settings:
    """The choices that a page offers, and those that are left out.

    Attributes:
        base: the workload that the page starts with.
        gpus: GPUs that have a formula, by name.
        backends: the backend of scaled dot product attention, by GPU name.
        jobs: a job of some shape in the regime, by setting.
        rows: names of the regimes' rows by sequence length, by backend.
        left_out: reasons, by name of what is left out.
        batches: the only batches that the page has; empty: any.
        unshipped: labels of engines whose formula is not shipped, by the shapes that this is so for (empty: for all).
    """

    base: Workload
    gpus: dict[str, Gpu] = field(default_factory=dict)
    backends: dict[str, str] = field(default_factory=dict)
    jobs: dict[Controls, Job] = field(default_factory=dict)
    rows: dict[str, list[RowsFrom]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    unshipped: dict[str, list[str]] = field(default_factory=dict)
    batches: tuple[int, ...] = ()


def reasons(left_out: Mapping[str, str]) -> list[str]:
    """What is left out and why, in one sentence for each reason."""
    names: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        names.setdefault(reason, []).append(name)
    return [f"{', '.join(of_reason)}: {reason}" for reason, of_reason in names.items()]


def find(workload: Workload, degrees: Sequence[int], progress: Progress | None = None) -> Settings:
    """The settings of a page about a workload.

    Raises:
        InputError: the workload itself is not predicted, or a page cannot contain it.
    """
    check(workload)
    degrees = sorted({*degrees, workload.data_parallel_size})
    workload = with_length(workload.replace(gpu=workload.gpu or gpus.DEFAULT), progress)
    first = dispatch.prepare(workload, progress)  # fails first if the user's own keys are wrong
    found = Settings(first.workload, batches=_batches(first, progress))
    training_job.engine_of(first.formula, first.setup)
    for gpu in _gpus(found.base):
        _add_gpu(found, gpu, degrees, progress)
    found.left_out |= {", ".join(dict.fromkeys(labels)) + where: UNSHIPPED for where, labels in found.unshipped.items()}
    if len(found.gpus) > 1 and not {controls.engine.engine for controls in found.jobs} <= {"torch", "ddp"}:
        found.left_out["the temporaries of DeepSpeed's gradient norms and of FSDP2's copies on each GPU"] = (
            f"they are those of {found.base.gpu}; on others they are some KB more or less")
    own = engine_of(found.base)
    if not any(controls.engine == own for controls in found.jobs):
        raise InputError(f"explore: {found.left_out[own.label]}")
    return found


def with_length(workload: Workload, progress: Progress | None = None) -> Workload:
    """The workload with a sequence length, if its model takes one: by default one with room for the images."""
    if workload.sequence_length is not None or models.find(workload.model).kind is Modality.IMAGE:
        return workload
    request = training_job.resolve(workload.replace(sequence_length=TOKENS))
    facts = training_job.job_of_request(request, progress).formula.facts
    images = request.workload.images_per_sample or 0
    length = TOKENS if facts.room(images) + images < TOKENS else default_length(facts.room(images))
    return workload.replace(sequence_length=length)


def _batches(first: Job, progress: Progress | None) -> tuple[int, ...]:
    """The batches of a page whose model has a formula for each number of samples; empty if one formula is for all.

    A single sample has a formula of its own in every model, so that it does not show this.

    Raises:
        InputError: a formula is for one shape only.
    """
    for batch in (first.shape.batch, 2):
        regime = dispatch.prepare(first.workload.replace(per_device_train_batch_size=batch), progress).formula.regime
        if regime.is_alone:
            raise InputError(f"explore: {first.workload.model} has a formula for each shape, and a page has one for "
                             "many: use peakcast predict")
        if not regime.is_wide:
            return tuple(sorted({*FEW_BATCHES, first.shape.batch}))
    return ()


def check(workload: Workload) -> None:
    """Rejects workloads that a page cannot contain."""
    if learned.is_learned_file(workload.model) or code_names.is_code_name(workload.model):
        raise InputError(f"explore: {workload.model}: a page needs a model by name or configuration")
    if workload.autotp:
        raise InputError(f"explore: tensor_parallel_size with zero_stage is not in a page: {AUTOTP}")
    for name, what in LEFT_OUT.items():
        if name not in workload.filled_in and getattr(workload, name) not in (None, "worst"):
            raise InputError(f"explore: {name}: {what} is not in a page yet: leave it out, or use peakcast predict")
    if workload.padding == "packed" or len(workload.image_sizes) > 1:
        what = "padding packed" if workload.padding == "packed" else f"image_size {workload.image_size}: several sizes"
        raise InputError(f"explore: {what} is not in a page yet: leave it out, or use peakcast predict")
    if workload.optim == "adafactor":
        raise InputError("explore: optim adafactor allocates by the GPU's size, which a page does not have yet: use "
                         "peakcast predict")
    settings = AllocatorSettings.parse(workload.allocator_conf or "")
    if settings != AllocatorSettings(expandable_segments=settings.expandable_segments,
                                     without_effect=settings.without_effect):
        raise InputError("explore: allocator_conf: the page simulates PyTorch's allocator at its defaults, and with "
                         "expandable segments: leave the others out, or use peakcast predict")


def _gpus(base: Workload) -> list[Gpu]:
    """GPUs that a page may have, the user's first. Only the user's, if a capacity or a profile is given for it."""
    assert base.gpu is not None  # find() fills it in
    chosen = gpus.find(base.gpu)
    if base.capacity_bytes is not None or base.profile not in (None, "none"):
        return [chosen]
    return [chosen, *(gpu for gpu in gpus.TABLE if gpu is not chosen)]


def _add_gpu(found: Settings, gpu: Gpu, degrees: Sequence[int], progress: Progress | None) -> None:
    try:
        profile_name = profile_of(found.base, gpu.name)
        first = dispatch.prepare(found.base.replace(**_shape(found.base), gpu=gpu.name, profile=profile_name), progress)
        _check_profile(first)
    except InputError as error:
        if gpu.name == found.base.gpu:
            raise
        found.left_out[gpu.name] = str(error).replace(f"gpu {gpu.name} has", "this GPU has")
        return
    backend = first.formula.provenance["key"]["sdpa_backend"]
    if backend not in found.backends.values():
        found.rows[backend] = _rows(first)
        _add_jobs(found, gpu, backend, degrees, progress)
    found.gpus[gpu.name], found.backends[gpu.name] = gpu, backend


def _shape(base: Workload) -> dict[str, Any]:
    return {name: getattr(base, name) for name in PAGES_OWN[:3]}


def profile_of(base: Workload, gpu: str) -> str | None:
    """The key ``profile`` for a GPU of the page, which has no sizes of profiles: without the user's word one of an
    emulated GPU, if the shipped one changes sizes."""
    if base.profile is None and _changes_sizes(profile.choose(None, gpu, base.versions, {})):
        return "emulated"
    return base.profile


def _changes_sizes(chosen: Choice | None) -> bool:
    return chosen is not None and bool(chosen.workspaces or corrections.coefficients(chosen)
                                       or chosen.profile.allocator.roundup_power2_divisions
                                       or chosen.profile.allocator.address_step_bytes)


def _check_profile(job: Job) -> None:
    """Rejects a profile that changes sizes."""
    chosen = job.profile
    if chosen and _changes_sizes(chosen):
        raise InputError(f"explore: the profile {chosen.name} changes sizes, which a page does not have: add "
                         "--profile none")


def _rows(job: Job) -> list[RowsFrom]:
    """Names of the regimes' rows by sequence length. They change at the language model's sliding windows."""
    assert job.request.config is not None  # only a learned formula has no configuration
    starts = [0, *sorted(job.request.config.windows)]
    if not job.workload.sequence_length:
        return [RowsFrom(start, Rows.NONE.value, Rows.NONE.value) for start in starts]
    ends = [length for start in starts for length in (-(-start // 8) * 8 or 8, start // 8 * 8 + 9)]
    regimes = regimes_at(job.request, [Shape(1, sequence, job.shape.images) for sequence in ends])
    return [RowsFrom(start, even.names().rows, odd.names().rows)
            for start, even, odd in zip(starts, regimes[::2], regimes[1::2])]


def engine_of(base: Workload) -> EngineChoice:
    """The choice that a workload makes."""
    return EngineChoice(name_of(base.engine, base.zero_stage), base.tensor_parallel_size)


def traced_names(found: Settings) -> dict[EngineChoice, str]:
    """A name of what each engine traces. Engines whose formulas are equal share one.

    They are not where engines differ in the dtype of adapters, for example, or shard the weights.
    """
    names: dict[EngineChoice, str] = {}
    formulas: dict[str, dict[tuple, Any]] = {}
    for choice in dict.fromkeys(controls.engine for controls in found.jobs):
        own = {(controls.checkpointing, controls.backend, controls.regime): job.formula.provenance["key"]
               for controls, job in found.jobs.items() if controls.engine == choice}
        names[choice] = next((name for name, others in formulas.items()
                              if all(others.get(place, key) == key for place, key in own.items())), choice.name)
        formulas.setdefault(names[choice], {}).update(own)
    return names


def _choices(base: Workload) -> list[EngineChoice]:
    """The engines that a page may have. Engines of sharded weights do not share layers besides."""
    tensors = sorted({*TENSOR_PARALLEL, base.tensor_parallel_size})
    return [EngineChoice(engine, tensor) for tensor, engine in product(tensors, LABELS)
            if tensor == 1 or engine in ("torch", "ddp")]


def _is_usual(choice: EngineChoice, base: Workload) -> bool:
    """Whether a choice is traced if it must be: the workload's own, and those that need no trace of their own."""
    own = engine_of(base)
    return choice == own or (choice.tensor == own.tensor and choice.engine not in TRACED_APART)


def _add_jobs(found: Settings, gpu: Gpu, backend: str, degrees: Sequence[int], progress: Progress | None) -> None:
    """Adds a job for every engine and degree in every regime of a backend.

    Those that are not predicted are left out, with the reason.
    """
    base = found.base
    if base.tensor_parallel_size > 1:
        found.left_out |= dict.fromkeys((LABELS[name] for name in LABELS if name.startswith("zero")), AUTOTP)
    if base.deepspeed is not None:
        others = (choice.label for choice in _choices(base) if choice != engine_of(base))
        found.left_out |= dict.fromkeys(others, BY_CONFIG)
    values = base.source.values if base.source else ()
    read = [row.key for row in values if row.key in CHECKPOINTING_KEYS and row.origin != OVERRIDDEN]  # not by an option
    on_gpu = {"gpu": gpu.name, "profile": profile_of(base, gpu.name)}
    accepted: set[tuple[EngineChoice, int, bool]] = set()
    for shape, checkpointing, choice in product(_shapes(found, backend), (True, False), _choices(base)):
        if (checkpointing and not base.gradient_checkpointing) or choice.label in found.left_out \
                or choice.label in found.unshipped.get("", ()):
            continue
        keys = {**choice.keys, "gradient_checkpointing": checkpointing, **on_gpu, **shape,
                **dict.fromkeys(() if checkpointing else read)}
        try:
            for degree in _degrees_of(choice, base, degrees):
                workload = base.replace(data_parallel_size=degree, **keys)
                if not _is_usual(choice, base) and training_job.needs_trace(training_job.resolve(workload)):
                    found.unshipped.setdefault(_where(shape), []).append(choice.label)
                    break
                job = dispatch.prepare(workload, progress)
                if not (found.batches or job.formula.regime.is_wide):
                    raise InputError(f"{base.model} handles the images of such samples one by one, which this page "
                                     "does not have: use peakcast predict")
                if (choice, degree, checkpointing) not in accepted:
                    training_job.engine_of(job.formula, job.setup)  # rejects what the engine does not model
                    accepted.add((choice, degree, checkpointing))
                found.jobs[Controls(choice, degree, checkpointing, backend, job.formula.regime)] = job
        except InputError as error:
            without = " without checkpointing" if base.gradient_checkpointing > checkpointing else ""
            found.left_out[choice.label + without] = str(error)


def _degrees_of(choice: EngineChoice, base: Workload, degrees: Sequence[int]) -> Sequence[int]:
    """Data-parallel sizes of a choice. With a tensor-parallel size of its own, it has no more GPUs than the others."""
    if not ENGINES[choice.engine].several:
        return (1,)
    if choice.tensor in (1, base.tensor_parallel_size):
        return degrees
    return [degree for degree in degrees if degree > 1 and degree * choice.tensor <= max(degrees)]


def _where(shape: Mapping[str, int | None]) -> str:
    """Words for shapes whose formula may not be shipped though those of the usual ones are; empty for the usual."""
    single, several = shape["per_device_train_batch_size"] == 1, (shape["images_per_sample"] or 0) > 1
    return ": one sample with several images" if single and several else ""


def several_images(found: Settings) -> bool:
    """Whether samples may have any number of images."""
    return bool(found.base.images_per_sample and found.base.sequence_length and not found.batches)


def _shapes(found: Settings, backend: str) -> list[dict[str, int | None]]:
    """A shape in each regime, as keys of a workload."""
    own, room = found.base.images_per_sample, dispatch.prepare(found.base).formula.facts.room
    counts: Iterable[tuple[int, int]] = product((2, 1), (1, 2) if several_images(found) else (1,))
    if found.batches:
        counts = [(batch, own or 0) for batch in reversed(found.batches)]
    shapes: list[dict[str, int | None]] = []
    for (start, whole, ragged), (batch, images) in product(found.rows[backend], counts):
        for rows in dict.fromkeys((whole, ragged)):
            least = -(-max(start, room(images) + images + 1) // 8) * 8 + (rows != whole)
            shapes.append({"per_device_train_batch_size": batch, "images_per_sample": images if own else 0,
                           "sequence_length": None if rows == Rows.NONE.value else least})
    return shapes

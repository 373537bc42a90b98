"""Jobs that a learned formula predicts: a whole recorded run, at the workload's shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.gpus import Gpu
from predictor.common.suggestions import file_name, quoted
from predictor.engine.setup import Setup
from predictor.events.events import EventList
from predictor.events.micro_step import MicroStep
from predictor.events.model_facts import first_names, has_modality, modality
from predictor.events.sizes import SYMBOLS, Shape
from predictor.formula import learned
from predictor.formula.formula import Formula
from predictor.formula.learned import Learned, LearnedList
from predictor.jobs.training_job import Job
from predictor.model.request import Request, gpu_of, shape_of
from predictor.profile import corrections, profile
from predictor.profile.corrections import Margin
from predictor.profile.job_traits import LEARNED_TRAITS
from predictor.workload.workload import Workload

FREE_KEYS = ("model", "per_device_train_batch_size", "sequence_length", "images_per_sample", "gpu", "capacity_bytes",
             "allocator_conf", "profile")
"""Keys that may differ from the recorded job's: the formula's own path, the shape, the GPU and its settings."""
SCRIPT_LOOP = "what the script does after its third optimizer step, such as evaluation and checkpoint saving"


@dataclass(frozen=True)
class LearnedJob(Job):
    """A whole recorded run in place of a traced step and an engine.

    Attributes:
        learned: the learned formula.
        event_list: the event list of the formula that is used at this shape.
        description: every key with its value, for :meth:`described`.
        caveats: notes on what is uncertain because it was learned.
        beyond: notes on how the shape is outside of the recorded ones.
    """

    learned: Learned = field(kw_only=True)
    event_list: LearnedList = field(kw_only=True)
    description: Mapping[str, Any] = field(kw_only=True)
    caveats: tuple[str, ...] = field(kw_only=True)
    beyond: tuple[str, ...] = field(kw_only=True)

    @cached_property
    def _events(self) -> EventList:
        """The recorded run. A profile's workspaces are added unless a real GPU was recorded, which had them."""
        events, chosen = self.event_list.events, self.profile
        if chosen is None or not chosen.workspaces or self.learned.provenance["measured_on"] == "device":
            return events
        micro = corrections.with_workspaces(_as_micro_step(events), chosen.workspaces, self.shape, self.gpu)
        return micro.events

    @property
    def rank(self) -> int:
        """The recorded rank."""
        return int(self.learned.provenance["rank"])

    def ranks(self, limit_bytes: int | None) -> list[int]:
        """The recorded rank; no other is known."""
        return [self.rank]

    def composed(self, limit_bytes: int | None, rank: int) -> EventList:
        """The recorded run. It does not depend on the limit."""
        return self._events

    @property
    def traced_events(self) -> int:
        """All events: the engine's were recorded, too."""
        return len(self._events)

    def described(self) -> Mapping[str, Any]:
        """The workload that was learned, at the shape of this job; of a script, the keys that are known."""
        return self.description

    def notes(self) -> tuple[str, ...]:
        """Notes for the user on what is uncertain because it was learned."""
        unlike = "no interval holds: at such shapes kernels may allocate in ways that were not recorded"
        return (*self.beyond, *([unlike] if self.beyond else []), *self.caveats)

    @property
    def margin(self) -> Margin:
        """How far off the prediction may be. Outside of the recorded shapes no interval is known.

        There a kernel may pass a threshold from which it allocates other buffers.
        """
        margin = super().margin
        return replace(margin, relative=()) if self.beyond else margin

    @property
    def loop(self) -> str | None:
        """Text for the user: what the recorded loop leaves out; None for the reference loop."""
        return None if self.learned.workload is not None else SCRIPT_LOOP

    def lowest(self) -> Shape:
        """The smallest size of each symbol among the recorded shapes and this job's."""
        shapes = (*self.event_list.shapes, self.shape)
        return Shape(*(min(getattr(shape, name) for shape in shapes) for name in ("batch", "sequence", "images")))

    def module_of(self, layer: str) -> str:
        """The part of the model that a layer is reported under: LLaVA's modalities, else the start of its path."""
        return modality(layer) if has_modality(layer) else first_names(layer)


def prepare(workload: Workload) -> LearnedJob:
    """Prepares the job of a workload whose ``model`` is the file of a learned formula.

    Raises:
        InputError: a key would change the recorded job, or the formula does not know the shape.
    """
    formula = learned.load(workload.model)
    _refuse(workload, formula)
    if workload.sequence_length is None and formula.base.sequence:
        raise InputError("sequence_length is not given: add --sequence-length, the tokens of a sample with its images")
    workload = workload.fill(images_per_sample=_images_per_sample(formula))
    gpu = _gpu(workload, formula)
    shape = shape_of(workload)
    event_list, beyond = formula.list_for(shape)
    versions = {name: str(version) for name, version in formula.provenance["versions"].items()}
    degree = int(formula.provenance["world_size"])
    chosen = profile.choose(workload.profile, gpu.name, versions | dict(workload.versions),
                            profile.quantities(shape, degree), LEARNED_TRAITS)
    setup = Setup(
        facts=formula.facts, engine="learned", optim="", param_groups="single", max_grad_norm=0.0,
        gradient_accumulation_steps=1, data_parallel_size=degree, zero=None, capacity_bytes=workload.capacity,
        allocator=corrections.allocator_settings(
            workload.allocator_conf or formula.provenance["allocator_conf"], chosen))
    provenance = formula.provenance | {
        "source": learned.SOURCE, "command": list(formula.command),
        "shapes": [list(shape) for shape in event_list.shapes], "interpolated": list(event_list.interpolated)}
    return LearnedJob(
        Request(workload, None, gpu, shape), Formula(_as_micro_step(event_list.events), formula.facts, provenance),
        setup, chosen, learned=formula, event_list=event_list, description=_described(workload, formula, degree),
        caveats=tuple(_caveats(workload, formula, event_list)), beyond=beyond)


def _as_micro_step(events: EventList) -> MicroStep:
    """Events as a micro-step without gradients or persistent buffers, to which no engine adds anything."""
    return MicroStep(events, np.empty((0, 3), np.int32), np.empty(0, np.int32))


def _images_per_sample(formula: Learned) -> int:
    return formula.base.images // formula.base.batch


def _refuse(workload: Workload, formula: Learned) -> None:
    """Rejects keys whose value differs from the recorded job's."""
    name = file_name(workload.model)
    resolved = workload.resolved()
    for symbol, size in zip(SYMBOLS, formula.base):
        if not size and getattr(workload, learned.KEY_OF[symbol]):
            without = f"of a model that takes no {'tokens' if symbol == 'sequence' else symbol}" if formula.workload \
                else f"from a command without {{{symbol}}}"
            raise InputError(f"{learned.KEY_OF[symbol]}: {name} was learned {without}: leave it out")
    for key in resolved:
        if key in FREE_KEYS or key in workload.filled_in:
            continue
        if formula.workload is not None and formula.workload.get(key) == resolved[key]:
            continue
        reason = f"was recorded with {key} {_plain(formula.workload.get(key))}" if formula.workload is not None \
            else f"was learned from a script, which decides {key} itself"
        raise InputError(f"{key} {_plain(resolved[key])}: {name} {reason}; leave it out, or learn another formula")


def _plain(value: Any) -> str:
    return quoted(value, 80) if isinstance(value, (str, dict, list)) else str(value).lower()


def _gpu(workload: Workload, formula: Learned) -> Gpu:
    """The workload's GPU, by default the recorded one.

    Raises:
        InputError: its kernels differ from those of the recorded GPU.
    """
    recorded = formula.provenance.get("gpu")
    if recorded is None:
        return gpu_of(workload)
    known, target = gpus.find(recorded), gpus.find(workload.gpu or recorded)
    if (known.compute_capability, known.multiprocessors) != (target.compute_capability, target.multiprocessors):
        raise InputError(f"gpu {target.name}: learned on {known.name}, whose kernels differ: learn it again with "
                         f"--gpu {target.name}")
    return target


def _described(workload: Workload, formula: Learned, degree: int) -> dict[str, Any]:
    resolved = workload.resolved()
    if formula.workload is not None:
        return formula.workload | {key: resolved[key] for key in FREE_KEYS if key != "model"} | {
            "learned": workload.model}
    return {"model": workload.model, "command": list(formula.command)} | {
        key: resolved[key] for key in FREE_KEYS[1:]} | {
        "data_parallel_size": degree, "learned": workload.model,
        "varied": [symbol for symbol in SYMBOLS if any(events.varies(symbol) for events in formula.lists)]}


def _caveats(workload: Workload, formula: Learned, event_list: LearnedList) -> list[str]:
    notes = []
    if len(event_list.shapes) == 1:
        notes.append("learned at one shape: this is a replay of that job")
    if event_list.interpolated:
        worst = max(event_list.interpolated, key=lambda row: row["error_bytes"])
        notes.append(f"{sum(row['buffers'] for row in event_list.interpolated):,} buffers are interpolated, off by at "
                     f"most {worst['error_bytes']:,} bytes each where that could be checked ({worst['operator']})")
    if event_list.moved_frees:
        notes.append(f"{event_list.moved_frees:,} buffers were freed at different points in the recorded jobs: each is "
                     "held until the latest")
    recorded = formula.provenance["capacity_bytes"]
    if workload.capacity is not None and workload.capacity != recorded:
        notes.append(f"recorded with {recorded / 2**30:.2f} GiB of GPU memory: a library that looks at free memory may "
                     "behave differently")
    return notes

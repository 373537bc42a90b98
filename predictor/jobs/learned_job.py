"""A workload answered by a learned formula: the job in place of a traced one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.gpus import Gpu
from predictor.common.suggestions import named, show
from predictor.engine.setup import Setup
from predictor.events.events import EventList
from predictor.events.micro_step import MicroStep
from predictor.events.model_facts import MODALITIES, modality
from predictor.events.sizes import SYMBOLS, Shape
from predictor.formula import learned
from predictor.formula.formula import Formula
from predictor.formula.learned import Learned, LearnedList
from predictor.jobs.training_job import Job
from predictor.model.request import Request, gpu_of, shape_of
from predictor.profile import corrections, profile
from predictor.profile.corrections import Margin
from predictor.profile.job_traits import LEARNED
from predictor.workload.workload import Workload

FREE_KEYS = ("model", "per_device_train_batch_size", "sequence_length", "images_per_sample", "gpu", "capacity_bytes",
             "allocator_conf", "profile")
"""Keys that may differ from the recorded job's: the shape, and what is asked about it."""
SCRIPT_LOOP = "what the script does after its third optimizer step, such as evaluation and checkpoint saving"


@dataclass(frozen=True)
class LearnedJob(Job):
    """A whole recorded run in place of a traced step and an engine."""

    learned: Learned | None = None
    found: LearnedList | None = None
    shown: Mapping[str, Any] | None = None
    uncertain: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()

    @cached_property
    def _events(self) -> EventList:
        """The run, with what a profile's workspaces add at this shape if none of them was recorded."""
        events, chosen = self.found.events, self.profile
        if chosen is None or not chosen.profile.workspaces or self.learned.provenance["measured_on"] == "device":
            return events
        return corrections.with_workspaces(_alone(events), chosen.profile.workspaces, self.shape, self.gpu).events

    @property
    def rank(self) -> int:
        """The recorded one."""
        return int(self.learned.provenance["rank"])

    def ranks(self, limit_bytes: int | None) -> list[int]:
        """Only the recorded one is known."""
        return [self.rank]

    def composed(self, limit_bytes: int | None, rank: int) -> EventList:
        """The recorded run; it does not depend on the limit."""
        return self._events

    def described(self) -> Mapping[str, Any]:
        """The workload that was learned, at the shape that was asked for; of a script what is known of it."""
        return self.shown

    def notes(self) -> tuple[str, ...]:
        """What is not certain because it was learned."""
        unlike = "no interval holds: kernels that go another way at such shapes were not recorded"
        return (*self.beyond, *([unlike] if self.beyond else []), *self.uncertain)

    @property
    def margin(self) -> Margin:
        """Intervals are of shapes like the recorded ones: past a threshold of a kernel, other buffers are allocated."""
        margin = super().margin
        return replace(margin, relative=()) if self.beyond else margin

    @property
    def loop(self) -> str | None:
        """A script's own loop was recorded, as far as three steps go."""
        return None if self.learned.workload is not None else SCRIPT_LOOP

    def lowest(self) -> Shape:
        """Its recorded shapes are at least this, and so is what is asked."""
        shapes = (*self.found.shapes, self.shape)
        return Shape(*(min(getattr(shape, name) for shape in shapes) for name in ("batch", "sequence", "images")))

    def module_of(self, layer: str) -> str:
        """Modality of LLaVA's parts, else the part of the model that a path lies in."""
        return modality(layer) if any(part in MODALITIES for part in layer.split(".")) else _part(layer) or "model"


def _part(path: str) -> str:
    """The first names of a path, as far as they name no list of layers: ``transformer.h``, ``classifier``."""
    parts = path.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdecimal()), len(parts))
    return ".".join(parts[:min(2, number)])


def prepare(workload: Workload) -> LearnedJob:
    """A workload whose ``model`` is the file of a learned formula.

    Raises:
        InputError: keys that would change the job, or a shape that the formula does not know.
    """
    made = learned.load(workload.model)
    _refuse(workload, made)
    if workload.sequence_length is None and made.base.sequence:
        raise InputError("sequence_length is not given: say how many tokens a sample has, image tokens included")
    workload = workload.fill(images_per_sample=_images_per_sample(made))
    gpu = _gpu(workload, made)
    shape = shape_of(workload)
    found, beyond = made.list_for(shape)
    versions = {name: str(version) for name, version in made.provenance["versions"].items()}
    degree = int(made.provenance["world_size"])
    chosen = profile.choose(workload.profile, gpu.name, versions | dict(workload.versions),
                            profile.quantities(shape, degree), LEARNED)
    setup = Setup(
        facts=made.facts, engine="learned", optim="", param_groups="single", max_grad_norm=0.0,
        gradient_accumulation_steps=1, data_parallel_size=degree, zero=None, capacity_bytes=workload.capacity,
        allocator=corrections.allocator_settings(workload.allocator_conf or made.provenance["allocator_conf"], chosen))
    provenance = made.provenance | {
        "source": learned.SOURCE, "command": list(made.command), "shapes": [list(shape) for shape in found.shapes],
        "interpolated": list(found.interpolated)}
    formula = Formula(_alone(found.events), made.facts, provenance)
    return LearnedJob(Request(workload, None, gpu, shape), formula, setup, chosen, made, found,
                      _shown(workload, made, degree), tuple(_caveats(workload, made, found)), beyond)


def _alone(events: EventList) -> MicroStep:
    """Events that no engine composes further."""
    return MicroStep(events, np.empty((0, 3), np.int32), np.empty(0, np.int32))


def _images_per_sample(made: Learned) -> int:
    return made.base.images // made.base.batch


def _refuse(workload: Workload, made: Learned) -> None:
    """Keys that the recorded job does not have as they are given."""
    name = named(workload.model)
    resolved = workload.resolved()
    for symbol, size in zip(SYMBOLS, made.base):
        if not size and getattr(workload, learned.KEY_OF[symbol]):
            without = f"of a model that takes no {'tokens' if symbol == 'sequence' else symbol}" if made.workload \
                else f"from a command without {{{symbol}}}"
            raise InputError(f"{learned.KEY_OF[symbol]}: {name} was learned {without}: leave it out")
    for key in resolved:
        if key in FREE_KEYS or key in workload.filled_in:
            continue
        if made.workload is not None and made.workload.get(key) == resolved[key]:
            continue
        what = f"was recorded with {key} {_plain(made.workload.get(key))}" if made.workload is not None \
            else f"was learned from a script, which decides {key} itself"
        raise InputError(f"{key} {_plain(resolved[key])}: {name} {what}; leave it out, or learn another formula")


def _plain(value: Any) -> str:
    return show(value, 80) if isinstance(value, (str, dict, list)) else str(value).lower()


def _gpu(workload: Workload, made: Learned) -> Gpu:
    """Whose kernels were recorded: the asked GPU must have the same."""
    recorded = made.provenance.get("gpu")
    if recorded is None:
        return gpu_of(workload)
    known, asked = gpus.find(recorded), gpus.find(workload.gpu or recorded)
    if (known.compute_capability, known.multiprocessors) != (asked.compute_capability, asked.multiprocessors):
        raise InputError(f"gpu {asked.name}: learned on {known.name}, whose kernels are others: learn it again with "
                         f"--gpu {asked.name}")
    return asked


def _shown(workload: Workload, made: Learned, degree: int) -> dict[str, Any]:
    asked = workload.resolved()
    if made.workload is not None:
        return made.workload | {key: asked[key] for key in FREE_KEYS if key != "model"} | {"learned": workload.model}
    return {"model": workload.model, "command": list(made.command)} | {key: asked[key] for key in FREE_KEYS[1:]} | {
        "data_parallel_size": degree, "learned": workload.model,
        "varied": [symbol for symbol in SYMBOLS if any(found.varies(symbol) for found in made.lists)]}


def _caveats(workload: Workload, made: Learned, found: LearnedList) -> list[str]:
    notes = []
    if len(found.shapes) == 1:
        notes.append("learned at one shape: this is a replay of that job")
    if found.interpolated:
        worst = max(found.interpolated, key=lambda row: row["error_bytes"])
        notes.append(f"{sum(row['buffers'] for row in found.interpolated):,} buffers are interpolated, off by at most "
                     f"{worst['error_bytes']:,} bytes each where that could be tried ({worst['operator']})")
    if found.moved_frees:
        notes.append(f"{found.moved_frees:,} buffers were freed at other points in other jobs: held until the latest")
    recorded = made.provenance["capacity_bytes"]
    if workload.capacity is not None and workload.capacity != recorded:
        notes.append(f"recorded with {recorded / 2**30:.2f} GiB of GPU memory: what a library decides by free memory "
                     "may differ")
    return notes

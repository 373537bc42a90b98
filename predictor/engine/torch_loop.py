"""Plain PyTorch on one GPU: gradients stay until the step ends, AdamW works on the bf16 parameters.

torch 2.11: AccumulateGrad (torch/csrc/autograd/functions/accumulate_grad.h), torch/nn/utils/clip_grad.py,
torch/optim/adam.py.
"""

from __future__ import annotations

from predictor.engine import optimizer
from predictor.engine.compose import Section, assemble
from predictor.engine.setup import Setup
from predictor.events import EventList, Factor, Moment
from predictor.formula import MicroStep

STEPS = 3


def compose(micro: MicroStep, setup: Setup) -> EventList:
    """Start-up and three steps, the later two alike."""
    first, steady = _step(micro, setup, first=True), _step(micro, setup, first=False)
    return assemble(micro, [(_start_up(micro, setup), 0), (first, 1)] + [(steady, s) for s in range(2, STEPS + 1)])


def _start_up(micro: MicroStep, setup: Setup) -> Section:
    section = Section(micro)
    for tensor in setup.facts.parameters:
        section.allocate(tensor.bytes, Factor.PARAMETERS, "to", module=tensor.name.rpartition(".")[0])
    return section


def _step(micro: MicroStep, setup: Setup, *, first: bool) -> Section:
    section = Section(micro, setup.gradient_accumulation_steps)
    rows = range(len(micro.ready))
    for index in range(setup.gradient_accumulation_steps):
        section.enter(Moment.FORWARD)
        for row in rows if index else ():  # added into the first micro-step's gradient, then dropped
            section.at(row)
            section.free(section.gradient(index, row))
        section.run_micro_step(index, with_persistent=first and index == 0)
    section.enter(Moment.OPTIMIZER_STEP)
    tensors = setup.facts.parameters
    reached = set(int(p) for p in micro.ready[:, 1])
    if setup.max_grad_norm:
        _clip(section, [tensors[p].itemsize for p in micro.ready[:, 1]])
    variant = optimizer.VARIANTS[setup.optim]
    for group in setup.groups():
        sizes = [(tensors[i].name, tensors[i].bytes) for i in group if i in reached]
        if first:
            optimizer.make_states(section, variant, sizes)
        optimizer.update(section, variant, sizes)
    for row in rows:
        section.free(section.gradient(0, row))
    section.flush()
    return section


def _clip(section: Section, itemsizes: list[int]) -> None:
    """``clip_grad_norm_``: one scalar norm a gradient, stacked."""
    norms = [section.allocate(size, Factor.TEMPORARIES, "clip_grad_norm") for size in itemsizes]
    stacked = section.allocate(sum(itemsizes), Factor.TEMPORARIES, "clip_grad_norm")
    for buffer in [*norms, stacked]:
        section.free(buffer)

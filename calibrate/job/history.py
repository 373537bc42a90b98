"""PyTorch's memory history of a job, with the moment, module and operator of each entry.

PyTorch records addresses, sizes and Python stacks. Its metadata text is kept per thread, and autograd runs on a thread
of its own, so this text only holds the module that runs. Operators come from the profiler, which records the same
allocations a moment later and does not change the job. A dispatch mode would change it: autograd does not accumulate
gradients in place under one.
"""

from __future__ import annotations

import bisect
import inspect
import json
import pickle
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from calibrate.job.side_notes import Notes, own_name
from predictor.events.events import Moment
from predictor.snapshot.reader import NOTES_KEY
from predictor.trace.module_tracker import ModuleTracker

MARK = "peakcast "
KEEP_EVENTS: dict[str, Any] = {"acc_events": True} if "acc_events" in inspect.signature(profile).parameters else {}
"""Without it, a profile warns that it forgets the events of earlier cycles. PyTorch 2.4 has no cycles to forget."""
EVALUATE = "autograd::engine::evaluate_function: "
"""Prefix of the profiler's event for a backward function."""
DISPATCHED = "PythonDispatchMode"
"""Event of the emulated GPU's integer tracker. The operator that the model called is the event below it."""
INSIDE = "+"
"""Prefix of the allocator's metadata text while a module runs. The module's path may be empty."""
write_metadata: Callable[[str], None] = getattr(torch.cuda.memory, "_set_memory_metadata", lambda text: None)
"""Sets the allocator's metadata text. PyTorch 2.8 has none: there a history does not name modules."""


@dataclass(frozen=True)
class Site:
    """The code that ran when a block was allocated.

    Attributes:
        time_us: when the profiler saw it, on the clock of the allocator's history.
        bytes: size of the block, so at least the requested size.
        node: sequence number of the backward function in autograd, if one ran.
        nested: whether it ran in the backward of a recomputed (reentrant) checkpoint.
    """

    time_us: int
    bytes: int
    operator: str
    node: int | None
    nested: bool


class Modules(ModuleTracker):
    """Writes the running module into the allocator's metadata text, and finds the module of a backward function."""

    def __init__(self, model: torch.nn.Module | None, notes: Notes,
                 outermost_runs: Callable[[], None] = lambda: None) -> None:
        super().__init__(model or torch.nn.Module())
        self._notes, self._known, self._outermost_runs = notes, model is not None, outermost_runs
        self._main = threading.get_ident()
        self._seen: dict[bool, list[tuple[int, str]]] = {True: [], False: []}

    def _outermost(self, module: torch.nn.Module) -> None:
        if torch._C._current_autograd_node() is not None:  # a checkpoint recomputes it
            return
        prefix = self._notes.model(module)
        if not self._known:  # in a user's script, modules become known when they first run
            self._names |= {id(part): prefix + own_name(name) for name, part in module.named_modules()
                            if id(part) not in self._names}
        self._outermost_runs()

    def _boundary(self) -> None:
        module = self._stack[-1] if self._stack else ""
        write_metadata(INSIDE + module if self._stack else "")
        on_main = threading.get_ident() == self._main  # autograd numbers the nodes of each thread separately
        self._seen[on_main].append((torch._C._autograd._get_sequence_nr(), module))

    def of(self, site: Site) -> str:
        """Path of the module whose forward created the backward function that runs at a site."""
        nodes = self._seen[not site.nested]
        index = bisect.bisect_right(nodes, site.node, key=lambda pair: pair[0]) - 1 if site.node is not None else -1
        return nodes[index][1] if index >= 0 else ""


class Recording(Protocol):
    """Starts and reads PyTorch's memory history."""

    def begin(self) -> None:
        """Start recording."""

    def end(self) -> dict[str, Any]:
        """The recorded history, in the form of ``torch.cuda.memory._snapshot``."""


class PyTorchHistory:
    """PyTorch's own memory history, where no other code records it."""

    def begin(self) -> None:
        """See :class:`Recording`."""
        # no stacks of frees: gathering a stack clears a Python exception in flight, such as the one that ends the
        # recomputation of a checkpoint (torch/csrc/profiler/python/combined_traceback.cpp)
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python")

    def end(self) -> dict[str, Any]:
        """See :class:`Recording`."""
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(None)
        return snapshot


class History:
    """Records from ``with`` on. :meth:`save` writes a file in the format of ``torch.cuda.memory._dump_snapshot``.

    The ``user_metadata`` of each entry becomes a JSON object with ``moment``, ``step``, ``module``, ``operator``, and
    ``inside``: whether a module's forward ran (in backward: was recomputed). Events that the allocator's history lacks
    are stored beside it (:mod:`calibrate.job.side_notes`).
    """

    def __init__(self, path: str, recording: Recording | None = None) -> None:
        self._path, self._recording = path, recording or PyTorchHistory()
        self._modules: Modules | None = None
        self._saved = False
        self._stack = ExitStack()

    def __enter__(self) -> History:
        torch.cuda.init()
        self._profile = self._stack.enter_context(profile(
            activities=[ProfilerActivity.CPU], profile_memory=True, **KEEP_EVENTS))
        self._recording.begin()
        self._notes = self._stack.enter_context(Notes())
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def follow(self, model: torch.nn.Module | None, outermost_runs: Callable[[], None] = lambda: None) -> None:
        """Name the modules of this model from now on; None: the modules of every model that runs.

        ``outermost_runs`` is called whenever an outermost module runs.
        """
        self._modules = Modules(model, self._notes, outermost_runs)
        self._stack.enter_context(self._modules.active())

    def enter(self, moment: Moment, step: int) -> None:
        """Mark the begin of a moment in the profiler's events."""
        with record_function(f"{MARK}{moment.value} {step}"):
            pass

    def save(self) -> None:
        """Stop recording and write the file. Further calls do nothing."""
        if self._saved:
            return
        self._saved = True
        snapshot = self._recording.end()
        self._stack.close()
        marks, sites = read_profile(self._profile.profiler.kineto_results.experimental_event_tree())
        for trace in snapshot["device_traces"]:
            site_of = match_sites([entry for entry in trace if entry["action"] == "alloc"], sites)
            for entry in trace:
                entry["user_metadata"] = self._text(entry, marks, site_of.get(id(entry)))
        snapshot[NOTES_KEY] = self._notes.document()
        with open(self._path, "wb") as stream:
            pickle.dump(snapshot, stream)

    def _text(self, entry: dict, marks: list[Mark], site: Site | None) -> str:
        """The JSON text of an entry."""
        moment, step = Moment.INIT.value, 0
        passed = bisect.bisect_right(marks, entry["time_us"], key=lambda mark: mark.time_us)
        if passed:
            moment, step = marks[passed - 1].moment, marks[passed - 1].step
        text, operator = entry.get("user_metadata") or "", ""
        inside, module = text.startswith(INSIDE), text.removeprefix(INSIDE)
        if site:
            operator = site.operator
            module = module or (self._modules.of(site) if self._modules else "")
        return json.dumps({"moment": moment, "step": step, "module": module, "operator": operator,
                           "inside": inside})



class Mark(NamedTuple):
    """The begin of a moment of a step."""

    time_us: int
    moment: str
    step: int


def match_sites(entries: list[dict], sites: dict[int, list[Site]]) -> dict[int, Site]:
    """The site of each allocation, by ``id`` of its entry. At one address, history and profiler saw the same order.

    Where the profiler missed an allocation, an entry gets the first site at or after its time. The two clocks differ by
    at most a microsecond.
    """
    by_address: dict[int, list[dict]] = defaultdict(list)
    for entry in entries:
        by_address[entry["addr"]].append(entry)
    matched: dict[int, Site] = {}
    for address, allocations in by_address.items():
        candidates: list[Site | None] = [*sites.get(address, [])]
        if len(candidates) != len(allocations):
            by_time = sites.get(address, [])
            after = (bisect.bisect_left(by_time, entry["time_us"] - 1, key=lambda site: site.time_us)
                     for entry in allocations)
            candidates = [by_time[index] if index < len(by_time) else None for index in after]
        matched |= {id(entry): site for entry, site in zip(allocations, candidates)
                    if site and site.bytes >= entry["size"]}
    return matched


def read_profile(roots) -> tuple[list[Mark], dict[int, list[Site]]]:
    """Marks, and allocation sites by address, both in order of time."""
    marks: list[Mark] = []
    sites: dict[int, list[Site]] = defaultdict(list)
    for event, path in _walk(roots):
        time_us = event.start_time_ns // 1000
        if path is None:
            moment, step = event.name.removeprefix(MARK).split()
            marks.append(Mark(time_us, moment, int(step)))
        elif event.extra_fields.alloc_size > 0:
            sites[event.extra_fields.ptr].append(Site(time_us, event.extra_fields.alloc_size, *_operator(path)))
    for at_address in sites.values():
        at_address.sort(key=lambda site: site.time_us)
    return sorted(marks), sites


def _walk(roots) -> Iterator[tuple[Any, tuple | None]]:
    """The relevant events with their callers: memory events of CUDA devices, and marks (without callers)."""
    pending: list[tuple[Any, tuple]] = [(event, ()) for event in roots]
    while pending:
        event, path = pending.pop()
        if event.tag.name == "Allocation":
            if event.extra_fields.device.type == "cuda":
                yield event, path
        elif event.name.startswith(MARK):
            yield event, None
        path = (*path, event)
        pending += [(child, path) for child in event.children]


def _operator(path: tuple) -> tuple[str, int | None, bool]:
    """The operator that requested the memory, the number of the backward function, and whether that is nested.

    Of operators that call each other it is the one that a dispatch mode sees, because the predictor's trace is one: the
    outermost that has kernels of its own. PyTorch calls ``aten::cudnn_convolution`` for ``aten::convolution``, and that
    for ``aten::conv2d``.
    """
    nodes = [event for event in path if event.name.startswith(EVALUATE)]
    names = [event.name for event in path if "::" in event.name and not event.name.startswith("autograd::")
             or event.name == DISPATCHED]
    last = max((i for i, name in enumerate(names) if name == DISPATCHED), default=None)
    if last is not None and last + 1 < len(names):
        name = names[last + 1]
    else:
        names = [name for name in names if name != DISPATCHED]
        outside = nodes[-1].name.removeprefix(EVALUATE) if nodes else ""
        name = next((name for name in names if not _is_composite(name)), names[-1] if names else outside)
    return name, nodes[-1].extra_fields.sequence_number if nodes else None, len(nodes) > 1


@cache
def _is_composite(name: str) -> bool:
    """Whether an operator only calls others, so that no dispatch mode sees it (native_functions.yaml:
    CompositeImplicitAutograd, also by default)."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    overloads = _overloads().get(name, ())
    return bool(overloads) and all(has_kernel(overload, "CompositeImplicitAutograd") for overload in overloads)


@cache
def _overloads() -> dict[str, list[str]]:
    """The full names of each operator's overloads."""
    named: dict[str, list[str]] = defaultdict(list)
    for overload in torch._C._dispatch_get_all_op_names():
        named[overload.partition(".")[0]].append(overload)
    return named

"""PyTorch's memory history of a job, each entry told which moment, module and operator it belongs to.

PyTorch records addresses, sizes and Python stacks. Its own metadata text is kept by thread, and
autograd works on a thread of its own, so the text is only used for the module that runs; operators
come from the profiler, which notes the same allocations a moment later, and changes nothing: a
dispatch mode would (autograd does not add gradients in place under one).
"""

from __future__ import annotations

import bisect
import json
import pickle
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from calibrate.job.side_notes import Notes, own_name
from predictor.events.events import Moment
from predictor.snapshot.reader import BESIDE
from predictor.trace.module_tracker import Places

MARK = "peakcast "
EVALUATE = "autograd::engine::evaluate_function: "
DISPATCHED = "PythonDispatchMode"
"""The emulated GPU's integer tracker; below it comes the operator that the model called."""
INSIDE = "+"
"""Begins the allocator's text while a module runs, whose path may be empty."""
HELPERS = frozenset(f"aten::{name}" for name in (
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_",
    "to", "_to_copy", "clone", "zeros", "zeros_like", "ones_like", "contiguous"))
"""Operators that others call to get memory: named only when nobody called them."""


@dataclass(frozen=True)
class Site:
    """What ran when something was allocated.

    Attributes:
        time_us: when the profiler saw it, on the clock of the allocator's history.
        bytes: of the block, so at least what was requested.
        node: autograd's number of the backward function, if one ran.
        nested: in the backward of a recomputed (reentrant) checkpoint.
    """

    time_us: int
    bytes: int
    operator: str
    node: int | None
    nested: bool


class Modules(Places):
    """The running module as the allocator's metadata text, and the module of a backward function."""

    def __init__(self, model: torch.nn.Module | None, notes: Notes, told: Callable[[], None] = lambda: None) -> None:
        super().__init__(model or torch.nn.Module())
        self._notes, self._known, self._told = notes, model is not None, told
        self._main = threading.get_ident()
        self._seen: dict[bool, list[tuple[int, str]]] = {True: [], False: []}

    def _outermost(self, module: torch.nn.Module) -> None:
        if torch._C._current_autograd_node() is not None:  # a checkpoint's recomputation
            return
        prefix = self._notes.model(module)
        if not self._known:  # a script's: its modules are met when they first run
            self._names |= {id(part): prefix + own_name(name) for name, part in module.named_modules()
                            if id(part) not in self._names}
        self._told()

    def _boundary(self) -> None:
        module = self._stack[-1] if self._stack else ""
        torch.cuda.memory._set_memory_metadata(INSIDE + module if self._stack else "")
        on_main = threading.get_ident() == self._main  # autograd numbers the nodes of each thread
        self._seen[on_main].append((torch._C._autograd._get_sequence_nr(), module))

    def of(self, site: Site) -> str:
        """Module whose forward made the backward function that runs at a site."""
        seen = self._seen[not site.nested]
        index = bisect.bisect_right(seen, site.node, key=lambda pair: pair[0]) - 1 if site.node is not None else -1
        return seen[index][1] if index >= 0 else ""


class Recording(Protocol):
    """Who records."""

    def begin(self) -> None:
        """Record from now on."""

    def end(self) -> dict[str, Any]:
        """What was recorded, as ``torch.cuda.memory._snapshot`` gives it."""


class PyTorchs:
    """PyTorch's own history, which nobody else records."""

    def begin(self) -> None:
        """See :class:`Recording`."""
        # no stacks of frees: to gather one clears a Python exception that is on its way, such as the one that ends
        # the recomputation of a checkpoint (torch/csrc/profiler/python/combined_traceback.cpp)
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python")

    def end(self) -> dict[str, Any]:
        """See :class:`Recording`."""
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(None)
        return snapshot


class History:
    """Records from ``with`` on; :meth:`save` writes what ``torch.cuda.memory._dump_snapshot`` would.

    Each entry's ``user_metadata`` becomes a JSON object with ``moment``, ``step``, ``module``,
    ``operator``, and ``inside``: whether a module's forward ran (in backward: was recomputed). What the
    allocator's history does not tell is noted beside it (:mod:`calibrate.job.side_notes`).
    """

    def __init__(self, path: str, recording: Recording | None = None) -> None:
        self._path, self._recording = path, recording or PyTorchs()
        self._modules: Modules | None = None
        self._saved = False
        self._stack = ExitStack()

    def __enter__(self) -> History:
        torch.cuda.init()
        self._profile = self._stack.enter_context(profile(
            activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True))
        self._recording.begin()
        self._notes = self._stack.enter_context(Notes())
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def follow(self, model: torch.nn.Module | None, told: Callable[[], None] = lambda: None) -> None:
        """Name this model's modules from now on; None: those of every model that runs.

        ``told`` is called whenever a module runs that no other called.
        """
        self._modules = Modules(model, self._notes, told)
        self._stack.enter_context(self._modules.active())

    def enter(self, moment: Moment, step: int) -> None:
        """Leave a mark that the profiler sees."""
        with record_function(f"{MARK}{moment.value} {step}"):
            pass

    def save(self) -> None:
        """Stop recording and write the file, once."""
        if self._saved:
            return
        self._saved = True
        snapshot = self._recording.end()
        self._stack.close()
        marks, sites = read_profile(self._profile.profiler.kineto_results.experimental_event_tree())
        for trace in snapshot["device_traces"]:
            made = pair([entry for entry in trace if entry["action"] == "alloc"], sites)
            for entry in trace:
                entry["user_metadata"] = self._text(entry, marks, made.get(id(entry)))
        snapshot[BESIDE] = self._notes.document()
        with open(self._path, "wb") as stream:
            pickle.dump(snapshot, stream)

    def _text(self, entry: dict, marks: list[Mark], site: Site | None) -> str:
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
    """When a moment of a step begins."""

    time_us: int
    moment: str
    step: int


def pair(entries: list[dict], sites: dict[int, list[Site]]) -> dict[int, Site]:
    """The site of each allocation, by ``id`` of its entry: at one address both saw the same ones in the same order.

    Where the profiler missed one, the first site at or after an entry is its own; the two clocks
    differ by a microsecond at most.
    """
    by_address: dict[int, list[dict]] = defaultdict(list)
    for entry in entries:
        by_address[entry["addr"]].append(entry)
    made = {}
    for address, found in by_address.items():
        seen = sites.get(address, [])
        if len(seen) != len(found):
            after = (bisect.bisect_left(seen, entry["time_us"] - 1, key=lambda site: site.time_us) for entry in found)
            seen = [seen[index] if index < len(seen) else None for index in after]
        made |= {id(entry): site for entry, site in zip(found, seen) if site and site.bytes >= entry["size"]}
    return made


def read_profile(roots) -> tuple[list[Mark], dict[int, list[Site]]]:
    """Marks, and allocations by address, both in order of time."""
    marks: list[Mark] = []
    sites: dict[int, list[Site]] = defaultdict(list)
    for event, path in _walk(roots):
        time_us = event.start_time_ns // 1000
        if path is None:
            moment, step = event.name.removeprefix(MARK).split()
            marks.append(Mark(time_us, moment, int(step)))
        elif event.extra_fields.alloc_size > 0:
            sites[event.extra_fields.ptr].append(Site(time_us, event.extra_fields.alloc_size, *_operator(path)))
    for found in sites.values():
        found.sort(key=lambda site: site.time_us)
    return sorted(marks), sites


def _walk(roots) -> Iterator[tuple[Any, tuple | None]]:
    """Events that matter and their callers: memory events of CUDA devices, and marks (without callers)."""
    open_ = [(event, ()) for event in roots]
    while open_:
        event, path = open_.pop()
        if event.tag.name == "Allocation":
            if event.extra_fields.device.type == "cuda":
                yield event, path
        elif event.name.startswith(MARK):
            yield event, None
        path = (*path, event)
        open_ += [(child, path) for child in event.children]


def _operator(path: tuple) -> tuple[str, int | None, bool]:
    """Innermost operator that asked for the memory, number of the backward function, whether that is nested."""
    nodes = [event for event in path if event.name.startswith(EVALUATE)]
    names = [event.name for event in path if "::" in event.name and not event.name.startswith("autograd::")
             or event.name == DISPATCHED]
    last = max((i for i, name in enumerate(names) if name == DISPATCHED), default=None)
    if last is not None and last + 1 < len(names):
        name = names[last + 1]
    else:
        names = [name for name in names if name != DISPATCHED]
        working = [name for name in names if name not in HELPERS]
        name = working[-1] if working else names[0] if names else nodes[-1].name.removeprefix(EVALUATE) if nodes else ""
    return name, nodes[-1].extra_fields.sequence_number if nodes else None, len(nodes) > 1

"""ZeRO-3's all-gathers: a module's parameters are gathered, prefetched and released around its forward and backward.

DeepSpeed 0.19.8: runtime/zero/partitioned_param_coordinator.py (``PartitionedParameterCoordinator``) decides;
runtime/zero/partition_parameters.py gathers (``all_gather_coalesced``, ``AllGatherCoalescedHandle``) and frees
(``free_param``). The first micro-step only records the order of modules, and releases every module's parameters when
the module ends. From the second on the order is known: parameters are prefetched, and those needed again soon stay.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from predictor.engine.tape import MAIN_STREAM, Tape
from predictor.engine.zero3_waits import Waits
from predictor.events.events import Factor
from predictor.events.model_facts import Parameter
from predictor.workload.deepspeed_config import ZeroConfig

LONG_AGO = -10**10
GATHERS_IN_PLACE_SINCE = (0, 18, 5)
"""The first release that gathers a single parameter at once into its own tensor. Before, it gathers into a flat buffer,
and copies from there (partition_parameters.py, ``_allgather_params``)."""


def partition_numel(tensor: Parameter, degree: int) -> int:
    """Elements of a rank's partition of a parameter, padding included."""
    return -(-tensor.numel // degree)


def gather_one(tape: Tape, tensor: Parameter, degree: int, zero: ZeroConfig) -> int:
    """Gathers a single parameter, and waits for it (``Parameter.all_gather``). Returns its buffer."""
    numel = partition_numel(tensor, degree)

    def allocate(size: int, factor: Factor, operator: str) -> int:
        return tape.allocate(size, factor, operator, module=tensor.module)

    if zero.version < GATHERS_IN_PLACE_SINCE:
        flat = allocate(tensor.itemsize * degree * numel, Factor.COMMUNICATION, "zero::all_gather_flat")
        whole = allocate(tensor.bytes, Factor.PARAMETERS, "zero::all_gather")
        tape.free(flat)
        return whole
    whole = allocate(tensor.itemsize * degree * numel, Factor.PARAMETERS, "zero::all_gather")
    if zero.offload_param:
        tape.free(tape.allocate(tensor.itemsize * numel, Factor.COMMUNICATION, "zero::partition_from_host"))
    return whole


@dataclass(eq=False)
class Gather:
    """One all-gather in flight. Its flat buffer lives until each of its parameters has been fetched.

    Attributes:
        parameters: indices, in the order of the flat buffer.
        flat: the flat buffer; None on a single rank, which has nothing to collect.
        waiting: number of its parameters that have not been fetched.
        complete: whether it has been waited for.
        copies: on a single rank, parameter -> the buffer of its copy from the host.
    """

    parameters: list[int]
    flat: int | None
    waiting: int
    complete: bool = False
    copies: dict[int, int] = field(default_factory=dict)


@dataclass
class Gathers:
    """State of all parameters of one rank. Each method records its allocations and frees on a tape.

    Attributes:
        tensors: all parameters.
        own: number of a module -> the parameters that it gathers, in ascending order.
        persistent: parameters that stay gathered between modules.
        degree: data-parallel degree.
        stream: the stream on which collectives run and their buffers are allocated.
        waits: the host's waits, shared with the reductions.
        ends_backward_of_modules: whether this release of DeepSpeed has that behaviour of
            :data:`predictor.engine.zero3.SWITCHES`.
        counts_on: whether it counts available parameters from one optimizer step to the next, not in each micro-step.
        step: number of fetches in this micro-step.
        known: whether the order of modules is known; None before the first micro-step.
        gathered: parameter -> the buffer of its whole tensor; None if that is the partition itself.
        in_flight: parameter -> its all-gather.
    """

    tape: Tape
    tensors: Sequence[Parameter]
    own: dict[int, list[int]]
    persistent: frozenset[int]
    zero: ZeroConfig
    degree: int
    stream: int
    waits: Waits
    ends_backward_of_modules: bool = True
    counts_on: bool = False
    step: int = 0
    known: bool | None = None
    gathered: dict[int, int | None] = field(default_factory=dict)
    in_flight: dict[int, Gather] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.users: dict[int, set[int]] = defaultdict(set)
        self.modules: list[int] = []
        self.in_backward: dict[int, None] = {}
        self.recomputed: dict[int, set[int]] = defaultdict(set)
        self.available_numel = 0
        self.ahead: deque[tuple[int, int]] = deque()
        self.fetched_for: dict[int, int] = {}
        self._held: dict[int, deque[int | None]] = defaultdict(deque)
        self._holds: Counter[int] = Counter()
        self._released: set[int] = set()
        self._stays: dict[tuple[int, int], frozenset[int]] = {}
        self._order: list[tuple[int, int]] = []
        self._uses: dict[int, list[int]] = {}
        self._traversed: list[int] = []

    # micro-steps ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begins a micro-step's forward (``reset_step``)."""
        for parameter, gather in list(self.in_flight.items()):
            self._wait(gather)
            self._release(parameter)
            self._count_fetch(gather)
        self.in_flight.clear()
        if self.known is None:
            self.known = False
        elif not self.known:
            self.known = True
            self._learn()
        self.ahead = deque(self._order)
        self.fetched_for = {}
        self.step = 0
        if not self.counts_on:
            self.available_numel = 0

    def _learn(self) -> None:
        uses: dict[int, list[int]] = defaultdict(list)
        numels = []
        for step, module in enumerate(self.modules):
            for parameter in self.own.get(module, ()):
                uses[parameter].append(step)
                self._order.append((parameter, step))
            numels.append(sum(self.tensors[p].numel for p in self.own.get(module, ())))
        self._uses, self._traversed = uses, list(accumulate(numels, initial=0))

    def fetch(self, module: int, *, forward: bool, recompute: bool = False) -> None:
        """Before a module's forward or backward (``fetch_sub_module``)."""
        own = self.own.get(module, ())
        if not self.known:
            self.modules.append(module)
        if not forward:
            self.in_backward[module] = None
        if own:
            self._gather([p for p in own if self._is_partitioned(p)])
        for parameter in own:
            self.users[parameter].add(module)
            if recompute and self._stays_late(parameter):
                owner = next(reversed(self.in_backward))
                self.recomputed[owner].add(parameter)
                self.users[parameter].add(owner)
            if parameter in self.in_flight:
                self.waits.before("fetch")
                gather = self.in_flight.pop(parameter)
                self._wait(gather)
                self._count_fetch(gather)
                self.waits.record("fetch")
        if self.known:
            self._prefetch(own)
        self.step += 1

    def _stays_late(self, parameter: int) -> bool:
        """Whether a parameter that a recomputation gathers stays until the backward that started it ends."""
        return self.ends_backward_of_modules and bool(self.in_backward) and not self.tensors[parameter].trainable

    def _prefetch(self, own: Sequence[int]) -> None:
        if not self.ahead:
            return
        mine = {p for p in own if self.fetched_for.get(p, LONG_AGO) < self.step}
        taken: set[int] = set()
        while self.ahead and len(taken) < len(mine):
            parameter, step = self.ahead.popleft()
            self.fetched_for[parameter] = step
            taken.add(parameter)
        most = min(self.zero.max_live_parameters - self.available_numel, self.zero.prefetch_bucket_size)
        chosen: list[int] = []
        numel = 0
        while self.zero.prefetch_bucket_size and self.ahead and numel < most:
            parameter, step = self.ahead.popleft()
            self.fetched_for[parameter] = max(self.fetched_for.get(parameter, LONG_AGO), step)
            if self._is_partitioned(parameter) and parameter not in chosen:
                chosen.append(parameter)
                numel += self.tensors[parameter].numel
        self._gather(chosen)

    def leave(self, module: int, *, forward: bool) -> None:
        """After a module's forward or backward (``release_sub_module``)."""
        own = set(self.own.get(module, ()))
        going = own - self._staying(module, own) if self.known and own else set(own)
        if not forward:
            again = self.recomputed.pop(module, set())
            going |= again - self.persistent
            own |= again
            self.in_backward.pop(module, None)
        for parameter in sorted(own):
            self.users[parameter].discard(module)
            if parameter in going:
                self._release(parameter)

    def _staying(self, module: int, own: set[int]) -> frozenset[int]:
        """The parameters that stay gathered after a module, by the known order.

        DeepSpeed computes them once for each place in the order (an ``lru_cache``).
        """
        key = module, self.step
        if key not in self._stays:
            start = self._traversed[min(self.step, len(self._traversed) - 1)]
            staying = set()
            for parameter in own:
                uses = self._uses.get(parameter, [])
                place = bisect_left(uses, self.step)
                soon = place < len(uses) and self._traversed[uses[place]] - start < self.zero.max_reuse_distance
                if soon or parameter in self.persistent or self.fetched_for.get(parameter, LONG_AGO) > self.step:
                    staying.add(parameter)
            self._stays[key] = frozenset(staying)
        return self._stays[key]

    def end_backward(self) -> None:
        """Releases parameters of modules whose backward has no end (``release_backward_leftovers``)."""
        if not self.ends_backward_of_modules:
            self.in_backward.clear()
        while self.in_backward:
            module, _ = self.in_backward.popitem()
            for parameter in sorted({*self.own.get(module, ()), *self.recomputed.pop(module, ())}):
                self.users[parameter].discard(module)
                if parameter not in self.persistent:
                    self._release(parameter)

    # steps ------------------------------------------------------------------------------------

    def left(self) -> Hashable:
        """What a step leaves to the next one, apart from the numbers of the gathered parameters' buffers.

        From the second step on, steps to which the same is left record the same events.
        """
        return (tuple((parameter, buffer is None) for parameter, buffer in self.gathered.items()),
                tuple(self.in_backward), self.available_numel if self.counts_on else 0,
                tuple((module, *sorted(again)) for module, again in self.recomputed.items() if again),
                tuple((parameter, *buffers) for parameter, buffers in self._held.items() if buffers))

    def release_all(self) -> None:
        """``release_and_reset_all``, before the optimizer's step."""
        for parameter in range(len(self.tensors)):
            gather = self.in_flight.pop(parameter, None)
            if gather is not None:
                self._wait(gather)
                self._count_fetch(gather)
            self.users[parameter].clear()
            self._release(parameter)
        if self.counts_on:
            self.available_numel = 0

    def gather_persistent(self) -> None:
        """``_post_step``: gathers the persistent parameters again, each into a buffer of its own."""
        parameters, together = sorted(self.persistent), len(self.persistent) > 1
        if self.degree == 1 and together:
            self.gathered |= dict.fromkeys(parameters) | self._whole(parameters, MAIN_STREAM)
            return
        together = together and not self.zero.allgather_sequential
        copies = self._copies(parameters, MAIN_STREAM) if together else []
        for parameter in parameters:
            if together:
                self.gathered[parameter] = self._buffer(parameter, MAIN_STREAM)
            else:
                self.gathered[parameter] = gather_one(self.tape, self.tensors[parameter], self.degree, self.zero)
        if len(parameters) > 1:
            self.waits.synchronize()
        self._drop(copies)

    def read_external(self, module: int, parameter: int) -> None:
        """Gathers a parameter of another module that a module reads. From now on the module fetches it too."""
        insort(self.own.setdefault(module, []), parameter)
        if parameter not in self.gathered:
            self.gathered[parameter] = gather_one(self.tape, self.tensors[parameter], self.degree, self.zero)

    # one collective ---------------------------------------------------------------------------

    def _is_partitioned(self, parameter: int) -> bool:
        return parameter not in self.gathered and parameter not in self.in_flight

    def _buffer(self, parameter: int, stream: int) -> int:
        tensor = self.tensors[parameter]
        return self.tape.allocate(tensor.itemsize * self.degree * partition_numel(tensor, self.degree),
                                  Factor.PARAMETERS, "zero::all_gather", module=tensor.module, stream=stream)

    def _whole(self, parameters: Sequence[int], stream: int) -> dict[int, int]:
        """Copies from the host, on a single rank. There a partition is the whole parameter, so nothing is gathered."""
        return {p: self._buffer(p, stream) for p in parameters} if self.zero.offload_param else {}

    def _copies(self, parameters: Sequence[int], stream: int) -> list[int]:
        """Copies of partitions from the host; empty if they are on the GPU."""
        if not self.zero.offload_param:
            return []
        return [self.tape.allocate(tensor.itemsize * partition_numel(tensor, self.degree), Factor.COMMUNICATION,
                                   "zero::partition_from_host", stream=stream)
                for tensor in map(self.tensors.__getitem__, parameters)]

    def _drop(self, copies: Sequence[int]) -> None:
        for buffer in reversed(copies):
            self.tape.free(buffer)

    def _gather(self, parameters: list[int]) -> None:
        if not parameters:
            return
        parameters = sorted(parameters)
        self.available_numel += sum(self.tensors[p].numel for p in parameters)
        if self.degree == 1:
            gathers = [Gather(parameters, None, len(parameters), copies=self._whole(parameters, self.stream))]
        elif self.zero.allgather_sequential or len(parameters) == 1:
            gathers = []
            for p in parameters:
                gathers.append(Gather([p], self._buffer(p, self.stream), 1))
                self._drop(self._copies([p], self.stream))
        else:
            partition_bytes = sum(self.tensors[p].itemsize * partition_numel(self.tensors[p], self.degree)
                                  for p in parameters)
            flat = self.tape.allocate(self.degree * partition_bytes, Factor.COMMUNICATION,
                                      "zero::all_gather_coalesced", stream=self.stream)
            self._drop(self._copies(parameters, self.stream))
            gathers = [Gather(parameters, flat, len(parameters))]
        for gather in gathers:
            self.in_flight |= dict.fromkeys(gather.parameters, gather)

    def _wait(self, gather: Gather) -> None:
        if gather.complete:
            return
        gather.complete = True
        if self.degree == 1:
            self.waits.synchronize()
        for parameter in gather.parameters:
            if gather.flat is None:
                self.gathered[parameter] = gather.copies.get(parameter)
            elif len(gather.parameters) == 1:
                self.gathered[parameter] = gather.flat
            else:
                tensor = self.tensors[parameter]
                self.gathered[parameter] = self.tape.allocate(
                    tensor.bytes, Factor.PARAMETERS, "zero::all_gather", module=tensor.module, stream=self.stream)

    def _count_fetch(self, gather: Gather) -> None:
        gather.waiting -= 1
        if not gather.waiting and len(gather.parameters) > 1 and gather.flat is not None:
            self.tape.free(gather.flat)

    def _release(self, parameter: int) -> None:
        if parameter not in self.gathered or self.users[parameter]:
            return
        buffer = self.gathered.pop(parameter)
        self.available_numel -= self.tensors[parameter].numel
        if buffer is not None:
            if self.stream != MAIN_STREAM:
                self.tape.record_stream(buffer, MAIN_STREAM)
            if self._holds[buffer]:
                self._released.add(buffer)
            else:
                self.tape.free(buffer)

    # saved tensors ----------------------------------------------------------------------------

    def hold(self, parameter: int) -> None:
        """A saved tensor shares a parameter's storage; activation checkpointing saves such detached inputs."""
        buffer = self.gathered.get(parameter)
        self._held[parameter].append(buffer)
        if buffer is not None:
            self._holds[buffer] += 1

    def let_go(self, parameter: int) -> None:
        """The oldest saved tensor of a parameter no longer exists."""
        buffer = self._held[parameter].popleft()
        if buffer is None:
            return
        self._holds[buffer] -= 1
        if not self._holds[buffer] and buffer in self._released:
            self._released.remove(buffer)
            self.tape.free(buffer)

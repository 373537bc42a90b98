"""FSDP1's units: each gathers its flat parameter, reshards it, and reduces its flat gradient, at its hooks.

PyTorch 2.11, torch/distributed/fsdp: _runtime_utils.py (``_unshard``, ``_reshard``, ``_pre_forward_unshard``,
``_post_forward_reshard``, ``_pre_backward_hook``, ``_post_backward_hook``, ``_reduce_grad``,
``_post_backward_final_callback``), _flat_param.py (``FlatParamHandle``), _limiter_utils.py (``_FreeEventQueue``),
_exec_order_utils.py (``_ExecOrderData``). Blocks that another stream uses are recorded on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from predictor.engine.tape import MAIN_STREAM, Tape
from predictor.events.events import EventType, Factor
from predictor.events.micro_step import Mark
from predictor.events.model_facts import Parameter

PRE_UNSHARD_STREAM, UNSHARD_STREAM, POST_BACKWARD_STREAM, ALL_REDUCE_STREAM = 1, 2, 3, 4
ROOT = 0
"""Number of the root module, which is the whole model."""
MOST_IN_FLIGHT = 2
"""``_FreeEventQueue._max_num_inflight_all_gathers``."""


@dataclass(frozen=True)
class Flat:
    """The flat parameter of a unit.

    Attributes:
        module: path of the unit's first parameter's module, for reports.
        tensors: its parameters by their index in the model's facts, in its order.
        parts: elements of each part, and whether it is padding.
        degree: number of ranks that share it.
        loaded, stored, computed, reduced: bytes of an element when it is loaded, in the shard, in forward and
            backward, and in the reduction of its gradient.
        original: whether the optimizer sees parts of the shard, one for each parameter (``use_orig_params``).
    """

    module: str
    tensors: dict[int, Parameter]
    parts: tuple[tuple[int, bool], ...]
    degree: int
    loaded: int
    stored: int
    computed: int
    reduced: int
    original: bool

    @property
    def trains(self) -> bool:
        """Whether it has a gradient: one of its parameters trains."""
        return any(tensor.trainable for tensor in self.tensors.values())

    @property
    def casts(self) -> bool:
        """Whether its shard is cast before it is gathered (``_uses_param_mixed_precision``)."""
        return self.stored != self.computed

    @cached_property
    def numel(self) -> int:
        """Elements of the whole flat parameter."""
        return sum(numel for numel, _ in self.parts)

    @property
    def shard(self) -> int:
        """Elements of a rank's shard, padding included."""
        return -(-self.numel // self.degree)

    def elements_of(self, rank: int) -> dict[int, int]:
        """Elements of each original parameter in a rank's shard, by its index; those without any, too."""
        begin, start, found = rank % self.degree * self.shard, 0, {}
        indices = iter(self.tensors)
        for numel, padding in self.parts:
            if not padding:
                found[next(indices)] = max(0, min(start + numel, begin + self.shard) - max(start, begin))
            start += numel
        return found

    def of_rank(self, rank: int) -> dict[int, Parameter]:
        """What a rank's optimizer updates: index -> its part in the shard; without ``original``, the whole shard."""
        if not self.original:
            index, tensor = next(iter(self.tensors.items()))
            return {index: Parameter(tensor.name, (self.shard,), self.stored, self.trains, embedding=False)}
        return {index: Parameter(tensor.name, (own,), self.stored, tensor.trainable, tensor.decay,
                                 embedding=tensor.embedding)
                for index, own in self.elements_of(rank).items() for tensor in [self.tensors[index]]}

    def parts_of(self, rank: int) -> tuple[Parameter, ...]:
        """The parts of its original parameters in a rank's shard, those that do not train too."""
        return tuple(part for part in self.of_rank(rank).values() if part.numel) if self.original else ()


@dataclass(eq=False)
class Unit:
    """A wrapped module. Buffers and gradients are buffer numbers of the tape.

    Attributes:
        number: number of its module.
        flat: its flat parameter.
        parts: the rank's part of each parameter in its shard, if the optimizer sees them.
        gathered: the whole flat parameter, while it exists.
        prefetched: whether it was gathered ahead of its backward.
        needed: ``_needs_pre_backward_unshard``: its outputs have gradients, and backward has not reached it.
        reached: whether backward has reached it (``_ran_pre_backward_hook``).
        place: its position in the forward order (``_post_forward_index``).
        accumulated: the unreduced gradient of earlier micro-steps.
        sharded: the sharded gradient.
        viewed: a former shard that the original parameters still point to: as it was loaded, or its copy from the
            host.
    """

    number: int
    flat: Flat
    parts: tuple[Parameter, ...] = ()
    gathered: int | None = None
    prefetched: bool = False
    needed: bool = False
    reached: bool = False
    place: int | None = None
    accumulated: int | None = None
    sharded: int | None = None
    viewed: int | None = None


@dataclass(frozen=True)
class Strategy:
    """How units are sharded and prefetched.

    Attributes:
        reshards: whether whole parameters are freed after forward.
        hybrid: whether gradients are also reduced among copies of the shards.
        prefetch: ``backward_prefetch``.
        limits: ``limit_all_gathers``.
        offloads: whether shards are in the host's memory.
    """

    reshards: bool
    hybrid: bool
    prefetch: str
    limits: bool
    offloads: bool


class Units:
    """All units of one rank. Each method records its allocations and frees on a tape.

    Args:
        units: in the order of the model's modules, the root first.
    """

    def __init__(self, tape: Tape, units: Sequence[Unit], strategy: Strategy) -> None:
        self._tape, self._units, self._strategy = tape, units, strategy
        self._order: list[Unit] = []
        self._frees = 0
        self.by_number = {unit.number: unit for unit in units}
        self.unit_of = {index: unit for unit in units for index in unit.flat.tensors}

    def at_hook(self, mark: Mark, unit: Unit, *, reduce: bool) -> None:
        """Acts at a hook of a unit; ``reduce`` says whether this micro-step reduces gradients."""
        if mark is Mark.ENTER:
            self.enter(unit)
        elif mark is Mark.LEAVE:
            self.leave(unit)
        elif mark is Mark.EXPECT:
            unit.needed = True
        elif mark is Mark.BEFORE_BACKWARD:
            self.before_backward(unit)
        elif mark is Mark.AFTER_BACKWARD:
            self.reshard_in_backward(unit, reduce=reduce)

    # forward ----------------------------------------------------------------------------------

    def begin_forward(self, *, step: bool) -> None:
        """``_root_pre_forward``: frees gradients that no parameter has (``_reset_flat_param_grad_info_if_needed``).

        Those are the gradients of the last step, and between the micro-steps of one step those of shards without any
        part of a parameter that trains.
        """
        for unit in self._units:
            if unit.flat.original and (step or not any(part.trainable for part in unit.parts)):
                self.release_gradient(unit)

    def enter(self, unit: Unit) -> None:
        """``_pre_forward``."""
        self._unshard(unit)

    def leave(self, unit: Unit) -> None:
        """``_post_forward``."""
        if unit.place:
            self._order.append(unit)
        else:
            unit.place = len(self._order)
            self._order.append(unit)
        if self._strategy.reshards:
            self._use_sharded_views(unit)
            if unit.number != ROOT:
                self._reshard(unit)
        unit.prefetched = False
        unit.needed = unit.reached = False

    # backward ---------------------------------------------------------------------------------

    def before_backward(self, unit: Unit) -> None:
        """``_pre_backward_hook``: acts once for each unit, at the first gradient of its outputs."""
        if unit.reached:
            return
        if unit.needed and not unit.prefetched:
            self._unshard(unit)
        unit.needed, unit.reached = False, True
        if self._strategy.prefetch == "BACKWARD_PRE":
            self._prefetch(unit)

    def ready(self, unit: Unit, gradient: int, *, reduce: bool) -> None:
        """``_post_backward_hook``: the flat gradient is complete. The sum with earlier ones replaces the first."""
        self._reshard_in_backward(unit, reduce=reduce, stream=UNSHARD_STREAM)  # on which autograd runs the hook
        new, whole = None, gradient
        if unit.accumulated is not None:
            new, whole = gradient, unit.accumulated
        if reduce:
            unit.accumulated = None
            self._reduce(unit)
            self._tape.record_stream(whole, POST_BACKWARD_STREAM)
            self._tape.free(whole)
        else:
            if unit.accumulated is None and not self._strategy.offloads:
                self._use_unsharded_gradients(unit)
            unit.accumulated = whole
        self._free(new)

    def reshard_in_backward(self, unit: Unit, *, reduce: bool) -> None:
        """``_post_backward_reshard_only_hook``, of a unit without a gradient."""
        self._reshard_in_backward(unit, reduce=reduce, stream=MAIN_STREAM)

    def _reshard_in_backward(self, unit: Unit, *, reduce: bool, stream: int) -> None:
        """``_post_backward_reshard``."""
        self._use_sharded_views(unit)
        if reduce or self._strategy.reshards:
            self._reshard(unit, stream)
        unit.prefetched = False
        if self._strategy.prefetch == "BACKWARD_POST":
            self._prefetch(unit)

    def end_backward(self, *, reduce: bool) -> None:
        """``_post_backward_final_callback``."""
        for unit in self._units:
            if unit.gathered is not None:
                self._use_sharded_views(unit)
                if reduce or self._strategy.reshards:
                    self._reshard(unit)
            unit.prefetched = unit.needed = unit.reached = False
            unit.place = None
            if self._strategy.offloads and reduce:
                self.release_gradient(unit)  # prepare_gradient_for_optim: the host's copy takes its place
        self._order.clear()

    def release_gradient(self, unit: Unit) -> None:
        """Frees the sharded gradient of a unit."""
        self._free(unit.sharded)
        unit.sharded = None

    def _use_unsharded_gradients(self, unit: Unit) -> None:
        """``_use_unsharded_grad_views``: makes an empty gradient for each part, and lets it point elsewhere."""
        for part in unit.parts if unit.flat.degree > 1 else ():
            self._tape.free(self._tape.allocate(part.bytes, Factor.GRADIENTS, "fsdp1::empty_like", module=part.module,
                                                stream=UNSHARD_STREAM))

    # parameters -------------------------------------------------------------------------------

    def _free(self, buffer: int | None) -> None:
        if buffer is not None:
            self._tape.free(buffer)

    def _use_sharded_views(self, unit: Unit) -> None:
        """``_use_sharded_views``: the original parameters point to the shard from now on."""
        self._free(unit.viewed)
        unit.viewed = None

    def _prefetch(self, unit: Unit) -> None:
        """``_prefetch_handle``: gathers the unit whose forward ended before this one's."""
        if not unit.place:
            return
        target = self._order[unit.place - 1]
        if target.needed and not target.prefetched:
            self._unshard(target)
            target.prefetched = True

    def _unshard(self, unit: Unit) -> None:
        flat, own = unit.flat, None
        if unit.gathered is None or self._strategy.offloads:
            own = self._own_shard(flat)
        if self._strategy.limits and self._frees >= MOST_IN_FLIGHT:
            self._frees -= 1
            self._tape.mark(EventType.SYNCHRONIZE)
        if unit.gathered is None:
            unit.gathered = self._tape.allocate(flat.shard * flat.degree * flat.computed, Factor.PARAMETERS,
                                                "fsdp1::all_gather", module=flat.module, stream=UNSHARD_STREAM)
        if own is not None:
            self._tape.record_stream(own, UNSHARD_STREAM)
            if flat.original and not flat.casts:
                self._use_sharded_views(unit)
                unit.viewed = own
            else:
                self._tape.free(own)

    def _own_shard(self, flat: Flat) -> int | None:
        """The shard as it is gathered (``pre_unshard``): a cast of the shard, or its copy from the host."""
        def allocate(itemsize: int) -> int:
            return self._tape.allocate(flat.shard * itemsize, Factor.COMMUNICATION, "fsdp1::shard", module=flat.module,
                                       stream=PRE_UNSHARD_STREAM)

        if flat.casts:
            own = allocate(flat.computed)
            if self._strategy.offloads:
                self._tape.free(allocate(flat.stored))
            return own
        return allocate(flat.stored) if self._strategy.offloads else None

    def _reshard(self, unit: Unit, stream: int = MAIN_STREAM) -> None:
        """``_reshard`` that frees the whole parameter (``_free_unsharded_flat_param``), called on a stream."""
        if unit.gathered is not None:
            if stream != UNSHARD_STREAM:
                self._tape.record_stream(unit.gathered, stream)
            self._tape.free(unit.gathered)
            unit.gathered = None
        self._frees += 1

    # gradients --------------------------------------------------------------------------------

    def _reduce(self, unit: Unit) -> None:
        """``_reduce_grad``, on the stream of the reduction; with hybrid sharding it ends on another one."""
        flat, tape = unit.flat, self._tape

        def allocate(size: int, factor: Factor, stream: int = POST_BACKWARD_STREAM) -> int:
            return tape.allocate(size, factor, "fsdp1::reduce_scatter", module=flat.module, stream=stream)

        whole = []
        if flat.reduced != flat.computed:
            whole.append(allocate(flat.numel * flat.reduced, Factor.COMMUNICATION))
        if flat.numel % flat.degree:
            whole.append(allocate(flat.shard * flat.degree * flat.reduced, Factor.COMMUNICATION))
        shard, stream = allocate(flat.shard * flat.reduced, Factor.GRADIENTS), POST_BACKWARD_STREAM
        if self._strategy.hybrid:
            stream = ALL_REDUCE_STREAM
            tape.record_stream(shard, stream)
        if flat.reduced != flat.stored:
            narrow, shard = shard, allocate(flat.shard * flat.stored, Factor.GRADIENTS, stream)
            tape.free(narrow)
        if unit.sharded is None:
            unit.sharded = shard
        else:
            tape.free(shard)  # added to the previous micro-steps' gradients
        for buffer in whole:
            tape.free(buffer)

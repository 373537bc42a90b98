"""FSDP2's units: each gathers its parameters, reshards them, and reduces its gradients, at the hooks of its module.

PyTorch 2.11, torch/distributed/fsdp/_fully_shard: _fsdp_param_group.py (``FSDPParamGroup``: ``unshard``,
``wait_for_unshard``, ``post_backward``, ``_backward_prefetch``), _fsdp_state.py (``FSDPState``), _fsdp_collectives.py
(``foreach_all_gather``, ``foreach_all_gather_copy_out``, ``foreach_reduce``). Streams wait for each other by CUDA
events, and no block is recorded on a second stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from predictor.common.gpus import Gpu
from predictor.engine.fsdp2_copies import chunk_cat_bytes, split_copy_bytes
from predictor.engine.setup import BF16
from predictor.engine.tape import Tape
from predictor.events.events import Factor
from predictor.events.model_facts import Parameter

COPY_IN_STREAM, REDUCE_SCATTER_STREAM = 1, 2
ROOT = 0
"""Number of the root module, which is the whole model."""


class State(Enum):
    """``TrainingState`` of a unit."""

    IDLE = 0
    FORWARD = 1
    PRE_BACKWARD = 2
    POST_BACKWARD = 3


@dataclass(frozen=True)
class Shard:
    """A sharded parameter of a unit.

    Attributes:
        index: index of the parameter in the model's facts.
        tensor: the whole parameter, with the dtype in which its unit computes.
        itemsize: bytes of an element of the shard.
        degree: number of ranks that share the parameter.
    """

    index: int
    tensor: Parameter
    itemsize: int
    degree: int

    @cached_property
    def numel(self) -> int:
        """Elements of a rank's shard, padded to the size of the first rank's (``padded_sharded_param_size``)."""
        return self.rows * (self.tensor.numel // self.tensor.shape[0])

    @cached_property
    def rows(self) -> int:
        """Rows, of the first dimension, in the first rank's shard."""
        return -(-self.tensor.shape[0] // self.degree)

    @property
    def casts(self) -> bool:
        """Whether it is gathered in another dtype than that of the shard."""
        return self.itemsize != self.tensor.itemsize

    def of_rank(self, rank: int) -> Parameter:
        """The unpadded shard that a rank's optimizer updates. Those of the last ranks may be shorter, or empty."""
        return Parameter(self.tensor.name, (self.rows_of(rank), *self.tensor.shape[1:]), self.itemsize,
                         self.tensor.trainable, self.tensor.decay, embedding=self.tensor.embedding)

    def rows_of(self, rank: int) -> int:
        """Rows, of the first dimension, in a rank's shard."""
        return min(max(self.tensor.shape[0] - rank * self.rows, 0), self.rows)


def rank_changes(shards: Iterable[Shard]) -> list[int]:
    """The ranks, sorted, whose shards have fewer rows than those of the rank before: a parameter's shards are first
    whole, then at most one is cut, and the last ones are empty."""
    ranks: set[int] = set()
    for shard in shards:
        if shard.rows:
            whole, rest = divmod(shard.tensor.shape[0], shard.rows)
            ranks |= {whole, whole + (rest > 0)}
    return sorted(ranks)


@dataclass(eq=False)
class Unit:
    """A module that ``fully_shard`` was called on. Buffers and gradients are buffer numbers of the tape.

    Attributes:
        number: number of its module.
        shards: shards of its parameters.
        reshards: whether its whole parameters are freed after forward.
        gathering: the output of an all-gather that has not been waited for; it is None with one rank.
        gathered: the whole parameters, while they exist.
        places: its positions in the forward order, one for each time that it ran.
        gradients: parameter -> its unreduced gradient, as autograd left it.
        accumulated: parameter -> its unreduced gradient of earlier micro-steps, in the dtype of the reduction.
        reduced: the buffer that holds the sharded gradients.
    """

    number: int
    shards: list[Shard]
    reshards: bool
    state: State = State.IDLE
    gathering: list[int | None] = field(default_factory=list)
    gathered: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    gradients: dict[int, int] = field(default_factory=dict)
    accumulated: dict[int, int] = field(default_factory=dict)
    reduced: int | None = None


class Units:
    """All units of one rank. Each method records its allocations and frees on a tape.

    Args:
        units: in the order of the model's modules, the root first.
        degree: number of ranks.
        reduce_itemsize: bytes of an element in the reduction; None for the gradients' own.
    """

    def __init__(self, tape: Tape, units: Sequence[Unit], degree: int, reduce_itemsize: int | None, gpu: Gpu) -> None:
        self._tape, self._units, self._degree, self._gpu = tape, units, degree, gpu
        self._reduce_itemsize = reduce_itemsize
        self._held: int | None = None
        self._reducing: int | None = None
        self._order: list[Unit] = []
        self.by_number = {unit.number: unit for unit in units}
        self.unit_of = {shard.index: unit for unit in units for shard in unit.shards}

    # forward ----------------------------------------------------------------------------------

    def enter(self, unit: Unit) -> None:
        """``pre_forward``."""
        unit.state = State.FORWARD
        self._unshard(unit)
        self._wait(unit)

    def leave(self, unit: Unit) -> None:
        """``post_forward``."""
        if unit.reshards:
            self._reshard(unit)
        unit.places.append(len(self._order))
        self._order.append(unit)
        unit.state = State.IDLE
        if unit.number == ROOT:
            self._free_held()

    # backward ---------------------------------------------------------------------------------

    def before_backward(self, unit: Unit) -> None:
        """``pre_backward``: acts once for each unit, at the first gradient of its outputs."""
        if unit.state is State.PRE_BACKWARD:
            return
        unit.state = State.PRE_BACKWARD
        self._unshard(unit)
        self._wait(unit)
        if unit.places and (place := unit.places.pop()):
            self._unshard(self._order[place - 1])

    def ready(self, parameter: int, gradient: int) -> None:
        """A gradient is complete. If the parameter has one already, it is added to that and freed."""
        gradients = self.unit_of[parameter].gradients
        if parameter in gradients:
            self._tape.free(gradient)
        else:
            gradients[parameter] = gradient

    def after_backward(self, unit: Unit, *, reduce: bool) -> None:
        """``post_backward``."""
        unit.state = State.POST_BACKWARD
        for shard in unit.shards:
            if shard.index in unit.gradients and shard.index in unit.accumulated:
                self._tape.free(unit.gradients.pop(shard.index))
        self._reshard(unit)
        shards = [shard for shard in unit.shards if shard.index in unit.gradients or shard.index in unit.accumulated]
        if reduce and shards:
            self._reduce(unit, shards)
        elif not reduce:
            self._widen(unit, shards)

    def end_backward(self, *, reduce: bool) -> None:
        """``_root_post_backward_final_callback``."""
        for unit in self._units:
            if unit.state is not State.POST_BACKWARD:
                self.after_backward(unit, reduce=reduce)
            unit.state = State.IDLE
            while unit.gathering:  # prefetched for a unit that had no backward
                self._free(unit.gathering.pop())
            unit.places.clear()
        self._order.clear()
        self._free(self._reducing)
        self._reducing = None

    def release_gradient(self, unit: Unit) -> None:
        """Frees the sharded gradients of a unit, when the last of them becomes None."""
        self._free(unit.reduced)
        unit.reduced = None

    # parameters -------------------------------------------------------------------------------

    def _free(self, buffer: int | None) -> None:
        if buffer is not None:
            self._tape.free(buffer)

    def _free_held(self) -> None:
        """Frees the output of forward's previous all-gather, which is kept while the next one's copy may overlap."""
        self._free(self._held)
        self._held = None

    def _unshard(self, unit: Unit) -> None:
        if unit.gathering or unit.gathered:
            return
        if self._degree == 1:
            unit.gathering.append(None)
            return
        cast = BF16 * sum(shard.numel for shard in unit.shards if shard.casts)
        flat = self._communication(cast, "fsdp2::cast", COPY_IN_STREAM) if cast else None
        whole = sum(shard.numel * shard.tensor.itemsize for shard in unit.shards) * self._degree
        unit.gathering.append(self._communication(whole, "fsdp2::all_gather", COPY_IN_STREAM))
        self._free(flat)

    def _wait(self, unit: Unit) -> None:
        if not unit.gathering:
            return
        gathering, cast = unit.gathering.pop(), None
        for shard in unit.shards:
            if self._degree == 1 and shard.casts:
                last, cast = cast, self._communication(BF16 * shard.numel, "fsdp2::cast")
                self._free(last)
            unit.gathered.append(self._tape.allocate(
                shard.numel * shard.tensor.itemsize * self._degree, Factor.PARAMETERS, "fsdp2::unshard",
                module=shard.tensor.module))
        self._free(cast)
        if gathering is None:
            return
        chunks = [shard.numel * shard.tensor.itemsize for shard in unit.shards]
        self._temporary(split_copy_bytes(chunks, self._degree, self._gpu), "fsdp2::split_with_sizes_copy")
        if unit.state is State.FORWARD:
            self._free_held()  # a local variable holds it until here
            self._held = gathering
        else:
            self._tape.free(gathering)

    def _reshard(self, unit: Unit) -> None:
        for buffer in unit.gathered:
            self._tape.free(buffer)
        unit.gathered.clear()

    # gradients --------------------------------------------------------------------------------

    def _communication(self, size: int, operator: str, stream: int = 0) -> int:
        return self._tape.allocate(size, Factor.COMMUNICATION, operator, stream=stream)

    def _temporary(self, size: int, operator: str) -> None:
        self._tape.free(self._communication(size, operator))

    def _widen(self, unit: Unit, shards: Sequence[Shard]) -> None:
        """``to_accumulated_grad_if_needed``."""
        for shard in shards:
            if self._reduce_itemsize not in (None, shard.tensor.itemsize) and shard.index in unit.gradients:
                unit.accumulated[shard.index] = self._tape.allocate(
                    shard.tensor.numel * self._reduce_itemsize, Factor.GRADIENTS, "fsdp2::accumulate",
                    module=shard.tensor.module)
                self._tape.free(unit.gradients.pop(shard.index))

    def _reduce(self, unit: Unit, shards: Sequence[Shard]) -> None:
        """``foreach_reduce``. Its loop variable keeps the last gradient alive until it returns."""
        self._free(self._reducing)
        itemsize, kept = self._reduce_itemsize or shards[0].tensor.itemsize, shards[0].itemsize
        numel = sum(shard.numel for shard in shards)
        self._reducing = self._communication(numel * self._degree * itemsize, "fsdp2::reduce_scatter")
        self._temporary(chunk_cat_bytes([shard.numel * itemsize for shard in shards]), "fsdp2::chunk_cat")
        both = unit.gradients | unit.accumulated
        gradients = [both[shard.index] for shard in shards]
        unit.gradients.clear()
        unit.accumulated.clear()
        last = gradients.pop() if self._degree > 1 else None
        for gradient in reversed(gradients):
            self._tape.free(gradient)
        reduced = self._reduced(numel * itemsize)
        if kept != itemsize:
            reduced, wide = self._reduced(numel * kept), reduced
            self._tape.free(wide)
        self._free(last)
        if unit.reduced is None:
            unit.reduced = reduced
        else:
            self._tape.free(reduced)  # added to the previous micro-steps' gradients

    def _reduced(self, size: int) -> int:
        return self._tape.allocate(size, Factor.GRADIENTS, "fsdp2::reduce_scatter", stream=REDUCE_SCATTER_STREAM)

"""Follows the blocks of a dry run through PyTorch's memory history, and divides those at the peak into factors."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from calibrate.dryrun.hooks.factors import UNATTRIBUTED, factor_of
from calibrate.dryrun.hooks.owners import Completed, Owned
from calibrate.dryrun.hooks.tags import Tag, split
from calibrate.job.factors import NEVER, BufferLife, stack_lines
from predictor.events.events import Factor, Moment
from predictor.events.model_facts import first_names, has_modality, modality

When = tuple[int, Moment]
"""Step and moment."""
NO_DATE = 1 << 62
Own = dict[Factor, dict[int, Owned]]
"""The named tensors in a block, by factor and address."""


@dataclass(eq=False, slots=True)
class Block:
    """One block that the script allocated.

    Attributes:
        bytes: requested.
        order: number of its entry in the whole history.
        call: number of the operator call that requested it.
        born: step and moment of its allocation, and the time.
        died: of its free; :data:`NEVER` until then.
        brief: whether it was freed before any other call allocated.
    """

    address: int
    bytes: int
    order: int
    tag: Tag
    call: int
    frames: list[dict]
    born: When
    born_us: int
    died: When = NEVER
    died_us: int = NO_DATE
    brief: bool = False


class Top(NamedTuple):
    """The point with the most requested bytes: the entry's position, the bytes, and the blocks alive there."""

    position: int
    bytes: int
    alive: tuple[Block, ...]


class Peak(NamedTuple):
    """Requested bytes at the peak by factor, and by module and factor, and the code that reached it."""

    factors: dict[str, int]
    modules: dict[str, dict[str, int]]
    tag: Tag


class Blocks:
    """The blocks that are alive."""

    def __init__(self) -> None:
        self._alive: dict[int, Block] = {}
        self._entries = self._calls = 0
        self._last: tuple | None = None

    def follow(self, trace: Sequence[dict], live: int, least: int, when: Callable[[dict], When]) -> Top | None:
        """Follow the entries of a history. Returns their highest point, if it is above ``least``.

        Args:
            live: requested bytes alive before the first entry.
            when: step and moment of an entry.
        """
        at: int | None = None  # the highest entry
        freed: list[Block] = []  # after it
        for index, entry in enumerate(trace):
            if entry["action"] == "alloc":
                self._allocate(entry, self._entries + index, when(entry))
                live += entry["size"]
                if live > least:
                    at, least, freed = index, live, []
            elif entry["action"] == "free_completed":
                freed += self._free(entry, when(entry))
                live -= entry["size"]
        first, self._entries = self._entries, self._entries + len(trace)
        if at is None:
            return None
        return Top(at, least, tuple(block for block in (*self._alive.values(), *freed) if block.order <= first + at))

    def _allocate(self, entry: dict, order: int, born: When) -> None:
        tag, _ = split(entry.get("user_metadata") or "")
        if (tag, born) != self._last:
            self._calls, self._last = self._calls + 1, (tag, born)
        self._alive[entry["addr"]] = Block(entry["addr"], entry["size"], order, tag, self._calls,
                                           entry.get("frames", []), born, entry["time_us"])

    def _free(self, entry: dict, died: When) -> Iterator[Block]:
        block = self._alive.pop(entry["addr"], None)
        if block is not None:
            block.died, block.died_us, block.brief = died, entry["time_us"], block.call == self._calls
            yield block


def explain(top: Top, owned: Iterable[Owned], completed: Iterable[Completed]) -> Peak:
    """The highest point by factor and module. Bytes of no known purpose are :data:`UNATTRIBUTED`.

    Args:
        owned: tensors that exist at the end of the history.
        completed: gradients that were complete during it.
    """
    owners, gradients = _owners(top.alive, owned), _gradients(top.alive, completed)
    rows = [row for block in top.alive
            for row in _rows(block, owners.get(block.address, {}), block.address in gradients)]
    rows.append(("", UNATTRIBUTED, top.bytes - sum(block.bytes for block in top.alive)))  # blocks from before
    factors: Counter[str] = Counter()
    modules: dict[str, Counter[str]] = {}
    report_under = modality if any(has_modality(path) for path, _, _ in rows) else first_names
    for path, factor, size in rows:
        if size:
            factors[factor] += size
            modules.setdefault(report_under(path), Counter())[factor] += size
    newest = max(top.alive, key=lambda block: block.order)
    return Peak(dict(factors), {name: dict(parts) for name, parts in modules.items()}, newest.tag)


def _rows(block: Block, own: Own, is_gradient: bool) -> Iterator[tuple[str, str, int]]:
    """Module path, factor and size of a block; of a flat buffer, of each tensor in it that has a name."""
    factor = factor_of(_life(block, own, is_gradient))
    name, rest = UNATTRIBUTED if factor is None else factor.value, block.bytes
    parts = own.get(factor, {}).values() if factor else ()
    if len(parts) > 1 and sum(part.bytes for part in parts) <= block.bytes:
        for part in parts:
            yield part.module, name, part.bytes
            rest -= part.bytes
        yield "", name, rest
    else:
        owner = next((part.module for part in parts), "") if len(parts) == 1 else ""
        yield owner or block.tag.module, name, rest


def _life(block: Block, own: Own, is_gradient: bool) -> BufferLife:
    return BufferLife(
        block.tag.operator, block.tag.module, block.born, block.died, block.brief, block.tag.inside,
        stack_lines((frame["filename"], frame["name"]) for frame in block.frames),
        Factor.PARAMETERS in own,
        Factor.GRADIENTS in own or is_gradient or block.tag.gradient, Factor.OPTIMIZER_STATES in own)


def _owners(alive: Iterable[Block], owned: Iterable[Owned]) -> dict[int, Own]:
    """The tensors in each block that is never freed, by the block's address."""
    blocks = sorted((block for block in alive if block.died is NEVER), key=lambda block: block.address)
    result: dict[int, Own] = {}
    for tensor in owned:
        index = bisect.bisect_right(blocks, tensor.address, key=lambda block: block.address) - 1
        if index >= 0 and tensor.address < blocks[index].address + blocks[index].bytes:
            result.setdefault(blocks[index].address, {}).setdefault(tensor.factor, {})[tensor.address] = tensor
    return result


def _gradients(alive: Iterable[Block], completed: Iterable[Completed]) -> set[int]:
    """Addresses of the blocks that became a parameter's gradient."""
    blocks = {block.address: block for block in alive}
    found = ((gradient, blocks.get(gradient.address)) for gradient in completed)
    return {block.address for gradient, block in found
            if block is not None and block.born_us <= gradient.time_us <= block.died_us}

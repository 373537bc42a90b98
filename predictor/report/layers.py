"""Groups repeated layers into rows: ``layers.{0..31}.mlp`` is one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from predictor.events.events import Factor


@dataclass(frozen=True)
class LayerRow:
    """One layer, or ``count`` layers whose paths differ in one number, with the sum of their bytes by factor."""

    path: str
    count: int
    factors: Mapping[Factor, int]

    @property
    def bytes(self) -> int:
        return sum(self.factors.values())


def collapse(layers: Mapping[str, Mapping[Factor, int]]) -> list[LayerRow]:
    """Groups layers whose paths differ only in their first number. The largest rows come first."""
    groups: dict[str, list[tuple[int | None, Mapping[Factor, int]]]] = {}
    for path, factors in layers.items():
        parts = path.split(".")
        place = next((index for index, part in enumerate(parts) if part.isdecimal()), None)
        number = None if place is None else int(parts[place])
        key = path if place is None else ".".join([*parts[:place], "{}", *parts[place + 1:]])
        groups.setdefault(key, []).append((number, factors))
    rows = [LayerRow(put_together(key, [number for number, _ in members if number is not None]), len(members),
                     _total(members))
            for key, members in groups.items()]
    return sorted(rows, key=lambda row: (-row.bytes, row.path))


def put_together(key: str, numbers: Sequence[int]) -> str:
    """The path with its numbers in place of ``{}``: ``layers.{0..31}``. Without numbers the path is unchanged."""
    if not numbers:
        return key
    numbers = sorted(numbers)
    if len(numbers) == 1:
        text = str(numbers[0])
    elif numbers == list(range(numbers[0], numbers[-1] + 1)):
        text = f"{{{numbers[0]}..{numbers[-1]}}}"
    else:
        listed = [str(number) for number in numbers[:4]] + ["…"] * (len(numbers) > 4)
        text = f"{{{','.join(listed)}}}"
    return key.replace("{}", text, 1)


def _total(members: Sequence[tuple[int | None, Mapping[Factor, int]]]) -> dict[Factor, int]:
    present = {factor for _, factors in members for factor in factors}
    return {factor: sum(factors.get(factor, 0) for _, factors in members) for factor in Factor if factor in present}

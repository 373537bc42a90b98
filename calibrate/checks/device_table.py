"""Rows and cells of the Markdown tables of the check ``device``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIB = 1 << 20
SIDES = {"device": "a real GPU", "emulated": "an emulated GPU"}


def less(first: int | None, second: int | None) -> str:
    """``first`` less ``second`` in bytes, with its sign."""
    return "" if first is None or second is None else f"{first - second:+,}" if first != second else "0"


def mib(size: int | None) -> str:
    return "" if size is None else f"{size / MIB:,.1f}"


def mean(errors: Sequence[float]) -> str:
    """The mean of relative errors, and the worst."""
    return f"{sum(errors) / len(errors):.4%} ({max(errors):.4%})"


def table_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def table_header(*titles: str) -> str:
    return f"{table_row(*titles)}\n{table_row(*['---'] + ['---:'] * (len(titles) - 1))}"


@dataclass(frozen=True)
class Peaks:
    """One counter's peak of one job in bytes; None where it was not measured or is not predicted."""

    device: int | None
    emulated: int | None
    predicted: int | None

    @property
    def measured(self) -> int | None:
        """The peak on the real GPU; without one, the emulated peak."""
        return self.emulated if self.device is None else self.device

    def differences(self) -> dict[str, float]:
        """Relative difference of each pair of known peaks: first / second - 1."""
        pairs = {"emulated of device": (self.emulated, self.device),
                 "predicted of device": (self.predicted, self.device),
                 "predicted of emulated": (self.predicted, self.emulated)}
        return {name: first / second - 1 for name, (first, second) in pairs.items() if first is not None and second}


PAIRS = tuple(Peaks(1, 1, 1).differences())

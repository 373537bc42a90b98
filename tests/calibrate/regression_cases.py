"""Cases and comparisons made by hand, for the tests of regression reports."""

from __future__ import annotations

from calibrate.regression.cases import COUNTERS, Case
from calibrate.regression.compare import Comparison, Peak
from predictor.workload.workload import Workload

GIB = 1 << 30


def case(sequence: int = 1024, *, survived: bool = True, sizes: tuple[int | None, ...] = (100, 110, 120, None),
         capacity_bytes: int | None = None, **changes) -> Case:
    """LLaVA-1.5-7B on a GPU of 80 GB; the sequence length tells cases apart."""
    keys = {"model": "llava-1.5-7b", "sequence_length": sequence, "gpu": "h100-80gb", "rank": 0,
            "capacity_bytes": capacity_bytes} | changes.pop("keys", {})
    values = {"workload": Workload(**keys), "measured_on": "emulated", "gpu": "h100-80gb", "software": {"torch": "2.11.0"},
              "date": "2026-01-01", "completion": "immediate", "communicates": False, "survived": survived,
              "peaks": dict(zip(COUNTERS, sizes)), "moment": "backward", "step": 2, "file": "made.jsonl", "line": 1}
    return Case(**values | changes)


def compared(made: Case | None = None, predicted: tuple[int | None, ...] = (100, 110, 120, None), *, verdict: str | None = "fits",
             interval: tuple[int | None, int | None] = (None, None), estimate_bytes: int = 130, runtime_bytes: int = 10,
             moment: str = "backward") -> Comparison:
    """A comparison without error, but for what is changed."""
    made = made or case()
    peaks = {counter: Peak(made.peaks[counter] if made.survived else None, size, *interval)
             for counter, size in zip(COUNTERS, predicted)}
    return Comparison(
        case=made, peaks=peaks, moment=moment, step=2, module="", operator="aten::mm", factors={"parameters": predicted[1]},
        modules={"model": {"parameters": predicted[1]}}, capacity_bytes=made.workload.capacity, verdict=verdict,
        estimate_bytes=estimate_bytes, runtime_bytes=runtime_bytes, profile=None)

"""Says in words what the interval of each counter comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from predictor.answer.prediction import Bound, Prediction
from predictor.report.units import size_text

MEASURED_ON = {"device": "measured on a real GPU", "emulated": "measured on an emulated GPU", "assumed": "assumed"}


def interval_sources(prediction: Prediction) -> dict[str, str]:
    """Counter -> what its interval comes from, without a full stop. Counters without an interval are missing."""
    provenance = prediction.provenance
    profile, orders = provenance.get("profile") or {}, provenance.get("completion_orders")
    found = {"requested": _residuals(profile, "requested"), "allocated": _residuals(profile, "allocated"),
             "reserved": " and ".join(filter(None, (_residuals(profile, "reserved"), _orders(orders)))),
             "device": _device(provenance.get("runtime"))}
    bounds = {"requested": prediction.requested, "allocated": prediction.allocated, "reserved": prediction.reserved,
              "device": prediction.device}
    return {counter: source for counter, source in found.items() if source and _has_interval(bounds[counter])}


def lines(prediction: Prediction) -> list[str]:
    """The sentences of :func:`interval_sources`, one for all counters that have the same; empty without intervals."""
    counters: dict[str, list[str]] = {}
    for counter, source in interval_sources(prediction).items():
        counters.setdefault(source, []).append(counter)
    return [f"Interval of {_joined(names)} bytes: {source}." for source, names in counters.items()]


def _has_interval(bound: Bound | None) -> bool:
    return bound is not None and bound.low is not None


def _residuals(profile: Mapping[str, Any], counter: str) -> str:
    """The errors of a profile's held-out jobs, and how far they are widened; empty if it has none of this counter."""
    bounds = profile.get("relative", {}).get(counter)
    if bounds is None:
        return ""
    level = profile["level"][counter]
    errors = (f"errors of {profile['samples'][counter]:,} held-out jobs of {profile['name']} "
              f"({MEASURED_ON[profile['measured_on']]})")
    if level is not None:
        return f"{errors}, at a level of {level:.0%}"
    ways = [part["what"] for part in profile["outside"] if counter in part["counters"]]
    return (f"{errors}, widened to {bounds[0]:+.2%} and {bounds[1]:+.2%} because the profile did not cover "
            f"{_joined([_short(way) for way in ways])}")


def _joined(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _short(way: str) -> str:
    """A way in which a job is outside, without the values that were calibrated."""
    return way.partition(" (calibrated ")[0]


def _orders(orders: Mapping[str, int] | None) -> str:
    if orders is None:
        return ""
    return (f"the two extreme orders of GPU completion, which reserve {size_text(orders['low_bytes'])} and "
            f"{size_text(orders['high_bytes'])}")


def _device(runtime: Mapping[str, Any] | None) -> str:
    if runtime is None:
        return ""
    low, high = size_text(runtime["low_bytes"]), size_text(runtime["high_bytes"])
    measured_on = MEASURED_ON[runtime["measured_on"]]
    return f"the reserved interval, and {low} to {high} outside PyTorch's allocator ({measured_on})"

"""The sentences about what each interval comes from."""

from __future__ import annotations

from typing import Any

from predictor.answer.prediction import Bound
from predictor.report.interval_sources import interval_sources, lines
from tests.predictor.samples import GIB, prediction

WAYS = [{"what": "engine fsdp2 (calibrated with ddp)", "counters": ["requested", "reserved", "device"], "reason": ""},
        {"what": "allocator_conf x (calibrated with default), on which requested bytes do not depend",
         "counters": ["reserved", "device"], "reason": ""}]
PROFILE: dict[str, Any] = {
    "name": "mine.json", "measured_on": "device", "level": {"requested": 0.9, "reserved": 0.9},
    "samples": {"requested": 40, "reserved": 40}, "relative": {"requested": (-0.01, 0.01), "reserved": (-0.01, 0.03)},
    "outside": []}
RUNTIME = {"low_bytes": 0, "high_bytes": GIB, "measured_on": "assumed"}


def of(profile: dict[str, Any] | None, orders: dict[str, int] | None = None):
    """A prediction with an interval of every counter but allocated."""
    wide = Bound(45 * GIB, 44 * GIB, 46 * GIB)
    return prediction(requested=wide, reserved=wide, device=wide if profile else None,
                      provenance={"profile": profile, "completion_orders": orders, "runtime": RUNTIME})


def test_an_interval_of_a_covered_job_comes_from_held_out_jobs_at_a_level():
    said = interval_sources(of(PROFILE))
    assert said["requested"] == "errors of 40 held-out jobs of mine.json (measured on a real GPU), at a level of 90%"
    assert said["device"] == "the reserved interval, and 0 B to 1.00 GiB outside PyTorch's allocator (assumed)"
    assert "allocated" not in said


def test_a_wider_interval_names_what_widened_it_and_nothing_else():
    said = interval_sources(of(PROFILE | {"outside": WAYS, "level": {"requested": None, "reserved": None}}))
    assert said["requested"].endswith("widened to -1.00% and +1.00% because the profile did not cover engine fsdp2")
    assert said["reserved"].endswith("widened to -1.00% and +3.00% because the profile did not cover engine fsdp2 and "
                                     "allocator_conf x")


def test_without_a_profile_the_orders_of_completion_are_the_source():
    said = interval_sources(of(None, {"low_bytes": 44 * GIB, "high_bytes": 46 * GIB}))
    assert said == {"reserved": "the two extreme orders of GPU completion, which reserve 44.00 GiB and 46.00 GiB"}


def test_both_sources_of_reserved_bytes_are_named():
    said = interval_sources(of(PROFILE, {"low_bytes": 44 * GIB, "high_bytes": 46 * GIB}))["reserved"]
    assert said.startswith("errors of 40") and "90% and the two extreme orders" in said


def test_counters_with_one_source_share_a_line():
    assert lines(of(PROFILE))[0].startswith("Interval of requested and reserved bytes: errors of 40")


def test_a_prediction_without_intervals_has_no_sources():
    assert interval_sources(prediction()) == {}

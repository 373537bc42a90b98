"""Attribution of hand-made histories finds each change, with its exact bytes and operator."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest

from calibrate.attribution import Attribution, Extra, Outcome, attribute, from_run, from_snapshot
from calibrate.attribution.peak import Reason
from predictor.common.errors import InputError
from predictor.events.composed_run import Run
from predictor.events.events import FACTORS, MOMENTS, Buffers, EventList, Factor, Moment
from predictor.events.sizes import CONSTANT_TERM, SizeTable
from predictor.events.timeline import running_sum
from predictor.snapshot.reader import parse

LAYERS, OUTPUT, HIDDEN = 3, 4096, 16384


@dataclass(frozen=True)
class Line:
    """An allocation of ``size`` bytes (sign 1), or the free of the one with the same key (sign -1)."""

    sign: int
    key: str
    size: int
    operator: str
    module: str
    moment: Moment
    step: int
    factor: Factor = Factor.ACTIVATIONS


def story(steps: int = 3) -> list[Line]:
    """Parameters, then in each step a forward and backward through three layers, and an optimizer's states."""
    lines: list[Line] = []

    def come(key, size, operator, module, moment, step, factor=Factor.ACTIVATIONS):
        lines.append(Line(1, key, size, operator, module, moment, step, factor))

    def go(key, moment, step):
        lines.append(replace(next(line for line in lines if line.key == key), sign=-1, moment=moment, step=step))

    for layer in range(LAYERS):
        come(f"weight {layer}", 2 * OUTPUT, "to", f"layers.{layer}", Moment.INIT, 0, Factor.PARAMETERS)
    for step in range(1, steps + 1):
        for layer in range(LAYERS):
            come(f"out {layer} {step}", OUTPUT, "aten::mm", f"layers.{layer}.up", Moment.FORWARD, step)
            come(f"hidden {layer} {step}", HIDDEN, "aten::gelu", f"layers.{layer}.act", Moment.FORWARD, step)
        for layer in reversed(range(LAYERS)):
            come(f"grad {layer} {step}", HIDDEN, "aten::gelu_backward", f"layers.{layer}.act", Moment.BACKWARD, step)
            go(f"hidden {layer} {step}", Moment.BACKWARD, step)
            come(f"down {layer} {step}", OUTPUT, "aten::mm", f"layers.{layer}.up", Moment.BACKWARD, step)
            go(f"grad {layer} {step}", Moment.BACKWARD, step)
            go(f"out {layer} {step}", Moment.BACKWARD, step)
        for layer in range(LAYERS):
            if step == 1:
                come(f"state {layer}", OUTPUT, "adamw::exp_avg", "", Moment.OPTIMIZER_STEP, step,
                     Factor.OPTIMIZER_STATES)
            go(f"down {layer} {step}", Moment.OPTIMIZER_STEP, step)
    return lines


def at(lines: list[Line], key: str, sign: int = 1) -> int:
    return next(i for i, line in enumerate(lines) if line.key == key and line.sign == sign)


def run_of(lines: list[Line]) -> Run:
    """The lines as a composed run."""
    names: dict[str, int] = {}
    rows = {line.key: row for row, line in enumerate(line for line in lines if line.sign > 0)}
    made = [line for line in lines if line.sign > 0]

    def named(values) -> np.ndarray:
        return np.array([names.setdefault(value, len(names)) for value in values], dtype=np.int32)

    buffers = Buffers(
        size=np.arange(len(made), dtype=np.int32), stream=np.zeros(len(made), dtype=np.int8),
        factor=np.array([FACTORS.index(line.factor) for line in made], dtype=np.int8),
        module=named(line.module for line in made), operator=named(line.operator for line in made))
    sizes = np.array([line.size for line in made], dtype=np.int64)
    events = EventList(
        kind=np.array([line.sign for line in lines], dtype=np.int8),
        buffer=np.array([rows[line.key] for line in lines], dtype=np.int32),
        moment=np.array([MOMENTS.index(line.moment) for line in lines], dtype=np.int8),
        step=np.array([line.step for line in lines], dtype=np.int8),
        buffers=buffers, sizes=SizeTable((CONSTANT_TERM,), sizes[:, None]), names=tuple(names))
    return Run(events, 0, sizes, running_sum(events, sizes))


ATEN = {"to": "aten::empty_like", "adamw::exp_avg": "aten::zeros_like", "adamw::step": "aten::zeros"}
"""What allocates for the names that engines and optimizers are predicted under."""


def history(lines: list[Line], *more: dict) -> dict:
    """The lines as PyTorch would have recorded them."""
    addresses: dict[str, int] = {}
    entries = []
    for number, line in enumerate(lines):
        address = addresses.setdefault(line.key, 4096 * (1 + len(addresses)))
        operator = ATEN.get(line.operator, line.operator) if line.sign > 0 else ""
        text = {"moment": line.moment.value, "step": line.step, "module": line.module, "operator": operator}
        for action in ("alloc",) if line.sign > 0 else ("free_requested", "free_completed"):
            entries.append({"action": action, "addr": address, "size": line.size, "stream": 0, "time_us": number,
                            "frames": [], "user_metadata": json.dumps(text)})
    return {"segments": [], "device_traces": [[], [*entries, *more]]}


def explained(measured: list[Line], said: list[Line], *more: dict) -> Attribution:
    return attribute(from_snapshot(parse(history(measured, *more))), from_run(run_of(said)))


def found(attribution: Attribution) -> dict[Outcome, int]:
    return {outcome: count for outcome, count in attribution.count().items() if count}


def test_the_same_history_is_matched_whole_with_engine_names_and_all():
    attribution = explained(story(), story())
    assert found(attribution) == {Outcome.MATCHED: LAYERS * (1 + 4 * 3 + 1)}
    assert (attribution.at_peak().items, attribution.extras(), attribution.lifetimes()) == ((), [], [])


def test_both_sides_have_the_peak_of_the_running_sum():
    attribution = explained(story(), story())
    peak = LAYERS * (2 * OUTPUT + OUTPUT + HIDDEN + OUTPUT) + HIDDEN  # states are there from step 2 on
    assert attribution.recorded.peak_bytes == attribution.predicted.peak_bytes == peak
    assert attribution.recorded.highest()[2, Moment.BACKWARD] == peak


def with_workspace(size: int = 777, *, after: str = "down 2 2", dies_after: str = "grad 2 2") -> list[Line]:
    lines = story()
    where = at(lines, after)
    workspace = replace(lines[where], key="workspace", size=size)
    lines.insert(where + 1, workspace)
    lines.insert(at(lines, dies_after, -1) + 1, replace(workspace, sign=-1))
    return lines


def test_an_inserted_workspace_is_found():
    attribution = explained(with_workspace(), story())
    assert found(attribution) == {Outcome.MATCHED: LAYERS * 14, Outcome.DEVICE_ONLY: 1}
    assert attribution.extras() == [Extra(
        operator="aten::mm", module="layers.2.up", moment=Moment.BACKWARD, step=2, bytes=777, grows=False,
        output_bytes=OUTPUT, result_bytes=OUTPUT, alive_at_peak=False)]


def test_a_workspace_before_the_result_is_told_the_result_s_size():
    lines = story()
    where = at(lines, "down 1 3")
    lines[where:where] = [replace(lines[where], key="copy", size=55), replace(lines[where], key="copy", size=55, sign=-1)]
    assert [(extra.bytes, extra.output_bytes) for extra in explained(lines, story()).extras()] == [(55, OUTPUT)]


@pytest.mark.parametrize("before", [True, False])
def test_a_workspace_as_large_as_the_result_is_told_from_it_by_its_end(before):
    lines = story()
    where = at(lines, "down 2 2")
    workspace = replace(lines[where], key="workspace")
    lines.insert(where + (not before), workspace)
    lines.insert(where + 2, replace(workspace, sign=-1))
    attribution = explained(lines, story())
    assert found(attribution)[Outcome.DEVICE_ONLY] == 1 and attribution.lifetimes() == []
    row = int(np.flatnonzero(attribution.partner == -1)[0])
    assert attribution.recorded.died[row] - attribution.recorded.born[row] == 1 + before


def test_a_changed_size_is_found():
    lines = [replace(line, size=OUTPUT + 512) if line.key == "out 1 2" else line for line in story()]
    attribution = explained(lines, story())
    assert found(attribution) == {Outcome.MATCHED: LAYERS * 14 - 1, Outcome.OTHER_SIZE: 1}
    assert [(e.operator, e.module, e.bytes, e.grows, e.output_bytes) for e in attribution.extras()] == \
        [("aten::mm", "layers.1.up", 512, True, OUTPUT)]


def test_a_changed_size_of_an_engine_s_buffer_is_found_by_what_its_name_stands_for():
    lines = [replace(line, size=OUTPUT - 96) if line.key == "state 1" else line for line in story()]
    attribution = explained(lines, story())
    assert found(attribution) == {Outcome.MATCHED: LAYERS * 14 - 1, Outcome.OTHER_SIZE: 1}
    assert [(extra.bytes, extra.grows) for extra in attribution.extras()] == [(-96, True)]


def test_a_dropped_allocation_is_found():
    lines = [line for line in story() if line.key != "hidden 2 2"]
    attribution = explained(lines, story())
    assert found(attribution) == {Outcome.MATCHED: LAYERS * 14 - 1, Outcome.NEVER_CAME: 1}
    row, = (row for row in attribution.rows() if row.difference_bytes)
    assert (row.operator, row.factor, row.moment) == ("aten::gelu", Factor.ACTIVATIONS, Moment.FORWARD)
    assert (row.predicted, row.recorded, row.matched, row.difference_bytes) == (9, 8, 8, HIDDEN)


def test_a_buffer_of_no_bytes_is_not_expected():
    lines = story()
    lines.insert(5, replace(lines[5], key="empty", size=0))
    assert set(found(explained(story(), lines))) == {Outcome.MATCHED}


def test_a_buffer_that_lives_longer_is_found_and_counts_at_the_peak():
    lines = story()
    free = lines.pop(at(lines, "down 0 1", -1))
    lines.insert(at(lines, "down 0 3"), replace(free, moment=Moment.BACKWARD, step=3))
    attribution = explained(lines, story())
    lifetime, = attribution.lifetimes()
    assert (lifetime.operator, lifetime.module, lifetime.bytes) == ("aten::mm", "layers.0.up", OUTPUT)
    assert lifetime.later_by > 0
    item, = attribution.at_peak().items
    assert (item.why, item.difference_bytes) == (Reason.ALIVE_ONLY_MEASURED, -OUTPUT)


def test_frees_on_the_way_out_are_no_difference():
    lines = story()
    ends = [replace(line, sign=-1, moment=Moment.OPTIMIZER_STEP, step=3) for line in lines
            if line.sign > 0 and line.key.split()[0] in ("weight", "state")]
    assert explained(lines + ends, story()).lifetimes() == []


def test_an_engine_s_small_buffer_is_told_from_passing_ones_by_its_end():
    def stepping(lines: list[Line]) -> list[Line]:
        where = at(lines, "state 0")
        counter = Line(1, "counter", 4, "adamw::step", "", Moment.OPTIMIZER_STEP, 1, Factor.OPTIMIZER_STATES)
        return lines[:where] + [counter] + lines[where:]

    lines = stepping(story())
    where = at(lines, "counter")
    scalar = replace(lines[where], key="scalar", operator="aten::div")
    lines[where:where] = [scalar, replace(scalar, sign=-1)]
    attribution = explained(lines, stepping(story()))
    row = int(np.flatnonzero(attribution.partner == -1)[0])
    assert attribution.recorded.operator[row] == "aten::div" and attribution.lifetimes() == []


# --- sums ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_reasons_add_up_to_predicted_less_measured(seed):
    rng = random.Random(seed)
    measured, said = story(), story()
    for lines in (measured, said):
        for _ in range(4):
            key = rng.choice([line.key for line in lines if line.sign > 0])
            change, size = rng.choice(["drop", "size", "add"]), 512 * rng.randint(1, 99)
            if change == "drop":
                lines[:] = [line for line in lines if line.key != key]
            elif change == "size":
                lines[:] = [replace(line, size=size) if line.key == key else line for line in lines]
            else:
                lines.insert(at(lines, key), replace(lines[at(lines, key)], key=f"extra {rng.random()}", size=size))
    attribution = explained(measured, said)
    peak = attribution.at_peak()
    gap = attribution.predicted.peak_bytes - attribution.recorded.peak_bytes
    assert peak.difference_bytes == gap
    assert sum(item.difference_bytes for item in peak.items) + peak.elsewhere_bytes == gap
    assert sum(two - one for _, one, two in peak.by_reason().values()) + peak.elsewhere_bytes == gap
    assert peak.matched_bytes + sum(item.measured_bytes for item in peak.items) == peak.measured_bytes
    assert peak.matched_bytes + sum(item.predicted_bytes for item in peak.items) == peak.predicted_there_bytes


def test_rows_count_every_allocation_of_both_sides_once():
    measured, said = with_workspace(), [line for line in story() if line.key != "out 0 1"]
    rows = explained(measured, said).rows()
    assert sum(row.recorded for row in rows) == sum(line.sign > 0 for line in measured)
    assert sum(row.predicted_bytes for row in rows) == sum(line.size for line in said if line.sign > 0)


def test_a_workspace_at_the_measured_peak_is_all_that_the_peaks_differ_by():
    lines = with_workspace(after="grad 2 2", dies_after="grad 2 2")
    peak = explained(lines, story()).at_peak()
    assert [(item.why, item.operator, item.difference_bytes) for item in peak.items] == \
        [(Reason.DEVICE_ONLY, "aten::gelu_backward", -777)]
    assert (peak.elsewhere_bytes, peak.difference_bytes) == (0, -777)


def test_a_predicted_peak_elsewhere_is_a_reason_of_its_own():
    lines = [replace(line, size=40 * HIDDEN) if line.key == "state 0" else line for line in story(1)]
    said = [replace(line, size=OUTPUT) if line.key == "state 0" else line for line in lines]
    said = [replace(line, size=9 * HIDDEN) if line.key == "hidden 2 1" else line for line in said]
    peak = explained(lines, said).at_peak()
    assert peak.moment is Moment.OPTIMIZER_STEP
    assert peak.elsewhere_bytes == peak.predicted_bytes - peak.predicted_there_bytes > 0
    assert [item.why for item in peak.items] == [Reason.OTHER_SIZE]


# --- jobs that ended early, and bad histories ---------------------------------------------------------


def test_what_a_job_that_ran_out_of_memory_did_not_get_to_is_no_difference():
    lines = story()[: at(story(), "down 1 2")]
    refused = {"action": "oom", "device_free": 0, "size": 1, "stream": 0, "time_us": 999, "frames": [],
               "user_metadata": ""}
    attribution = explained(lines, story(), refused)
    made = sum(line.sign > 0 for line in lines)
    assert found(attribution) == {Outcome.MATCHED: made, Outcome.NOT_REACHED: LAYERS * 14 - made}
    assert attribution.lifetimes() == []


@pytest.mark.parametrize(("lines", "message"), [
    ([], "has no history"),
    ([replace(story()[0], sign=-1)], "begins in the middle"),
    ([replace(story()[0], step=-1)], "does not say which moment"),
])
def test_a_history_that_cannot_be_used_is_one_clear_line(lines, message):
    with pytest.raises(InputError, match=message):
        from_snapshot(parse(history(lines)))


# --- many ------------------------------------------------------------------------------------------------


def test_of_ten_thousand_allocations_that_nothing_tells_apart_those_that_were_not_predicted_are_counted():
    rng = np.random.default_rng(0)
    sizes = 512 * rng.integers(1, 6, 10_000)
    lines = [Line(1, str(i), int(size), "aten::mul", "", Moment.FORWARD, 1) for i, size in enumerate(sizes)]
    measured = from_snapshot(parse(history(lines)))
    said = from_run(run_of([line for i, line in enumerate(lines) if i % 97]))
    count = attribute(measured, said).count()
    assert count[Outcome.NEVER_CAME] == 0 and count[Outcome.DEVICE_ONLY] == len(range(0, 10_000, 97))

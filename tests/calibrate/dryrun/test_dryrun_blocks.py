"""Blocks of a dry run: the highest point of a history, and factors that hide no byte."""

import pytest

pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st

from calibrate.dryrun.hooks.blocks import Blocks, explain
from calibrate.dryrun.hooks.owners import Owned
from predictor.events.events import Factor, Moment

WHEN = (1, Moment.FORWARD)


@st.composite
def histories(draw) -> list[list[dict]]:
    """Entries of consecutive histories; frees follow their allocations."""
    alive: dict[int, int] = {}
    parts: list[list[dict]] = [[]]
    for number in range(draw(st.integers(1, 40))):
        if alive and draw(st.booleans()):
            address = draw(st.sampled_from(sorted(alive)))
            parts[-1].append({"action": "free_completed", "addr": address, "size": alive.pop(address), "time_us": number})
        else:
            address, alive[1000 * number] = 1000 * number, draw(st.integers(1, 900))
            parts[-1].append({"action": "alloc", "addr": address, "size": alive[address], "time_us": number, "frames": []})
        if draw(st.integers(0, 9)) == 0:
            parts.append([])
    return parts


@given(histories())
def test_the_highest_point_has_the_blocks_that_are_alive_there(parts):
    blocks, best, before = Blocks(), 0, {}
    for trace in parts:
        top = blocks.follow(trace, sum(before.values()), best, lambda _: WHEN)
        alive, highest = dict(before), (best, None, None)
        for index, entry in enumerate(trace):
            if entry["action"] == "alloc":
                alive[entry["addr"]] = entry["size"]
            else:
                del alive[entry["addr"]]
            if sum(alive.values()) > highest[0]:
                highest = sum(alive.values()), index, dict(alive)
        before = alive
        if highest[1] is None:
            assert top is None
        else:
            assert (top.bytes, top.position, {block.address: block.bytes for block in top.alive}) == highest
            best = top.bytes


@given(histories(), st.integers(0, 5000))
def test_the_factors_and_the_modules_add_up_to_the_highest_point(parts, unknown):
    blocks = Blocks()
    top = blocks.follow(parts[0], unknown, -1, lambda _: WHEN)  # unknown: blocks from before the history
    if top is not None:
        peak = explain(top, [], [])
        assert sum(peak.factors.values()) == top.bytes
        assert sum(sum(split.values()) for split in peak.modules.values()) == top.bytes
        assert peak.factors.get("unattributed", 0) >= unknown


def test_a_flat_buffer_is_split_by_the_tensors_in_it():
    entry = {"action": "alloc", "addr": 4096, "size": 1000, "time_us": 1, "frames": []}
    top = Blocks().follow([entry], 0, 0, lambda _: (0, Moment.INIT))
    owned = [Owned(4096, 600, Factor.PARAMETERS, "encoder"), Owned(4696, 300, Factor.PARAMETERS, "head")]
    assert explain(top, owned, []).modules == {"encoder": {"parameters": 600}, "head": {"parameters": 300},
                                               "model": {"parameters": 100}}

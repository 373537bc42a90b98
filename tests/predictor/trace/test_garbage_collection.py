"""Control of Python's garbage collector during a trace."""

from __future__ import annotations

import gc

import pytest

from predictor.trace.garbage_collection import collection_paused, existing_objects_skipped


@pytest.fixture
def nothing_frozen():
    """As in a user's process."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_no_collection_runs_inside_and_they_run_again_after_an_error():
    with pytest.raises(KeyError), collection_paused():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_what_is_frozen_is_given_back(nothing_frozen):
    with existing_objects_skipped():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_what_somebody_else_froze_stays_frozen(nothing_frozen):
    gc.freeze()
    with existing_objects_skipped():
        pass
    assert gc.get_freeze_count() > 0

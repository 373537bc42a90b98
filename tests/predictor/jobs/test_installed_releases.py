"""A model without a shipped formula is traced with what is installed, and predicted for its releases."""

from __future__ import annotations

import json
from importlib import metadata

import pytest

from predictor import Workload
from predictor.common.errors import OtherReleases
from predictor.formula import installed_versions
from predictor.jobs import dispatch
from predictor.workload.keys import PINNED
from tests.predictor.small import small_llama

pytestmark = pytest.mark.usefixtures("formula_cache")
INSTALLED = "5.16.1"


@pytest.fixture
def job(tmp_path, monkeypatch) -> Workload:
    """A job where another release of transformers claims to be installed."""
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: INSTALLED if name == "transformers" else real(name))
    monkeypatch.setattr(installed_versions, "versions", lambda: PINNED | {"transformers": INSTALLED, "python": "3.11.1"})
    path = tmp_path / "llama.json"
    path.write_text(json.dumps(small_llama()))
    return Workload(model=str(path), sequence_length=64)


def test_the_installed_releases_are_predicted_if_none_are_given(job):
    assert dict(dispatch.prepare(job).workload.versions) == PINNED | {"transformers": INSTALLED}


def test_given_releases_are_not_replaced(job):
    with pytest.raises(OtherReleases, match="transformers 5.16.1 is installed, but tracing for 5.17.0 needs that version"):
        dispatch.prepare(job.replace(versions=PINNED))

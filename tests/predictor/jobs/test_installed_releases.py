"""A model without a shipped formula is traced with what is installed, and predicted for its releases."""

from __future__ import annotations

import json
from importlib import metadata

import numpy as np
import pytest

from predictor import Workload
from predictor.answer.predict import predict
from predictor.answer.remedies import remedies
from predictor.common.errors import OtherReleases
from predictor.formula import installed_versions, interpreter
from predictor.jobs import dispatch
from predictor.plan.plan import plan, workload_of
from predictor.workload.keys import PINNED
from predictor.workload.samples import Samples
from tests.predictor.small import small_llama

pytestmark = pytest.mark.usefixtures("formula_cache")
INSTALLED = "5.16.1"


@pytest.fixture
def job(tmp_path, monkeypatch) -> Workload:
    """A job without a formula, where another release of transformers claims to be installed.

    No interpreter is chosen, whatever ``--python`` a test before has given to a command in this process.
    """
    interpreter.CHOSEN.set(None)
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "cache"))
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: INSTALLED if name == "transformers" else real(name))
    monkeypatch.setattr(installed_versions, "versions", lambda: PINNED | {"transformers": INSTALLED, "python": "3.11.1"})
    path = tmp_path / "llama.json"
    path.write_text(json.dumps(small_llama()))
    return Workload(model=str(path), sequence_length=64)


def test_the_installed_releases_are_predicted_if_none_are_given(job):
    assert dict(dispatch.prepare(job).workload.versions) == PINNED | {"transformers": INSTALLED}


def test_given_releases_are_not_replaced(job):
    with pytest.raises(OtherReleases, match="tracing for transformers 5.17.0 needs these releases, and here is transformers 5.16.1: install them"):
        dispatch.prepare(job.replace(versions=PINNED))


def test_all_batches_of_samples_are_predicted_for_the_installed_releases(job):
    samples = Samples(np.array([40, 64, 64]), np.zeros(3, dtype=int))
    found = predict(job.replace(sequence_length=None, per_device_train_batch_size=2), samples=samples)
    assert found.workload["versions"] == PINNED | {"transformers": INSTALLED}


def test_remedies_are_for_the_releases_that_the_job_was_traced_with(job):
    """Nothing more is traced for them, so the formula of the usual releases does not exist."""
    short = job.replace(capacity_bytes=predict(job).peak_requested_bytes, per_device_train_batch_size=1)
    assert [remedy for remedy in remedies(short) if remedy.fits or remedy.needs_trace]


def test_a_plan_is_for_the_releases_that_are_installed(job):
    made = plan({"model": job.model, "sequence_length": 64, "gpu": "rtx-4090", "per_device_train_batch_size": 2})
    assert made.proposed and dict(workload_of(made.proposed).versions) == PINNED | {"transformers": INSTALLED}


def test_advice_to_give_releases_is_an_option_that_can_be_typed(job):
    with pytest.raises(OtherReleases, match="or give --versions transformers=5.16.1$"):
        dispatch.prepare(job.replace(versions=PINNED))

"""The kernel of attention in a formula's key, by release."""

from __future__ import annotations

import pytest

from predictor import Workload
from predictor.common import gpus
from predictor.formula.formula_key import formula_key
from predictor.model.request import Request
from predictor.workload.keys import PINNED


@pytest.mark.parametrize(("attention", "transformers", "kernel"), [
    ("eager", PINNED["transformers"], ""), ("eager", "4.46.0", ""), ("eager", "4.43.4", "flash"), ("sdpa", "4.43.4", "flash"),
])
def test_a_vision_tower_of_older_releases_has_sdpa_beside_eager_attention(attention, transformers, kernel):
    versions = PINNED | {"torch": "2.4.1", "transformers": transformers}
    asked = Workload(model="llava-1.5-7b", sequence_length=1024, images_per_sample=1, attn_implementation=attention,
                     versions=versions)
    key = formula_key(Request.of(asked).on(gpus.find("h100-80gb")))
    assert key.sdpa_backend == kernel

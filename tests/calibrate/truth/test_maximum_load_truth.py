"""The largest batch and the longest sequence of a training job survive on an emulated GPU, and one more runs out of memory."""

from __future__ import annotations

import json

import pytest

from calibrate.checks.maximum_load import searches
from tests.calibrate.small_jobs import needs_emulator
from tests.predictor.outside import outside_bytes
from tests.predictor.small import small_config
from tests.predictor.small_models import TEXT

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

SHARE_BYTES = 150 << 20
"""Of PyTorch."""
LLAVA = small_config(max_position_embeddings=65_536)


@pytest.mark.parametrize(("document", "keys"), [
    (TEXT["llama"], {}),
    (LLAVA, {"zero_stage": 2, "data_parallel_size": 2}),
    (TEXT["llama"], {"engine": "fsdp2", "data_parallel_size": 2}),
    (LLAVA, {"engine": "ddp", "data_parallel_size": 2, "allocator_conf": "expandable_segments:True"}),
], ids=["torch", "zero2", "fsdp2", "ddp"])
def test_the_maximum_load_survives_and_the_next_larger_dies(tmp_path, document, keys):
    (tmp_path / "config.json").write_text(json.dumps(document))
    engine = "zero2" if "zero_stage" in keys else keys.get("engine", "torch")
    found = list(searches({"mode": "training", "model": str(tmp_path), "sequence_length": 64, "gpu": "h100-80gb",
                           "per_device_train_batch_size": 16, "capacity_bytes": SHARE_BYTES + outside_bytes(engine, keys.get("data_parallel_size", 1))} | keys))
    assert {"batch", "sequence"} <= {search["what"] for search in found}
    for search in found:
        assert [died is None for died in search["outcomes"]] == [True, False], search

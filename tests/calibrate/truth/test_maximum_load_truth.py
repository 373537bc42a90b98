"""The largest batch and the longest sequence of a training job survive on an emulated GPU, and one more runs out of memory."""

from __future__ import annotations

import json

import pytest

from calibrate.measure.measure import measure
from predictor.answer.predict import predict
from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES
from predictor.workload.workload import Workload
from tests.calibrate.small_jobs import needs_emulator
from tests.predictor.small import small_config
from tests.predictor.small_models import TEXT

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

SHARE_BYTES = 150 << 20
"""Of PyTorch."""
BATCH = "per_device_train_batch_size"
LLAVA = small_config(max_position_embeddings=65_536)


@pytest.mark.parametrize(("document", "keys"), [
    (TEXT["llama"], {}),
    (LLAVA, {"zero_stage": 2, "data_parallel_size": 2}),
    (TEXT["llama"], {"engine": "fsdp2", "data_parallel_size": 2}),
    (LLAVA, {"engine": "ddp", "data_parallel_size": 2, "allocator_conf": "expandable_segments:True"}),
], ids=["torch", "zero2", "fsdp2", "ddp"])
def test_the_maximum_load_survives_and_the_next_larger_dies(tmp_path, document, keys):
    (tmp_path / "config.json").write_text(json.dumps(document))
    asked = Workload(**{"model": str(tmp_path), "sequence_length": 64, BATCH: 16, "gpu": "h100-80gb", "profile": "none",
                        "capacity_bytes": SHARE_BYTES + ASSUMED_RUNTIME_BYTES} | keys)
    found = predict(asked, maximum_load=True).maximum_load

    def survives(**changes) -> bool:
        return measure(asked.replace(capacity_bytes=SHARE_BYTES, **changes)).job.out_of_memory is None

    most, expandable = found.per_device_train_batch_size, found.per_device_train_batch_size_expandable
    assert [survives(**{BATCH: size}) for size in (most, most + 1)] == [True, False]
    if expandable is not None:
        conf = {"allocator_conf": "expandable_segments:True"}
        assert [survives(**conf, **{BATCH: size}) for size in (expandable, expandable + 1)] == [True, False]
    if not found.search_limits:
        longest = found.sequence_length
        assert [survives(sequence_length=tokens) for tokens in (longest, longest + 1)] == [True, False]

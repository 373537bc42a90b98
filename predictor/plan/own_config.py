"""The user's own DeepSpeed config at the stages and the offloading that a plan tries.

A plan of a job that has such a config keeps everything else in it, such as bucket sizes and ``overlap_comm``, because
the user's changed files will have it too.
"""

from __future__ import annotations

from typing import Any

from predictor.common.value_types import thaw
from predictor.workload.deepspeed_settings import BATCH_KEYS, SAME_AS, with_zero
from predictor.workload.workload import Workload

SIZES = ("train_batch_size", *(theirs for theirs, ours in SAME_AS.items() if ours in BATCH_KEYS))
"""Keys of a config that follow the plan's shapes: ``auto`` in place of a number."""
SECTIONS = {"optimizer": "optim", "tensor_parallel": "tensor_parallel_size"}
"""Section of a config -> key of a workload; without the section the framework's own argument decides."""
OFFLOADING = {"offload_optimizer": ("optimizer", "all"), "offload_param": ("parameters", "all")}
"""Section of ``zero_optimization`` -> values of the workload's key ``offload`` that switch it on."""


def on_own_config(keys: dict[str, Any], present: Workload | None) -> dict[str, Any]:
    """The keys of a setting under DeepSpeed with the user's own config, changed to the setting's stage and offloading.

    Other settings stay as they are, and so do all settings if the user has no config.

    Args:
        keys: a setting's keys of a workload.
        present: the user's present configuration; None if it is unknown.
    """
    if present is None or present.deepspeed is None or keys.get("deepspeed") is not None or (
            keys.get("engine") != "deepspeed" or keys.get("zero_stage") is None):
        return keys
    own_dtype = {} if "dtype" in present.filled_in else {"dtype": present.dtype}
    document = {name: "auto" if name in SIZES and isinstance(item, int) else item
                for name, item in thaw(present.deepspeed).items()
                if name not in SECTIONS or keys.get(SECTIONS[name]) in (None, getattr(present, SECTIONS[name]))}
    zero = with_zero(document)["zero_optimization"]
    sections = {}
    for section, values in OFFLOADING.items():
        theirs, on = zero.get(section) or {}, keys.get("offload") in values
        if on != (theirs.get("device", "none") != "none"):
            sections[section] = {"pin_memory": True, **theirs, "device": "cpu"} if on else {**theirs, "device": "none"}
    return {**own_dtype, **keys, "deepspeed": with_zero(document, **sections, stage=keys["zero_stage"])}

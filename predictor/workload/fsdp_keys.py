"""The keys of ``fsdp``: how FSDP2 wraps and shards a model, under the names of PyTorch and accelerate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.common import numbers
from predictor.common.suggestions import quoted
from predictor.common.value_types import Choice, Flag, Invalid, NotYetSupported, Table
from predictor.workload.lora_keys import Names

NO_SPLIT_MODULES = "_no_split_modules"
"""Placeholder for the layer classes that the model itself names (``TRANSFORMER_BASED_WRAP``). accelerate 1.15 stops if
the model does not contain a class that it names, as with LLaVA: give the classes there."""
EMBEDDINGS = ("get_input_embeddings", "get_output_embeddings")
"""Placeholders for the modules that accelerate also wraps (1.15, utils/fsdp_utils.py, ``fsdp2_prepare_model``)."""
HEAD = "lm_head"


class _Reshard(Flag):
    """Value type of ``reshard_after_forward`` of ``fully_shard``; a number of ranks is not supported."""

    def check(self, value: Any) -> bool:
        if isinstance(value, int) and not isinstance(value, bool):
            raise Invalid(f"{quoted(value)} is not supported yet: resharding to fewer ranks; use true or false")
        return super().check(value)

    def from_text(self, text: str) -> bool:
        ranks = numbers.whole(text)
        return super().from_text(text) if ranks is None else self.check(ranks)


_ON_GPU = NotYetSupported("parameters and states stay on the GPU; leave it out")
DEFAULTS: dict[str, Any] = {"reshard_after_forward": None, "param_dtype": None, "reduce_dtype": None,
                            "sync_each_batch": False, "wrap": "layers",
                            "transformer_layer_cls_to_wrap": (NO_SPLIT_MODULES,)}
VALUE_TYPE = Table({
    "reshard_after_forward": _Reshard(),
    "param_dtype": Choice(("bf16",), {"fp16": "use bf16", "fp32": "leave it out"}),
    "reduce_dtype": Choice(("bf16", "fp32"), {"fp16": "use bf16 or fp32"}), "sync_each_batch": Flag(),
    "wrap": Choice(("layers", "accelerate")), "transformer_layer_cls_to_wrap": Names(pattern=False),
    "cpu_offload": _ON_GPU, "offload_policy": _ON_GPU,
    "mesh": NotYetSupported("one mesh of all ranks is predicted, neither HSDP nor tensor parallelism; leave it out"),
    "ignored_params": NotYetSupported("every parameter is sharded; leave it out"),
    "shard_placement_fn": NotYetSupported("parameters are sharded on their first dimension; leave it out"),
}, DEFAULTS)


def reshards(keys: Mapping[str, Any], path: str) -> bool:
    """True if the FSDP unit at a module path ("" for the root) frees its unsharded parameters after forward."""
    if keys["wrap"] == "accelerate" and (not path or path.startswith(HEAD)):
        return False
    return bool(path) if keys["reshard_after_forward"] is None else keys["reshard_after_forward"]

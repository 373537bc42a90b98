"""What releases of transformers do differently, as far as a trace calls it: one function a difference.

Each function acts by the installed release, reads nothing else of it, and names the releases that were read.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from predictor.common.errors import InputError, NotPredicted

CHECKPOINTING_DEFAULTS = {"every_n_layers": 1, "offload": False}
"""Options of ``gradient_checkpointing_enable`` beside ``gradient_checkpointing_kwargs`` in 5.17; 4.57 has none."""


def checkpointing_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that ``gradient_checkpointing_enable`` of the installed release takes (modeling_utils.py).

    Raises:
        InputError: the release lacks one that differs from its default.
    """
    import transformers

    known = inspect.signature(transformers.PreTrainedModel.gradient_checkpointing_enable).parameters
    for name, value in options.items():
        if name not in known and value != CHECKPOINTING_DEFAULTS[name]:
            raise InputError(f"gradient_checkpointing_kwargs {name}: transformers {transformers.__version__} does not "
                             "have it: leave it out, or use a newer transformers")
    return {name: value for name, value in options.items() if name in known}


def image_features(output: Any) -> Any:
    """The features of images that ``get_image_features`` returns, one tensor or a list of them.

    4.57 returns them alone (models/llava/modeling_llava.py), 5.17 as ``pooler_output``.
    """
    return getattr(output, "pooler_output", output)


def check_flash_attention(integration: ModuleType) -> None:
    """Checks that the release calls the flash-attn package as traces expect (5.17: integrations/flash_attention.py).

    4.57 decides about autocast inside ``flash_attention_forward``.

    Raises:
        InputError: it does not.
    """
    import transformers

    if not hasattr(integration, "get_target_dtype"):
        raise NotPredicted(f"attn_implementation flash_attention_2: not predicted for transformers "
                           f"{transformers.__version__} yet: give sdpa, or use transformers 5.17")

"""NEFTune's noise on the embeddings (``neftune_noise_alpha``), as Hugging Face's Trainer adds it, by its own hook.

Source: transformers 5.17, integrations/neftune.py (``neftune_post_forward_hook``, ``activate_neftune``).
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

ALPHA = 5.0
"""The noise's magnitude, on which no allocation depends."""


def apply(model) -> None:
    """Adds noise to the output of a model's embeddings while it trains; in place.

    Call it after checkpointing was set up, as the Trainer does. peft then makes the embeddings' output a leaf that
    requires a gradient, and the noise is added to that.
    """
    embeddings = model.get_input_embeddings()
    embeddings.neftune_noise_alpha = ALPHA
    embeddings.register_forward_hook(_hook())


def _hook():
    own = "transformers.integrations.neftune"
    module = import_module(own if find_spec(own) else "transformers.trainer_utils")  # where it was until 4.57
    return module.neftune_post_forward_hook

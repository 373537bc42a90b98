"""The loss of Hugging Face's Trainer with ``label_smoothing_factor`` (``loss: label_smoothing``), by its own function.

Source: transformers 5.17, trainer.py (``Trainer.compute_loss``) and trainer_pt_utils.py (``LabelSmoother``).
"""

from __future__ import annotations

from typing import Any

LABEL_SMOOTHING = "label_smoothing"
FACTOR, TOKENS = 0.1, 1
"""Values on which no allocation depends: the factor, and the number of labels that the loss is divided by."""


def apply(model) -> None:
    """Makes a model return that loss alone; in place. The model itself gets no labels and computes none.

    Call it after autocast wrapped the forward: the Trainer computes outside. Only logits of models for causal language
    modelling are shifted, not those of models of images and text.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.trainer_pt_utils import LabelSmoother

    forward, smoother = model.forward, LabelSmoother(FACTOR)
    shifts = type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()

    def smoothed(*args: Any, labels: Any, **kwargs: Any) -> Any:
        outputs = forward(*args, **kwargs)
        return smoother(outputs, labels, shift_labels=shifts, num_items_in_batch=TOKENS)

    model.forward = smoothed

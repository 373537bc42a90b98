"""Inputs for audio models: spectrograms that fill the model's whole window.

The feature extractor pads shorter clips to the window (transformers 5.17,
models/whisper/feature_extraction_whisper.py: padding to ``n_samples``). A shorter clip therefore has a spectrogram of
the same size, and only fills fewer tokens.
"""

from __future__ import annotations

from typing import Any

import torch


def clips(model: Any, number: int) -> dict[str, torch.Tensor]:
    """Spectrograms and masks of ``number`` clips that fill the window of a transformers model.

    The encoder's second convolution makes one position of two columns (models/whisper/modeling_whisper.py,
    WhisperEncoder.forward).
    """
    config = getattr(model.config, "audio_config", model.config)
    columns = 2 * config.max_source_positions
    return {"input_features": torch.empty(number, config.num_mel_bins, columns, dtype=model.dtype, device="meta"),
            "feature_attention_mask": torch.ones(number, columns, dtype=torch.int32)}


def tokens(model: Any) -> int:
    """Placeholder tokens of a clip that fills the window, as the model's audio tower computes them."""
    tower = next(module for module in model.modules() if hasattr(module, "_get_feat_extract_output_lengths"))
    lengths = clips(model, 1)["feature_attention_mask"].sum(-1)
    return int(tower._get_feat_extract_output_lengths(lengths)[1])

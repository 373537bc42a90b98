"""What a model's feature extractor makes of a clip of sound: a spectrogram that fills the model's window.

Shorter clips are padded to the window (transformers 5.17, models/whisper/feature_extraction_whisper.py: padding to
``n_samples``), so the same floats go in; they only fill fewer tokens.
"""

from __future__ import annotations

import torch


def clips(model: torch.nn.Module, number: int) -> dict[str, torch.Tensor]:
    """So many clips of the model's whole window; each column of the spectrogram is two positions of the encoder's
    second convolution (models/whisper/modeling_whisper.py, WhisperEncoder.forward)."""
    config = getattr(model.config, "audio_config", model.config)
    columns = 2 * config.max_source_positions
    return {"input_features": torch.empty(number, config.num_mel_bins, columns, dtype=model.dtype, device="meta"),
            "feature_attention_mask": torch.ones(number, columns, dtype=torch.int32)}


def tokens(model: torch.nn.Module) -> int:
    """Placeholder tokens of such a clip, asked of the model's own tower."""
    tower = next(module for module in model.modules() if hasattr(module, "_get_feat_extract_output_lengths"))
    lengths = clips(model, 1)["feature_attention_mask"].sum(-1)
    return int(tower._get_feat_extract_output_lengths(lengths)[1])

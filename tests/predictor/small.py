"""A LLaVA of a few hundred thousand parameters, for tests that need a real model."""

from __future__ import annotations

TEXT = {"hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 320, "max_position_embeddings": 256}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
          "image_size": 28, "patch_size": 14, "projection_dim": 16}


def small_config(**text) -> dict:
    """A ``config.json`` of the LLaVA architecture; 4 tokens an image."""
    return {"model_type": "llava", "image_token_index": 319, "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default", "tie_word_embeddings": False,
            "text_config": {"model_type": "llama"} | TEXT | text,
            "vision_config": {"model_type": "clip_vision_model"} | VISION}


def small_llava(*, recipe: str = "finetune", device: str = "meta", attn_implementation: str = "sdpa", **text):
    """The model in bf16, in training mode, with the recipe's parameters trainable."""
    import torch
    from transformers import AutoConfig, LlavaForConditionalGeneration

    from predictor.model.parser import select_trainable

    document = small_config(**text)
    config = AutoConfig.for_model(document.pop("model_type"), **document)
    with torch.device(device):
        model = LlavaForConditionalGeneration._from_config(config, dtype=torch.bfloat16,
                                                           attn_implementation=attn_implementation)
    model.train()
    select_trainable(model, recipe)
    return model


def inputs_of(model):
    """What feeds a model."""
    from predictor.model.model_config import ModelConfig
    from predictor.trace.inputs import Inputs

    return Inputs(ModelConfig("model", model.config.to_dict()), model)


def facts_of(model):
    """The facts of a model."""
    from predictor.model.parser import describe

    return describe(model, inputs_of(model).tokens_per_image)


def traced_at(model, shape, *, padding: str = "none", sdpa_backend: str = "cudnn", **settings):
    """One micro-step of a model."""
    from predictor.trace.trace import trace

    inputs = inputs_of(model)
    return trace(model, inputs.batch(shape, padding), inputs.options, sdpa_backend=sdpa_backend, **settings)


def small_llama(**keys) -> dict:
    """A ``config.json`` of a language model alone."""
    return {"model_type": "llama", "tie_word_embeddings": False} | TEXT | keys

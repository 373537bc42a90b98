"""Small models and helpers for the tests of inference."""

from __future__ import annotations

from predictor.workload.workload import Workload
from tests.predictor.small import small_config
from tests.predictor.small_models import LLAMA, TEXT

LLAVA = small_config(max_position_embeddings=1024)
MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 64} | LLAMA
GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 1, "n_head": 4,
        "vocab_size": 320, "n_positions": 128}
MODELS = {"llama": TEXT["llama"], "llava": LLAVA, "mistral": MISTRAL, "bert": TEXT["bert"], "t5": TEXT["t5"],
          "odd": TEXT["llama"] | {"intermediate_size": 90}, "gpt2": GPT2}
TALK = [{"tokens": 300, "new_tokens": 8}, {"role": "tool", "tokens": 200, "new_tokens": 8}]


def asked(model: str, **keys) -> Workload:
    """A workload of inference, without a calibration."""
    return Workload(**{"model": model, "mode": "inference", "profile": "none"} | keys)

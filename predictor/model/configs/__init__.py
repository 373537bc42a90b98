"""Configurations of the known models, as published on the Hugging Face hub; ``preprocessors`` has image settings.

Those of the models of 2025 and 2026 were read from the copies in github.com/hlky/dinoml_v2 at 6b8c0ac. Of Qwen3.5 the
model cards have the language models, and github.com/huggingface/pytorch-image-models/pull/2765 has the vision towers.
"""

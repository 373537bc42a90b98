"""Builds the user's model on the meta device: configurations, adapters, quantization and tensor parallelism.

Known limitations:

- Adapters are LoRA of peft, on linear layers and embeddings only.
- Quantization is bitsandbytes' 4 and 8 bits; a ``quantization_config`` in ``config.json`` is rejected.
- Tensor parallelism needs a ``tp_plan`` in transformers whose styles have been compared with GPUs, and a degree that
  divides all heads and sharded weights.
- FSDP2 units inside each other, and ``wrap: accelerate`` with tied embeddings, are rejected.
- The user's own model code must give the same model at all shapes. Changes in files that it imports do not invalidate
  its cached formula.
"""

"""Traces one training step, one evaluation, or one call of ``generate`` on the meta device, as CUDA would allocate it.

Known limitations:

- CUDA paths and allocations are those of PyTorch 2.11; hooks are those of DeepSpeed 0.19.8, transformers 5.17,
  liger-kernel 0.8.5 and flash-attn 2.8.
- Floating-point values are unknown: ``.item()`` of a float reads 0, and ``torch.equal`` of floats is False.
- The workspaces of cuDNN's convolutions are not modelled.
- bitsandbytes' 8-bit layers are traced as if no activation exceeds ``llm_int8_threshold``.
- flash-attn has not been compared with measurements.
- Generation is greedy, does not stop early, has prompts of equal length, and needs a decoder-only model.
"""

"""Measures what only a device shows: memory of the CUDA context and libraries, and workspaces of single operators.

Known limitations:

- Operators are attention (bf16, three fused kernels) and convolutions of vision towers, at a fixed list of shapes.
- Libraries' memory is a difference of the whole device's used memory, so other processes must not use the device.
- Without NVML the memory before the first CUDA call, and so the context's, is unknown.
"""

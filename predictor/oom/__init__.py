"""Explains PyTorch's out-of-memory errors from a log, a prediction, and a memory snapshot.

Known limitations:

- PyTorch rounds the sizes in its messages to 0.01 of their unit, so every size carries its rounding error.
- A message does not tell the allocator's settings, nor how the idle memory in its cache is divided.
- The traceback tells the moment only where it passes through PyTorch's, DeepSpeed's or a framework's own functions.
"""

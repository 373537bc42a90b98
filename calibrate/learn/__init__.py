"""Learns formulas from recorded jobs with any engine, any optimizer and any script.

Known limitations:

- A job is recorded for three optimizer steps; later ones are left out.
- A formula covers shapes of batch, sequence and images only. A workload is learned with one image size.
- Each symbol has 1 to 12 recorded values.
- A size that no polynomial explains is interpolated linearly; its error at left-out shapes is stated.
- Jobs that run out of GPU memory, or come so near it that PyTorch releases segments, are rejected.
- If a library frees a block later because another stream used it, the history does not say which stream; another one
  is assumed.
"""

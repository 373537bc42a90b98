"""Formulas: traced events whose sizes are functions of the shape, with their fitting, files and lookup.

Known limitations:

- A formula holds for one regime: shapes whose event lists are equal. Other shapes are traced again.
- Fitted sizes must be exact polynomials of the shape or known workspaces; otherwise the regime is narrowed.
- Tracing needs torch and transformers of the versions that the workload names: installed, or in the environment that
  ``--python`` names.
- Recurrent layers (``torch.nn.RNN`` and its like) and experts that run one after another are not traced.
- On GPUs below compute capability 8.0, bf16, quantization and Liger's kernels are rejected.
- Packed rows that reach a sliding window are rejected.
- A learned formula interpolates sizes that no function explains, and extrapolates with a note.
"""

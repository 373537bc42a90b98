"""Engines: pure functions from a traced micro-step to the events of a whole training run.

Each engine has a file of its own: a plain loop, DDP, FSDP2, and DeepSpeed's ZeRO stages. ``compose`` holds the parts
that all of them use.

Known limitations:

- ZeRO-3 is predicted for models with one parameter dtype, partitioned after they are whole on the GPU (no
  ``zero.Init``).
- Settings that are not modelled whatever the model are lines of ``predictor.workload.contradictions.NOT_PREDICTED``.
- DDP with trainable parameters that get no gradient is rejected, as are sharded weights that are frozen or shared.
- FSDP2 rejects units whose trainable parameters differ in dtype, and reductions in a narrower dtype.
- bitsandbytes optimizers reject tensors of 2**31 elements or more.
- Three optimizer steps and at most three micro-steps of each are composed; later ones are assumed to be alike.
"""

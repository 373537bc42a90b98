"""Runs the user's own script on an emulated GPU and reports its memory.

Known limitations:

- The emulated GPU runs no kernels, so results of the script have no meaning, and only memory is reported.
- Scripts that compile kernels for the GPU with ``torch.compile`` are rejected.
- Each process sees one GPU. With ``world_size``, one process acts as one rank; collectives move no data, and gathered
  objects are copies of its own.
- At most 256 process groups get a NCCL id.
- Steps are counted by PyTorch's optimizer hooks. A backward between two optimizer steps separates them.
"""

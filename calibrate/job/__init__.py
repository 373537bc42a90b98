"""The code inside the process of a measured job: device, reference loop, engines, memory history.

Known limitations:

- A training job runs three optimizer steps; all its micro-batches are the same batch.
- Weights are small random numbers, so losses and gradients have no meaning. Only sizes are measured.
- The other ranks of a job exist only under torchrun. Otherwise a fake process group, or NCCL on the emulated GPU,
  stands for them.
- DDP without torchrun, alone or with tensor parallelism, is measured only on the emulated GPU.
- Tensor parallelism is measured with the engines ``torch`` and ``ddp``, and with DeepSpeed's AutoTP.
"""

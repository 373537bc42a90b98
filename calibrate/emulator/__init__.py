"""An emulated GPU: real training jobs, run for their memory, with no GPU.

PyTorch's host code decides every allocation; kernels only fill memory. So small
libraries stand in for CUDA's: they book memory, answer questions about the
device, and let kernels do nothing. The caching allocator, its statistics and
its out-of-memory errors are PyTorch's own.

    env = calibrate.emulator.environment(gpu="h100-80gb")
    subprocess.run([sys.executable, "job.py"], env={**os.environ, **env})

Known limits: no CUDA context, no NCCL buffers, no private workspaces of cuDNN;
values of floating-point tensors read back as zero; see `twins` for integers.
"""

from .job_environment import environment, is_emulated

__all__ = ["environment", "is_emulated"]

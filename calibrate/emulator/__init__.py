"""An emulated GPU: real training jobs, run for their memory, with no GPU.

PyTorch's host code decides every allocation; kernels only fill memory. So small
libraries (csrc/) stand in for CUDA's: they book memory, answer questions about
the device, and let kernels do nothing. The caching allocator, its statistics and
its out-of-memory errors are PyTorch's own.

    env = calibrate.emulator.environment(Machine(gpu="h100-80gb"))
    subprocess.run([sys.executable, "job.py"], env={**os.environ, **env})

    python -m calibrate.emulator run --gpu h100-80gb -- python job.py

Known limits:
- No CUDA context, no buffers of NCCL and no private workspaces of cuDNN (attention,
  convolutions) unless injected (see `injection`), no memory of cuBLAS beyond
  PyTorch's own workspace, no cuSOLVER (which is refused).
- Values of floating-point tensors read back as zero, apart from inputs and
  scalars that are known; those of integers are true where `twins` can follow.
  Printing a CUDA tensor shows zeros. Threads that a job starts by itself read
  zeros too.
- A second process (a monitor) sees no memory used.
"""

from calibrate.emulator.injection import Injection
from calibrate.emulator.job_environment import (
    H100,
    Machine,
    environment,
    event_completion,
    events_complete_at_once,
    is_emulated,
)

__all__ = ["H100", "Injection", "Machine", "environment", "event_completion", "events_complete_at_once", "is_emulated"]

"""An emulated GPU. It runs real training jobs without a GPU, to measure their memory.

PyTorch's host code decides every allocation; kernels only fill memory. So small
libraries (csrc/) replace CUDA's: they count allocated memory, report the
device's properties, and let kernels do nothing. The caching allocator, its
statistics and its out-of-memory errors are PyTorch's own.

    env = calibrate.emulator.environment(Machine(gpu="h100-80gb"))
    subprocess.run([sys.executable, "job.py"], env={**os.environ, **env})

    python -m calibrate.emulator run --gpu h100-80gb -- python job.py

Known limitations:

- Not emulated: memory of the CUDA context, buffers of NCCL, private workspaces
  of cuDNN (attention, convolutions) unless injected (see `injection`), memory of
  cuBLAS beyond PyTorch's own workspace. cuSOLVER calls fail.
- Floating-point tensors read back as zero, apart from inputs and scalars with
  known values. Printing a CUDA tensor shows zeros.
- Integer tensors read back their true values where `host_values` can follow
  the operators. In threads that a job starts by itself they read back as zero.
- Events complete by a rule: at once, after N launches, or at a synchronization.
  On a real GPU they complete at some time between the first and the last.
- Collectives move no data.
- Another process (a monitor) sees no memory in use.
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

"""A campaign: the short jobs that calibrate one device.

``design`` chooses the jobs, ``settings`` lists those with other engines, recipes and models, ``run`` and ``torchrun``
run them, ``rows`` keeps the measurements, ``consistency`` checks that all of them come from one device and one
software.

Known limitations:

- What no job measures is in :mod:`.settings`. On a real GPU, DDP is measured under torchrun only.
- Under torchrun every job runs with all ranks; jobs from a file (``--jobs-from``) run without torchrun only.
- The memory of NCCL's communicators is measured under torchrun or on an emulated GPU.
- A campaign has one device, one release of peakcast and one version of torch, CUDA, cuDNN, transformers and DeepSpeed.
- A job that is predicted not to fit is skipped.
"""

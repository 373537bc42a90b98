"""The GPUs that can be stood in for, by name."""

import difflib
from dataclasses import dataclass

from predictor.errors import InputError

MIB = 2**20
KIB = 2**10


@dataclass(frozen=True)
class Architecture:
    """What every GPU of one compute capability has in common.

    Source: CUDA C++ Programming Guide, "Technical Specifications per Compute
    Capability"; sizes in bytes.
    """

    major: int
    minor: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_per_multiprocessor: int

    @property
    def shared_per_block_optin(self) -> int:
        """Bytes of shared memory a kernel can ask for (1 KiB is the system's, from 8.0 on)."""
        return self.shared_per_multiprocessor - (KIB if self.major >= 8 else 0)


VOLTA = Architecture(7, 0, 2048, 32, 96 * KIB)
TURING = Architecture(7, 5, 1024, 16, 64 * KIB)
AMPERE = Architecture(8, 0, 2048, 32, 164 * KIB)
AMPERE_GEFORCE = Architecture(8, 6, 1536, 16, 100 * KIB)
ADA = Architecture(8, 9, 1536, 24, 100 * KIB)
HOPPER = Architecture(9, 0, 2048, 32, 228 * KIB)
BLACKWELL = Architecture(10, 0, 2048, 32, 228 * KIB)
BLACKWELL_GEFORCE = Architecture(12, 0, 1536, 24, 100 * KIB)


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU. `capacity_bytes` is what the driver offers (the total of
    cudaMemGetInfo), below the figure in the product's name; it moves by some MiB
    between driver versions."""

    key: str
    name: str
    architecture: Architecture
    capacity_bytes: int
    multiprocessors: int
    l2_bytes: int


#: Totals as PyTorch or deviceQuery print them for such a card, in MiB where they
#: print no bytes: h100-80gb, h200, l40s: `total_memory` of torch.cuda.get_device_properties;
#: a100-40gb, l4, rtx-5090: deviceQuery; b200: pytorch/ao#4002; the others from the
#: "total capacity" of out-of-memory messages, to about 10 MiB.
GPUS = (
    Gpu("h100-80gb", "NVIDIA H100 80GB HBM3", HOPPER, 81090 * MIB, 132, 50 * MIB),
    Gpu("h100-pcie", "NVIDIA H100 PCIe", HOPPER, 81090 * MIB, 114, 50 * MIB),
    Gpu("h100-nvl", "NVIDIA H100 NVL", HOPPER, 95346 * MIB, 132, 60 * MIB),
    Gpu("gh200-96gb", "NVIDIA GH200 480GB", HOPPER, 96768 * MIB, 132, 60 * MIB),
    Gpu("h200", "NVIDIA H200", HOPPER, 143156 * MIB, 132, 60 * MIB),
    Gpu("b200", "NVIDIA B200", BLACKWELL, 182630 * MIB, 148, 126 * MIB),
    Gpu("a100-40gb", "NVIDIA A100-SXM4-40GB", AMPERE, 42298834944, 108, 40 * MIB),
    Gpu("a100-80gb", "NVIDIA A100-SXM4-80GB", AMPERE, 81154 * MIB, 108, 40 * MIB),
    Gpu("l40s", "NVIDIA L40S", ADA, 45589 * MIB, 142, 96 * MIB),
    Gpu("l4", "NVIDIA L4", ADA, 23583784960, 58, 48 * MIB),
    Gpu("a10", "NVIDIA A10", AMPERE_GEFORCE, 22589 * MIB, 72, 6 * MIB),
    Gpu("a6000", "NVIDIA RTX A6000", AMPERE_GEFORCE, 48677 * MIB, 84, 6 * MIB),
    Gpu("rtx-5090", "NVIDIA GeForce RTX 5090", BLACKWELL_GEFORCE, 33677180928, 170, 96 * MIB),
    Gpu("rtx-4090", "NVIDIA GeForce RTX 4090", ADA, 24217 * MIB, 128, 72 * MIB),
    Gpu("rtx-3090", "NVIDIA GeForce RTX 3090", AMPERE_GEFORCE, 24268 * MIB, 82, 6 * MIB),
    Gpu("t4", "Tesla T4", TURING, 15102 * MIB, 40, 4 * MIB),
    Gpu("v100-32gb", "Tesla V100-SXM2-32GB", VOLTA, 32510 * MIB, 80, 6 * MIB),
)


def find_gpu(key: str) -> Gpu:
    """The GPU of that name (`h100-80gb`); an unknown one names the nearest known."""
    known = {gpu.key: gpu for gpu in GPUS}
    if key.lower() in known:
        return known[key.lower()]
    near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.0)[0]
    raise InputError(f"unknown GPU {key!r}: did you mean {near!r}? known: {', '.join(known)}")

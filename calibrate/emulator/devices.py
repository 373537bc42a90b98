"""Properties of emulated GPUs beyond `predictor.common.gpus`: numbers of the architecture, and the product's name."""

from dataclasses import dataclass

from predictor.common import gpus
from predictor.common.errors import InputError

MIB = 2**20


@dataclass(frozen=True)
class Architecture:
    """Properties that all GPUs of one compute capability share.

    Source: CUDA C++ Programming Guide, "Technical Specifications per Compute
    Capability". The level-2 cache is that of the largest product.
    """

    blocks_per_multiprocessor: int
    l2_bytes: int


ARCHITECTURES = {
    (7, 0): Architecture(32, 6 * MIB),
    (7, 5): Architecture(16, 4 * MIB),
    (8, 0): Architecture(32, 40 * MIB),
    (8, 6): Architecture(16, 6 * MIB),
    (8, 9): Architecture(24, 96 * MIB),
    (9, 0): Architecture(32, 50 * MIB),
    (10, 0): Architecture(32, 126 * MIB),
    (10, 3): Architecture(32, 126 * MIB),
    (12, 0): Architecture(24, 96 * MIB),
}

#: The driver's name of a GPU, where it is not "NVIDIA" and our name in capitals.
PRODUCTS = {
    "h100-80gb": "NVIDIA H100 80GB HBM3",
    "h100-pcie-80gb": "NVIDIA H100 PCIe",
    "a100-40gb": "NVIDIA A100-SXM4-40GB",
    "a100-80gb": "NVIDIA A100-SXM4-80GB",
    "h100-96gb": "NVIDIA H100 96GB",
    "gh200": "NVIDIA GH200 480GB",
    "b300": "NVIDIA B300 SXM6 AC",
    "rtx-pro-6000": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "rtx-5090": "NVIDIA GeForce RTX 5090",
    "rtx-5080": "NVIDIA GeForce RTX 5080",
    "rtx-4090": "NVIDIA GeForce RTX 4090",
    "rtx-4080": "NVIDIA GeForce RTX 4080",
    "rtx-4070-ti": "NVIDIA GeForce RTX 4070 Ti",
    "rtx-3090": "NVIDIA GeForce RTX 3090",
    "rtx-3080": "NVIDIA GeForce RTX 3080",
    "rtx-3060": "NVIDIA GeForce RTX 3060",
    "t4": "Tesla T4",
    "v100-16gb": "Tesla V100-SXM2-16GB",
    "v100-32gb": "Tesla V100-SXM2-32GB",
}


@dataclass(frozen=True)
class EmulatedGpu:
    """A GPU model with all properties that a program can query."""

    gpu: gpus.Gpu
    architecture: Architecture
    product: str


def find_gpu(name: str) -> EmulatedGpu:
    """The GPU model with a name such as `h100-80gb`.

    Raises:
        InputError: the name is unknown (the message suggests the nearest), or its architecture is not emulated.
    """
    gpu = gpus.find(name)
    if gpu.compute_capability not in ARCHITECTURES:
        raise InputError(f"gpu {gpu.name}: its architecture is not emulated")
    product = PRODUCTS.get(gpu.name, "NVIDIA " + gpu.name.replace("-", " ").upper())
    return EmulatedGpu(gpu, ARCHITECTURES[gpu.compute_capability], product)

"""A table of GPU models by name: usable memory and the hardware numbers on which kernels depend."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from predictor.common.errors import InputError
from predictor.common.suggestions import nearest, quoted


@dataclass(frozen=True)
class Gpu:
    """One GPU model.

    Attributes:
        name: the name to write in a workload.
        capacity_bytes: the total that ``cudaMemGetInfo`` reports: the advertised memory minus the share of driver and
            ECC. It varies by some tens of MiB with the driver version.
        memory_label: the advertised memory, such as "80 GB".
        compute_capability: major and minor.
        multiprocessors: number of streaming multiprocessors.
        threads_per_multiprocessor: the most threads that one multiprocessor holds at once.
        shared_memory_bytes: shared memory of one multiprocessor.
        shared_memory_block_bytes: the most shared memory that one thread block can opt in to.
        measured: whether ``capacity_bytes`` was read on a device. Otherwise it is assumed.
        source: the web page with that reading.
    """

    name: str
    capacity_bytes: int
    memory_label: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int
    shared_memory_bytes: int
    shared_memory_block_bytes: int
    measured: bool
    source: str


DEFAULT = "h100-80gb"
"""The GPU whose kernels and workspaces are predicted when the user names none."""
NODE = 8
"""GPUs that a node usually has."""
MIB, GIB = 1 << 20, 1 << 30
# Compute capability -> threads of a multiprocessor, KiB of shared memory of a multiprocessor and of a block (CUDA
# programming guide).
LIMITS = {(7, 0): (2048, 96, 96), (7, 5): (1024, 64, 64), (8, 0): (2048, 164, 163), (8, 6): (1536, 100, 99),
          (8, 9): (1536, 100, 99), (9, 0): (2048, 228, 227), (10, 0): (2048, 228, 227), (10, 3): (2048, 228, 227),
          (12, 0): (1536, 100, 99)}
AMPERE = (8, 0)
"""The first compute capability with bf16, and with flash attention in PyTorch."""
ASSUMED = "assumed: no figure read on a device was found"
GITHUB = "https://github.com/"


def _gpu(name: str, capacity: float, label: str, capability: tuple[int, int], multiprocessors: int,
         source: str = "") -> Gpu:
    threads, per_multiprocessor, per_block = LIMITS[capability]
    return Gpu(name, int(capacity), label, capability, multiprocessors, threads, per_multiprocessor << 10,
               per_block << 10, bool(source), GITHUB + source if source else ASSUMED)


# Measured capacities with two decimals of GiB are from an out-of-memory message of PyTorch (RTX PRO 6000: of another
# program), those in MiB from torch.cuda.get_device_properties, those in bytes from deviceQuery. Assumed ones are the
# memory that nvidia-smi shows, less what CUDA lacks of it on GPUs of the same generation.
TABLE = (
    _gpu("h100-80gb", 79.11 * GIB, "80 GB", (9, 0), 132, "vllm-project/vllm/issues/27508"),
    _gpu("h100-pcie-80gb", 81_008 * MIB, "80 GB", (9, 0), 114),
    _gpu("h100-nvl", 93.00 * GIB, "94 GB", (9, 0), 132, "ali-vilab/VACE/issues/56"),
    _gpu("h100-96gb", 94.88 * GIB, "96 GB", (9, 0), 132),
    _gpu("gh200", 94.88 * GIB, "96 GB", (9, 0), 132, "Lightning-AI/litgpt/issues/1892"),
    _gpu("h20", 97_285 * MIB, "96 GB", (9, 0), 78),
    _gpu("h200", 143_156 * MIB, "141 GB", (9, 0), 132,
         "ai-bot-pro/achatbot/blob/main/deploy/modal/src/llm/vllm/vlm/skywork_r1v.py"),
    _gpu("b200", 182_642 * MIB, "180 GB", (10, 0), 148,
         "ai-bot-pro/achatbot/blob/main/deploy/modal/src/llm/vllm/vlm/skywork_r1v.py"),
    _gpu("b300", 274_320 * MIB, "288 GB", (10, 3), 148),
    _gpu("a100-40gb", 42_298_834_944, "40 GB", (8, 0), 108, "bottlerocket-os/bottlerocket/pull/3873"),
    _gpu("a100-80gb", 79.25 * GIB, "80 GB", (8, 0), 108, "levihsu/OOTDiffusion/issues/235"),
    _gpu("a800-80gb", 79.33 * GIB, "80 GB", (8, 0), 108, "hahnyuan/PB-LLM/issues/3"),
    _gpu("l40s", 44.40 * GIB, "48 GB", (8, 9), 142, "vllm-project/vllm/issues/23230"),
    _gpu("l20", 44.53 * GIB, "48 GB", (8, 9), 92, "Tencent-Hunyuan/HunyuanCustom/issues/36"),
    _gpu("l4", 23_583_784_960, "24 GB", (8, 9), 58, "bottlerocket-os/bottlerocket-kernel-kit/pull/139"),
    _gpu("a10", 21.99 * GIB, "24 GB", (8, 6), 72, "zai-org/CogVLM/issues/236"),
    _gpu("a10g", 22_723 * MIB, "24 GB", (8, 6), 80),
    _gpu("a40", 44.35 * GIB, "48 GB", (8, 6), 84),
    _gpu("rtx-pro-6000", 94.97 * GIB, "96 GB", (12, 0), 188, "antirez/ds4/issues/431"),
    _gpu("rtx-a6000", 48_676 * MIB, "48 GB", (8, 6), 84),
    _gpu("rtx-a5000", 23.68 * GIB, "24 GB", (8, 6), 64, "zai-org/GLM-4/issues/730"),
    _gpu("rtx-a4500", 19.70 * GIB, "20 GB", (8, 6), 56),
    _gpu("rtx-a4000", 15.73 * GIB, "16 GB", (8, 6), 48),
    _gpu("rtx-6000-ada", 48_622 * MIB, "48 GB", (8, 9), 142),
    _gpu("rtx-5090", 33_677_180_928, "32 GB", (12, 0), 170, "aikitoria/open-gpu-kernel-modules/issues/1"),
    _gpu("rtx-5080", 15.47 * GIB, "16 GB", (12, 0), 84),
    _gpu("rtx-4090", 23.64 * GIB, "24 GB", (8, 9), 128, "ali-vilab/VGen/issues/104"),
    _gpu("rtx-4080", 16_049 * MIB, "16 GB", (8, 9), 76, "brainglobe/brainglobe.github.io/blob/main/"
         "docs/source/documentation/cellfinder/troubleshooting/speed-up.md"),
    _gpu("rtx-4070-ti", 11.73 * GIB, "12 GB", (8, 9), 60, "OpenLMLab/LOMO/issues/17"),
    _gpu("rtx-3090", 23.69 * GIB, "24 GB", (8, 6), 82, "vllm-project/vllm/issues/2140"),
    _gpu("rtx-3080", 9.78 * GIB, "10 GB", (8, 6), 68, "zai-org/CogVideo/issues/34"),
    _gpu("rtx-3060", 11.75 * GIB, "12 GB", (8, 6), 28, "smy20011/dreambooth-gui/issues/78"),
    _gpu("t4", 14.56 * GIB, "16 GB", (7, 5), 40, "Zheng-Chong/CatVTON/issues/133"),
    _gpu("v100-16gb", 15.77 * GIB, "16 GB", (7, 0), 80),
    _gpu("v100-32gb", 31.74 * GIB, "32 GB", (7, 0), 80, "haotian-liu/LLaVA/issues/812"),
)
GPUS = {gpu.name: gpu for gpu in TABLE}

# A name without a memory size means the size that is most common in training clusters.
ALSO_CALLED = {"h100": "h100-80gb", "h100-sxm": "h100-80gb", "h100-80gb-hbm3": "h100-80gb", "h800": "h100-80gb",
               "h100-pcie": "h100-pcie-80gb", "h200-141gb": "h200", "b200-180gb": "b200", "a100": "a100-80gb",
               "a100-sxm4-40gb": "a100-40gb", "a100-sxm4-80gb": "a100-80gb", "a100-sxm": "a100-80gb",
               "a100-80gb-pcie": "a100-80gb", "a100-pcie-40gb": "a100-40gb", "a800": "a800-80gb", "v100": "v100-32gb",
               "v100-sxm2-32gb": "v100-32gb", "a6000": "rtx-a6000", "rtx-6000-ada-generation": "rtx-6000-ada",
               "v100-sxm2-16gb": "v100-16gb", "v100-pcie-16gb": "v100-16gb", "gh200-96gb": "gh200",
               "gh200-480gb": "gh200", "b300-sxm6-ac": "b300", "rtx-pro-6000-blackwell": "rtx-pro-6000",
               "rtx-pro-6000-blackwell-workstation-edition": "rtx-pro-6000",
               "rtx-pro-6000-blackwell-server-edition": "rtx-pro-6000", "a5000": "rtx-a5000", "a4500": "rtx-a4500",
               "a4000": "rtx-a4000", "5090": "rtx-5090", "5080": "rtx-5080", "4090": "rtx-4090", "4080": "rtx-4080",
               "4070-ti": "rtx-4070-ti", "3090": "rtx-3090", "3080": "rtx-3080", "3060": "rtx-3060"}


def of_other_sizes(name: str) -> tuple[Gpu, ...]:
    """The GPUs with half or twice the memory, about, that a name may mean, too: "a100" has 80 GB, but some have 40.

    Raises:
        InputError: no such GPU is known.
    """
    meant, stem = find(name), re.sub(r"[\s_]+", "-", name.strip().lower())
    return tuple(gpu for gpu in TABLE if re.fullmatch(rf"{re.escape(stem)}-\d+gb", gpu.name)
                 and abs(math.log2(gpu.capacity_bytes / meant.capacity_bytes)) > 0.5 and stem != meant.name)


def as_large(capacity_bytes: int) -> tuple[Gpu, ...]:
    """The GPUs whose memory is within one percent of so many bytes, the nearest first.

    One GPU's total varies so much with its driver and its share of reserved memory.
    """
    near = (gpu for gpu in TABLE if are_alike(gpu.capacity_bytes, capacity_bytes))
    return tuple(sorted(near, key=lambda gpu: abs(gpu.capacity_bytes - capacity_bytes)))


def are_alike(first_bytes: int, second_bytes: int) -> bool:
    """Whether two totals may be those of the same GPU model: they differ by at most one percent."""
    return abs(first_bytes - second_bytes) <= second_bytes // 100


def is_known(name: str) -> bool:
    """Whether :func:`find` knows the name."""
    try:
        find(name)
    except InputError:
        return False
    return True


def find(name: str) -> Gpu:
    """The GPU with a name. Case, spaces, underscores and the maker's name do not matter.

    Raises:
        InputError: no such GPU is known.
    """
    bare = re.sub(r"[\s_-]+", "-", name.strip().lower())
    bare = re.sub(r"^(nvidia-|tesla-|geforce-)+", "", bare)
    for spelling in (bare, bare.replace("-gb", "gb"), re.sub(r"^rtx(?=\d)", "rtx-", bare),
                     re.sub(r"(?<=[a-z]\d{3})(?=\d\dgb)", "-", bare)):
        spelling = ALSO_CALLED.get(spelling, spelling)
        if spelling in GPUS:
            return GPUS[spelling]
    series = bare.partition("-")[0]
    alike = [known for known in GPUS if known.partition("-")[0] == series] or GPUS  # before those of similar letters
    raise InputError(f"unknown GPU {quoted(name)}{nearest(bare, alike)}: known are {', '.join(GPUS)}; "
                     "or give capacity_bytes")

"""Memory that the CUDA context and libraries take at their first use, outside PyTorch's allocator.

One process uses one library after another, and reads the device's used memory after each from NVML or the driver. The
part beyond PyTorch's segments belongs to the context and the libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from calibrate.job import device
from calibrate.measure.device_choice import MeasuringDevice
from calibrate.probes import device_query
from calibrate.records.record import Device
from predictor.common.json_dataclasses import from_plain, to_plain

REPEATED = "all of it again"


@dataclass(frozen=True)
class StageMemory:
    """Memory of the device after a stage; bytes.

    Attributes:
        nvml_bytes: used memory of the whole device according to NVML; None without NVML.
        driver_bytes: the same according to ``cudaMemGetInfo``; None before there is a context.
        reserved_bytes: the part that PyTorch's allocator holds.
    """

    stage: str
    nvml_bytes: int | None
    driver_bytes: int | None
    reserved_bytes: int

    @property
    def beyond_bytes(self) -> int | None:
        """Used memory beyond PyTorch's segments; None if unknown."""
        used = self.driver_bytes if self.nvml_bytes is None else self.nvml_bytes
        return None if used is None else used - self.reserved_bytes


@dataclass(frozen=True)
class Libraries:
    """All stages in order, with the device and the software."""

    measured_on: str
    device: Device
    software: Mapping[str, str | None]
    uses: tuple[StageMemory, ...]

    def growth(self) -> list[tuple[str, int | None]]:
        """The growth of each stage beyond PyTorch's segments in bytes; None if unknown."""
        growth: list[tuple[str, int | None]] = []
        for before, after in zip(self.uses, self.uses[1:]):
            start, end = before.beyond_bytes, after.beyond_bytes
            growth.append((after.stage, None if start is None or end is None else end - start))
        return growth


def measure(where: MeasuringDevice) -> Libraries:
    """Measures in a fresh process; raises InputError as :func:`calibrate.probes.device_query.run_module`."""
    return from_plain(Libraries, device_query.run_module("calibrate.probes.libraries", where, where.events),
                      "the libraries")


def stages() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yields the name and action of each stage. Each action uses a GPU library or kernel that no earlier one used."""
    import torch
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def random(*shape: int, dtype=torch.bfloat16):
        return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_()

    def attention(backend: SDPBackend) -> None:
        with sdpa_kernel(backend):
            query, key, value = (random(2, 8, 512, 128) for _ in range(3))
            functional.scaled_dot_product_attention(query, key, value, is_causal=True).sum().backward()

    def step(*, foreach: bool | None = None, fused: bool | None = None) -> None:
        parameters = [random(1024, 1024, dtype=torch.float32) for _ in range(3)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        torch.optim.AdamW(parameters, foreach=foreach, fused=fused).step()

    yield "CUDA context", lambda: torch.empty(1, device="cuda")
    yield "elementwise, reductions, random numbers", lambda: functional.dropout(
        random(1024, 1024), 0.1).sum().backward()
    yield "cuBLAS, bf16", lambda: random(1024, 1024) @ random(1024, 1024)
    yield "cuBLAS, fp32", lambda: random(1024, 1024, dtype=torch.float32) @ random(1024, 1024, dtype=torch.float32)
    yield "cuBLASLt, bias", lambda: functional.linear(random(64, 1024), random(512, 1024), random(512)).sum().backward()
    yield "cuDNN, convolution", lambda: functional.conv2d(random(2, 3, 336, 336), random(1024, 3, 14, 14),
                                                          stride=14).sum().backward()
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        yield backend.name.lower().replace("_", " "), partial(attention, backend)
    labels = partial(torch.zeros, 64, dtype=torch.int64, device="cuda")
    yield "layer norm, cross entropy", lambda: functional.cross_entropy(
        functional.layer_norm(random(64, 32000), (32000,)), labels()).backward()
    yield "AdamW, foreach", lambda: step(foreach=True)
    yield "AdamW, fused", lambda: step(fused=True)


def _measure_here(events: str) -> dict[str, Any]:
    import torch

    uses = [StageMemory("before", device.nvml_used_bytes(0), None, 0)]
    actions = list(stages())
    for stage, action in [*actions, (REPEATED, lambda: [repeated() for _, repeated in actions])]:
        action()
        torch.cuda.synchronize()
        uses.append(StageMemory(stage, device.nvml_used_bytes(), device.used_bytes(), torch.cuda.memory_reserved()))
    return to_plain(Libraries(device.measured_on().value, device.describe(events), device.software(), tuple(uses)))


if __name__ == "__main__":
    import sys

    device_query.print_answer(partial(_measure_here, sys.argv[1]))

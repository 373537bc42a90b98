"""What the CUDA context and each library take of a device when they are first used, outside PyTorch's allocator.

One process does one thing after another, and looks at the device after each: what the driver and NVML call used, less
the segments that PyTorch holds, is the context's and the libraries'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from calibrate.job import device
from calibrate.measure.device_choice import Where
from calibrate.probes import device_query
from calibrate.records.record import Device
from predictor.common.json_dataclasses import from_plain, to_plain

AGAIN = "all of it again"


@dataclass(frozen=True)
class Use:
    """The device after a stage; bytes.

    Attributes:
        nvml_bytes: used memory of the whole device as NVML says it; None without NVML.
        driver_bytes: the same as ``cudaMemGetInfo`` says it; None before there is a context.
        reserved_bytes: of that, what PyTorch's allocator holds.
    """

    stage: str
    nvml_bytes: int | None
    driver_bytes: int | None
    reserved_bytes: int

    @property
    def beyond_bytes(self) -> int | None:
        """What is used beside PyTorch's segments; None where nothing tells."""
        used = self.driver_bytes if self.nvml_bytes is None else self.nvml_bytes
        return None if used is None else used - self.reserved_bytes


@dataclass(frozen=True)
class Libraries:
    """The stages in their order, on which device and with which software."""

    measured_on: str
    device: Device
    software: Mapping[str, str | None]
    uses: tuple[Use, ...]

    def growth(self) -> list[tuple[str, int | None]]:
        """What each stage took beyond PyTorch's segments; None where nothing tells."""
        pairs = zip(self.uses, self.uses[1:])
        return [(after.stage, None if None in (before.beyond_bytes, after.beyond_bytes)
                 else after.beyond_bytes - before.beyond_bytes) for before, after in pairs]


def measure(where: Where) -> Libraries:
    """Ask a fresh process; InputError as :func:`calibrate.probes.device_query.ask`."""
    return from_plain(Libraries, device_query.ask("calibrate.probes.libraries", where, where.events), "the libraries")


def stages() -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is done, in order: each needs something that nothing before it did."""
    import torch
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def random(*shape: int, dtype=torch.bfloat16):
        return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_()

    def attention(backend: SDPBackend) -> None:
        with sdpa_kernel(backend):
            functional.scaled_dot_product_attention(*(random(2, 8, 512, 128) for _ in range(3)),
                                                    is_causal=True).sum().backward()

    def step(**how: bool) -> None:
        parameters = [random(1024, 1024, dtype=torch.float32) for _ in range(3)]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        torch.optim.AdamW(parameters, **how).step()

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


def _found(events: str) -> dict[str, Any]:
    import torch

    uses = [Use("before", device.nvml_used_bytes(0), None, 0)]
    done = list(stages())
    for stage, act in [*done, (AGAIN, lambda: [once() for _, once in done])]:
        act()
        torch.cuda.synchronize()
        uses.append(Use(stage, device.nvml_used_bytes(), device.used_bytes(), torch.cuda.memory_reserved()))
    return to_plain(Libraries(device.measured_on().value, device.describe(events), device.software(), tuple(uses)))


if __name__ == "__main__":
    import sys

    device_query.answer(partial(_found, sys.argv[1]))

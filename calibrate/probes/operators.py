"""Allocations of single operators on a device, compared with the tracer's: shows private workspaces of libraries.

Each call runs on the device, forward and backward, and once more on the meta device under the tracer. Both give the
allocated bytes in order, negative for frees. Bytes that only the device has are in no formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

from calibrate.job import device
from calibrate.measure.device_choice import MeasuringDevice
from calibrate.probes import device_query
from calibrate.records.record import Device
from predictor.common import gpus
from predictor.common.gpus import Gpu
from predictor.common.json_dataclasses import from_plain, to_plain

BACKENDS = ("cudnn", "flash", "efficient")


@dataclass(frozen=True)
class Attention:
    """One call of attention in bf16 with queries of shape ``[batch, heads, sequence, width]``.

    Keys and values have ``key_heads`` heads (0: as many as queries). In memory, a token's heads are adjacent, as
    projections make them. With ``apart`` the inputs, and with ``gradient_apart`` the incoming gradient, are stored head
    after head instead.
    """

    backend: str
    batch: int
    heads: int
    sequence: int
    width: int
    key_heads: int = 0
    causal: bool = True
    masked: bool = False
    apart: bool = False
    gradient_apart: bool = False

    def make(self, on: str) -> Callable[[], Any]:
        """A function that runs forward and backward on a device."""
        import torch
        from torch.nn import functional

        def tensor(heads: int, apart: bool):
            values = torch.empty(self.batch, self.sequence, heads, self.width, device=on, dtype=torch.bfloat16)
            return values.transpose(1, 2).contiguous() if apart else values.transpose(1, 2)

        every = (self.heads, *[self.key_heads or self.heads] * 2)
        inputs = [tensor(heads, self.apart).detach().requires_grad_() for heads in every]
        gradient = tensor(self.heads, self.gradient_apart)
        mask = torch.empty(self.batch, 1, self.sequence, self.sequence, device=on, dtype=torch.bool)

        def run() -> Any:
            query, key, value = inputs
            result = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask if self.masked else None, is_causal=self.causal and not self.masked,
                enable_gqa=bool(self.key_heads))
            return torch.autograd.grad(result, inputs, gradient)

        return run


@dataclass(frozen=True)
class Convolution:
    """Patch embedding of square images in bf16, as in vision towers. Without ``input_gradient`` only the weight gets
    one."""

    pictures: int
    side: int
    patch: int
    channels: int
    input_gradient: bool = False

    def make(self, on: str) -> Callable[[], Any]:
        """A function that runs forward and backward on a device."""
        import torch
        from torch.nn import functional

        def tensor(*shape: int):
            return torch.empty(*shape, device=on, dtype=torch.bfloat16)

        pictures = tensor(self.pictures, 3, self.side, self.side)
        weight = tensor(self.channels, 3, self.patch, self.patch).requires_grad_()
        inputs = [pictures.requires_grad_(), weight] if self.input_gradient else [weight]
        patches = self.side // self.patch
        gradient = tensor(self.pictures, self.channels, patches, patches)
        return lambda: torch.autograd.grad(functional.conv2d(pictures, weight, stride=self.patch), inputs, gradient)


Call = Attention | Convolution


@dataclass(frozen=True)
class OperatorMeasurement:
    """Allocations of one call: bytes in order, negative for frees.

    Attributes:
        call: its type and fields, in JSON's types.
        recorded: on the device; None if the library refuses the call.
        predicted: by the tracer.
        refused: the library's message in that case.
    """

    call: Mapping[str, Any]
    recorded: tuple[int, ...] | None
    predicted: tuple[int, ...]
    refused: str | None = None

    @property
    def beyond_bytes(self) -> int | None:
        """The device's peak minus the predicted one; None if the library refuses the call."""
        return None if self.recorded is None else peak(self.recorded) - peak(self.predicted)


@dataclass(frozen=True)
class Operators:
    """All calls, with the device and the software."""

    measured_on: str
    device: Device
    software: Mapping[str, str | None]
    answers: tuple[OperatorMeasurement, ...]


def grid() -> Iterator[Call]:
    """All calls: attention with each kernel, and convolutions."""
    for backend in BACKENDS:
        yield from attention(backend)
    yield from convolutions()


def attention(backend: str) -> Iterator[Attention]:
    """Shapes of LLaVA-1.5's language model and vision tower, SigLIP, and other heads, layouts, masks and groups."""
    for batch, sequence in ((1, 512), (1, 4096), (4, 1024), (4, 1333), (8, 2048), (16, 1024)):
        yield Attention(backend, batch, 32, sequence, 128)
    for batch in (1, 4, 16):
        yield Attention(backend, batch, 16, 577, 64, causal=False)
        yield Attention(backend, batch, 16, 729, 72, causal=False)
    for apart, gradient_apart in ((True, False), (False, True), (True, True)):
        yield Attention(backend, 4, 32, 1333, 128, apart=apart, gradient_apart=gradient_apart)
    for width in (72, 80, 96, 160, 192, 256):
        yield Attention(backend, 2, 8, 300, width)
    if backend != "flash":
        yield Attention(backend, 4, 32, 1024, 128, masked=True)
        yield Attention(backend, 4, 32, 1333, 128, masked=True)
    if backend != "efficient":
        yield Attention(backend, 4, 12, 1024, 128, key_heads=2)
        yield Attention(backend, 4, 12, 1333, 128, key_heads=2)


def convolutions() -> Iterator[Convolution]:
    """Patch embeddings of vision towers."""
    for pictures in (1, 4, 16):
        for side, patch, channels in ((336, 14, 1024), (384, 14, 1152), (224, 16, 768), (1024, 16, 768)):
            for input_gradient in (False, True):
                yield Convolution(pictures, side, patch, channels, input_gradient)


def measure(where: MeasuringDevice) -> Operators:
    """Measures in a fresh process; raises InputError as :func:`calibrate.probes.device_query.run_module`."""
    return from_plain(Operators, device_query.run_module("calibrate.probes.operators", where, where.gpu, where.events),
                      "the operators")


def peak(events: Sequence[int]) -> int:
    """The most bytes that are held at once."""
    return max(accumulate(events, initial=0))


class Refused(Exception):
    """A library does not accept a call."""


def recorded(call: Call) -> tuple[int, ...]:
    """Allocations of a call on this process's device, after a first call that initialises the libraries.

    Raises:
        Refused: the library does not accept the call.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    run = call.make("cuda")
    backend = getattr(call, "backend", "flash")
    with sdpa_kernel(getattr(SDPBackend, f"{backend.upper()}_ATTENTION")):
        try:
            run()
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise Refused(" ".join(str(error).split())) from None
        torch.cuda.memory._record_memory_history(context=None)
        try:
            results = run()  # kept alive: autograd's threads free theirs at any time
            torch.cuda.synchronize()
            entries = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
    events, alive = [], set()
    for entry in entries:
        if entry["action"] == "alloc":
            alive.add(entry["addr"])
            events.append(entry["size"])
        elif entry["action"] == "free_completed" and entry["addr"] in alive:  # ignores blocks from before the recording
            alive.remove(entry["addr"])
            events.append(-entry["size"])
    del results
    return tuple(events)


def traced(call: Call, gpu: Gpu) -> tuple[int, ...]:
    """Allocations of a call under the tracer, with that GPU's sizes."""
    from predictor.events.events import Moment
    from predictor.trace.cuda_paths import as_on_cuda
    from predictor.trace.tracer import Tracer

    run = call.make("meta")
    tracer = Tracer(lambda: ("", False))
    tracer.moment = Moment.FORWARD
    with as_on_cuda(getattr(call, "backend", "flash")), tracer:
        results = run()
    events = in_order(tracer.closed(), gpu)
    del results
    return events


def in_order(recording: Any, gpu: Gpu) -> tuple[int, ...]:
    """A recording's bytes in order on that GPU, negative for frees."""
    from predictor.events.workspaces import FUNCTIONS

    sizes = [buffer.size if isinstance(buffer.size, int) else int(FUNCTIONS[buffer.size[0]](gpu, *buffer.size[1]))
             for buffer in recording.buffers]
    signed = (sizes[event - 1] if event > 0 else -sizes[-event - 1] for event in recording.events)
    return tuple(size for size in signed if size)


def predicted_again(measured: Operators, gpu: Gpu) -> Operators:
    """The same calls with the sizes of this release's tracer."""
    return replace(measured, answers=tuple(replace(answer, predicted=traced(_call(answer.call), gpu))
                                           for answer in measured.answers))


def _call(description: Mapping[str, Any]) -> Call:
    kinds = {class_.__name__.lower(): class_ for class_ in (Attention, Convolution)}
    return kinds[description["kind"]](**{key: value for key, value in description.items() if key != "kind"})


def _compare(call: Call, gpu: Gpu) -> OperatorMeasurement:
    description, predicted = {"kind": type(call).__name__.lower(), **asdict(call)}, traced(call, gpu)
    try:
        return OperatorMeasurement(description, recorded(call), predicted)
    except Refused as error:
        return OperatorMeasurement(description, None, predicted, str(error))


def _measure_here(gpu: str, events: str) -> dict[str, Any]:
    device_gpu = gpus.find(gpu)
    answers = [_compare(call, device_gpu) for call in grid()]
    return to_plain(Operators(device.measured_on().value, device.describe(events), device.software(), tuple(answers)))


if __name__ == "__main__":
    import sys

    device_query.print_answer(partial(_measure_here, *sys.argv[1:3]))

"""Autocast on meta tensors makes CUDA's casts; loss scaling adds its tensors to a step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from predictor.engine.grad_scaler import GradScaler
from predictor.engine.tape import Tape
from predictor.trace import autocast
from predictor.trace.recorder import Recorder

ROWS, WIDTH = 8, 16
WEIGHT_BYTES = 2 * WIDTH * WIDTH


@pytest.mark.parametrize("ours, theirs", [
    (autocast.LOWER, "LOWER_PRECISION_FP"), (autocast.FP32, "FP32"), (autocast.TO_FP32, "FP32_SET_OPT_DTYPE"),
    (autocast.WIDEST, "PROMOTE"),
])
def test_operators_are_in_the_list_where_pytorch_has_them(ours, theirs):
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    body = re.search(rf"#define AT_FORALL_{theirs}\(_\)(.*?)\n(?!\s*_\()", header, re.DOTALL).group(1)
    assert ours <= {".".join(re.split(r",\s*", entry)) for entry in re.findall(r"_\(([^)]*)\)", body)}


class Twice(torch.nn.Module):
    """One linear layer, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH, bias=False, device="meta")

    def forward(self, rows):
        return self.layer(self.layer(rows))


def copies(*, trainable: bool) -> list[int]:
    """Bytes of the casts of weight and result, as they are allocated and (negative) freed, with no graph to keep any."""
    model, recorder = Twice(), Recorder()
    model.requires_grad_(trainable)
    autocast.prepare(model, "bf16")
    recorder.ignore(model.parameters())
    rows = torch.empty(ROWS, WIDTH, device="meta", dtype=torch.bfloat16)
    with torch.no_grad(), autocast.on_meta(model), recorder:
        out = model(rows)
        recording = recorder.closed()
    assert out.dtype == torch.float32
    return [(1 if event > 0 else -1) * recording.buffers[abs(event) - 1].size for event in recording.events
            if recording.buffers[abs(event) - 1].operator == "aten::_to_copy"]


def test_the_cast_of_a_trained_weight_is_kept_until_autocast_ends():
    assert copies(trainable=True) == [WEIGHT_BYTES, -WEIGHT_BYTES, 4 * ROWS * WIDTH]


def test_a_frozen_weight_is_cast_at_each_use():
    assert copies(trainable=False) == [WEIGHT_BYTES, -WEIGHT_BYTES, WEIGHT_BYTES, -WEIGHT_BYTES, 4 * ROWS * WIDTH]


def test_operators_of_other_libraries_remain_their_own():
    library = torch.library.Library("of_another", "DEF")  # as torchvision registers its own for this key
    library.define("twice(Tensor one) -> Tensor")
    library.impl("twice", lambda one: 2 * one, autocast.KEY.name)
    try:
        with autocast.on_meta(Twice()):
            assert torch._C._dispatch_has_kernel_for_dispatch_key("of_another::twice", autocast.KEY.name)
    finally:
        library._destroy()


def test_autocast_of_the_cpu_is_itself_again_afterwards():
    with autocast.on_meta(Twice()):
        pass
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.nn.functional.linear(torch.ones(1, 2), torch.ones(3, 2)).dtype == torch.bfloat16


@pytest.mark.parametrize("fused, unscaled, expected", [
    (False, True, [8, 8, -8, 4, -8, 4, 4, 4, -4, -4, -4, -4]),
    (True, True, [8, 8, -8, 4, -8, 4, 4, 4, -4, -4, -4, 4, -4, -4]),
    (True, False, [4, 4, 4, 4, -4, -4, -4, 4, -4, -4]),
])
def test_loss_scaling_adds_scalars(fused, unscaled, expected):
    tape = Tape()
    scaler = GradScaler(tape, fused=fused)
    if unscaled:
        scaler.unscale()
    scaler.before_step()
    scaler.update()
    assert [kind * tape.buffers.sizes[buffer] for kind, buffer in zip(tape.event_types, tape.event_buffers)
            if kind in (1, -1)] == expected

"""flash_attention_2 on meta tensors: results and temporaries as in flash-attn's sources."""

from __future__ import annotations

import pytest
import torch

from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.events import workspaces
from predictor.events.events import Moment
from predictor.events.sizes import Shape
from predictor.model import parser
from predictor.model.model_config import ModelConfig
from predictor.trace import flash_attention
from predictor.trace.tracer import Tracer
from predictor.workload.workload import Workload
from tests.predictor.small import small_config, traced_at

H100 = gpus.find("h100-80gb")
BATCH, SEQUENCE, HEADS, GROUPS, WIDTH = 2, 200, 64, 4, 72
TOKENS = BATCH * SEQUENCE
QUERY, GROUPED = 2 * TOKENS * HEADS * WIDTH, 2 * TOKENS * GROUPS * WIDTH
SUMS, STATE = 4 * TOKENS * HEADS, 16
ROUNDED = 96
"""The head size of 72, to whole 32."""


def sizes(function, rows: tuple[int, ...], *bounds: torch.Tensor) -> tuple[list[int], list[int]]:
    """Bytes that forward and backward allocate, in order; what is nothing left out."""
    query = torch.empty(*rows, HEADS, WIDTH, device="meta", dtype=torch.bfloat16, requires_grad=True)
    key, value = (torch.empty(*rows, GROUPS, WIDTH, device="meta", dtype=torch.bfloat16, requires_grad=True)
                  for _ in range(2))
    tracer = Tracer(lambda: ("", False))
    tracer.ignore([query, key, value])
    with tracer:
        tracer.moment = Moment.FORWARD
        out = function(query, key, value, *bounds, *([SEQUENCE] * len(bounds)), causal=True)
        gradient = torch.empty_like(out)
        tracer.moment = Moment.BACKWARD
        out.backward(gradient)
    found = {moment: [int(workspaces.FUNCTIONS[b.size[0]](H100, *b.size[1])) if isinstance(b.size, tuple) else b.size
                      for b in tracer.recording.buffers if b.moment is moment and "flash" in b.operator
                      or b.moment is moment is Moment.BACKWARD] for moment in (Moment.FORWARD, Moment.BACKWARD)}
    return tuple([size for size in found[moment] if size] for moment in found)


def test_whole_sequences():
    forward, backward = sizes(flash_attention.flash_attn_func, (BATCH, SEQUENCE))
    assert forward == [QUERY, SUMS, STATE]
    rows = 4 * BATCH * HEADS * 256
    assert backward == [QUERY, GROUPED, GROUPED, rows, rows * ROUNDED, QUERY, QUERY]


def test_packed_sequences_have_128_rows_between_them():
    bounds = torch.empty(BATCH + 1, device="meta", dtype=torch.int32)
    forward, backward = sizes(flash_attention.flash_attn_varlen_func, (TOKENS,), bounds, bounds)
    assert forward == [QUERY, SUMS, STATE]
    rows = 4 * HEADS * (TOKENS + 128 * BATCH)
    assert backward == [QUERY, GROUPED, GROUPED, rows, rows * ROUNDED, QUERY, QUERY]


def test_the_kernels_take_no_fp32():
    query = torch.empty(1, 8, 1, 8, device="meta")
    with Tracer(lambda: ("", False)), pytest.raises(InputError, match="fp16 and bf16, not torch.float32: use sdpa"):
        flash_attention.flash_attn_func(query, query, query)


@pytest.mark.parametrize(("padding", "packs"), [("none", False), ("right", True), ("packed", True)])
def test_transformers_packs_what_is_padded_or_packed(padding, packs):
    """Only whole batches need accumulators of sequences rounded up."""
    with flash_attention.on_meta():
        model = parser.build(ModelConfig("small", small_config()), attn_implementation="flash_attention_2",
                             recipe="full")
        recording = traced_at(model, Shape(2, 16, 2), padding=padding, sdpa_backend="")
    functions = {b.size[0] for b in recording.buffers if "language_model" in b.module and isinstance(b.size, tuple)}
    assert ("flash_dq_accumulator" not in functions) is packs


def test_sdpa_s_kernels_are_not_asked_for():
    with pytest.raises(InputError, match="which attn_implementation flash_attention_2 does not use"):
        Workload(model="llava-1.5-7b", sequence_length=1024, attn_implementation="flash_attention_2",
                 sdpa_backend="flash")

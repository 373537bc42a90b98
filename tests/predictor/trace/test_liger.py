"""Liger's kernels: their allocations, and a trace that leaves no patch behind."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama import modeling_llama

from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.events import workspaces
from predictor.events.sizes import Shape
from predictor.formula.formula_key import PINNED_LIGER, formula_key
from predictor.model.request import Request
from predictor.trace import liger
from predictor.workload.workload import Workload
from tests.predictor.small import TEXT, small_llava, traced_at

H100 = gpus.find("h100-80gb")
SHAPE = Shape(2, 40, 2)
TOKENS = SHAPE.batch * SHAPE.sequence
HIDDEN, VOCABULARY = TEXT["hidden_size"], TEXT["vocab_size"]


def buffers(**settings):
    pytest.importorskip("liger_kernel")
    model = small_llava(**settings)
    with liger.on_meta(model):
        return traced_at(model, SHAPE, padding="none", sdpa_backend="cudnn").buffers


@pytest.mark.parametrize(("tokens", "rows"), [(16_384, 2048), (16_385, 4096), (5, 1)])
def test_logits_are_a_power_of_two_of_rows_about_as_large_as_the_hidden_states(tokens, rows):
    assert workspaces.liger_logits(H100, tokens, 4096, 32_000, 2) == rows * 32_000 * 2


def test_all_tokens_are_one_chunk_where_the_vocabulary_is_small():
    assert workspaces.liger_logits(H100, 1000, 4096, 4096, 2) == 1000 * 4096 * 2


def test_the_logits_of_all_tokens_are_never_there():
    sizes = [b.size for b in buffers()]
    assert ("liger_logits", (TOKENS, HIDDEN, VOCABULARY, 2)) in sizes
    assert not {TOKENS * VOCABULARY * itemsize for itemsize in (2, 4)} & set(sizes)


def test_a_norm_that_trains_has_a_row_of_gradients_for_each_multiprocessor():
    partials = [b for b in buffers(recipe="full") if isinstance(b.size, tuple) and b.size[0] == "liger_partials"]
    assert [b.size[1] for b in partials] == [(HIDDEN,)] * (2 * TEXT["num_hidden_layers"] + 1)
    assert workspaces.liger_partials(H100, HIDDEN) == 132 * HIDDEN * 4


def test_a_frozen_norm_has_none():
    assert not any(isinstance(b.size, tuple) and b.size[0] == "liger_partials" for b in buffers(recipe="pretrain"))


def test_transformers_is_as_it_was_afterwards():
    before = dict(vars(modeling_llama))
    buffers()
    assert dict(vars(modeling_llama)) == before


def test_weights_of_another_dtype_are_refused():
    states, weight = torch.empty(4, 8, device="meta", dtype=torch.bfloat16), torch.empty(9, 8, device="meta")
    with pytest.raises(InputError, match="bfloat16 states and torch.float32 weights"):
        liger._loss_and_gradients(_input=states, weight=weight, target=torch.zeros(4), ignore_index=-100)


def test_only_a_workload_with_liger_says_so_in_its_key():
    def document(**keys):
        asked = Workload(model="llava-1.5-7b", sequence_length=1024, images_per_sample=1, **keys)
        return formula_key(Request.of(asked).on(H100)).document()
    assert document(use_liger_kernel=True) == document() | {"liger": PINNED_LIGER}

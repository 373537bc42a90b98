"""The loss of TRL's SFTTrainer (``loss: trl_sft``): log-probabilities of the labels in tiles, never whole logits.

Sources: TRL 1.16, trainer/utils.py (``add_fused_lm_head``), kernels/chunked_logprob.py (``ChunkedLogProbFunction``)
and trainer/sft_trainer.py (``SFTTrainer.compute_loss``). TRL's own Python code allocates all buffers, and its Triton
kernels none. It is repeated here for meta tensors, where sizes of tiles are operators, since they depend on a
threshold.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch

from predictor.trace.autocast import STAND_IN

TRL_SFT = "trl_sft"
WORDS = 32_768
"""Columns of a tile (trainer/utils.py, ``_CHUNKED_LOGPROB_CHUNK_SIZE``)."""
_LIBRARY = torch.library.Library("trl", "DEF")
_LIBRARY.define("tile(Tensor states, ScalarType dtype) -> Tensor")
_LIBRARY.define("rows(Tensor states, ScalarType dtype, int tiles) -> Tensor")
_LIBRARY.define("words(Tensor states, Tensor weight, ScalarType dtype, int tiles) -> Tensor")
_LIBRARY.define("multiply(Tensor rows, Tensor weight) -> ()")
_LIBRARY.impl("tile", lambda states, dtype: states.new_empty((len(states), WORDS), dtype=dtype), "Meta")
_LIBRARY.impl("rows", lambda states, dtype, tiles: states.new_empty(states.shape, dtype=dtype), "Meta")
_LIBRARY.impl("words", lambda states, weight, dtype, tiles: weight.new_empty(weight.shape, dtype=dtype), "Meta")
_LIBRARY.impl("multiply", lambda rows, weight: None, "Meta")
"""Operators for allocations whose size depends on a number of tokens: a tile of logits; the hidden states of a tile's
tokens, and rows of the head's weight, in the dtype of products, if there are more tokens than ``tiles`` have; and for a
product into a tile, which allocates nothing."""
TILES = 3
"""Tiles of tokens that are traced: the first, one more, and the last. Those between them allocate as the second."""


def add_head(model) -> None:
    """Makes a model's forward return log-probabilities in place of logits (``add_fused_lm_head``); in place.

    Call it before autocast wraps the forward.
    """
    def forward(self, *args, labels, **kwargs):
        outputs = self.base_model(*args, **kwargs)  # lives as long as the function, with features of pictures
        states = outputs.last_hidden_state[:, :-1]
        labels = labels[:, 1:]
        head = self.get_output_embeddings()
        mask = labels != -100
        scored = _LogProbabilities.apply(states[mask], head.weight, head.bias, labels[mask])
        log_probs, entropy, is_top1 = (
            each.new_zeros(mask.shape).masked_scatter(mask, each) for each in scored)
        loss = -log_probs.sum() / mask.sum().clamp(min=1)
        return {"loss": loss, "log_probs": log_probs, "entropy": entropy, "is_top1": is_top1, "label_mask": mask}

    model.forward = MethodType(forward, model)


def add_trainer(model, **options: bool) -> None:
    """Makes a model with such a head return the loss of ``SFTTrainer.compute_loss``, which counts and logs; in place.

    Call it after autocast wrapped the forward: the Trainer computes outside.

    Args:
        options: further keyword arguments of the model's forward.
    """
    inner = model.forward

    def compute_loss(self, *args, **batch):
        output = inner(*args, **batch, **options)
        each = -output["log_probs"]
        number = (batch["labels"] != -100).sum()
        loss = each.sum() / number.clamp(min=1)
        loss = loss * 1
        output["label_mask"].sum()
        output["entropy"].detach().sum()
        output["is_top1"].sum()
        if "attention_mask" in batch:
            batch["attention_mask"].sum()
        return loss

    model.forward = MethodType(compute_loss, model)


class _LogProbabilities(torch.autograd.Function):
    """``ChunkedLogProbFunction`` with the outputs that the trainer asks for. Tokens ``[N]``, states ``[N, H]``."""

    @staticmethod
    def forward(ctx, states, weight, bias, targets) -> Any:
        ctx.set_materialize_grads(False)
        dtype = torch.get_autocast_dtype(STAND_IN) if torch.is_autocast_enabled(STAND_IN) else states.dtype
        tokens, words = len(states), len(weight)
        (running_max, sum_exp, x_sum_exp, _squares, _logits, max_before_target, target_logit) = (
            torch.zeros((tokens,), device=states.device, dtype=torch.float32) for _ in range(7))
        tile = torch.ops.trl.tile(states, dtype)
        for number in range(TILES):
            rows = _rows(states, dtype, number)
            for start in range(0, words, WORDS):
                torch.ops.trl.multiply(rows, _words(states, weight, dtype, number, start))
                if bias is not None:
                    tile[:, :min(WORDS, words - start)].add_(_words(states, bias, dtype, number, start))
        log_z = running_max + torch.log(sum_exp)
        log_probs = target_logit - log_z
        entropy = log_z - x_sum_exp / sum_exp
        is_top1 = (target_logit >= running_max) & (target_logit > max_before_target)
        ctx.save_for_backward(states, weight, bias, targets, log_z, entropy)
        ctx.dtype = dtype
        ctx.mark_non_differentiable(is_top1)
        return log_probs, entropy, is_top1

    @staticmethod
    def backward(ctx, *gradients) -> Any:
        states, weight, bias, _, _, _ = ctx.saved_tensors
        needed, words, dtype = ctx.needs_input_grad[:3], len(weight), ctx.dtype
        sums = [torch.zeros(each.shape, device=each.device, dtype=torch.float32) if needs else None
                for each, needs in zip((states, weight, bias), needed)]
        tile = torch.ops.trl.tile(states, dtype)
        contiguous = [None if each is None else each.float().contiguous() for each in gradients[:2]]  # noqa: F841
        for number in range(TILES):
            rows = _rows(states, dtype, number)
            for start in range(0, words, WORDS):
                chunk = _words(states, weight, dtype, number, start)
                torch.ops.trl.multiply(rows, chunk)
                if bias is not None:
                    tile[:, :min(WORDS, words - start)].add_(_words(states, bias, dtype, number, start))
                if sums[2] is not None:
                    sums[2][start:start + WORDS] += tile[:, :min(WORDS, words - start)].sum(dim=0, dtype=torch.float32)
        return *(None if total is None else total.to(each.dtype)
                 for total, each in zip(sums, (states, weight, bias))), None


def _rows(states: torch.Tensor, dtype: torch.dtype, tiles: int) -> torch.Tensor:
    """The hidden states of the tile after ``tiles`` others, in the dtype of products."""
    return states if states.dtype == dtype else torch.ops.trl.rows(states, dtype, tiles)


def _words(states: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype, tiles: int, start: int) -> torch.Tensor:
    """The rows of the head's weight or bias for a tile's columns, in the dtype of products."""
    chunk = weight[start:start + WORDS]
    if weight.dtype == dtype:
        return chunk
    return torch.ops.trl.words(states, chunk, dtype, tiles) if tiles else chunk.to(dtype)

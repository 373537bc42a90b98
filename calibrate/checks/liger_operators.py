"""The plain operators of Liger's benchmarks as functions of their settings, for the check ``liger_h100``.

Each function makes the weights and inputs that a benchmark keeps, and returns one measured call. They compute what the
benchmarks of linkedin/Liger-Kernel (benchmark/scripts, and test/utils.py for losses of Hugging Face; commit ead96b6 and
those of each row's date; BSD-2-Clause) compute, written anew. Tensors are made on the default device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Settings = dict[str, Any]
Backward = Callable[..., None]
"""Runs backward from tensors with gradients: ``backward(tensors, gradients)``."""
Call = Callable[[], None]
"""One measured call of an operator."""

BF16 = torch.bfloat16


def _leaf(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, requires_grad=True)


def kl_div(x: int, config: Settings, mode: str, backward: Backward) -> Call:
    """KL divergence. The probabilities are computed before the call."""
    source = _leaf(config["B"] * config["T"], x).log_softmax(-1)
    target = torch.empty(config["B"] * config["T"], x).softmax(-1)
    return lambda: backward([functional.kl_div(source, target, reduction="batchmean")], retain_graph=True)


def _divergence(log_q: torch.Tensor, log_p: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Jensen-Shannon divergence in fp32."""
    log_p, log_q = log_p.float(), log_q.float()
    mean = torch.lerp(log_p.exp(), log_q.exp(), 0.5)
    loss = (0.5 * functional.kl_div(mean.log(), log_p, reduction="batchmean", log_target=True)
            + 0.5 * functional.kl_div(mean.log(), log_q, reduction="batchmean", log_target=True))
    return loss.to(dtype)


def jsd(x: int, config: Settings, mode: str, backward: Backward) -> Call:
    """Jensen-Shannon divergence of log probabilities that are computed before the call."""
    source = _leaf(config["B"] * config["T"], x).log_softmax(-1)
    target = torch.empty(config["B"] * config["T"], x).log_softmax(-1)
    return lambda: backward([_divergence(source, target, torch.float32)], retain_graph=True)


def tvd(x: int, config: Settings, mode: str, backward: Backward) -> Call:
    """Total variation distance."""
    source = _leaf(config["B"] * config["T"], x).softmax(-1)
    target = torch.empty(config["B"] * config["T"], x).softmax(-1)
    return lambda: backward([torch.sum(torch.abs(source - target) / 2.0) / len(source)], retain_graph=True)


def fused_linear_jsd(x: int, config: Settings, mode: str, backward: Backward) -> Call:
    """Jensen-Shannon divergence of a student's and a teacher's next-token distributions, heads included."""
    width, vocabulary = config["H"], config["V"]
    student, teacher = (nn.Linear(width, vocabulary, bias=False, dtype=BF16) for _ in range(2))
    states, others = _leaf(x, width, dtype=BF16), torch.empty(x, width, dtype=BF16)

    def loss() -> torch.Tensor:
        student_logits, teacher_logits = student(states), teacher(others)
        ours, theirs = torch.log_softmax(student_logits / 1.0, -1), torch.log_softmax(teacher_logits / 1.0, -1)
        return _divergence(ours, theirs, BF16)
    return lambda: backward([loss()])


def distill_jsd_loss(x: int, config: Settings, mode: str, backward: Backward) -> Call:
    """Cross-entropy of a student of half the width, and its divergence from the teacher. Liger's model, which the
    benchmark also builds, keeps weights of its own."""
    width, vocabulary = config["H"], config["V"]
    heads = [nn.Linear(size, vocabulary, bias=False, dtype=BF16) for _ in range(2) for size in (width // 2, width)]
    kept = [torch.empty(x, width // 2, dtype=BF16), _leaf(x, width // 2, dtype=BF16)]
    states, others = _leaf(x, width // 2, dtype=BF16), torch.empty(x, width, dtype=BF16)
    target = torch.randint(0, 2, (x,))

    def logits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ours = states.view(-1, width // 2) @ heads[0].weight.t()
        with torch.no_grad():
            theirs = others.view(-1, width) @ heads[1].weight.t()
        logits, teacher_logits = ours.view(x, -1).float(), theirs.view(x, -1).float()
        if torch.all(target == -100):
            raise AssertionError("targets are below the vocabulary's size")
        hard = functional.cross_entropy(logits.view(-1, vocabulary), target.view(-1), ignore_index=-100)
        return logits, teacher_logits, hard

    def divergence(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        ours, theirs = functional.log_softmax(ours, -1), functional.log_softmax(theirs, -1)
        mean = 0.5 * ours.exp() + 0.5 * theirs.exp()
        log_mean = mean.log()
        first = functional.kl_div(log_mean, ours, reduction="batchmean", log_target=True)
        second = functional.kl_div(log_mean, theirs, reduction="batchmean", log_target=True)
        return 0.5 * second + 0.5 * first

    def loss() -> torch.Tensor:
        ours, theirs, hard = logits()
        ours /= 1.0
        theirs /= 1.0
        soft = divergence(ours, theirs)
        return 0.5 * hard + 0.5 * soft

    def call() -> None:
        backward([loss()])
        assert kept
    return call


def kto_loss(x: int, config: Settings, mode: str, backward: Backward) -> Call:
    """Kahneman-Tversky optimization with a reference model. Half of the samples are preferred (the benchmark draws
    them). Liger's model, which the benchmark also builds, keeps weights of its own."""
    length, width, vocabulary = config["T"], config["H"], config["V"]
    heads = [nn.Linear(width, vocabulary, bias=True, dtype=BF16) for _ in range(4)]
    states, others = (torch.empty(x, length, width, dtype=BF16) for _ in range(2))
    target = torch.randint(0, 2, (x, length))
    preferred = torch.arange(x) % 2 == 0
    divergence = torch.empty(1, dtype=BF16)

    def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
        mask = target != 42
        labels = torch.where(target == 42, 0, target)
        each = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
        return (each * mask).sum(-1) / mask.sum(-1)

    def policy() -> tuple[torch.Tensor, ...]:
        out = states @ heads[0].weight.t()
        out = out + heads[0].bias
        logits = out.float()
        nothing = torch.tensor(0.0, device=logits.device)
        log_likelihoods = log_probabilities(logits)
        return log_likelihoods[preferred], log_likelihoods[~preferred], logits[preferred], logits[~preferred], nothing

    def reference() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            logits = others @ heads[1].weight.t()
            logits = logits + heads[1].bias
            log_likelihoods = log_probabilities(logits)
            return log_likelihoods[preferred], log_likelihoods[~preferred]

    def loss() -> tuple[torch.Tensor, ...]:
        chosen, rejected, chosen_logits, rejected_logits, nothing = policy()
        chosen_before, rejected_before = reference()
        gained, lost = chosen - chosen_before, rejected - rejected_before
        better = 1 - functional.sigmoid(0.1 * (gained - divergence))
        worse = 1 - functional.sigmoid(0.1 * (divergence - lost))
        losses = torch.cat((better, worse), 0)
        rewards = (0.1 * gained).sum(), (0.1 * lost).sum()
        total = nothing * 1.0 + losses.mean()
        return (total, chosen.detach().sum(), rejected.detach().sum(), chosen_logits.detach().sum(),
                rejected_logits.detach().sum(), *rewards)

    def call() -> None:
        losses = loss()
        backward(losses[:1])
    return call


def fused_neighborhood_attention(x: int, config: Settings, mode: str, backward: Backward) -> Call:
    """Attention with a neighbourhood mask. Liger's module, which the benchmark also builds, keeps its own weights."""
    batch, width, heads = config["batch_size"], config["hidden_size"], config["num_heads"]
    kept = [[nn.Linear(width, width) for _ in range(4)] for _ in range(2)]
    query, key, value, last = kept[0]
    scale = 1 / math.sqrt(width // heads)
    source, gradient = _leaf(batch, x, width), torch.empty(batch, x, width)

    def parted(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(batch, x, heads, -1).transpose(1, 2)

    def forward() -> torch.Tensor:
        queries, keys, values = query(source), key(source), value(source)
        queries, keys, values = parted(queries), parted(keys), parted(values)
        scores = torch.matmul(queries, keys.transpose(-2, -1)) * scale
        mask = torch.zeros(x, x, dtype=torch.bool)  # filled in place, one element after the other
        scores = scores.masked_fill(~mask, float("-inf"))
        weights = torch.softmax(scores, -1)
        out = torch.matmul(weights, values)
        out = out.transpose(1, 2).contiguous().view(batch, x, width)
        return last(out)

    def call() -> None:
        backward([forward()], [gradient], retain_graph=True)
        assert kept
    return call


def layer_norm(x: int, config: Settings, mode: str, backward: Backward) -> Call:
    """LayerNorm in fp32. A second module keeps weights of its own."""
    kept = [nn.LayerNorm(x) for _ in range(2)]
    source, gradient = _leaf(config["M"], x), torch.empty(config["M"], x)
    return lambda: backward([kept[0](source)], [gradient], retain_graph=True)


def llama4_rope(x: int, config: Settings, mode: str, backward: Backward) -> Call:
    """Rotary embedding by complex numbers. Gradients are returned, not accumulated in ``.grad``."""
    width, length = config.get("hidden_size", x), config.get("seq_len", x)
    queries, keys = config["num_q_heads"], config["num_kv_heads"]
    size = width // queries
    kept = torch.empty(size // 2), torch.arange(length).unsqueeze(0)
    query, key = _leaf(1, length, queries, size, dtype=BF16), _leaf(1, length, keys, size, dtype=BF16)
    gradients = torch.empty_like(query), torch.empty_like(key)
    torch.bmm(kept[0][None, :, None], kept[1][:, None, :].float())  # angles, which need cuBLAS
    turns = torch.empty(1, length, size // 2, dtype=torch.complex64)

    def turned() -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.view_as_complex(query.float().reshape(*query.shape[:-1], -1, 2))
        second = torch.view_as_complex(key.float().reshape(*key.shape[:-1], -1, 2))
        first_out = torch.view_as_real(first * turns[:, :, None, :]).flatten(3)
        second_out = torch.view_as_real(second * turns[:, :, None, :]).flatten(3)
        return first_out.type_as(query), second_out.type_as(key)

    def call() -> None:
        out = turned()
        backward(out, gradients, inputs=(query, key), retain_graph=True)
        assert kept
    return call


def relu_squared(x: int, config: Settings, mode: str, backward: Backward) -> Call:
    """Squared ReLU of a vector of ``x`` numbers: the benchmark uses the width as the whole shape."""
    source = _leaf(x, dtype=BF16)

    def call() -> None:
        out = torch.square(functional.relu(source))
        backward([out], [torch.ones_like(out)], retain_graph=True)
    return call


def fused_add_rms_norm(x: int, config: Settings, mode: str, backward: Backward) -> Call:
    """A sum and its RMS norm, in fp32. Modules of other providers, which the benchmark also builds, keep weights."""
    kept = [nn.Parameter(torch.empty(x)) for _ in range(4)]
    source, residual, first, second = _leaf(config["M"], x), _leaf(config["M"], x), *(
        torch.empty(config["M"], x) for _ in range(2))

    def forward(states: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = states.dtype
        states, before = states.float(), before.float()
        states = states + before
        before = states
        variance = states.pow(2).mean(-1, keepdim=True)
        states = states * torch.rsqrt(variance + 1e-6)
        return kept[0] * states.to(dtype), before.to(dtype)

    def call() -> None:
        out = forward(source, residual)
        backward(out, (first, second))
    return call


def megatron_rms_norm(x: int, config: Settings, mode: str, backward: Backward) -> Call:
    """RMSNorm in bf16."""
    layer = nn.RMSNorm(x, eps=1e-6, dtype=BF16)
    source = _leaf(config["S"], config["B"], x, dtype=BF16)

    def call() -> None:
        out = layer(source)
        backward([out.sum()])
    return call


def megatron_cross_entropy(x: int, config: Settings, mode: str, backward: Backward) -> Call:
    """Cross-entropy in fp32 of bf16 logits."""
    logits = _leaf(config["S"], config["B"], x, dtype=BF16)
    target = torch.randint(0, 2, (config["S"], config["B"]))

    def forward() -> torch.Tensor:
        return functional.cross_entropy(logits.reshape(-1, x).float(), target.reshape(-1),
                                        reduction="none").reshape(config["S"], config["B"])

    def call() -> None:
        out = forward()
        backward([out.sum()])
    return call


def megatron_swiglu(x: int, config: Settings, mode: str, backward: Backward) -> Call:
    """SwiGLU in bf16. The old gradient is dropped before each call."""
    source = _leaf(config["S"], config["B"], 2 * x, dtype=BF16)

    def forward() -> torch.Tensor:
        gate, up = torch.chunk(source, 2, -1)
        return functional.silu(gate) * up

    def call() -> None:
        source.grad = None
        out = forward()
        backward([out.sum()])
    return call


def fused_moe(x: int, config: Settings, mode: str, backward: Backward) -> Call:
    """Mixture of experts in a loop. The weights are 0.02 times leaf tensors, which stay allocated too."""
    tokens = x if config["sweep_dim"] == "T" else config["T"]
    experts = x if config["sweep_dim"] == "E" else config["E"]
    width, inner, chosen = config["H"], config["intermediate_dim"], config["K"]
    source = _leaf(tokens, width, dtype=BF16)
    wide = _leaf(experts, 2 * inner, width, dtype=BF16) * 0.02
    narrow = _leaf(experts, width, inner, dtype=BF16) * 0.02
    places = (torch.rand(tokens, experts, device="cpu").topk(chosen, -1).indices).to(torch.int32)
    places = places.to(source.device)
    shares = torch.empty(tokens, chosen, dtype=BF16).requires_grad_()

    def forward() -> torch.Tensor:
        final = torch.zeros_like(source)
        with torch.no_grad():
            mask = functional.one_hot(places.long(), num_classes=experts)
            mask = mask.permute(2, 1, 0)
            hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for hit_expert in hit:
            expert = hit_expert[0]
            position, token = torch.where(mask[expert])
            states = source[token]
            gate, up = functional.linear(states, wide[expert]).chunk(2, dim=-1)
            states = functional.silu(gate) * up
            states = functional.linear(states, narrow[expert])
            states = states * shares[token, position, None]
            final.index_add_(0, token, states.to(final.dtype))
        return final

    # Liger's benchmark runs backward before it measures forward. So backward's thread has a cuBLAS workspace too. This
    # small backward allocates it.
    if mode == "forward":
        small = _leaf(2, 8, 8)
        backward([torch.bmm(small, small).sum()])
        return lambda: [forward()].clear()
    if mode == "backward":
        output = forward()
        gradient = torch.empty_like(output)
        return lambda: backward([output], [gradient], retain_graph=True)

    def call() -> None:
        output = forward()
        backward([output], [torch.empty_like(output)], retain_graph=True)
    return call


OPERATORS = {function.__name__: function for function in (
    kl_div, jsd, tvd, fused_linear_jsd, distill_jsd_loss, kto_loss, fused_neighborhood_attention, layer_norm,
    llama4_rope, relu_squared, fused_add_rms_norm, megatron_rms_norm, megatron_cross_entropy, megatron_swiglu,
    fused_moe)}
"""Name in the benchmark's table -> the function that builds the operator's call."""

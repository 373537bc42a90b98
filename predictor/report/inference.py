"""Renders inference details as text: weights, KV cache, a table of turns, and the maximum load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.answer.prediction import Inference, Paged, Prediction
from predictor.report.layout import numbered, table
from predictor.report.units import gib, size_text

if TYPE_CHECKING:
    from rich.table import Table


def sentences(prediction: Prediction) -> list[str]:
    """Sentences below the peaks; empty for training."""
    details = prediction.inference
    if details is None:
        return []
    per_token = details.cache_bytes_per_token
    growth = f"{per_token:,} bytes a token of each sequence" if per_token else "and no more after further tokens"
    lines = [f"Weights {size_text(details.weights_bytes)}; keys and values {size_text(details.cache_bytes)} after the "
             f"last reply, {growth}."]
    if details.longest_prompt_tokens is not None:
        lines.append(f"The longest prompt that fits: {details.longest_prompt_tokens:,} tokens, a context of "
                     f"{details.longest_context_tokens:,} after the reply." if details.longest_prompt_tokens
                     else "No prompt fits.")
    if details.most_turns is not None and details.longest_context_tokens is not None:
        lines.append(_turns(len(details.turns), details.most_turns, details.longest_context_tokens))
    if details.concurrent_sequences is not None:
        fitting = numbered(details.concurrent_sequences, "conversation" if len(details.turns) > 1 else "sequence")
        lines.append(f"{fitting} {'fits' if details.concurrent_sequences == 1 else 'fit'} at once.")
    lines += details.search_limits
    if details.paged is not None:
        paged = details.paged
        lines.append(
            f"Paged serving (vLLM's accounting, assumed) with {paged.gpu_memory_utilization:g} of the GPU: "
            f"{size_text(paged.reserved_bytes)} for {paged.blocks:,} blocks of {paged.block_size} tokens, "
            f"which hold {numbered(paged.tokens, 'token')}, {numbered(paged.sequences, 'sequence')} of this length.")
        lines += _why_they_differ(details, paged)
    return lines


def _why_they_differ(details: Inference, paged: Paged) -> list[str]:
    """A sentence about why generate and paged serving hold different numbers of sequences; empty if they do not."""
    most = details.concurrent
    if most is None or most.sequences == paged.sequences:
        return []
    generate = (f"generate {'prefills' if most.moment == 'prefill' else 'decodes'} all {most.sequences:,} at once, in "
                f"{size_text(most.reserved_bytes)}: {size_text(most.weights_bytes)} of weights, "
                f"{size_text(most.cache_bytes)} of keys and values, which torch.cat copies, "
                f"{size_text(most.other_bytes)} for the forward pass, {size_text(most.idle_bytes)} idle")
    blocks = (f"paged serving has {paged.gpu_memory_utilization:g} of the GPU in all, copies nothing, and takes "
              f"{size_text(paged.activations_bytes)} for the forward pass of this request alone and "
              f"{size_text(paged.runtime_bytes)} for the runtime")
    return [f"Why the two differ: {generate}; {blocks}."]


def _turns(given: int, most: int, context: int) -> str:
    """A sentence about the longest conversation that fits.

    Args:
        given: number of turns in the workload.
        most: number of turns that fit.
        context: tokens in the cache after them.
    """
    more = most - given
    if more > 0:
        return f"Further turns like the last one that fit: {more}. The context then has {context:,} tokens."
    if more == 0:
        return f"No further turn like the last one fits: a context of {context:,} tokens at most."
    turns = f"the first {most} fit" if most > 1 else "only the first fits"
    return f"Of its turns {turns}: a context of {context:,} tokens." if most else "Not even one turn fits."


def turn_table(details: Inference) -> Table:
    """A table with a row for each call of ``generate``."""
    rows = table("turn", "role", "tokens", "images", "new", "in cache", "cache (GiB)", "prefill", "decode",
                 numbers=True)
    for turn in details.turns:
        decode = turn.decode_peak_requested_bytes
        rows.add_row(str(turn.turn), turn.role, f"{turn.tokens:,}", f"{turn.images:,}", f"{turn.new_tokens:,}",
                     f"{turn.cached_tokens:,}", gib(turn.cache_bytes), gib(turn.prefill_peak_requested_bytes),
                     "" if decode is None else gib(decode))
    return rows

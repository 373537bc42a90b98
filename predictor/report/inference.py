"""What inference holds, as text: weights, cache, a table of turns, what a GPU serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.answer.prediction import Inference, Prediction
from predictor.report.units import gib, size_text

if TYPE_CHECKING:
    from rich.table import Table


def sentences(prediction: Prediction) -> list[str]:
    """Lines below the peaks; none of training."""
    held = prediction.inference
    if held is None:
        return []
    each = held.cache_bytes_per_token
    found = [f"Weights {size_text(held.weights_bytes)}; keys and values {size_text(held.cache_bytes)} after the last "
             f"reply, {f'{each:,} bytes a token of each sequence' if each else 'and no more after further tokens'}."]
    if held.longest_prompt_tokens is not None:
        found.append(f"The longest prompt that fits: {held.longest_prompt_tokens:,} tokens, a context of "
                     f"{held.longest_context_tokens:,} after the reply." if held.longest_prompt_tokens
                     else "No prompt fits.")
    if held.most_turns is not None:
        found.append(_turns(held))
    if held.concurrent_sequences is not None:
        what = "conversations" if len(held.turns) > 1 else "sequences"
        found.append(f"At once fit {held.concurrent_sequences:,} {what}.")
    found += held.search_limits
    if held.paged is not None:
        paged = held.paged
        found.append(
            f"Paged serving (vLLM's accounting, assumed) with {paged.gpu_memory_utilization:g} of the GPU: "
            f"{size_text(paged.reserved_bytes)} for {paged.blocks:,} blocks of {paged.block_size} tokens, "
            f"which hold {paged.tokens:,} tokens, {paged.sequences:,} sequences of this length.")
    return found


def _turns(held: Inference) -> str:
    """How long the conversation may become."""
    more, context = held.most_turns - len(held.turns), held.longest_context_tokens
    if more > 0:
        return f"Further turns like the last one that fit: {more}, then the context is of {context:,} tokens."
    if more == 0:
        return f"No further turn like the last one fits: a context of {context:,} tokens at most."
    turns = f"the first {held.most_turns} fit" if held.most_turns > 1 else "only the first fits"
    return f"Of its turns {turns}: a context of {context:,} tokens." if held.most_turns else "Not even one turn fits."


def turn_table(held: Inference) -> Table:
    """A row a call of ``generate``."""
    from predictor.report.layout import table

    rows = table("turn", "role", "tokens", "images", "new", "in cache", "cache (GiB)", "prefill", "decode",
                 numbers=True)
    for turn in held.turns:
        decode = turn.decode_peak_requested_bytes
        rows.add_row(str(turn.turn), turn.role, f"{turn.tokens:,}", f"{turn.images:,}", f"{turn.new_tokens:,}",
                     f"{turn.cached_tokens:,}", gib(turn.cache_bytes), gib(turn.prefill_peak_requested_bytes),
                     "" if decode is None else gib(decode))
    return rows

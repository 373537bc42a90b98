"""One call of transformers' ``generate``, for measured jobs and for recordings on meta tensors.

This is the reference loop of inference (transformers 5.17, generation/utils.py, ``generate`` and ``_sample``): greedy
decoding that does not stop early, without compilation. Prompts have equal length and a mask of ones, as a processor
returns it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from predictor.common.errors import InputError
from predictor.events.events import Moment
from predictor.trace.garbage_collection import collection_paused
from predictor.trace.module_tracker import ModuleTracker
from predictor.trace.recorder import Recorder, Recording
from predictor.workload.generation import Generation

IGNORED = ("labels",)
"""Entries of a training batch that ``generate`` does not take."""
KEPT = "past_key_values"
"""The argument of ``generate`` that holds the cache. transformers 5.24 passes it on to the model as ``cache``
(generation/utils.py)."""


def prepare(model) -> None:
    """Puts a model into the state that ``from_pretrained`` leaves, without settings that could end a reply early.

    Raises:
        InputError: the model cannot generate, or is an encoder-decoder.
    """
    from transformers import GenerationConfig

    if not model.can_generate() or model.config.is_encoder_decoder:
        raise InputError(f"mode inference: {type(model).__name__} is not predicted: only decoder-only models that "
                         "generate text are")
    model.eval()
    model.requires_grad_(False)
    model.generation_config = GenerationConfig()


def prompt(batch: dict[str, torch.Tensor], past: int) -> dict[str, torch.Tensor]:
    """The arguments of ``generate`` for one turn: ids and mask of the whole conversation.

    Args:
        batch: inputs of this turn only, with ``input_ids`` int64[batch, tokens].
        past: tokens of earlier turns, whose keys and values are in the cache.
    """
    kept = {name: values for name, values in batch.items() if name not in IGNORED}
    ids = kept["input_ids"]
    for name, values in kept.items():
        if values.shape[:2] == ids.shape and not values.is_floating_point():
            earlier = values.new_full((len(ids), past), int(name == "input_ids"))
            kept[name] = torch.cat([earlier, values], dim=1)
    return kept | {"attention_mask": torch.ones_like(kept["input_ids"])}


def new_cache(model):
    """An empty cache for a conversation; the caller keeps it between calls."""
    from transformers import DynamicCache

    return DynamicCache(config=model.config.get_text_config(decoder=True))


def reply(model, batch: dict[str, torch.Tensor], request: Generation, cache: Any | None,
          begun: Callable[[int], None], ended: Callable[[Any], None] = lambda cache: None) -> torch.Tensor:
    """Generates ``request.tokens`` tokens and returns the ids, int64[batch, tokens].

    Args:
        cache: the caller's cache, or None to let ``generate`` make one.
        begun: called with the number of each forward, from 0 on, before it runs.
        ended: called with the cache after each forward.
    """
    from transformers import GenerationConfig

    static = request.cache == "static"
    config = GenerationConfig(
        max_new_tokens=request.tokens, do_sample=False, use_cache=True, disable_compile=True,
        cache_implementation="static" if static else None,
        max_cache_len=batch["input_ids"].shape[1] + request.spare if static else None)
    number = 0

    def before(_module, _args, _keywords) -> None:
        nonlocal number
        begun(number)
        number += 1

    def after(_module, _args, keywords, _output) -> None:
        ended(keywords["cache" if "cache" in keywords else KEPT])

    hooks = [model.register_forward_pre_hook(before, with_kwargs=True),
             model.register_forward_hook(after, with_kwargs=True)]
    model._previous_max_cache_length = -1  # else a static cache would be as long as an earlier call's
    try:
        past = {} if cache is None else {KEPT: cache}
        return model.generate(**batch, generation_config=config, **past)
    finally:
        for hook in hooks:
            hook.remove()


def record(model, batch: dict[str, torch.Tensor], request: Generation, past: int, recorder: Recorder,
           places: ModuleTracker) -> Recording:
    """Records one call of ``generate``, with its inputs and result.

    Buffers that the recording does not free are workspaces, or the cache that the caller keeps. ``cuts`` of the
    recording are the positions of events at which the second and later forwards begin. ``cache`` has pairs of buffers
    of keys and values: before the call (-1: none) and after its last forward.

    Args:
        request: tokens to generate, and the type of the cache.
        past: tokens whose keys and values are in the cache before the call.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    prepare(model)
    cache = new_cache(model) if request.kept else None
    if past:
        _fill(cache, model, len(batch["input_ids"]), past)
    recorder.ignore([*model.parameters(), *model.buffers()])
    recorder.moment = Moment.PREFILL

    def rows(filled) -> list[int]:
        """Buffers of a cache's keys and values, layer by layer; records those that are not recorded yet."""
        result = []
        for tensor in [tensor for layer in filled.layers for tensor in (layer.keys, layer.values)]:
            recorder.watch(tensor, "cache", role="cache")
            row = recorder.row_of(tensor)
            assert row is not None  # it was recorded in the line before
            result.append(row)
        return result

    def begun(number: int) -> None:
        if number:
            recorder.moment = Moment.DECODE
            recorder.recording.cuts.append(len(recorder.recording.events))

    def ended(filled) -> None:
        after = rows(filled)
        for row in after:
            recorder.recording.buffers[row].role = "cache"
        recorder.recording.cache = list(zip(before or [-1] * len(after), after))

    if past and any(hasattr(module, "rope_deltas") for module in model.modules()):
        with recorder.unseen(), torch.no_grad():  # an earlier turn has set ``rope_deltas``, which the model keeps
            copies = {name: values.clone() for name, values in batch.items()}
            reply(model, copies, Generation(1), None, lambda _: None)
            del copies
    before = rows(cache) if past else []
    recorder.watch_inputs(batch)
    with collection_paused(), places.active(), recorder, torch.no_grad():
        ids = reply(model, batch, request, cache, begun, ended)
        del ids
        batch.clear()
        recording = recorder.closed()
    for parameter in trained:  # the next formula describes the same model
        parameter.requires_grad_(True)
    return recording


def _fill(cache, model, batch: int, past: int) -> None:
    """Fills every layer of a cache with keys and values of ``past`` tokens."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for layer in cache.layers:
        layer.update(*(torch.empty(batch, heads, past, width, dtype=model.dtype, device="meta") for _ in range(2)))

"""One call of transformers' ``generate``: as a measured job makes it, and recorded on meta tensors.

The reference loop of inference (transformers 5.17, generation/utils.py, ``generate`` and ``_sample``): greedy decoding
that does not stop early, the model not compiled, prompts of equal length with a mask of ones, as a processor gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from predictor.common.errors import InputError
from predictor.events.events import Moment
from predictor.trace.garbage_collection import collected
from predictor.trace.module_tracker import Places
from predictor.trace.recorder import Recorder, Recording
from predictor.workload.conversation import Generation

IGNORED = ("labels",)
"""What a batch of training has besides."""


def prepare(model) -> None:
    """The model as ``from_pretrained`` leaves it; nothing ends a reply before its time.

    Raises:
        InputError: the model does not write, or an encoder reads for it.
    """
    from transformers import GenerationConfig

    if not model.can_generate() or model.config.is_encoder_decoder:
        raise InputError(f"mode inference: {type(model).__name__} is not predicted: models that write after what they "
                         "read (decoders) are")
    model.eval()
    model.requires_grad_(False)
    model.generation_config = GenerationConfig()


def prompt(batch: dict[str, torch.Tensor], past: int) -> dict[str, torch.Tensor]:
    """What ``generate`` is given of a turn: the ids of the whole conversation, of which ``past`` are in the cache.

    Args:
        batch: of the turn alone, ``input_ids`` int64[batch, tokens].
    """
    kept = {name: values for name, values in batch.items() if name not in IGNORED}
    ids = kept["input_ids"]
    for name, values in kept.items():
        if values.shape[:2] == ids.shape and not values.is_floating_point():
            said = values.new_full((len(ids), past), int(name == "input_ids"))
            kept[name] = torch.cat([said, values], dim=1)
    return kept | {"attention_mask": torch.ones_like(kept["input_ids"])}


def new_cache(model):
    """The cache of a conversation, which its caller keeps."""
    from transformers import DynamicCache

    return DynamicCache(config=model.config.get_text_config(decoder=True))


def reply(model, batch: dict[str, torch.Tensor], wanted: Generation, cache: Any | None,
          begun: Callable[[int], None], ended: Callable[[Any], None] = lambda cache: None) -> torch.Tensor:
    """Generates ``wanted.tokens`` tokens; the ids int64[batch, tokens].

    Args:
        cache: the caller's own, or None for one that is made inside.
        begun: told the number of each forward, from 0 on, before it runs.
        ended: given the cache after each forward.
    """
    from transformers import GenerationConfig

    static = wanted.cache == "static"
    config = GenerationConfig(
        max_new_tokens=wanted.tokens, do_sample=False, use_cache=True, disable_compile=True,
        cache_implementation="static" if static else None,
        max_cache_len=batch["input_ids"].shape[1] + wanted.spare if static else None)
    number = 0

    def before(_module, _args, _keywords) -> None:
        nonlocal number
        begun(number)
        number += 1

    def after(_module, _args, keywords, _output) -> None:
        ended(keywords["past_key_values"])

    hooks = [model.register_forward_pre_hook(before, with_kwargs=True),
             model.register_forward_hook(after, with_kwargs=True)]
    model._previous_max_cache_length = -1  # a static cache is as long as this call says, whatever came before
    try:
        given = {} if cache is None else {"past_key_values": cache}
        return model.generate(**batch, generation_config=config, **given)
    finally:
        for hook in hooks:
            hook.remove()


def record(model, batch: dict[str, torch.Tensor], wanted: Generation, past: int, recorder: Recorder,
           places: Places) -> Recording:
    """Record one call, inputs and result included: what the recording does not free is a workspace, or the cache that
    the caller keeps.

    ``cuts`` of the recording are the events before which the second and later forwards begin; ``cache`` has the rows of
    keys and values, before the call (-1: there are none yet) and after its last forward.

    Args:
        past: tokens whose keys and values the cache holds before.
    """
    prepare(model)
    cache = new_cache(model) if wanted.kept else None
    if past:
        _fill(cache, model, len(batch["input_ids"]), past)
    recorder.ignore([*model.parameters(), *model.buffers()])
    recorder.moment = Moment.PREFILL

    def rows(held) -> list[int]:
        """Of keys and values, layer by layer; watched from now on, if they are not yet."""
        found = [tensor for layer in held.layers for tensor in (layer.keys, layer.values)]
        for tensor in found:
            recorder.watch(tensor, "cache", role="cache")
        return [recorder.row_of(tensor) for tensor in found]

    def begun(number: int) -> None:
        if number:
            recorder.moment = Moment.DECODE
            recorder.recording.cuts.append(len(recorder.recording.events))

    def ended(held) -> None:
        after = rows(held)
        for row in after:
            recorder.recording.buffers[row].role = "cache"
        recorder.recording.cache = list(zip(before or [-1] * len(after), after))

    if past and any(hasattr(module, "rope_deltas") for module in model.modules()):
        with recorder.unseen(), torch.no_grad():  # which the model keeps from the turn before
            copies = {name: values.clone() for name, values in batch.items()}
            reply(model, copies, Generation(1), None, lambda _: None)
            del copies
    before = rows(cache) if past else []
    recorder.watch_inputs(batch)
    with collected(), places.active(), recorder, torch.no_grad():
        ids = reply(model, batch, wanted, cache, begun, ended)
        del ids
        batch.clear()
        return recorder.closed()


def _fill(cache, model, batch: int, past: int) -> None:
    """Gives every layer keys and values of so many tokens."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for layer in cache.layers:
        layer.update(*(torch.empty(batch, heads, past, width, dtype=model.dtype, device="meta") for _ in range(2)))

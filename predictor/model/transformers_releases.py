"""What releases of transformers do differently, as far as a trace calls it: one function a difference.

Each function acts by the installed release, reads nothing else of it, and names the releases that were read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

from predictor.common.errors import InputError, NotPredicted
from predictor.common.releases import release

CHECKPOINTING_DEFAULTS = {"every_n_layers": 1, "offload": False}
"""Options of ``gradient_checkpointing_enable`` beside ``gradient_checkpointing_kwargs`` in 5.17; 4.57 has none."""


def checkpointing_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that ``gradient_checkpointing_enable`` of the installed release takes (modeling_utils.py).

    Raises:
        InputError: the release lacks one that differs from its default.
    """
    import transformers

    known = inspect.signature(transformers.PreTrainedModel.gradient_checkpointing_enable).parameters
    for name, value in options.items():
        if name not in known and value != CHECKPOINTING_DEFAULTS[name]:
            raise InputError(f"gradient_checkpointing_kwargs {name}: transformers {transformers.__version__} does not "
                             "have it: leave it out, or use a newer transformers")
    return {name: value for name, value in options.items() if name in known}


def auto_class(name: str) -> str:
    """The name that an automatic class has in the installed release (models/auto/modeling_auto.py)."""
    return "AutoModelForVision2Seq" if name == "AutoModelForImageTextToText" and _release() < (4, 45) else name


def configuration(document: Mapping[str, Any]) -> dict[str, Any]:
    """A model's configuration as the installed release reads it.

    Until 4.51 the text model of Qwen2-VL and Qwen2.5-VL has no configuration of its own
    (models/qwen2_5_vl/configuration_qwen2_5_vl.py): its values are the model's.
    """
    result = deepcopy(dict(document))
    if _release() < (4, 52) and result.get("model_type") in ("qwen2_vl", "qwen2_5_vl"):
        text = result.pop("text_config", {})
        text.pop("model_type", None)
        result = text | result
    return result


def dtype_option(dtype: Any) -> dict[str, Any]:
    """The argument that gives a new model its dtype: ``torch_dtype`` before 4.56 (modeling_utils.py, _from_config)."""
    return {"dtype" if _release() >= (4, 56) else "torch_dtype": dtype}


def checkpointed_layer() -> type[Any]:
    """The class of layers that decide themselves whether they are checkpointed (modeling_layers.py, since 4.52).

    Before, the model that calls them decides. No layer has the class that is returned then.
    """
    if _release() < (4, 52):
        return type("NoLayer", (), {})
    from transformers.modeling_layers import GradientCheckpointingLayer

    return GradientCheckpointingLayer


def knows_its_checkpointing(module: Any) -> bool:
    """Whether a module has the attributes of activation checkpointing: a layer, before 4.52 the model around layers."""
    if _release() < (4, 52):
        return hasattr(module, "_gradient_checkpointing_func")
    return isinstance(module, checkpointed_layer())


def _release() -> tuple[int, ...]:
    import transformers

    return release(transformers.__version__)


def image_features(model: Any, *, video: bool) -> Callable[..., Any] | None:
    """The function of a model that computes the features of images or videos; None if the model has none.

    It returns one tensor, or a list of them: 5.17 returns them as ``pooler_output``, 4.57 alone
    (models/llava/modeling_llava.py). Until 4.49 it takes values of the configuration, and some models have none: there
    the vision tower gives as many tokens as it has patches that are not left out.
    """
    name = "get_video_features" if video else "get_image_features"
    methods = [getattr(part, name) for part in (model, getattr(model, "model", None)) if hasattr(part, name)]
    if not methods:
        return _features_before_4_50(model)
    method = next((one for one in methods if not _passes_on(one)), methods[0])
    configured = {name: getattr(part, name) for name, parameter in inspect.signature(method).parameters.items()
                  for part in (getattr(model.config, "vision_config", None), model.config)
                  if parameter.default is parameter.empty and hasattr(part, name)}

    @wraps(method)
    def features(**inputs: Any) -> Any:
        output = method(**inputs, **configured)
        pooled = getattr(output, "pooler_output", output)
        return output.last_hidden_state if pooled is None else pooled  # Llama 4 projects them later

    return features


def _passes_on(method: Callable[..., Any]) -> bool:
    """Whether a method only passes its arguments on (5.17, models/minicpmv4_6/modeling_minicpmv4_6.py)."""
    return any(one.kind is one.VAR_POSITIONAL for one in inspect.signature(method).parameters.values())


def _features_before_4_50(model: Any) -> Callable[..., Any] | None:
    if hasattr(model, "visual"):  # models/qwen2_5_vl/modeling_qwen2_5_vl.py
        return lambda pixel_values, image_grid_thw: model.visual(pixel_values, grid_thw=image_grid_thw)
    if hasattr(model, "multi_modal_projector") and hasattr(model, "vision_tower"):  # models/llava/modeling_llava.py
        first = int(model.config.vision_feature_select_strategy == "default")
        return lambda pixel_values: model.vision_tower(pixel_values).last_hidden_state[:, first:]
    return None


def decayed(model: Any) -> set[str]:
    """Names of the parameters in the weight-decay group (5.17: Trainer.get_decay_parameter_names).

    4.43 excludes biases and the parameters of registered norms, later releases those with certain names.
    """
    from torch import nn
    from transformers import pytorch_utils
    from transformers.trainer_pt_utils import get_parameter_names

    if len(inspect.signature(get_parameter_names).parameters) < 3:
        return {name for name in get_parameter_names(model, pytorch_utils.ALL_LAYERNORM_LAYERS) if "bias" not in name}
    patterns = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
    return set(get_parameter_names(model, [nn.LayerNorm], patterns))


def merges_images(model: Any) -> bool:
    """Whether a model puts the tokens of an image in the place of one token itself, and needs an attention mask for
    that (4.43: models/llava/modeling_llava.py, _merge_input_ids_with_image_features).

    Later releases do so only for inputs that lack room for the image's tokens.
    """
    forward = inspect.getsource(type(model).forward)
    return hasattr(model, "_merge_input_ids_with_image_features") and "legacy_processing" not in forward


@contextmanager
def built_on_meta() -> Iterator[None]:
    """While the block runs, a model can be built on the meta device.

    Until 4.44 the rotary frequencies of Llama 3.1 are compared in Python, one by one (modeling_rope_utils.py,
    ``_compute_llama3_parameters``), which needs their values. They are computed on the CPU, as for a model that is
    not built on a GPU.
    """
    import torch

    if _release() >= (4, 45):
        yield
        return
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    compute = ROPE_INIT_FUNCTIONS["llama3"]

    def on_meta(config: Any, device: Any, *arguments: Any, **options: Any) -> tuple[Any, float]:
        with torch.device("cpu"):
            frequencies, factor = compute(config, torch.device("cpu"), *arguments, **options)
        return frequencies.to("meta"), factor

    with patch.dict(ROPE_INIT_FUNCTIONS, llama3=on_meta):
        yield


def import_for_forward() -> None:
    """Imports early what 4.43 imports in the first forward (modeling_attn_mask_utils.py, ``torch._dynamo``; not 4.46).

    The import leaves exceptions that it has caught, and these keep the locals of every function that was running, such
    as a model's forward, until the garbage collector runs. A recorded step would hold those tensors to its end.
    """
    if _release() < (4, 46):
        import torch._dynamo  # noqa: F401


@contextmanager
def cuda_branches(model: Any) -> Iterator[None]:
    """While the block runs, attention and its masks treat tensors on the meta device as they treat those on CUDA.

    Until 4.57, methods of many models ask whether ``device.type`` is ``cuda``, before they copy queries, keys and
    values, and before they let wholly masked rows attend (4.43: models/llama/modeling_llama.py,
    LlamaSdpaAttention.forward and LlamaModel._update_causal_mask). None does in 5.17.
    """
    with ExitStack() as stack:
        for kind in {type(part) for part in model.modules()} if _release() < (5,) else ():
            for name in ("forward", "_update_causal_mask"):
                code = getattr(getattr(kind, name, None), "__code__", None)
                if code and BRANCHING & {*code.co_names} and (constants := _for_meta(code.co_consts)) != code.co_consts:
                    method = _with_constants(getattr(kind, name), constants)
                    stack.enter_context(patch.object(kind, name, method))
        yield


BRANCHING = {"scaled_dot_product_attention", "_unmask_unattended"}
"""Functions that the methods call whose branches differ on CUDA."""


def _for_meta(constant: Any) -> Any:
    """A constant of a function with ``cuda`` replaced by ``meta``, also in the tuples that ``in`` searches."""
    if isinstance(constant, tuple):
        return tuple(map(_for_meta, constant))
    return "meta" if constant == "cuda" else constant


def _with_constants(function: Any, constants: tuple[Any, ...]) -> FunctionType:
    """A copy of a function with other constants. So its locals live and die as they do in the original."""
    copy = FunctionType(function.__code__.replace(co_consts=constants), function.__globals__, function.__name__,
                        function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def check_flash_attention(integration: ModuleType) -> None:
    """Checks that the release calls the flash-attn package as traces expect (5.17: integrations/flash_attention.py).

    4.57 decides about autocast inside ``flash_attention_forward``.

    Raises:
        InputError: it does not.
    """
    import transformers

    if not hasattr(integration, "get_target_dtype"):
        raise NotPredicted(f"attn_implementation flash_attention_2: not predicted for transformers "
                           f"{transformers.__version__} yet: give sdpa, or use transformers 5.17")


def skips_quantizing(name: str, pattern: str) -> bool:
    """Whether ``llm_int8_skip_modules`` with a pattern leaves a layer as it is (quantizers/quantizers_utils.py).

    4.57 compares the pattern with the layer's own name, its path and each part of the path
    (integrations/bitsandbytes.py, ``_replace_with_bnb_linear``).
    """
    if _release() >= (5,):
        from transformers.quantizers.quantizers_utils import should_convert_module

        return not should_convert_module(name, [pattern])
    return pattern in (name, name.rpartition(".")[2]) or f"{pattern}." in name

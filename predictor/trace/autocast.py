"""Mixed precision by autocast: wraps a model as Hugging Face does, and applies CUDA's casts to meta tensors.

Sources: torch 2.11, ATen/autocast_mode.h (lists of operators) and autocast_mode.cpp (``cached_cast``); accelerate 1.15,
accelerator.py, ``prepare_model``, which transformers' Trainer calls.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import MethodType
from typing import Any

import torch
from torch._ops import OpOverload

from predictor.common.dtypes import TORCH_NAMES

STAND_IN = "cpu"
"""The device whose autocast state replaces CUDA's while tracing. Activation checkpoints restore this device's state in
the recomputation, whatever the device of the tensors."""
KEY = torch._C.DispatchKey.AutocastCPU
OVER = {"allow_override": True} if "allow_override" in inspect.signature(torch.library.Library.impl).parameters else {}
"""Lets kernels take the place of PyTorch's own. Older releases do so unasked."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LOWER = _names("""_convolution.deprecated _convolution conv1d conv2d conv3d convolution prelu addmm addmv addr matmul
    einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot
    scaled_dot_product_attention""")
"""Operators that run in the lower precision."""
FP32 = _names("""acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm cosine_similarity nll_loss nll_loss2d
    kl_div l1_loss smooth_l1_loss huber_loss mse_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
    upsample_nearest2d upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa""")
"""Operators that run in fp32."""
TO_FP32 = _names("softmax.int log_softmax.int prod prod.dim_int cumprod cumsum sum sum.dim_IntList")
"""Operators that return fp32 unless the caller gives a dtype."""
WIDEST = _names("addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add")
"""Operators whose arguments all get the widest dtype among them."""


def prepare(model, dtype: str, device: str = STAND_IN) -> None:
    """Runs a model's forward under autocast and converts its outputs to fp32; changes the model in place.

    ``dtype`` is ``bf16`` or ``fp16``.
    """
    run = torch.autocast(device, dtype=getattr(torch, TORCH_NAMES[dtype]))(model.forward.__func__)
    model.forward = MethodType(lambda self, *args, **kwargs: _widened(run(self, *args, **kwargs)), model)


def _widened(data: Any) -> Any:
    """``convert_to_fp32`` (accelerate, utils/operations.py)."""
    container: Callable[..., Any] = type(data)
    if isinstance(data, (tuple, list)):
        return container(_widened(item) for item in data)
    if isinstance(data, Mapping):
        return container({key: _widened(value) for key, value in data.items()})
    narrow = isinstance(data, torch.Tensor) and data.dtype in (torch.float16, torch.bfloat16)
    return data.float() if narrow else data


def cast_as_one_operator(function: Callable) -> Callable:
    """Makes autocast treat a function as one operator of :data:`LOWER`: it casts the arguments and nothing inside."""
    @wraps(function)
    def lowered(*args, **kwargs):
        if not torch.is_autocast_enabled(STAND_IN):
            return function(*args, **kwargs)
        with _off():
            dtype = torch.get_autocast_dtype(STAND_IN)
            kwargs = {name: _cast(value, dtype) for name, value in kwargs.items()}
            casts = _casts(args, dtype)
            return function(*reversed(casts), **kwargs)

    return lowered


@contextmanager
def on_meta(model) -> Iterator[None]:
    """While the block runs, autocast of :data:`STAND_IN` casts meta tensors as CUDA's autocast casts CUDA tensors."""
    library = torch.library.Library("aten", "IMPL")
    cast_on_cuda = LOWER | FP32 | TO_FP32 | WIDEST
    for name in torch._C._dispatch_get_registrations_for_dispatch_key(KEY.name):
        # The CPU casts some ATen operators that CUDA does not. Operators of other libraries stay as they are.
        if name.startswith("aten::") and name.removeprefix("aten::") not in cast_on_cuda:
            library.impl(name, torch.library.fallthrough_kernel, KEY.name, **OVER)
    for names, kernel in ((LOWER, _lower), (FP32, _fp32), (TO_FP32, _to_fp32), (WIDEST, _widest)):
        for name in names:
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, _kernel(operator, kernel), KEY.name, **OVER)
    try:
        with ExitStack() as stack:
            stack.enter_context(_replaced(torch, "clear_autocast_cache", _cached.clear))
            stack.enter_context(_replaced(torch, "is_autocast_enabled", _asked(torch.is_autocast_enabled)))
            for module in {sys.modules[type(part).__module__] for part in model.modules()}:
                if hasattr(module, "maybe_autocast"):  # transformers switches autocast off for some sums with it
                    stack.enter_context(_replaced(module, "maybe_autocast", _maybe(module.maybe_autocast)))
            stack.enter_context(torch._C._IncludeDispatchKeyGuard(KEY))
            yield
    finally:
        library._destroy()


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _asked(original: Callable) -> Callable:
    """``torch.is_autocast_enabled``, which asks for CUDA where no device is named (peft 0.21, tuners/lora/bnb.py)."""
    return lambda device_type="cuda": original(STAND_IN if device_type == "cuda" else device_type)


def _maybe(original: Callable) -> Callable:
    """``maybe_autocast`` for meta tensors, for which transformers' own function does nothing."""
    return lambda device_type, *args, **kwargs: original(
        STAND_IN if device_type == "meta" else device_type, *args, **kwargs)


# one call -------------------------------------------------------------------------------------------------------------

_cached: dict[int, torch.Tensor] = {}
"""Weights in the lower precision, by the ids of the originals, until the outermost autocast context ends."""


def _off():
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(KEY))


def _kernel(operator: OpOverload, run: Callable) -> Callable:
    def kernel(*args, **kwargs):
        with _off():
            return run(operator, args, kwargs)

    return kernel


def _lower(operator: OpOverload, args: tuple, kwargs: dict):
    casts = _casts(args, torch.get_autocast_dtype(STAND_IN))
    return operator(*reversed(casts), **kwargs)


def _fp32(operator: OpOverload, args: tuple, kwargs: dict):
    casts = _casts(args, torch.float32)
    return operator(*reversed(casts), **kwargs)


def _widest(operator: OpOverload, args: tuple, kwargs: dict):
    wide = any(isinstance(arg, torch.Tensor) and arg.dtype == torch.float32 for arg in args)
    return (_fp32 if wide else _lower)(operator, args, kwargs)


def _to_fp32(operator: OpOverload, args: tuple, kwargs: dict):
    names = [argument.name for argument in operator._schema.arguments]
    keywords = dict(zip(names[1:], args[1:])) | kwargs
    if _is_cast(args[0]) and keywords.get("dtype") is None:
        keywords["dtype"] = torch.float32
    return operator(args[0], **keywords)


def _is_cast(tensor: torch.Tensor) -> bool:
    return tensor.is_meta and tensor.is_floating_point() and tensor.dtype != torch.float64


def _casts(args: tuple, dtype: torch.dtype) -> list:
    """The cast arguments in reverse order: GCC evaluates the last argument first, and this fixes the order of their
    allocations. Callers unpack ``reversed(casts)``; the list then frees them from its first to its last."""
    return [_cast(arg, dtype) for arg in reversed(args)]


def _cast(tree, dtype: torch.dtype):
    if isinstance(tree, torch.Tensor):
        return _cast_one(tree, dtype)
    if type(tree) in (list, tuple):
        return type(tree)([_cast(part, dtype) for part in tree])
    return tree


def _cast_one(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``cached_cast``: casts of weights to the lower precision are cached."""
    if not _is_cast(tensor) or tensor.dtype == dtype:
        return tensor
    is_weight = tensor.dtype == torch.float32 and tensor.requires_grad and tensor.is_leaf and not tensor._is_view()
    if not is_weight or dtype == torch.float32:
        return tensor.to(dtype)
    if id(tensor) not in _cached:
        _cached[id(tensor)] = tensor.to(dtype)
    return _cached[id(tensor)]

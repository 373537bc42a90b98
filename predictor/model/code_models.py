"""Models outside transformers: the user's own function (``module:function``) returns a module and a batch.

The function takes ``batch`` and, if it needs them, ``sequence`` and ``images`` (of the whole micro-batch) as keyword
arguments. It returns ``(model, batch)``: an ``nn.Module`` and a mapping of tensors that its forward takes by keyword.
The loss is the output's ``.loss``, or the output itself. The function runs when a model is traced or measured. It also
runs to check that a formula that was traced at other shapes holds for its model and batch at the given shape.

The key of a formula includes the source of the function's file, but not of files that it imports: after a change in
those, the user must empty the cache (``kept.cache_directory``). A formula for several shapes is traced at up to 304
tokens and 4 samples, so it misses branches that the forward takes only for larger sizes.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.common.dtypes import TORCH_NAMES
from predictor.common.errors import InputError
from predictor.common.files import read_text
from predictor.common.installing import pip_install
from predictor.common.suggestions import nearest, quoted
from predictor.events.regimes import NotOneRegime
from predictor.events.sizes import Shape
from predictor.model.control_tensors import is_discrete
from predictor.model.model_config import Modality, ModelConfig
from predictor.workload.code_names import CODE_NAME, NOT_RUN

if TYPE_CHECKING:
    import torch

MODEL_TYPE = "python"
SYMBOLS = ("batch", "sequence", "images")
"""Keyword arguments that a function may declare."""


class UserCodeError(InputError):
    """Raised when the user's code fails at one shape; at other shapes it may work."""


@dataclass(frozen=True)
class CodeModel(ModelConfig):
    """A model that the user's own function builds.

    Attributes:
        path: the function's file.
        module: the module to import; empty if the user named a file.
        function: name of the function.
        takes: the arguments out of :data:`SYMBOLS` that it declares.
        shape: the shape at which the model is built; None: not decided yet.
    """

    path: str = ""
    module: str = ""
    function: str = ""
    takes: tuple[str, ...] = ()
    shape: Shape | None = None

    @property
    def kind(self) -> Modality:
        """The modality of samples, derived from the arguments of the function."""
        if "sequence" in self.takes:
            return Modality.IMAGE_TEXT if "images" in self.takes else Modality.TEXT
        return Modality.IMAGE


_MAY_RUN: ContextVar[bool] = ContextVar("may_run", default=True)
"""Whether the user's functions may be called."""


@contextmanager
def not_run() -> Iterator[None]:
    """Within the context such models are rejected: a file of somebody else, such as a record, must run no code."""
    token = _MAY_RUN.set(False)
    try:
        yield
    finally:
        _MAY_RUN.reset(token)


def find(model: str) -> CodeModel:
    """The function that ``module:function`` or ``path/to/file.py:function`` names. Its source is read, but not run.

    Raises:
        InputError: the module, file or function does not exist, or it needs other arguments than :data:`SYMBOLS`, or
            the context is :func:`not_run`.
    """
    if not _MAY_RUN.get():
        raise InputError(f"model {quoted(model, 200)}: {NOT_RUN}: predict its workload yourself")
    match = CODE_NAME.fullmatch(model)
    assert match is not None  # callers check code_names.is_code_name
    where, function = match.group("where", "function")
    is_file = where.endswith(".py")
    path = _expanded(where, model) if is_file else _file_of(where, model)
    source = read_text(path, f"the model {quoted(model, 200)}")
    takes = _arguments(source, function, model)
    digest = hashlib.sha256(source.encode()).hexdigest()
    return CodeModel(model, {"model_type": MODEL_TYPE, "function": function, "source": digest}, path=str(path),
                     module="" if is_file else where, function=function, takes=takes)


def _expanded(path: str, model: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"model {quoted(model, 200)}: no home directory is known for {quoted(path.partition('/')[0])}"
                         ": give the whole path of the file") from None


def _file_of(module: str, model: str) -> Path:
    """The source file of a module; its parent packages are imported to find it."""
    _importable(os.getcwd())
    try:
        spec = importlib.util.find_spec(module)
    except Exception as error:  # a package's __init__ may do anything
        raise InputError(f"model {model}: cannot import {module}: {_error_text(error)}") from None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise InputError(f"model {model}: no module {module!r} with Python source: run peakcast where it can be "
                         "imported, or give path/to/file.py:function")
    return Path(spec.origin)


def _importable(directory: str) -> None:
    if directory not in sys.path:
        sys.path.append(directory)


def _arguments(source: str, name: str, model: str) -> tuple[str, ...]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # thousands of nested operators
        raise InputError(f"model {model}: not valid Python: {_error_text(error)}") from None
    functions = {node.name: node.args for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name not in functions:
        raise InputError(f"model {model}: no function {name!r} at the top of the file"
                         f"{nearest(name, functions)}: define it there with def")
    signature = functions[name]
    plain = [*signature.posonlyargs, *signature.args]
    needed = [a.arg for a in plain[: len(plain) - len(signature.defaults)]]
    needed += [a.arg for a, default in zip(signature.kwonlyargs, signature.kw_defaults) if default is None]
    for argument in [a.arg for a in signature.posonlyargs] + needed:
        if argument not in SYMBOLS or argument in {a.arg for a in signature.posonlyargs}:
            raise InputError(f"model {model}: {name} takes {argument!r}: it is called with keywords out of batch, "
                             "sequence and images (give others a default)")
    declared = {a.arg for a in (*plain, *signature.kwonlyargs)}
    if "batch" not in declared:
        raise InputError(f"model {model}: {name} must take batch, the number of samples")
    return tuple(symbol for symbol in SYMBOLS if symbol in declared)


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def at_shape(config: ModelConfig, shape: Shape) -> ModelConfig:
    """The configuration of a model at a shape. Only the user's own functions depend on the shape."""
    return replace(config, shape=shape) if isinstance(config, CodeModel) else config


def build(config: CodeModel, dtype: str) -> torch.nn.Module:
    """The user's model on the meta device.

    Integer tensors, and tensors made from given values (:data:`VALUE_CONSTRUCTORS`), keep their values on the CPU. So
    do tensors computed from those alone.

    Raises:
        InputError: the user's code fails, or does not return a module and a batch.
    """
    return call_user_function(config, dtype)[0]


def call_user_function(config: CodeModel, dtype: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The model and the batch that the user's function returns at ``config.shape``; errors as :func:`build`."""
    try:
        import torch
    except ImportError:
        raise InputError(f"model {config.name}: running it needs torch: {pip_install('peakcast[trace]')}") from None

    with redirect_stdout(sys.stderr):
        function = _function(config.path, config.module, config.function, config.name)
    assert config.shape is not None  # callers set it, by :func:`at_shape`
    values = dict(zip(SYMBOLS, config.shape))
    try:
        with _default_dtype(getattr(torch, TORCH_NAMES[dtype])), _meta(), redirect_stdout(sys.stderr):
            returned = function(**{name: values[name] for name in config.takes})
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"model {config.name}: {config.function} raised {_error_text(error)}") from error
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], torch.nn.Module)
            and isinstance(returned[1], Mapping)):
        parts = returned if isinstance(returned, tuple) else (returned,)
        types = ", ".join(type(value).__name__ for value in parts)
        raise InputError(f"model {config.name}: {config.function} must return (nn.Module, dict of tensors), "
                         f"not {types}")
    for name, value in returned[1].items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise InputError(f"model {config.name}: the batch of {config.function} must have tensors by name, not "
                             f"{quoted(name)}: {type(value).__name__}")
    if not any(True for _ in returned[0].parameters()):
        raise InputError(f"model {config.name}: the module that {config.function} returns has no parameters")
    return returned[0], dict(returned[1])


@lru_cache(maxsize=8)
def _function(path: str, module: str, name: str, model: str) -> Callable:
    """The user's function, from its imported module or file."""
    try:
        if module:
            return getattr(importlib.import_module(module), name)
        _importable(str(Path(path).resolve().parent))
        spec = importlib.util.spec_from_file_location(f"peakcast_model_{Path(path).stem}", path)
        assert spec is not None and spec.loader is not None  # the path ends in .py
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = loaded  # dataclasses and pickling look it up there
        spec.loader.exec_module(loaded)
        return getattr(loaded, name)
    except (Exception, SystemExit) as error:
        raise InputError(f"model {model}: importing {path} raised {_error_text(error)}") from None


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _meta():
    """A function mode like ``torch.device("meta")`` (torch 2.11, torch/utils/_device.py), with some tensors on the CPU.

    Those are integer tensors, and tensors made from given values (:data:`VALUE_CONSTRUCTORS`): the control flow of
    models depends on their values.
    """
    from torch.overrides import TorchFunctionMode
    from torch.utils._device import _device_constructors

    class Meta(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if func in _device_constructors() and kwargs.get("device") is None:
                return _constructed(func, args, kwargs)
            tensors = _tensors((args, kwargs))
            if len({tensor.is_meta for tensor in tensors}) > 1:
                return _mixed(func, args, kwargs)
            try:
                return func(*args, **kwargs)
            except NotImplementedError:  # the CPU lacks some half-precision kernels
                if not tensors or tensors[0].is_meta:
                    raise
                moved, named = _each((args, kwargs), _to_meta)
                return func(*moved, **named)

    return Meta()


VALUE_CONSTRUCTORS = ("arange", "as_tensor", "asarray", "linspace", "logspace", "range", "scalar_tensor", "tensor")
"""Constructors whose arguments determine every value. Of other floats, such as weights, only the size matters."""
IN_PLACE = re.compile(r"\w*[^_]_|__set(item)?__|__i(add|and|floordiv|lshift|mod|mul|or|pow|rshift|sub|truediv|xor)__")
"""Pattern of the names of functions that change their first argument in place."""


def _constructed(func: Callable, args: tuple, kwargs: dict[str, Any]) -> torch.Tensor:
    """A new tensor: on the CPU if its values must be known, else on meta."""
    meta_tensor = func(*args, **kwargs | {"device": "meta"})
    if not is_discrete(meta_tensor) and func.__name__ not in VALUE_CONSTRUCTORS:
        return meta_tensor
    try:
        return func(*args, **kwargs | {"device": "cpu"})
    except NotImplementedError:  # a copy of a meta tensor
        return meta_tensor


def _mixed(func: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A call with CPU tensors and meta tensors, which would all be on the GPU in a real job: its result is on meta.

    A tensor that is changed in place keeps its device. If that is the CPU, unknown values are replaced by ones.
    """
    name = getattr(func, "__name__", "")
    changes = bool(IN_PLACE.fullmatch(name))
    if changes and not args[0].is_meta:
        known, named = _each((args, kwargs), _to_ones)
        return func(*known, **named)
    if changes or name == "__getitem__" and args[0].is_meta or not any(
            tensor.dim() for tensor in _tensors((args, kwargs)) if not tensor.is_meta):
        try:  # PyTorch accepts indices, scalars and sizes on the CPU
            return func(*args, **kwargs)
        except RuntimeError:
            pass
    moved, named = _each((args, kwargs), _to_meta)
    return func(*moved, **named)


def _tensors(arguments: Any) -> list[torch.Tensor]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]


def _each(arguments: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The arguments, with ``change`` applied to each tensor."""
    import torch
    from torch.utils._pytree import tree_map

    return tree_map(lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf, arguments)


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("meta")


def _to_ones(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.ones(tensor.shape, dtype=tensor.dtype, device="cpu") if tensor.is_meta else tensor


def replace_tensors(model: torch.nn.Module, to: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replaces every tensor of a model by ``to(tensor)``, in the order of ``model.to`` (nn.Module._apply: children
    first). Shared tensors are replaced once and stay shared."""
    import torch

    replaced: dict[int, tuple[Any, Any]] = {}
    seen = set()

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in replaced:
            new = to(tensor.detach())
            if isinstance(tensor, torch.nn.Parameter):
                new = torch.nn.Parameter(new, tensor.requires_grad)
            replaced[id(tensor)] = tensor, new
        return replaced[id(tensor)][1]

    def visit(module: torch.nn.Module) -> None:
        seen.add(module)
        for child in module.children():
            if child not in seen:
                visit(child)
        own_tensors: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for tensors in own_tensors:
            tensors.update({name: moved(tensor) for name, tensor in tensors.items() if tensor is not None})

    visit(model)


def on_meta(model: torch.nn.Module) -> torch.nn.Module:
    """Moves every tensor of a model to meta, in place, and returns the model."""
    import torch

    replace_tensors(model, lambda tensor: torch.empty_like(tensor, device="meta"))
    return model


def layout(model: torch.nn.Module) -> list[tuple]:
    """Name, shape and element size of every parameter and buffer; two models with equal layouts count as the same."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [(name, tuple(tensor.shape), tensor.element_size()) for name, tensor in tensors]


@dataclass(frozen=True, eq=False)
class CodeInputs:
    """Makes batches with the user's function, as ``predictor.trace.inputs.Inputs`` does for a configuration.

    Attributes:
        layout: :func:`layout` of the model, before an engine changes it.
        dtype: dtype of the workload.
    """

    config: CodeModel
    layout: list[tuple]
    dtype: str
    options: Mapping[str, bool] = field(default_factory=dict)

    def tokens_among(self, count: int) -> int:
        """0: images fill no placeholder tokens in such models."""
        return 0

    def image_tokens(self, shape: Shape) -> tuple[int, ...]:
        """0 for each sample, as :meth:`tokens_among`."""
        return (0,) * shape.batch

    def batch(self, shape: Shape, padding: str, loss: str = "") -> dict[str, torch.Tensor]:
        """The function's batch at a shape: integers on the CPU with their values, floats on meta.

        Raises:
            NotOneRegime: the function builds a different model for this shape.
        """
        import torch

        model, batch = call_user_function(replace(self.config, shape=shape), self.dtype)
        if layout(model) != self.layout:
            raise NotOneRegime(f"{self.config.name} is another model at {shape}")
        return {name: tensor if is_discrete(tensor) else torch.empty_like(tensor, device="meta")
                for name, tensor in batch.items()}


def loss_of(output: Any) -> torch.Tensor:
    """The loss in the output of a forward.

    Raises:
        InputError: the output has no scalar loss.
    """
    import torch

    loss = output if isinstance(output, torch.Tensor) else getattr(output, "loss", None)
    if not isinstance(loss, torch.Tensor) or loss.dim():
        shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
        raise InputError(f"the model's forward gives no loss but a {type(output).__name__}{shape}: it must return a "
                         "scalar tensor, or an output with .loss")
    return loss

"""Models outside transformers: a function of the user's that gives a module and a batch, ``module:function``.

The function declares which of ``batch``, ``sequence`` and ``images`` (of the whole micro-batch) it takes, by keyword,
and returns ``(model, batch)``: an ``nn.Module`` and a mapping of tensors that its forward takes by keyword. The loss
is the output's ``.loss``, or the output itself. It runs where a model is traced or measured, and to see whether a
formula that was traced at other shapes holds for its model and batch at this one.

A formula is kept by the source of the function's file: what that file imports is not looked at, so after a change
there the cache (``kept.cache_directory``) must be emptied. Of a forward that branches on sizes, formulas of several
shapes do not know: they are traced at up to 304 tokens and 4 samples.
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
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.common.dtypes import TORCH_NAMES
from predictor.common.errors import InputError
from predictor.common.files import read_text
from predictor.common.suggestions import nearest, show
from predictor.events.regimes import NotOneRegime
from predictor.events.sizes import Shape
from predictor.model.control_tensors import discrete
from predictor.model.model_config import Kind, ModelConfig
from predictor.workload.code_names import NAMED

if TYPE_CHECKING:
    import torch

MODEL_TYPE = "python"
SYMBOLS = ("batch", "sequence", "images")
"""Keyword arguments that a function may declare."""


class Raised(InputError):
    """The user's code failed at one shape; at others it may not."""


@dataclass(frozen=True)
class CodeModel(ModelConfig):
    """A function that builds a model.

    Attributes:
        path: its file.
        module: what is imported to have it; empty for a file that was named.
        function: its name.
        takes: which of :data:`SYMBOLS` it declares.
        shape: at which it is built.
    """

    path: str = ""
    module: str = ""
    function: str = ""
    takes: tuple[str, ...] = ()
    shape: Shape | None = None

    @property
    def kind(self) -> Kind:
        """By what its arguments are."""
        if "sequence" in self.takes:
            return Kind.IMAGE_TEXT if "images" in self.takes else Kind.TEXT
        return Kind.IMAGE


def find(model: str) -> CodeModel:
    """The function that ``module:function`` or ``path/to/file.py:function`` names; its source is read, not run.

    Raises:
        InputError: no such module, file or function, or arguments that nothing is known of.
    """
    where, function = NAMED.fullmatch(model).group("where", "function")
    is_file = where.endswith(".py")
    path = _expanded(where, model) if is_file else _file_of(where, model)
    source = read_text(path, f"the model {show(model, 200)}")
    takes = _arguments(source, function, model)
    digest = hashlib.sha256(source.encode()).hexdigest()
    return CodeModel(model, {"model_type": MODEL_TYPE, "function": function, "source": digest}, path=str(path),
                     module="" if is_file else where, function=function, takes=takes)


def _expanded(path: str, model: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"model {show(model, 200)}: no home directory is known for {show(path.partition('/')[0])}: "
                         "give the whole path of the file") from None


def _file_of(module: str, model: str) -> Path:
    """Source of a module; packages around it are imported to find it."""
    _importable(os.getcwd())
    try:
        spec = importlib.util.find_spec(module)
    except Exception as error:  # a package's __init__ may do anything
        raise InputError(f"model {model}: cannot import {module}: {_said(error)}") from None
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
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # of thousands of operators in a row
        raise InputError(f"model {model}: not valid Python: {_said(error)}") from None
    functions = {node.name: node.args for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name not in functions:
        raise InputError(f"model {model}: no function {name!r} at the top of the file"
                         f"{nearest(name, functions)}: define it there with def")
    given = functions[name]
    plain = [*given.posonlyargs, *given.args]
    needed = [a.arg for a in plain[: len(plain) - len(given.defaults)]]
    needed += [a.arg for a, default in zip(given.kwonlyargs, given.kw_defaults) if default is None]
    for argument in [a.arg for a in given.posonlyargs] + needed:
        if argument not in SYMBOLS or argument in {a.arg for a in given.posonlyargs}:
            raise InputError(f"model {model}: {name} takes {argument!r}: it is called with keywords out of batch, "
                             "sequence and images (give others a default)")
    declared = {a.arg for a in (*plain, *given.kwonlyargs)}
    if "batch" not in declared:
        raise InputError(f"model {model}: {name} must take batch, the number of samples")
    return tuple(symbol for symbol in SYMBOLS if symbol in declared)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def at(config: ModelConfig, shape: Shape) -> ModelConfig:
    """The model at a shape; others than the user's own are the same at all."""
    return replace(config, shape=shape) if isinstance(config, CodeModel) else config


def build(config: CodeModel, dtype: str) -> torch.nn.Module:
    """The model on the meta device; tensors of integers, those that are told their values, and what follows from them
    have these.

    Raises:
        InputError: the code fails, or returns something else.
    """
    return called(config, dtype)[0]


def called(config: CodeModel, dtype: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    try:
        import torch
    except ImportError:
        raise InputError(f"model {config.name}: running it needs torch: pip install 'peakcast[trace]'") from None

    with redirect_stdout(sys.stderr):
        function = _function(config.path, config.module, config.function, config.name)
    values = dict(zip(SYMBOLS, config.shape))
    try:
        with _default_dtype(getattr(torch, TORCH_NAMES[dtype])), _meta(), redirect_stdout(sys.stderr):
            made = function(**{name: values[name] for name in config.takes})
    except (Exception, SystemExit) as error:
        raise Raised(f"model {config.name}: {config.function} raised {_said(error)}") from error
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module)
            and isinstance(made[1], Mapping)):
        kinds = ", ".join(type(one).__name__ for one in made) if isinstance(made, tuple) else type(made).__name__
        raise InputError(f"model {config.name}: {config.function} must return (nn.Module, dict of tensors), "
                         f"not {kinds}")
    for name, value in made[1].items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise InputError(f"model {config.name}: the batch of {config.function} must have tensors by name, not "
                             f"{show(name)}: {type(value).__name__}")
    if not any(True for _ in made[0].parameters()):
        raise InputError(f"model {config.name}: the module that {config.function} returns has no parameters")
    return made[0], dict(made[1])


@lru_cache(maxsize=8)
def _function(path: str, module: str, name: str, model: str) -> Callable:
    """Imports the user's module."""
    try:
        if module:
            return getattr(importlib.import_module(module), name)
        _importable(str(Path(path).resolve().parent))
        spec = importlib.util.spec_from_file_location(f"peakcast_model_{Path(path).stem}", path)
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = loaded  # dataclasses and pickling look there
        spec.loader.exec_module(loaded)
        return getattr(loaded, name)
    except (Exception, SystemExit) as error:
        raise InputError(f"model {model}: importing {path} raised {_said(error)}") from None


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
    """Like ``torch.device("meta")`` (torch 2.11, torch/utils/_device.py), but tensors of integers, and what is told
    every value (:data:`TOLD`), are made on the CPU: models steer on their values."""
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
            except NotImplementedError:  # CPUs lack some kernels of half precision
                if not tensors or tensors[0].is_meta:
                    raise
                moved, named = _each((args, kwargs), _to_meta)
                return func(*moved, **named)

    return Meta()


TOLD = ("arange", "as_tensor", "asarray", "linspace", "logspace", "range", "scalar_tensor", "tensor")
"""Constructors that are told every value; what others make, such as weights, only takes room."""
IN_PLACE = re.compile(r"\w*[^_]_|__set(item)?__|__i(add|and|floordiv|lshift|mod|mul|or|pow|rshift|sub|truediv|xor)__")
"""Names of functions that change their first argument."""


def _constructed(func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> torch.Tensor:
    """A new tensor: on the CPU if its values are to be known, else on meta."""
    made = func(*args, **kwargs | {"device": "meta"})
    if not discrete(made) and func.__name__ not in TOLD:
        return made
    try:
        return func(*args, **kwargs | {"device": "cpu"})
    except NotImplementedError:  # a copy of what lies on meta
        return made


def _mixed(func: Callable, args: tuple, kwargs: Mapping[str, Any]) -> Any:
    """A call over tensors of the CPU and of meta, which on a GPU would all be there: its result is on meta.

    What it changes stays where it is; on the CPU it takes ones for what nobody knows.
    """
    name = getattr(func, "__name__", "")
    changes = bool(IN_PLACE.fullmatch(name))
    if changes and not args[0].is_meta:
        known, named = _each((args, kwargs), _to_ones)
        return func(*known, **named)
    if changes or name == "__getitem__" and args[0].is_meta or not any(
            tensor.dim() for tensor in _tensors((args, kwargs)) if not tensor.is_meta):
        try:  # indices, scalars and sizes may lie on the CPU
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
    """Arguments with each tensor changed."""
    import torch
    from torch.utils._pytree import tree_map

    return tree_map(lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf, arguments)


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("meta")


def _to_ones(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.ones(tensor.shape, dtype=tensor.dtype, device="cpu") if tensor.is_meta else tensor


def move(model: torch.nn.Module, to: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replace every tensor of a model, shared ones once, in the order of ``model.to`` (nn.Module._apply: children
    first)."""
    import torch

    made: dict[int, tuple[Any, Any]] = {}
    seen = set()

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            new = to(tensor.detach())
            if isinstance(tensor, torch.nn.Parameter):
                new = torch.nn.Parameter(new, tensor.requires_grad)
            made[id(tensor)] = tensor, new
        return made[id(tensor)][1]

    def visit(module: torch.nn.Module) -> None:
        seen.add(module)
        for child in module.children():
            if child not in seen:
                visit(child)
        for held in (module._parameters, module._buffers):
            held.update({name: moved(tensor) for name, tensor in held.items() if tensor is not None})

    visit(model)


def on_meta(model: torch.nn.Module) -> torch.nn.Module:
    """The same model with every tensor on meta, for tracing."""
    import torch

    move(model, lambda tensor: torch.empty_like(tensor, device="meta"))
    return model


def layout(model: torch.nn.Module) -> list[tuple]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [(name, tuple(tensor.shape), tensor.element_size()) for name, tensor in tensors]


@dataclass(frozen=True, eq=False)
class CodeInputs:
    """Makes batches by the user's function, as ``predictor.trace.inputs.Inputs`` does for a configuration.

    Attributes:
        layout: of the model that they are for, before an engine changes it.
        dtype: of the workload.
    """

    config: CodeModel
    layout: list[tuple]
    dtype: str
    options: Mapping[str, bool] = field(default_factory=dict)

    def tokens_among(self, count: int) -> int:
        """Pictures are no tokens that anybody counts."""
        return 0

    def image_tokens(self, shape: Shape) -> tuple[int, ...]:
        """Of each sample."""
        return (0,) * shape.batch

    def batch(self, shape: Shape, padding: str) -> dict[str, torch.Tensor]:
        """The function's, at a shape: integers with their values on the CPU, floats on meta.

        Raises:
            NotOneRegime: the function builds another model for this shape.
        """
        import torch

        model, batch = called(replace(self.config, shape=shape), self.dtype)
        if layout(model) != self.layout:
            raise NotOneRegime(f"{self.config.name} is another model at {shape}")
        return {name: tensor if discrete(tensor) else torch.empty_like(tensor, device="meta")
                for name, tensor in batch.items()}


def loss_of(output: Any) -> torch.Tensor:
    """The loss in what a forward gives.

    Raises:
        InputError: there is none.
    """
    import torch

    loss = output if isinstance(output, torch.Tensor) else getattr(output, "loss", None)
    if not isinstance(loss, torch.Tensor) or loss.dim():
        shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
        raise InputError(f"the model's forward gives no loss but a {type(output).__name__}{shape}: it must return a "
                         "scalar tensor, or an output with .loss")
    return loss

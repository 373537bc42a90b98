"""A dispatch mode that tracks the true values of integer and boolean tensors on the emulated GPU.

Kernels do nothing there, but the control flow of programs depends on integers:
token ids, masks, lengths. `IntegerTwins` is a dispatch mode. For every integer or
boolean CUDA storage with known values it keeps the same bytes on the host: the
storage's "twin". The CUDA operator still runs, so that its allocations are real;
then the same operator runs on the twins. Read-backs (`.item()`, `.tolist()`,
`.cpu()`) and sizes that depend on data (`nonzero`, `x[mask]`) get their values
from the twins.

Known values are: copies from the host, constants, `arange`, random integers
(drawn here from a generator of their own), and all results that PyTorch's own
operators compute from these. Floats are tracked only where control flow depends
on them: inputs that come from the host (some models look for images that are all
zeros), quotients of known values (Gemma 4 counts patches with averages of ones), and
tensors of a few elements (is the gradient of the loss 1?). All values
that depend on other floats, or come from a kernel that PyTorch does not dispatch
(Triton), are unknown and read back as zero. One exception: the `topk` of unknown
scores returns random indices, so that a router chooses its experts evenly.
"""

import atexit
import time
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from calibrate.emulator.host_value_store import LARGEST_TWIN_BYTES, Twins, is_float, is_integer
from calibrate.emulator.job_environment import is_emulated
from calibrate.emulator.read_backs import READ_BACKS, last_upload, returning_read_backs

#: Tensors of floats are tracked up to this many elements.
FEW = 64
#: Random scores for `topk` are drawn up to this many elements.
MOST_SCORES = 2**24

#: Operators whose results depend only on the shapes of their arguments.
_BY_SHAPE = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "randint_like"}
#: Operators that return uninitialised memory.
_UNWRITTEN = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
#: Operators that do not change values, although their schemas do not say so.
_SAME_VALUES = {"set_", "resize_", "detach", "detach_", "lift", "lift_fresh", "record_stream", "_unsafe_view"}
#: In-place operators that do not read the values that they overwrite.
_OVERWRITE = {"copy_", "fill_", "zero_", "random_"}
#: Collectives that gather. The parts of the other ranks are assumed to be equal to this rank's.
_GATHERS = {"c10d.allgather_", "c10d._allgather_base_"}

_PLAIN = torch.Tensor.__torch_dispatch__
#: Tensor subclasses whose operators another dispatch mode handles, after this one.
_OF_MODES = {"FakeTensor", "FunctionalTensor"}


class _Unknown(Exception):
    """The operator's result depends on unknown values."""


@dataclass(frozen=True)
class _Operator:
    """Facts from an operator's schema, looked up once."""

    name: str
    followed: bool = False  # whether it also runs on the twins
    is_foreign: bool = False  # not PyTorch's own: the values that it writes are unknown
    is_view: bool = False
    is_random: bool = False
    written: tuple[int | str, ...] = ()  # positions or names of the arguments that it writes to


def _describe(func: Any) -> _Operator:
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator: the operators that it calls are dispatched one by one
        return _Operator("")
    name = func.overloadpacket.__name__
    written = tuple(
        argument.name if argument.kwarg_only else position
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    if func.namespace not in ("aten", "prims"):
        return _Operator(f"{func.namespace}.{name}", is_foreign=True, written=written)
    is_view = not written and any(returned.alias_info is not None for returned in schema.returns)
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    return _Operator(name, name not in _SAME_VALUES, False, is_view, is_random, written)


def _is_composite(func: Any) -> bool:
    """Whether an operator only calls other operators."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), torch.DispatchKey.CompositeImplicitAutograd)


class Observer(Protocol):
    """Is told of each operator, on the thread that runs it."""

    def begins(self, operator: Any, arguments: tuple) -> None:
        """The operator begins on the device."""

    def ends(self) -> None:
        """It ended, or raised an exception."""


class IntegerTwins(TorchDispatchMode):
    """The dispatch mode that keeps the twins up to date and answers read-backs from them.

    ``observer`` is None unless somebody sets it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.observer: Observer | None = None
        self.twins = Twins()
        self._operators: dict[Any, _Operator] = {}
        self._random_state = torch.Generator().manual_seed(0).get_state()
        self._scores = torch.Generator().manual_seed(0)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: torch.compile may compile under this mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if any(cls.__torch_dispatch__ is not _PLAIN and cls.__name__ not in _OF_MODES for cls in types):
            return NotImplemented  # a tensor subclass unwraps itself and calls the operator again with plain tensors
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and _is_composite(func):
            with self:  # inference mode dispatches composite operators before they are decomposed
                return func.decompose(*args, **kwargs)
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = _describe(func)
        result = self._run(func, operator, args, kwargs)
        if operator.name == "lift_fresh":
            self._follow_constant(result)
        elif operator.is_foreign:
            self._follow_foreign(operator, args, kwargs, result)
        if not operator.followed or operator.is_view:
            return result
        if operator.written:
            self._follow_write(func, operator, args, kwargs)
        elif isinstance(result, (int, bool, float)):
            return self._scalar(operator, args, result)
        else:
            self._follow_result(func, operator, args, kwargs, _tensors(result))
        return result

    def _run(self, func: Any, operator: _Operator, args: tuple, kwargs: dict) -> Any:
        """Runs the operator on the device."""
        compute = READ_BACKS.get(operator.name) if operator.followed else None
        observer = self.observer
        if observer is not None:
            observer.begins(func, args)
        try:
            if compute is None:
                return func(*args, **kwargs)
            with returning_read_backs(compute, self.twins, args, kwargs):
                return func(*args, **kwargs)
        finally:
            if observer is not None:
                observer.ends()

    def _follow_write(self, func: Any, operator: _Operator, args: tuple, kwargs: dict) -> None:
        targets = [
            tensor
            for tensor in _written(operator, args, kwargs)
            if is_integer(tensor) or self._is_few(tensor) or self.twins.of(tensor) is not None
            or operator.name == "copy_" and self._is_read_back(tensor, args[1])
        ]  # fmt: skip
        if not targets:
            return
        overwritten = operator.name in _OVERWRITE or isinstance(operator.written[0], str)  # in place, or out=
        try:
            if operator.is_random and any(map(is_float, targets)):
                raise _Unknown
            for tensor in targets:
                if tensor.is_cuda and self.twins.of(tensor) is None and not (overwritten and self._keep(tensor)):
                    raise _Unknown
            self._run_on_host(func, operator, args, kwargs)
        except Exception:  # unknown inputs, or no such operator on the host
            for tensor in targets:
                self.twins.forget(tensor)

    def _follow_result(self, func: Any, operator: _Operator, args: tuple, kwargs: dict, results: list) -> None:
        followed = []  # indices of the results whose values are to be known
        for index, tensor in enumerate(results):
            self.twins.note_new_tensor(tensor)
            if is_integer(tensor):
                size = tensor.untyped_storage().nbytes()
                follow = size <= LARGEST_TWIN_BYTES and self.twins.of(tensor) is None
            else:
                follow = self._is_few(tensor) and not operator.is_random
            copied = operator.name == "_to_copy" and (
                self._is_read_back(tensor, args[0]) or is_float(tensor) and self._is_input(args[0])
            )
            divided = operator.name == "div" and is_float(tensor) and self.twins.of(args[0]) is not None
            if follow or copied or divided:
                followed.append(index)
        if not followed or operator.name in _UNWRITTEN:
            return
        try:
            on_host = _tensors(self._run_on_host(func, operator, args, kwargs))
            for index in followed:
                target = results[index]
                if on_host[index].shape == target.shape:  # it differs for an optional result that was not requested
                    known = self.twins.keep(target) if target.is_cuda else target
                    if known is not None:
                        known.copy_(on_host[index])
        except Exception:  # unknown inputs, or no such operator on the host: the results stay unknown
            pass

    def _follow_constant(self, tensor: torch.Tensor) -> None:
        """Keeps the values of ``torch.tensor(..., device="cuda")``, whose copy to the device is not dispatched."""
        if is_integer(tensor) or self._is_few(tensor):
            values = last_upload(tensor.data_ptr(), tensor.nbytes)
            if values is None:
                return
            known = self.twins.keep(tensor)
            if known is not None:
                known.view(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(values), dtype=torch.uint8))

    def _follow_foreign(self, operator: _Operator, args: tuple, kwargs: dict, result: Any) -> None:
        for tensor in _written(operator, args, kwargs):
            self.twins.forget(tensor)
        for tensor in _tensors(result):
            self.twins.note_new_tensor(tensor)
        if operator.name in _GATHERS:
            self._follow_gather(operator, args)

    def _follow_gather(self, operator: _Operator, args: tuple) -> None:
        """Copies this rank's known integers to all parts of a gathered result.

        The arguments are lists of outputs and inputs, or one output and one input (``_base_``).
        """
        outputs, inputs = args[:2]
        if operator.name.endswith("_base_"):
            outputs, inputs = [outputs.view(-1, *inputs.shape).unbind() if inputs.numel() else []], [inputs]
        for parts, source in zip(outputs, inputs):
            twin = self.twins.of(source) if is_integer(source) else None
            if twin is None:
                continue
            for part in parts:
                known = self.twins.of(part)
                known = self.twins.keep(part) if known is None else known
                if known is not None:
                    known.copy_(twin.view(part.shape))

    def _scalar(self, operator: _Operator, args: tuple, result: Any) -> Any:
        if operator.name not in ("_local_scalar_dense", "equal"):
            return result
        try:
            known = [self._host(tensor, by_shape=False) for tensor in args]
        except _Unknown:
            return result
        return known[0].item() if operator.name == "_local_scalar_dense" else torch.equal(*known)

    def _run_on_host(self, func: Any, operator: _Operator, args: tuple, kwargs: dict) -> Any:
        by_shape = operator.name in _BY_SHAPE
        if operator.name == "topk" and is_float(args[0]) and args[0].numel() <= MOST_SCORES:
            known = self.twins.of(args[0])
            args = (torch.rand(args[0].shape, generator=self._scores) if known is None else known, *args[1:])
        args = tuple(self._host(value, by_shape) for value in args)
        kwargs = {name: self._host(value, by_shape) for name, value in kwargs.items()}
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if not operator.is_random:
            return func(*args, **kwargs)
        users_state = torch.get_rng_state()
        torch.set_rng_state(self._random_state)
        try:
            return func(*args, **kwargs)
        finally:
            self._random_state = torch.get_rng_state()
            torch.set_rng_state(users_state)

    def _host(self, value: Any, by_shape: bool) -> Any:
        """An argument with its CUDA tensors replaced by their twins.

        Raises:
            _Unknown: a tensor has no twin.
        """
        if isinstance(value, torch.Tensor):
            if value.is_cpu:
                return value
            if by_shape:
                return torch.empty((), dtype=value.dtype).expand(value.shape)
            twin = self.twins.of(value)
            if twin is None:
                raise _Unknown
            return twin
        if isinstance(value, (list, tuple)):
            return [self._host(item, by_shape) for item in value]
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return None if isinstance(value, torch.Generator) else value

    def _keep(self, tensor: torch.Tensor) -> bool:
        return self.twins.keep(tensor) is not None

    def _is_few(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() <= FEW and is_float(tensor) and tensor.storage_offset() == 0

    def _is_read_back(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        return target.is_cpu and source.is_cuda and self.twins.of(source) is not None

    def _is_input(self, source: torch.Tensor) -> bool:
        """Whether floats come from the host, perhaps through a cast. Weights do not count as inputs."""
        if source.is_cuda:
            return self.twins.of(source) is not None
        return source.is_cpu and not source.requires_grad and not isinstance(source, torch.nn.Parameter)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _written(operator: _Operator, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    places = operator.written
    return _tensors([kwargs.get(place) if isinstance(place, str) else args[place] for place in places])


_installed: IntegerTwins | None = None


def install() -> IntegerTwins | None:
    """Switches the mode on for the rest of this process. Without the emulated GPU it does nothing and returns None.

    `import torch` calls this in jobs that `calibrate.emulator.environment` prepared. A second call changes nothing.
    """
    global _installed
    if _installed is None and is_emulated():
        _installed = IntegerTwins()
        _installed.__enter__()
        # A thread of autograd may still hold the mode when the script ends. If it
        # released it after the end of the interpreter, the process would abort.
        atexit.register(time.sleep, 0.02)
    return _installed

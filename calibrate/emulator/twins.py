"""True values for integer and boolean tensors on the emulated GPU.

Kernels do nothing there, yet programs steer on integers: token ids, masks,
lengths. `IntegerTwins` is a dispatch mode that keeps, beside the storage of
every integer or boolean CUDA tensor whose values can be known, the same bytes
on the host. The CUDA operator still runs, so that its allocations are CUDA's;
then the same operator runs on the twins. Read-backs (`.item()`, `.tolist()`,
`.cpu()`) and sizes that depend on data (`nonzero`, `x[mask]`) are answered from
them.

Known are: what is copied from the host, created by a constant, an `arange` or a
random integer (drawn here from a generator of its own), and what follows from
these by PyTorch's own operators. Floats are known only as they come from the
host (a job's inputs: some models look for images that are all zeros), never
computed. Whatever depends on other floats, or comes from a kernel that PyTorch
does not dispatch (Triton), is unknown and reads back as zero. One exception: the
`topk` of unknown scores takes random places, so that experts are chosen evenly.
"""

import atexit
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .job_environment import is_emulated
from .read_backs import ANSWERS, answering
from .twin_store import INTEGERS, LARGEST_TWIN_BYTES, Twins, Unknown

#: Only shapes of their floating-point arguments matter.
_BY_SHAPE = {"zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "randint_like"}
#: Values nobody has written yet, or nothing but a change of view.
_IGNORED = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
    *("set_", "resize_", "detach", "detach_", "lift", "lift_fresh", "record_stream"),
}
#: In-place operators that do not read what they overwrite.
_OVERWRITE = {"copy_", "fill_", "zero_", "random_"}
#: Collectives after which every rank's part is taken to be like this rank's.
_GATHERS = {"c10d.allgather_", "c10d._allgather_base_"}
_RANDOM = {"randint", "randint_like", "randperm", "random_", "random"}
#: The k best of unknown scores are k at random: experts of a router are chosen evenly.
_OF_UNKNOWN_SCORES = {"topk"}
#: More scores than this are not drawn.
_MOST_SCORES = 2**24

_PLAIN = torch.Tensor.__torch_dispatch__
#: Subclasses that leave their operators to a mode, which comes after this one.
_OF_MODES = {"FakeTensor", "FunctionalTensor"}


def is_followed(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one whose values are kept: on the GPU, of a type that steers programs."""
    return (
        tensor.is_cuda
        and tensor.dtype in INTEGERS
        and tensor.layout is torch.strided
        and type(tensor).__torch_dispatch__ is _PLAIN
    )


@dataclass(frozen=True)
class _Operator:
    """What the schema of an operator says, looked up once."""

    name: str
    followed: bool
    is_view: bool
    written: tuple[int | str, ...]  # positions or names of arguments it writes to


def _describe(func: Any) -> _Operator:
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator: what it runs is dispatched by itself
        return _Operator("", followed=False, is_view=False, written=())
    name = func.overloadpacket.__name__
    if func.namespace not in ("aten", "prims"):
        return _Operator(f"{func.namespace}.{name}", followed=False, is_view=False, written=())
    written = tuple(
        argument.name if argument.kwarg_only else position
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    is_view = not written and any(returned.alias_info is not None for returned in schema.returns)
    return _Operator(name, name not in _IGNORED, is_view, written)


class IntegerTwins(TorchDispatchMode):
    """The dispatch mode that keeps the twins up to date and answers read-backs from them."""

    def __init__(self) -> None:
        super().__init__()
        self.twins = Twins()
        self._operators: dict[Any, _Operator] = {}
        self._random_state = torch.Generator().manual_seed(0).get_state()
        self._scores = torch.Generator().manual_seed(0)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile may compile under this mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if any(kind.__torch_dispatch__ is not _PLAIN and kind.__name__ not in _OF_MODES for kind in types):
            return NotImplemented  # a subclass unpacks itself and comes back with plain tensors
        kwargs = kwargs or {}
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = _describe(func)
        answer = ANSWERS.get(operator.name) if operator.followed else None
        if answer is None:
            result = func(*args, **kwargs)
        else:
            with answering(answer, self.twins, args, kwargs):
                result = func(*args, **kwargs)
        if operator.name in _GATHERS:
            self._follow_gather(operator, args)
        if not operator.followed or operator.is_view:
            return result
        if operator.written:
            self._follow_write(func, operator, args, kwargs)
        elif isinstance(result, (int, bool, float)):
            return self._scalar(operator, args, result)
        else:
            self._follow_result(func, operator, args, kwargs, result)
        return result

    def _follow_write(self, func: Any, operator: _Operator, args: tuple, kwargs: dict) -> None:
        written = [
            tensor
            for place in operator.written
            for tensor in _tensors(kwargs.get(place) if isinstance(place, str) else args[place])
        ]
        targets = []
        for tensor in written:
            if is_followed(tensor) or operator.name == "copy_" and self._is_read_back(tensor, args[1]):
                targets.append(tensor)
            elif tensor.is_cuda:
                self.twins.forget(tensor)
        if not targets:
            return
        try:
            for tensor in targets:
                if tensor.is_cuda and self.twins.of(tensor) is None:
                    if operator.name not in _OVERWRITE and isinstance(operator.written[0], int):
                        raise Unknown
                    self.twins.keep(tensor)
            self._run_on_host(func, operator, args, kwargs)
        except Exception:  # unknown inputs, or no such operator on the host
            for tensor in targets:
                if tensor.is_cuda:
                    self.twins.forget(tensor)

    def _follow_result(self, func: Any, operator: _Operator, args: tuple, kwargs: dict, result: Any) -> None:
        results = _tensors(result)
        wanted = [
            index
            for index, tensor in enumerate(results)
            if is_followed(tensor)
            and tensor.untyped_storage().nbytes() <= LARGEST_TWIN_BYTES
            and self.twins.of(tensor) is None
            or operator.name == "_to_copy"
            and (self._is_read_back(tensor, args[0]) or self._is_input(tensor, args[0]))
        ]
        if not wanted:
            return
        try:
            on_host = _tensors(self._run_on_host(func, operator, args, kwargs))
            for index in wanted:
                target = results[index]
                if on_host[index].shape == target.shape:  # else a result that was not asked for
                    (self.twins.keep(target) if target.is_cuda else target).copy_(on_host[index])
        except Exception:  # as above: they stay unknown
            pass

    def _follow_gather(self, operator: _Operator, args: tuple) -> None:
        """outputs, inputs: of tensors gathered into lists, or of one into one."""
        outputs, inputs = args[:2]
        if operator.name.endswith("_base_"):
            outputs, inputs = [outputs.view(-1, *inputs.shape).unbind() if inputs.numel() else []], [inputs]
        for parts, source in zip(outputs, inputs):
            twin = self.twins.of(source) if is_followed(source) else None
            for part in parts if twin is not None else ():
                known = self.twins.of(part)
                (self.twins.keep(part) if known is None else known).copy_(twin.view(part.shape))

    def _is_read_back(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        return target.is_cpu and source.is_cuda and self.twins.of(source) is not None

    def _is_input(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        """Floats from the host, or those with another type; weights are no input."""
        if not target.is_cuda or target.dtype in INTEGERS or target.layout is not torch.strided:
            return False
        if source.is_cuda:
            return self.twins.of(source) is not None
        return source.is_cpu and not source.requires_grad and not isinstance(source, torch.nn.Parameter)

    def _scalar(self, operator: _Operator, args: tuple, result: Any) -> Any:
        if operator.name not in ("_local_scalar_dense", "equal"):
            return result
        try:
            known = [self._host(tensor, by_shape=False) for tensor in args]
        except Unknown:
            return result
        return known[0].item() if operator.name == "_local_scalar_dense" else torch.equal(*known)

    def _run_on_host(self, func: Any, operator: _Operator, args: tuple, kwargs: dict) -> Any:
        by_shape = operator.name in _BY_SHAPE
        if operator.name in _OF_UNKNOWN_SCORES and args[0].is_floating_point() and args[0].numel() <= _MOST_SCORES:
            known = self.twins.of(args[0])
            args = (torch.rand(args[0].shape, generator=self._scores) if known is None else known, *args[1:])
        args = tuple(self._host(value, by_shape) for value in args)
        kwargs = {name: self._host(value, by_shape) for name, value in kwargs.items()}
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        if operator.name not in _RANDOM:
            return func(*args, **kwargs)
        users_state = torch.get_rng_state()
        torch.set_rng_state(self._random_state)
        try:
            return func(*args, **kwargs)
        finally:
            self._random_state = torch.get_rng_state()
            torch.set_rng_state(users_state)

    def _host(self, value: Any, by_shape: bool) -> Any:
        """The host's version of an argument."""
        if isinstance(value, torch.Tensor):
            if value.is_cpu:
                return value
            if by_shape:
                return torch.empty(1, dtype=value.dtype).expand(value.shape)
            twin = self.twins.of(value) if value.is_cuda else None
            if twin is None:
                raise Unknown
            return twin
        if isinstance(value, (list, tuple)):
            return [self._host(item, by_shape) for item in value]
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return None if isinstance(value, torch.Generator) else value


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


_installed: IntegerTwins | None = None


def install() -> IntegerTwins | None:
    """Switch the mode on for this process, for good; None (and nothing done) if it is
    not on the emulated GPU. `import torch` calls this in jobs that
    `calibrate.emulator.environment` prepared; calling it again changes nothing."""
    global _installed
    if _installed is None and is_emulated():
        # torch.tensor(..., device="cuda") then copies where the mode can see it.
        torch._C._set_only_lift_cpu_tensors(True)
        _installed = IntegerTwins()
        _installed.__enter__()
        # A thread of autograd may still have to let go of the mode when the script
        # ends: with the interpreter gone it would abort the process.
        atexit.register(time.sleep, 0.02)
    return _installed

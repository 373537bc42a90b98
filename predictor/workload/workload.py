"""A workload: a model and how it is trained, under the names of Hugging Face and DeepSpeed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import read_mapping
from predictor.common.suggestions import show
from predictor.common.value_types import thaw
from predictor.workload import contradictions, modes
from predictor.workload.given_keys import GivenKeys
from predictor.workload.key_problem import KeyProblem
from predictor.workload.keys import KEYS, Keys, check_names
from predictor.workload.value_sources import Source


@dataclass(frozen=True, kw_only=True)
class _Complete(Keys):
    """Every key with its value, and where the values came from."""

    given: GivenKeys = field(compare=False, repr=False)
    filled_in: tuple[str, ...] = field(compare=False, repr=False)


@dataclass(frozen=True, init=False)
class Workload(_Complete):
    """What is trained and how; every key is checked, and absent ones get the documented default.

    Immutable and hashable. ``None`` for a key means that it was not given. The keys are those of
    :class:`predictor.workload.keys.Keys`.

    Attributes:
        given: the keys that were given, as they were.
        filled_in: names of the keys that were given neither by the user nor by their DeepSpeed config.

    Raises:
        InputError: a value that makes no sense, is not supported yet, or contradicts another.
    """

    def __init__(self, given: GivenKeys | None = None, /, **keys: Any) -> None:
        _check_keywords(keys)
        given = GivenKeys.read(keys) if given is None else given
        case = given.completed()
        contradictions.check(case, contradictions.CONTRADICTIONS)
        super().__init__(**case.values, given=given, filled_in=tuple(
            name for name in KEYS if (name not in case.given or name in given.by_model)
            and modes.has(case["mode"], name)))

    @property
    def deepspeed_name(self) -> str:
        """The file of the DeepSpeed config, or the key that holds it, as messages name it."""
        return self.given.deepspeed_name

    @property
    def source(self) -> Source | None:
        """Where the values came from, if they were read from a framework's own configuration."""
        return self.given.source

    @classmethod
    def from_mapping(cls, mapping: Mapping[Any, Any], source: str | Callable[[str], str] = "") -> Workload:
        """A workload from plain data.

        Args:
            mapping: keys of the class to values; null means not given.
            source: where the values come from, put in front of messages: a file's name, or a
                function of the key.
        """
        label = source if callable(source) else lambda name: f"{source}: {name}" if source else name
        check_names(mapping, "" if callable(source) else source)
        try:
            return cls(**mapping)
        except KeyProblem as problem:
            raise InputError(problem.told(label)) from None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Workload:
        """A workload from a YAML or JSON file with the same keys."""
        return cls.from_mapping(read_mapping(path, "the workload"), source=show(os.fspath(path), 200)[1:-1])

    def replace(self, **changes: Any) -> Workload:
        """This workload with some keys given anew (None: not given); what :meth:`fill` set is forgotten."""
        _check_keywords(changes)
        return type(self)(self.given.changed(changes))

    def read_from(self, source: Source | None) -> Workload:
        """The same workload, which knows where its values came from."""
        return type(self)(replace(self.given, source=source))

    def fill(self, **values: Any) -> Workload:
        """This workload with keys that only the model could settle; they stay listed in ``filled_in``."""
        return type(self)(self.given.settled({key: value for key, value in values.items() if key in self.filled_in}))

    def resolved(self) -> dict[str, Any]:
        """Every key of its mode with its value, defaults included, as plain data: a valid workload file again."""
        return {name: thaw(getattr(self, name)) for name in KEYS if modes.has(self.mode, name)}


def _check_keywords(keys: Mapping[str, Any]) -> None:
    """A keyword that no workload has is a mistake in Python code, as with any other class."""
    for name in keys:
        if name not in KEYS:
            raise TypeError(f"Workload.__init__() got an unexpected keyword argument '{name}'")

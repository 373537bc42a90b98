"""A workload: a model and how it is trained, under the names of Hugging Face and DeepSpeed."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import read_mapping
from predictor.common.suggestions import quoted
from predictor.common.value_types import thaw
from predictor.workload import compared, contradictions, modes
from predictor.workload.given_keys import GivenKeys
from predictor.workload.key_problem import KeyProblem
from predictor.workload.keys import DEFAULTS, KEYS, OF_ONE_TRAINER, Keys, check_names
from predictor.workload.value_sources import Source


@dataclass(frozen=True, kw_only=True)
class _Complete(Keys):
    """The value of every key, and the origin of the values."""

    given: GivenKeys = field(compare=False, repr=False)
    filled_in: tuple[str, ...] = field(compare=False, repr=False)


@dataclass(frozen=True, init=False)
class Workload(_Complete):
    """A model and how it is trained. Every key is checked; absent keys get the documented default.

    Immutable and hashable, with all that it holds. ``None`` for a key means that it was not given. The keys are those
    of :class:`predictor.workload.keys.Keys`. One of them, ``images_per_sample``, has a default that needs the model's
    configuration: it stays None here, and :meth:`fill` fills it in when the model is known.

    Attributes:
        given: the keys that the user gave, with their values.
        filled_in: names of the keys that neither the user nor the DeepSpeed config gave.

    Raises:
        InputError: a value is invalid, is not supported yet, or contradicts another key.
    """

    def __init__(self, given: GivenKeys | None = None, /, **keys: Any) -> None:
        if given is not None and not isinstance(given, GivenKeys):
            raise TypeError('Workload takes keywords only, as in Workload(model="llava-1.5-7b", sequence_length=2048)')
        _check_keywords(keys)
        given = GivenKeys.read(keys) if given is None else given
        draft = given.completed()
        contradictions.check(draft, contradictions.CONTRADICTIONS)
        super().__init__(**draft.values, given=given, filled_in=tuple(
            name for name in KEYS if (name not in draft.explicit_keys or name in given.by_model)
            and modes.has(draft["mode"], name)))

    @property
    def deepspeed_name(self) -> str:
        """The file of the DeepSpeed config, or the key that holds it, as messages name it."""
        return self.given.deepspeed_name

    @property
    def source(self) -> Source | None:
        """Origin of the values, if they were read from a framework's own configuration."""
        return self.given.source

    @classmethod
    def from_mapping(cls, mapping: Mapping[Any, Any], source: str | Callable[[str], str] = "") -> Workload:
        """Builds a workload from plain data.

        Args:
            mapping: keys of the class to values; null means not given.
            source: prefix of error messages: a file's name, or a function that maps a key to its place.

        Raises:
            InputError: an unknown key, or as :class:`Workload`.
        """
        label = source if callable(source) else lambda name: f"{source}: {name}" if source else name
        check_names(mapping, "" if callable(source) else source)
        try:
            return cls(**mapping)
        except KeyProblem as problem:
            raise InputError(problem.told(label)) from None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Workload:
        """Builds a workload from a YAML or JSON file with the same keys.

        Raises:
            InputError: the file cannot be read, or as :meth:`from_mapping`.
        """
        return cls.from_mapping(read_mapping(path, "the workload"), source=quoted(os.fspath(path), 200)[1:-1])

    def replace(self, **changes: Any) -> Workload:
        """This workload with some keys changed (None: not given). Values that :meth:`fill` set are dropped."""
        _check_keywords(changes)
        return type(self)(self.given.changed(changes))

    def read_from(self, source: Source | None) -> Workload:
        """This workload with the origin of its values."""
        return type(self)(replace(self.given, source=source))

    def fill(self, **values: Any) -> Workload:
        """This workload with keys whose default depends on the model; they stay listed in ``filled_in``."""
        return type(self)(self.given.settled({key: value for key, value in values.items() if key in self.filled_in}))

    def check_predicted(self) -> None:
        """Rejects a workload that is not predicted, though its keys do not contradict each other.

        Raises:
            InputError: a combination that was not compared, or a setting of ``contradictions.NOT_PREDICTED``.
        """
        compared.check(self)
        contradictions.check(self.given.completed(), contradictions.NOT_PREDICTED)

    def resolved(self) -> dict[str, Any]:
        """All keys of its mode with their values and defaults, as plain data: the content of a workload file.

        Keys of :data:`OF_ONE_TRAINER` are there only where they differ from their defaults.
        """
        return {name: thaw(getattr(self, name)) for name in KEYS if modes.has(self.mode, name) and (
            name not in OF_ONE_TRAINER or getattr(self, name) != DEFAULTS[name])}


Workload.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # which help() and editors show
    [inspect.Parameter(key.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=key.type)
     for key in fields(Keys)])


def _check_keywords(keys: Mapping[str, Any]) -> None:
    """Raises TypeError for an unknown keyword, as any other class does: it is a mistake in Python code."""
    for name in keys:
        if name not in KEYS:
            raise TypeError(f"Workload.__init__() got an unexpected keyword argument '{name}'")

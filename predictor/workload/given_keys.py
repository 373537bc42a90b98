"""The keys that a user gave, each checked on its own; a workload is built from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from predictor.common.errors import InputError
from predictor.common.suggestions import quoted
from predictor.common.value_types import FrozenMap, Invalid
from predictor.workload.completion import complete
from predictor.workload.key_problem import KeyProblem
from predictor.workload.keys import DEFAULTS, KEYS
from predictor.workload.value_sources import Source
from predictor.workload.workload_draft import Draft


@dataclass(frozen=True)
class GivenKeys:
    """The keys that were given, before other keys are derived from them.

    Attributes:
        values: values of the keys that the user gave.
        by_model: values of keys whose default depends on the model. They count as given but are listed as filled in.
        deepspeed_name: the file of the DeepSpeed config, or the key that holds it.
        source: origin of the values, if they were read from a framework's own configuration.
    """

    values: Mapping[str, Any]
    by_model: Mapping[str, Any] = FrozenMap({})
    deepspeed_name: str = "deepspeed"
    source: Source | None = None

    @classmethod
    def read(cls, keys: Mapping[str, Any], source: Source | None = None) -> GivenKeys:
        """Checks the value of each key; ``None`` means that it was not given.

        Raises:
            KeyProblem: a value is invalid or not supported yet.
        """
        given = {name: keys[name] for name in KEYS if keys.get(name) is not None}
        config = given.get("deepspeed")
        return cls(FrozenMap({name: _checked(name, value) for name, value in given.items()}), source=source,
                   deepspeed_name=quoted(config, 200)[1:-1] if isinstance(config, str) else "deepspeed")

    def changed(self, changes: Mapping[str, Any]) -> GivenKeys:
        """These keys with some changed; the values in ``by_model`` are dropped."""
        return self.read({**self.values, **changes}, self.source)

    def settled(self, values: Mapping[str, Any]) -> GivenKeys:
        """These keys with values that depend on the model."""
        read = self.changed(values)
        return replace(read, values=self.values, by_model=FrozenMap({
            name: value for name, value in read.values.items() if name in values}))

    def completed(self) -> Draft:
        """The draft with a value for every key."""
        user_keys = {**self.values, **self.by_model}
        return complete({name: user_keys[name] for name in KEYS if name in user_keys}, DEFAULTS, self.deepspeed_name)


def _checked(name: str, value: Any) -> Any:
    try:
        return KEYS[name].metadata["kind"].check(value)
    except (Invalid, InputError) as error:
        raise KeyProblem(name, error) from None

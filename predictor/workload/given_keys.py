"""The keys that a user gave, each checked by itself: what a workload is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from predictor.common.errors import InputError
from predictor.common.suggestions import show
from predictor.common.value_types import FrozenMap, Invalid
from predictor.workload.completion import complete
from predictor.workload.key_problem import KeyProblem
from predictor.workload.keys import DEFAULTS, KEYS
from predictor.workload.value_sources import Source
from predictor.workload.workload_draft import Case


@dataclass(frozen=True)
class GivenKeys:
    """Keys with their values, before others follow from them.

    Attributes:
        values: of the keys that were given.
        by_model: of keys that only the model could settle: they count as given, but are listed as filled in.
        deepspeed_name: the file of the DeepSpeed config, or the key that holds it.
        source: where the values came from, if they were read from a framework's own configuration.
    """

    values: Mapping[str, Any]
    by_model: Mapping[str, Any] = field(default_factory=dict)
    deepspeed_name: str = "deepspeed"
    source: Source | None = None

    @classmethod
    def read(cls, keys: Mapping[str, Any], source: Source | None = None) -> GivenKeys:
        """Checks the value of each key; ``None`` means that it was not given.

        Raises:
            KeyProblem: a value that makes no sense or is not supported yet.
        """
        given = {name: keys[name] for name in KEYS if keys.get(name) is not None}
        config = given.get("deepspeed")
        return cls(FrozenMap({name: _checked(name, value) for name, value in given.items()}), source=source,
                   deepspeed_name=show(config, 200)[1:-1] if isinstance(config, str) else "deepspeed")

    def changed(self, changes: Mapping[str, Any]) -> GivenKeys:
        """These keys with some given anew; what the model settled is forgotten."""
        return self.read({**self.values, **changes}, self.source)

    def settled(self, values: Mapping[str, Any]) -> GivenKeys:
        """These keys with others that only the model could settle."""
        read = self.changed(values)
        return replace(read, values=self.values, by_model=FrozenMap({
            name: value for name, value in read.values.items() if name in values}))

    def completed(self) -> Case:
        """A value for every key."""
        asked = {**self.values, **self.by_model}
        return complete({name: asked[name] for name in KEYS if name in asked}, DEFAULTS, self.deepspeed_name)


def _checked(name: str, value: Any) -> Any:
    try:
        return KEYS[name].metadata["kind"].check(value)
    except (Invalid, InputError) as error:
        raise KeyProblem(name, error) from None

"""A workload while it is made: what was asked, what its DeepSpeed config says, and every key with its value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from predictor.common.errors import InputError
from predictor.workload import deepspeed_settings
from predictor.workload.deepspeed_releases import release


@dataclass(frozen=True)
class Case:
    """What the table of contradictions looks at.

    Attributes:
        values: every key of a workload, with what follows from other keys.
        asked: the keys that the user gave.
        given: those, and the keys that the user's DeepSpeed config gives.
        config: the DeepSpeed config by dotted key, as it is written; empty if there is none.
        settings: the same with what follows from it.
        config_name: the file that the config was read from.
        unreadable: why the config cannot be read, if it cannot.
    """

    values: Mapping[str, Any]
    asked: Mapping[str, Any]
    given: Mapping[str, Any]
    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    config_name: str
    unreadable: InputError | None = None

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    @property
    def stage(self) -> int | None:
        """The ZeRO stage that the config says."""
        return self.config.get("zero_optimization.stage")

    @property
    def release(self) -> tuple[int, int, int]:
        """DeepSpeed's."""
        return release(self["versions"]["deepspeed"])

    @property
    def clipping(self) -> float:
        """The norm that DeepSpeed clips gradients to."""
        return deepspeed_settings.clipping(None if self["deepspeed"] is None else self.config, self["max_grad_norm"],
                                           "max_grad_norm" in self.given, self.release)

    @property
    def offloads_states(self) -> bool:
        """Whether the optimizer's states lie in the host's memory."""
        return self["offload"] in ("optimizer", "all")


def read_config(document: Mapping[str, Any] | None, name: str) -> tuple[Mapping[str, Any], InputError | None]:
    """The keys of a DeepSpeed config as they are written, or why they cannot be read."""
    try:
        return ({} if document is None else deepspeed_settings.written(document, name)), None
    except InputError as error:
        return {}, error


def of_config(document: Mapping[str, Any], name: str) -> Case:
    """A DeepSpeed config alone."""
    config, unreadable = read_config(document, name)
    return Case({"deepspeed": document}, {}, {}, config, deepspeed_settings.settled(config), name, unreadable)

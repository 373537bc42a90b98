"""The draft of a workload: the user's keys, the DeepSpeed config, and every key with its value, not yet checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from predictor.common.errors import InputError
from predictor.common.releases import release
from predictor.workload import deepspeed_settings


@dataclass(frozen=True)
class Draft:
    """A workload that is complete but not yet checked for contradictions.

    Attributes:
        values: every key of a workload, including the derived ones.
        user_keys: the keys that the user gave.
        explicit_keys: the keys that the user or the user's DeepSpeed config gave.
        config: the DeepSpeed config by dotted key, as written; empty if there is none.
        settings: the DeepSpeed config with its derived keys.
        config_name: the file that the config was read from.
        unreadable: the error raised while the config was read; None if it could be read.
    """

    values: Mapping[str, Any]
    user_keys: Mapping[str, Any]
    explicit_keys: Mapping[str, Any]
    config: Mapping[str, Any]
    settings: Mapping[str, Any]
    config_name: str
    unreadable: InputError | None = None

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    @property
    def stage(self) -> int | None:
        """The ZeRO stage in the config."""
        return self.config.get("zero_optimization.stage")

    @property
    def release(self) -> tuple[int, int, int]:
        """DeepSpeed's release, as three numbers."""
        return release(self["versions"]["deepspeed"])

    @property
    def clipping(self) -> float:
        """The norm that DeepSpeed clips gradients to."""
        return deepspeed_settings.clipping(None if self["deepspeed"] is None else self.config, self["max_grad_norm"],
                                           "max_grad_norm" in self.explicit_keys, self.release)

    @property
    def offloads_states(self) -> bool:
        """True if the optimizer states are kept in host memory."""
        return self["offload"] in ("optimizer", "all")


def read_config(document: Mapping[str, Any] | None, name: str) -> tuple[Mapping[str, Any], InputError | None]:
    """The keys of a DeepSpeed config as written, or an empty mapping and the error."""
    try:
        return ({} if document is None else deepspeed_settings.written(document, name)), None
    except InputError as error:
        return {}, error


def of_config(document: Mapping[str, Any], name: str) -> Draft:
    """The draft of a DeepSpeed config without any other key of a workload."""
    config, unreadable = read_config(document, name)
    return Draft({"deepspeed": document}, {}, {}, config, deepspeed_settings.settled(config), name, unreadable)

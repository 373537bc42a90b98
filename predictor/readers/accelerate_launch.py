"""One ``accelerate launch``: its options, and the sections of its configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from predictor.common.errors import InputError
from predictor.common.suggestions import quoted

SECTION = "deepspeed_config"
"""Section of the configuration file with DeepSpeed's keys."""
FSDP = {"version": "1", "auto_wrap_policy": "NO_WRAP (accelerate's default)"}
"""Defaults of the launcher (1.15, commands/launch.py, utils/dataclasses.py); the policy is not predicted."""


@dataclass(frozen=True)
class Launch:
    """One ``accelerate launch``.

    Attributes:
        options: the launcher's options.
        document: its configuration file.
        distributed_type: such as ``FSDP``, from the options or else the file.
        where: origin of its values, for the prediction's ``source``.
        blamed: file or command that error messages name.
    """

    options: Mapping[str, str]
    document: Mapping[str, Any]
    distributed_type: str
    where: str
    blamed: str

    @property
    def fsdp(self) -> dict[str, Any]:
        """The settings of FSDP; empty if the launcher's ``distributed_type`` is another."""
        if self.distributed_type != "FSDP":
            return {}
        own = {key.removeprefix("fsdp_"): item for key, item in self.options.items() if key.startswith("fsdp_")}
        return FSDP | section_of(self.document, "fsdp_config", self.blamed) | own


def section_of(document: Mapping[str, Any], key: str, blamed: str) -> dict[str, Any]:
    """The keys of a section without their optional prefix (``fsdp_``); DeepSpeed's keys have none."""
    section = document.get(key) or {}
    if not isinstance(section, Mapping):
        raise InputError(f"{blamed}: {key} is {quoted(section)}: a section of keys is needed")
    prefixes = (f"{key}_", key.removesuffix("config")) if key != SECTION else ()
    return {next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), name): item
            for name, item in ((str(name), item) for name, item in section.items())}

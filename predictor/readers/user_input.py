"""What the user gave: a configuration file or a command line, with its launcher and environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from predictor.readers.accelerate_launch import Launch


@dataclass(frozen=True)
class UserInput:
    """The user's configuration: a file's content, or the flags of a command, with its launcher and environment.

    Attributes:
        name: name of the file in messages, or ``the command``.
        path: path of the file; None for a command.
        values: key, without leading hyphens -> value. With ``flags`` a value is text, a list of texts, or true for a
            flag without a value.
        flags: true if the values come from a command line.
        program: script or module that runs; empty for a file.
        environment: environment variables that the command sets.
        world_size: number of processes that the launcher starts; None if the command does not determine it.
        launched_by: the option that sets ``world_size``, or the launcher without such an option.
        problem: why ``world_size`` cannot be read; an error unless an option of peakcast gives the number.
        launch: accelerate's launcher, which may set keys.
        launched_with: key that the launcher sets -> the launcher's option or key.
        options: keys of the workload given as options of peakcast; they replace values that a shell leaves open.
        unknown: text of an expansion that a shell script leaves in words -> why its value is not known.
        started_in: the command or script that names the file, if there is one.
        besides: keys from the command's flags or the launcher, not from the file.
        assigned: keys that the command gives as KEY=VALUE beside the file.
        text: the file's whole text; empty for a command.
        words: the words of the command; empty for a file.
    """

    name: str
    values: Mapping[str, Any]
    path: str | None = None
    flags: bool = False
    program: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    world_size: int | None = None
    launched_by: str = ""
    problem: str = ""
    launch: Launch | None = None
    launched_with: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    started_in: str = ""
    besides: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()
    text: str = field(default="", repr=False)
    words: tuple[str, ...] = ()

    @property
    def gpus(self) -> int | None:
        """Number of data-parallel GPUs from an option of peakcast, which overrides the launcher's; None without one."""
        return self.options.get("data_parallel_size")

    @property
    def starts(self) -> str:
        """The command or file that sets the launcher and the environment."""
        return self.started_in or self.name


def beside(name: str, path: str | None) -> str | None:
    """Finds a file that the file at ``path`` names: in the current directory, next to that file, or in its parents.

    None if it does not exist.
    """
    try:
        near = [Path(path), Path(path).resolve()] if path else []
        relative = Path(name).expanduser()
        folders = (Path(), *(parent for file in near for parent in file.parents))
        return next((str(folder / relative) for folder in folders if (folder / relative).is_file()), None)
    except (OSError, RuntimeError, ValueError):  # a name too long, no such home, a zero byte
        return None

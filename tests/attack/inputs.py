"""One input of the attack: files, and what reads them. It is plain data, so that a finding can be kept and repeated."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Input:
    """Files with their content, and the words of a command line or of a reading function.

    Attributes:
        target: what reads the input: a name in ``tests.attack.targets.TARGETS``.
        words: its arguments; names of files are relative to the directory that holds the files.
        files: name -> content.
    """

    target: str
    words: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Writes the files into a directory."""
        for name, content in self.files.items():
            (directory / name).write_bytes(content)

    def to_json(self) -> dict[str, Any]:
        """The input as JSON data. Content that is no text is written in base 64."""
        return {"target": self.target, "words": list(self.words),
                "files": {name: _to_json(content) for name, content in self.files.items()}}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Input:
        """The inverse of :meth:`to_json`."""
        return cls(document["target"], tuple(document["words"]),
                   {name: _from_json(content) for name, content in document["files"].items()})


def _to_json(content: bytes) -> str | dict[str, str]:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def _from_json(content: str | Mapping[str, str]) -> bytes:
    return content.encode() if isinstance(content, str) else base64.b64decode(content["base64"])

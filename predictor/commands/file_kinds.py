"""What a file on the command line is, and by which option peakcast takes it: for files that were given otherwise."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import read_mapping
from predictor.common.suggestions import file_name
from predictor.workload.keys import KEYS

DOCUMENTS = (".yaml", ".yml", ".json")
SHELL_SCRIPTS = (".sh", ".bash", ".slurm")
MODEL, WORKLOAD, FROM, DEEPSPEED, COMMAND = "MODEL", "--workload", "--from", "--deepspeed", "--"


@dataclass(frozen=True)
class Kind:
    """What a file is.

    Attributes:
        words: in a sentence, after "is".
        given_as: the option that takes it, or :data:`MODEL`, or :data:`COMMAND`.
    """

    words: str
    given_as: str


def instead(path: str | None, given_as: str, error: InputError, *, reads_frameworks: bool = True) -> InputError:
    """The error to raise for a file that cannot be used as it was given: what it is, if it belongs elsewhere.

    Args:
        path: the file; None if none was given.
        given_as: the option, or :data:`MODEL`.
        error: what is wrong with it there.
        reads_frameworks: whether the command has :data:`FROM`.
    """
    kind = recognized(path) if path is not None else None
    if path is None or kind is None or kind.given_as == given_as:
        return error
    name = file_name(path)
    if kind.given_as == COMMAND:
        to_do = f"put its command after --: peakcast predict … -- python {shlex.quote(name)}"
    elif kind.given_as == MODEL:
        to_do = "give it as MODEL, without an option, or name it in a workload (key model)"
    elif kind.given_as == FROM and not reads_frameworks:
        to_do = f"peakcast predict reads it, as --from {name}"
    else:
        to_do = f"give it as {kind.given_as} {name}"
    return InputError(f"{name}: is {kind.words}: {to_do}")


def recognized(path: str) -> Kind | None:
    """What a file is by its name and its keys; None if that is not clear, or if there is no such file."""
    ending = os.path.splitext(path)[1].lower()
    if not os.path.isfile(path):
        return None
    if ending == ".py":
        return Kind("a Python script", COMMAND)
    if ending in SHELL_SCRIPTS:
        return Kind("a shell script", FROM)
    try:
        document = read_mapping(path, "the file") if ending in DOCUMENTS else {}
    except InputError:
        return None
    return _of_keys(document)


def is_workload(path: str, from_format: str | None = None) -> bool:
    """Whether a file has keys of a workload only, a model among them if it may also be of the named format; or names
    its model as a workload does, and has no key that only a framework has.

    Raises:
        InputError: it cannot be read.
    """
    if not path.lower().endswith(DOCUMENTS):
        return False
    keys = read_mapping(path, "the configuration").keys()
    if keys <= KEYS.keys():
        return "model" in keys or from_format is None
    return from_format is None and "model" in keys and not _framework(keys)[0]


def _of_keys(document: Mapping[Any, Any]) -> Kind | None:
    if not document:
        return None
    if document.keys() <= KEYS.keys():
        return Kind("a workload", WORKLOAD)
    form, key = _framework(document.keys())
    if form == "deepspeed":
        return Kind(f"a DeepSpeed config (key {key})", DEEPSPEED)
    if form:
        return Kind(f"a training framework's configuration (key {key})", FROM)
    if isinstance(document.get("model_type"), str):
        return Kind("the configuration of a model", MODEL)
    return None


def _framework(keys: Collection[Any]) -> tuple[str, str]:
    """The first format of which keys have a mark that no workload has, and that mark; empty without one.

    Workloads share many keys with the Trainer's arguments. A file that names its model as a workload does may have one
    key too many, such as ``learning_rate``.
    """
    from predictor.readers import FORMATS

    for name, module in FORMATS.items():
        marks = import_module(module).FORMAT.marks - KEYS.keys()
        mark = next((key for key in keys if key in marks), None)
        if mark and not (name == "transformers" and "model" in keys):
            return name, mark
    return "", ""

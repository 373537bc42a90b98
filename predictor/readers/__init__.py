"""Reads what users have: configurations and command lines of the frameworks that they train with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import parse_json, parse_yaml, read_text
from predictor.common.suggestions import named, nearest, show
from predictor.readers import accelerate, command, trainer_detection
from predictor.readers.configuration import read as read_fields
from predictor.readers.fields import Format, Given
from predictor.workload.value_sources import Source

FORMATS = {"llava": "llava", "llamafactory": "llamafactory", "swift": "swift", "axolotl": "axolotl",
           "deepspeed": "deepspeed", "transformers": "training_arguments"}
"""Name -> module; the first whose marks a configuration has is its format."""
PROGRAMS = {"swift": "swift", "llamafactory-cli": "llamafactory", "lmf": "llamafactory", "axolotl": "axolotl",
            "trl": "transformers"}
MODULES = {"axolotl.cli.train": "axolotl", "swift.cli.sft": "swift", "llava.train.train_mem": "llava",
           "llava.train.train": "llava"}
WHAT = "the training's configuration"


def read(*, path: str | None = None, words: Sequence[str] | None = None, form: str | None = None,
         options: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], Source]:
    """The keys of a workload from a file (YAML, JSON, or a shell script), or from the words of a command.

    Args:
        form: one of :data:`FORMATS`; None: as the content says.
        options: keys of the workload that are given besides; they settle what a shell leaves open.

    Raises:
        InputError: what is wrong, with file and key.
    """
    given = command.from_words(words) if words is not None else _file(str(path))
    given, implied = _named_by_command(replace(given, options=options or {}))
    given = _launched(given)
    if given.problem and given.gpus is None:
        raise InputError(given.problem)
    found = _format(given, form or implied, asked=form is not None)
    if found.name == "deepspeed":
        from predictor.readers.deepspeed import alone

        return alone(given)
    return read_fields(found, given)


def _file(path: str) -> Given:
    name = named(path)
    text = read_text(path, WHAT)
    if name.lower().endswith((".sh", ".bash", ".slurm")) or text.startswith("#!"):
        return command.from_script(text, name, path)
    value = parse_json(text, name) if name.lower().endswith(".json") else parse_yaml(text, name)
    if not isinstance(value, dict):
        raise InputError(f"{name}: holds no mapping of keys to values: give YAML, JSON, or a shell script (.sh)")
    for key in value:
        if not isinstance(key, str):
            raise InputError(f"{name}: the key {show(key)} is not text")
    return Given(name, value, path)


def _named_by_command(given: Given) -> tuple[Given, str | None]:
    """A command that names a configuration file stands for that file, with what it says besides."""
    if not given.flags:
        return given, None
    program = given.program
    implied = PROGRAMS.get(program.split()[0]) or MODULES.get(program) or (
        "llava" if "llava/train/" in program else None)
    values = dict(given.values)
    words = values.pop("", [])
    words = [words] if isinstance(words, str) else words
    if implied == "swift" and "config" in values:
        named_by = values.pop("config")
        words = [*(named_by if isinstance(named_by, list) else [str(named_by)]), *words]
    files = [word for word in words if word.lower().endswith((".yaml", ".yml", ".json"))]
    if not files:
        if words:
            raise InputError(f"{given.name}: {show(words[0])} is not expected where it stands: give flags")
        return replace(given, values=values), implied
    inner = _file(files[0])
    extra = {key: {"true": True, "false": False}.get(item.lower(), item) for key, _, item in (  # as OmegaConf has them
        word.partition("=") for word in words if "=" in word and word not in files)}
    stray = [word for word in words if word not in files and "=" not in word]
    if stray:
        raise InputError(f"{given.name}: {show(stray[0])} is not expected where it stands: give KEY=VALUE or flags")
    flags = {key.replace("-", "_"): value for key, value in values.items()}
    return replace(given, name=inner.name, path=inner.path, flags=False, values={**inner.values, **extra, **flags},
                   started_in=given.name, besides=frozenset(flags)), implied


def _launched(given: Given) -> Given:
    """With what its launcher decides."""
    decided = accelerate.arguments(given.launch, given.values) if given.launch else {}
    return replace(given, values={**given.values, **{key: item for key, (item, _) in decided.items()}},
                   launched_with={key: by for key, (_, by) in decided.items()}, besides=given.besides | decided.keys())


def _format(given: Given, wanted: str | None, *, asked: bool) -> Format:
    if wanted is not None and wanted not in FORMATS:
        raise InputError(f"--from-format {show(wanted)}: known are {', '.join(FORMATS)}{nearest(wanted, FORMATS)}")
    keys = {key.replace("-", "_") for key in given.values}
    for name, module in FORMATS.items():
        found: Format = import_module(f"predictor.readers.{module}").FORMAT
        if name == wanted or (wanted is None and keys & found.marks and _is(name, given)):
            if name == "transformers":
                trainer_detection.check(given, asked=asked)
            return found
    trainer_detection.check(given, asked=asked)
    raise InputError(f"{given.name}: is of no format that is known: name one with --from-format "
                     f"({', '.join(FORMATS)})")


def _is(name: str, given: Given) -> bool:
    """A config of DeepSpeed has sections where training arguments have flags."""
    if name == "deepspeed":
        return not given.flags and any(isinstance(given.values.get(key), dict) for key in (
            "zero_optimization", "bf16", "fp16", "optimizer"))
    return True

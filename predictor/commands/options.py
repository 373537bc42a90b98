"""The options that every command on a workload shares: made from the keys of :class:`Workload`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.common.errors import InputError
from predictor.common.files import read_mapping
from predictor.common.suggestions import named
from predictor.common.value_types import Flag, Invalid, Later, Table
from predictor.model import models
from predictor.workload.contradictions import HOW_CHECKPOINTED
from predictor.workload.keys import KEYS, check_names
from predictor.workload.workload import Workload

if TYPE_CHECKING:
    from predictor.answer.prediction import Prediction
    from predictor.workload.samples import Samples
    from predictor.workload.value_sources import Source

GROUPS = {"model": "model and recipe", "shape": "shape of a micro batch", "compute": "precision and activations",
          "inference": "inference (mode inference)", "optimizer": "optimizer", "engine": "engine",
          "gpu": "GPU and software"}
ENGINE_KEYS = {"engine", "deepspeed", "zero_stage", "ddp", "fsdp"}
"""One of them given by an option stands for all of them that were read."""
CONFIGURATIONS = (".sh", ".bash", ".slurm", ".yaml", ".yml", ".json")
"""Ends of files that ``--from`` reads."""


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Adds ``MODEL``, ``--workload`` and one option a key; absent ones are None in the result."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help=KEYS["model"].metadata["help"])
    parser.add_argument("--workload", metavar="FILE", help="YAML or JSON with the same keys; options override "
                        "it: those of KEY=VALUE that key of a mapping")
    groups = {group: parser.add_argument_group(title) for group, title in GROUPS.items()}
    for name, entry in KEYS.items():
        if name != "model":
            _add(groups[entry.metadata["group"]], name, **entry.metadata)


def _add(section: argparse._ArgumentGroup, name: str, *, kind: Any, default: Any, help: str, group: str) -> None:
    option, shown = "--" + name.replace("_", "-"), _default_text(default)
    help = "; ".join(part for part in (help, shown) if part).replace("%", "%%")
    if isinstance(kind, Flag):
        section.add_argument(option, action=argparse.BooleanOptionalAction, default=None, help=help)
    elif isinstance(kind, Later):  # known, so that it is refused by its own message
        section.add_argument(option, nargs="?", const="true", help=argparse.SUPPRESS)
    else:
        action = "append" if getattr(kind, "repeated", False) else "store"
        section.add_argument(option, action=action, metavar=kind.metavar, help=help)


def _default_text(default: Any) -> str:
    if default is None or default == ():
        return ""
    if hasattr(default, "items"):
        return "default: " + " ".join(f"{key}={str(value).lower()}" for key, value in default.items())
    return f"default: {str(default).lower() if isinstance(default, bool) else default}"


def add_from(parser: argparse.ArgumentParser) -> None:
    """Adds ``--from``, ``--from-format`` and ``-- COMMAND``: a framework's own configuration instead of ours."""
    group = parser.add_argument_group("a framework's own configuration", "in place of MODEL; options override it; the "
                                      "command line of a training is given as it is run, at the end: -- COMMAND …")
    group.add_argument("--from", dest="from_file", metavar="FILE",
                       help="LLaVA's scripts, Hugging Face's TrainingArguments, LLaMA-Factory, ms-swift or axolotl "
                            "(YAML, JSON, or a shell script that starts one training), or a DeepSpeed config")
    group.add_argument("--from-format", metavar="NAME", help="which of these it is: llava, transformers, llamafactory, "
                       "swift, axolotl, deepspeed; default: as its content says")
    original = parser.parse_known_args

    def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
        end = words.index("--") if "--" in words else None
        arguments, unknown = original(words[:end])
        arguments.command = None if end is None else words[end + 1:]
        return arguments, unknown

    parser.parse_known_args = parse


def _read(arguments: argparse.Namespace, said: Mapping[str, Any]) -> tuple[dict[str, Any], Source | None]:
    """What a framework's configuration says, if one is given; ``said`` is what options of ours say."""
    path, command = getattr(arguments, "from_file", None), getattr(arguments, "command", None)
    form = getattr(arguments, "from_format", None)
    given = [name for name, item in (("--from", path), ("-- COMMAND", command), ("--workload", arguments.workload))
             if item is not None]
    if len(given) > 1:
        raise InputError(f"{given[0]} and {given[1]} are both given: keep one")
    if path is None and command is None:
        if form is not None:
            raise InputError("--from-format says what --from is: add --from FILE")
        return {}, None
    if command == []:
        raise InputError("a command is missing after --: peakcast predict -- deepspeed train.py …")
    from predictor.readers import read

    return read(path=path, words=command, form=form, options=said)


@dataclass(frozen=True)
class Given:
    """What the user said of a workload.

    Attributes:
        values: by key.
        from_options: keys that an option gave.
        label: what a key is called in messages.
        source: where the others were read, if that is a framework's own configuration.
    """

    values: dict[Any, Any]
    from_options: frozenset[str]
    label: Callable[[str], str]
    source: Source | None


def workload(arguments: argparse.Namespace) -> Workload:
    """The workload that the options and the file describe.

    Raises:
        InputError: with the file or the option in front.
    """
    found = given(arguments)
    made = Workload.from_mapping(found.values, source=found.label)
    return made.read_from(found.source) if found.source else made


def given(arguments: argparse.Namespace) -> Given:
    """The keys that the options and the file give.

    Raises:
        InputError: with the file or the option in front.
    """
    path = arguments.workload
    said = {name: _from_text(name, entry.metadata["kind"], getattr(arguments, name))
            for name, entry in KEYS.items() if getattr(arguments, name) is not None}
    values, source = _read(arguments, said)
    if hasattr(arguments, "from_file"):
        _check_model(said.get("model", ""))
    values |= read_mapping(path, "the workload") if path else {}
    file = named(path) if path else ""
    check_names(values, file)
    values |= {name: _over(values.get(name), getattr(arguments, name), item) for name, item in said.items()}
    from_options = said.keys()
    overridden = from_options | (ENGINE_KEYS if source and ENGINE_KEYS & from_options else set())
    overridden |= HOW_CHECKPOINTED if source and said.get("gradient_checkpointing") is False else set()
    arguments.source = source.overriding(overridden) if source else None
    values = {name: item for name, item in values.items() if name in from_options or name not in overridden}
    if str(values.get("model", "")).endswith(".npz"):
        from predictor.formula import learned

        values = learned.fill(values)

    def label(name: str) -> str:
        if source and name not in from_options and source.knows(name):  # whoever shows the message says where
            return name
        return f"{file}: {name}" if name in values and name not in from_options else _called(name)

    return Given(values, frozenset(from_options), label, arguments.source)


def _check_model(model: str) -> None:
    """Refuses a training's configuration where a model is expected."""
    if Path(model).suffix.lower() in CONFIGURATIONS and os.path.isfile(model):
        try:
            models.find(model)
        except InputError:
            raise InputError(f"MODEL {named(model)}: is no configuration of a model: if a training is configured "
                             f"there, give it as --from {named(model)}") from None


def _over(before: Any, given: Any, said: Any) -> Any:
    """What an option says: ``key=value`` over the file's mapping, anything else in place of the file's value."""
    pairs = isinstance(said, dict) and not any(text.lstrip().startswith("{") for text in given)
    return {**before, **said} if pairs and isinstance(before, Mapping) else said


def _from_text(name: str, kind: Any, given: Any) -> Any:
    if isinstance(given, bool):
        return given
    try:
        if isinstance(given, list):
            if isinstance(kind, Table):  # what each occurrence says, without the defaults
                return {key: item for text in given for key, item in kind.said(text).items()}
            return sum(map(kind.from_text, given), ())
        return kind.from_text(given)
    except Invalid as error:
        raise InputError(f"{_called(name)} {error}") from None


def _called(name: str) -> str:
    return "MODEL" if name == "model" else "--" + name.replace("_", "-")


def add_samples(group: argparse._ArgumentGroup) -> None:
    """Adds ``--samples``."""
    group.add_argument("--samples", metavar="FILE",
                       help="tokens and images of each sample (.csv, .jsonl, .json): predict the worst batch of this "
                       "dataset, and how likely others fit; sequence_length is what longer samples are cut to")


def samples(arguments: argparse.Namespace) -> Samples | None:
    """The samples of the file that was named."""
    if arguments.samples is None:
        return None
    from predictor.workload.samples import read

    return read(arguments.samples)


def exit_code(prediction: Prediction) -> int:
    """0 if it fits or no GPU was named, 1 if it does not fit or that is uncertain."""
    return 0 if prediction.verdict in (None, "fits") else 1

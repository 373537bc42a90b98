"""The options that every command on a workload shares: made from the keys of :class:`Workload`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from predictor.errors import InputError
from predictor.files import read_mapping
from predictor.suggest import named
from predictor.values import Flag, Invalid, Later, Table
from predictor.workload import KEYS, Workload, check_names

if TYPE_CHECKING:
    from predictor.prediction import Prediction
    from predictor.samples import Samples

GROUPS = {"model": "model and recipe", "shape": "shape of a micro batch", "compute": "precision and activations",
          "inference": "inference (mode inference)", "optimizer": "optimizer", "engine": "engine",
          "gpu": "GPU and software"}


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Adds ``MODEL``, ``--workload`` and one option a key; absent ones are None in the result."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help=KEYS["model"].metadata["help"])
    parser.add_argument("--workload", metavar="FILE", help="YAML or JSON with the same keys; options override it")
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


def workload(arguments: argparse.Namespace) -> Workload:
    """The workload that the options and the file describe.

    Raises:
        InputError: with the file or the option in front.
    """
    path = arguments.workload
    values: dict[Any, Any] = read_mapping(path, "the workload") if path else {}
    file = named(path) if path else ""
    check_names(values, file)
    from_options = set()
    for name, entry in KEYS.items():
        given = getattr(arguments, name)
        if given is not None:
            values[name] = _from_text(name, entry.metadata["kind"], given)
            from_options.add(name)

    if str(values.get("model", "")).endswith(".npz"):
        from predictor import learned

        values = learned.fill(values)

    def label(name: str) -> str:
        return f"{file}: {name}" if name in values and name not in from_options else _called(name)

    return Workload.from_mapping(values, source=label)


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
    from predictor.samples import read

    return read(arguments.samples)


def exit_code(prediction: Prediction) -> int:
    """0 if it fits or no GPU was named, 1 if it does not fit or that is uncertain."""
    return 0 if prediction.verdict in (None, "fits") else 1

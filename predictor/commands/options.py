"""Options that all commands on a workload share. They are generated from the keys of :class:`Workload`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from predictor.commands import file_kinds
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.files import read_mapping
from predictor.common.streams import say
from predictor.common.suggestions import file_name, quoted
from predictor.common.value_types import Flag, Invalid, NotYetSupported, Table, thaw
from predictor.model import models
from predictor.workload.contradictions import CHECKPOINTING_KEYS
from predictor.workload.deepspeed_settings import with_zero
from predictor.workload.keys import ALLOCATOR_VARIABLES, KEYS, check_names
from predictor.workload.value_sources import ENGINE_KEYS
from predictor.workload.workload import Workload

if TYPE_CHECKING:
    from predictor.answer.prediction import Prediction
    from predictor.course.course import Request
    from predictor.workload.samples import Samples
    from predictor.workload.value_sources import Source

GROUPS = {"model": "model and recipe", "shape": "shape of a micro batch", "compute": "precision and activations",
          "inference": "inference (mode inference)", "optimizer": "optimizer", "loop": "a training loop of your own",
          "engine": "engine", "gpu": "GPU and software"}
OF_COURSES = ("sampling", "packing", "seed", "seeds", "empty_cache_steps", "eval_samples", "eval_steps", "plot",
              "drop_last", "longest_first")
"""Options of a course, beside its length."""
SEARCHES = ("samples", "processor", "image_folder", "steps", "epochs", *OF_COURSES, "maximum_load", "also_gpu",
            "python")
"""Options whose answers need more than one run, so that ``--run`` takes none of them."""
CONFIGURATIONS = (*file_kinds.SHELL_SCRIPTS, *file_kinds.DOCUMENTS)
"""Suffixes of files that ``--from`` reads."""


class _OneFile(argparse.Action):
    """An option that names the one file that is read: a second file is an error, as the first would be ignored."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
                 option_string: str | None = None) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option_string} is given twice, and one file is read: keep one")
        setattr(namespace, self.dest, values)


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Adds ``MODEL``, ``--workload`` and an option for each key. Options that are not given are None in the result."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help=KEYS["model"].metadata["help"])
    parser.add_argument("--workload", metavar="FILE", action=_OneFile,
                        help="YAML or JSON file with the same keys; options override it; an option KEY=VALUE overrides "
                             "one key of a mapping")
    add_keys(parser)


def add_keys(parser: argparse.ArgumentParser) -> None:
    """Adds an option for each key but the model. Options that are not given are None in the result."""
    groups = {group: parser.add_argument_group(title) for group, title in GROUPS.items()}
    for name, entry in KEYS.items():
        if name != "model":
            _add(groups[entry.metadata["group"]], name, **entry.metadata)


def _add(section: argparse._ArgumentGroup, name: str, *, kind: Any, default: Any, help: str, group: str) -> None:
    option, default_text = "--" + name.replace("_", "-"), _default_text(default)
    help = "; ".join(part for part in (help, default_text) if part).replace("%", "%%")
    if isinstance(kind, Flag):
        section.add_argument(option, action=argparse.BooleanOptionalAction, default=None, help=help)
    elif isinstance(kind, NotYetSupported):  # the option exists, so that the key's own message rejects it
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
    """Adds ``--from``, ``--from-format`` and ``-- COMMAND``, which read a framework's own configuration."""
    group = parser.add_argument_group("a framework's own configuration", "in place of MODEL; options override it; a "
                                      "training's command line may follow all options, unchanged: -- COMMAND …")
    group.add_argument("--from", dest="from_file", metavar="FILE", action=_OneFile,
                       help="LLaVA's scripts, Hugging Face's TrainingArguments, LLaMA-Factory, ms-swift, axolotl or "
                            "TRL (YAML, JSON, or a shell script that starts one training), or a DeepSpeed config")
    group.add_argument("--from-format", metavar="NAME", help="format of that file: llava, transformers, llamafactory, "
                       "trl, qwenvl, qwen_series, swift, axolotl, deepspeed; default: recognized by its content")
    original = parser.parse_known_args

    def parse(words: list[str]) -> tuple[argparse.Namespace, list[str]]:
        end = words.index("--") if "--" in words else None
        arguments, unknown = original(words[:end])
        arguments.command = None if end is None else words[end + 1:]
        return arguments, unknown

    parser.parse_known_args = parse  # type: ignore[method-assign,assignment]  # argparse has no hook for words after --


def add_python(parser: argparse._ActionsContainer, purpose: str = "interpreter of the environment that trains: models "
               "are traced there, with its torch and transformers, whose versions are predicted") -> None:
    """Adds ``--python``."""
    parser.add_argument("--python", metavar="PATH", help=f"{purpose}; nothing is installed in it")


def _trace_in(path: str | None, values: dict[Any, Any]) -> dict[str, Any]:
    """Chooses the interpreter that traces models. The result is the keys that follow: the versions found there.

    Raises:
        InputError: it cannot trace, or the user gave a version that is not installed there.
    """
    from predictor.formula import interpreter

    found = interpreter.find(path) if path is not None else None
    interpreter.CHOSEN.set(found)
    if found is None:
        return {}
    given = values.get("versions") or {}
    for name, version in given.items() if isinstance(given, Mapping) else ():
        if found.versions.get(name, version) != version:
            raise InputError(f"--versions {name}={version}: --python has {name} {found.versions[name]}: leave it out")
    return {"versions": {**given, **found.versions}}


def _read(arguments: argparse.Namespace, from_options: Mapping[str, Any]) -> tuple[dict[str, Any], Source | None]:
    """The keys of a framework's configuration, and its source; empty and None if none is given.

    Args:
        from_options: the keys that peakcast's own options set.
    """
    path, command = getattr(arguments, "from_file", None), getattr(arguments, "command", None)
    form = getattr(arguments, "from_format", None)
    given = [name for name, item in (("--from", path), ("-- COMMAND", command), ("--workload", arguments.workload))
             if item is not None]
    if len(given) > 1:
        raise InputError(f"{given[0]} and {given[1]} are both given: keep one")
    if path is None and command is None:
        if form is not None:
            raise InputError("--from-format names the format of the --from file: add --from FILE")
        return {}, None
    if command == []:
        raise InputError("a command is missing after --: peakcast predict -- deepspeed train.py …")
    from predictor.readers import read

    return read(path=path, words=command, form=form, options=from_options)


@dataclass(frozen=True)
class Given:
    """The keys that the user gave for a workload.

    Attributes:
        values: the values by key.
        from_options: keys that an option set.
        label: the name of a key in messages.
        source: the framework's configuration that the other keys were read from, if there is one.
    """

    values: dict[Any, Any]
    from_options: frozenset[str]
    label: Callable[[str], str]
    source: Source | None


def workload(arguments: argparse.Namespace) -> Workload:
    """The workload that the options and the file describe.

    Raises:
        InputError: a value is wrong. The message starts with the file or the option.
    """
    user = given(arguments)
    result = Workload.from_mapping(user.values, source=user.label)
    _check_installed(result)
    _name_unread_settings(result)
    return result.read_from(user.source) if user.source else result


def parsed(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """The values of those of these keys that options give.

    Raises:
        InputError: a value is wrong. The message starts with the option.
    """
    return {name: _from_text(name, KEYS[name].metadata["kind"], getattr(arguments, name))
            for name in names if getattr(arguments, name) is not None}


def _check_installed(workload: Workload) -> None:
    """Checks that the environment of ``--python`` has the packages that the job runs.

    Raises:
        InputError: it lacks one.
    """
    from predictor.formula import interpreter
    from predictor.profile.reach import PACKAGES

    chosen = interpreter.CHOSEN.get()
    for name, is_used in PACKAGES.items():
        if chosen and name not in chosen.versions and is_used(workload):
            raise InputError(f"--python {quoted(chosen.path)}: {name} is not installed there, and the job uses it: "
                             "name the interpreter of the environment that trains")


def _name_unread_settings(workload: Workload) -> None:
    """Says on stderr that this shell has settings of the allocator, which a prediction does not take from there."""
    for name in ALLOCATOR_VARIABLES:
        if workload.allocator_conf is None and os.environ.get(name):
            say(f"{name} of this shell is not read: give --allocator-conf {quoted(os.environ[name])}")


def given(arguments: argparse.Namespace) -> Given:
    """The keys that the options and the file give.

    Raises:
        InputError: a value is wrong. The message starts with the file or the option.
    """
    path = arguments.workload
    ours = parsed(arguments, KEYS)
    reads_frameworks = hasattr(arguments, "from_file")
    try:
        values, source = _read(arguments, ours)
    except InputError as error:
        raise file_kinds.instead(getattr(arguments, "from_file", None), file_kinds.FROM, error) from None
    ours = {name: item for name, item in ours.items() if source is None or name not in source.applied}
    _check_model(ours.get("model", ""), reads_frameworks)
    file = file_name(path) if path else ""
    try:
        values |= read_mapping(path, "the workload") if path else {}
        check_names(values, file)
    except InputError as error:
        raise file_kinds.instead(path, file_kinds.WORKLOAD, error, reads_frameworks=reads_frameworks) from None
    values |= {name: _over(values.get(name), getattr(arguments, name), item) for name, item in ours.items()}
    from_options = ours.keys()
    overridden = set(from_options)
    if ENGINE_KEYS & from_options == {"zero_stage"} and values.get("deepspeed") is not None:
        with suppress(Invalid):  # the workload's own message is better
            config = KEYS["deepspeed"].metadata["kind"].check(values["deepspeed"])
            values["deepspeed"] = with_zero(thaw(config), stage=ours["zero_stage"])
        overridden |= ENGINE_KEYS - {"deepspeed"} | {"deepspeed.zero_optimization.stage"}
    elif source and ENGINE_KEYS & from_options:
        overridden |= ENGINE_KEYS
    overridden |= CHECKPOINTING_KEYS if source and ours.get("gradient_checkpointing") is False else set()
    arguments.source = source.overriding(overridden) if source else None
    values = {name: item for name, item in values.items() if name in from_options or name not in overridden}
    values |= _trace_in(getattr(arguments, "python", None), values)
    if str(values.get("model", "")).endswith(".npz"):
        from predictor.formula import learned

        values = learned.fill_recorded_keys(values)

    def label(name: str) -> str:
        if source and name not in from_options and source.knows(name):  # main() adds the file to the message
            return name
        return f"{file}: {name}" if name in values and name not in from_options else _called(name)

    if arguments.gpu is not None and (others := gpus.of_other_sizes(arguments.gpu)):
        arguments.note = (f"--gpu {arguments.gpu} is taken as {values['gpu']}; there is also "
                          f"{', '.join(gpu.name for gpu in others)}")
    return Given(values, frozenset(from_options), label, arguments.source)


def _check_model(model: str, reads_frameworks: bool) -> None:
    """Rejects a file in place of a model that describes a training, or is a script."""
    if os.path.splitext(model)[1].lower() in (*CONFIGURATIONS, ".py") and os.path.isfile(model):
        try:
            models.find(model)
        except InputError as found:
            kind = file_kinds.recognized(model)
            if kind is not None and kind.given_as == file_kinds.MODEL:
                raise
            error = found if kind is None and model.lower().endswith(".json") else InputError(
                f"MODEL {file_name(model)}: is no configuration of a model")
            raise file_kinds.instead(model, file_kinds.MODEL, error, reads_frameworks=reads_frameworks) from None


def _over(file_value: Any, argument: Any, parsed: Any) -> Any:
    """The value of a key that an option sets. ``key=value`` pairs update the file's mapping; other values replace it.

    Args:
        argument: the option's text or texts.
        parsed: the value that they stand for.
    """
    pairs = isinstance(parsed, dict) and not any(text.lstrip().startswith("{") for text in argument)
    return {**file_value, **parsed} if pairs and isinstance(file_value, Mapping) else parsed


def _from_text(name: str, value_type: Any, argument: Any) -> Any:
    """The value of an option's argument, which is a text, a list of texts, or a flag."""
    if isinstance(argument, bool):
        return argument
    try:
        if isinstance(argument, list):
            if isinstance(value_type, Table):  # only the given pairs, without the defaults
                return {key: item for text in argument for key, item in value_type.said(text).items()}
            return sum(map(value_type.from_text, argument), ())
        return value_type.from_text(argument)
    except Invalid as error:
        raise InputError(f"{_called(name)} {error}") from None


def _called(name: str) -> str:
    return "MODEL" if name == "model" else "--" + name.replace("_", "-")


def add_samples(group: argparse._ArgumentGroup) -> None:
    """Adds ``--samples``."""
    group.add_argument("--samples", metavar="FILE",
                       help="file with tokens and images of each sample (.csv, .jsonl, .json), or with --processor a "
                       "dataset: predict the worst batch of it, and how likely others fit, or with --steps a whole "
                       "training; longer samples are truncated to sequence_length")
    add_processor(group, "--samples is a dataset of conversations")


def add_processor(group: argparse._ArgumentGroup, what: str, *, required: bool = False) -> None:
    """Adds the options with which a dataset's tokens are counted. ``what`` the processor's option says or needs."""
    group.add_argument("--processor", metavar="DIR", required=required,
                       help=f"{what} (.jsonl, .json, .parquet): count their tokens with the processor or tokenizer of "
                       "this directory, or of this hub id in the local cache")
    group.add_argument("--image-folder", metavar="DIR",
                       help="where paths of the dataset's pictures begin; default: the directory of the dataset")


def samples(arguments: argparse.Namespace) -> Samples | None:
    """The samples in the ``--samples`` file; None without one."""
    for name, needed in (("processor", "samples"), ("image_folder", "processor")):
        if getattr(arguments, name) is not None and getattr(arguments, needed) is None:
            raise InputError(f"{_called(name)} is about a dataset: add {_called(needed)}")
    if arguments.samples is None:
        return None
    if arguments.processor is not None:
        return dataset(arguments.samples, arguments)
    from predictor.workload.samples import read

    return read(arguments.samples)


def dataset(path: str, arguments: argparse.Namespace) -> Samples:
    """The samples of a dataset, counted with ``--processor``."""
    from predictor.commands import output
    from predictor.conversations.tokens import read

    return read(path, arguments.processor, arguments.image_folder,
                lambda groups: output.bar(groups, "Counting tokens and pictures"))


def add_course(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a course over the dataset of ``--samples``."""
    group = parser.add_argument_group("a whole training over the samples, step by step, through one allocator")
    group.add_argument("--steps", type=int, metavar="N", help="simulate so many optimizer steps: the step and the "
                       "batch of the first out-of-memory error, how likely one is, and what prevents it")
    group.add_argument("--epochs", type=float, metavar="E", help="the same for so many epochs, such as 1 or 0.5")
    group.add_argument("--sampling", metavar="NAME", help="how batches are drawn, as train_sampling_strategy: random "
                       "(default), group_by_length, sequential")
    group.add_argument("--packing", metavar="NAME", help="rows that samples are packed into before batches are drawn, "
                       "with padding packed: bfd, as TRL's packing_strategy; default: none")
    group.add_argument("--longest-first", action="store_true", help="move the one of the simulated steps that has the "
                       "longest batch to the beginning, as a sampler of your own can")
    group.add_argument("--seed", type=int, metavar="N", help="the sampler's seed (default: 42, as the Trainer's)")
    group.add_argument("--drop-last", action="store_true", help="leave out an incomplete last batch of an epoch")
    group.add_argument("--seeds", type=int, metavar="N", help="seeds to simulate, to say how likely an error is "
                       "(default: 3 to 20, the fewer the longer the course)")
    group.add_argument("--empty-cache-steps", type=int, metavar="N", help="the Trainer's torch_empty_cache_steps")
    group.add_argument("--eval-samples", metavar="FILE", help="evaluate on these samples between the steps, in batches "
                       "of --per-device-eval-batch-size (default: 8)")
    group.add_argument("--eval-steps", type=int, metavar="N", help="optimizer steps between two evaluations")
    group.add_argument("--plot", metavar="FILE", help="also write the course as a picture (.svg)")


def course(arguments: argparse.Namespace) -> Request | None:
    """What to simulate of a course; None if neither steps nor epochs are given.

    Raises:
        InputError: an option is wrong, or needs another.
    """
    given = [name for name in OF_COURSES if not any(getattr(arguments, name) is absent for absent in (None, False))]
    if arguments.steps is None and arguments.epochs is None:
        if given:
            raise InputError(f"{_called(given[0])} is of a whole training: add --steps N or --epochs E")
        return None
    if arguments.samples is None:
        raise InputError("--steps and --epochs need the dataset's samples: add --samples FILE")
    for name in ("minimum_capacity", "maximum_load", "remedies", "also_gpu", "snapshot"):
        if getattr(arguments, name):
            raise InputError(f"{_called(name)} is about one batch: leave it out, or leave out --steps and --epochs")
    if (arguments.eval_samples is None) is not (arguments.eval_steps is None):
        raise InputError("evaluations need both --eval-samples FILE and --eval-steps N: give both, or leave both out")
    from predictor.course.course import Request
    from predictor.course.evaluation import Evaluating
    from predictor.course.sampler import Sampling
    from predictor.workload.samples import read

    own = {"strategy": arguments.sampling, "seed": arguments.seed, "packing": arguments.packing}
    sampling = Sampling(**{name: value for name, value in own.items() if value is not None},
                        drop_last=arguments.drop_last, longest_first=arguments.longest_first)
    evaluating = Evaluating(arguments.eval_steps, read(arguments.eval_samples)) if arguments.eval_samples else None
    return Request(arguments.steps, arguments.epochs, sampling, arguments.seeds, arguments.empty_cache_steps,
                   evaluating)


def exit_code(prediction: Prediction) -> int:
    """0 if the workload fits or no GPU was named; 1 if it does not fit or that is uncertain."""
    return 0 if prediction.verdict in (None, "fits") else 1

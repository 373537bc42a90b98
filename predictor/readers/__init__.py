"""Reads users' configurations and command lines of training frameworks, and turns them into workloads.

Known limitations:

* Supported are the Hugging Face Trainer, LLaVA 1.2, LLaMA-Factory 0.9.5, ms-swift 4.6, axolotl 0.19 and DeepSpeed
  configs, of TRL 1.16 supervised fine-tuning, and the scripts of Qwen-VL's own repository and of 2U1's for the Qwen-VL
  series. Scripts of other trainers are recognised and rejected.
* A shell script is read without running it: values that only a shell can compute stay open and must be written out.
* Only supervised training with next-token loss is predicted; RLHF, reward models and classification are rejected.
* FSDP1, Megatron-LM, context parallelism and models split over devices are rejected.
* Flags that only the user's own script knows are listed as not modelled.
* Where a checkpoint's dtype is unknown, bf16 is assumed (fp32 under fp16 autocast), and the prediction says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from predictor.common.errors import InputError, NotPredicted
from predictor.common.files import parse_json, parse_yaml, read_text
from predictor.common.suggestions import file_name, nearest, quoted
from predictor.readers import accelerate, command, trainer_detection, trl_launch
from predictor.readers.configuration import read as read_fields
from predictor.readers.deepspeed import read_without_arguments
from predictor.readers.own_directory import in_directory
from predictor.readers.own_files import files, written
from predictor.readers.own_words import OwnWords
from predictor.readers.reading import Format, Reading, UnknownKeys
from predictor.readers.user_input import UserInput
from predictor.workload.value_sources import Source

__all__ = ["FORMATS", "files", "in_directory", "read", "written"]
FORMATS = {
    "llava": "predictor.readers.llava",
    "llamafactory": "predictor.readers.llamafactory",
    "swift": "predictor.readers.swift",
    "axolotl": "predictor.readers.axolotl",
    "qwenvl": "predictor.readers.qwenvl",
    "qwen_series": "predictor.readers.qwen_series",
    "deepspeed": "predictor.readers.deepspeed",
    "trl": "predictor.readers.trl",
    "transformers": "predictor.readers.training_arguments",
}
"""Name of a format -> its module. The first format with a mark among a configuration's keys is chosen."""
FORMAT_OF_PROGRAM = {"swift": "swift", "llamafactory-cli": "llamafactory", "lmf": "llamafactory", "axolotl": "axolotl"}
FORMAT_OF_MODULE = {"axolotl.cli.train": "axolotl", "swift.cli.sft": "swift", "llava.train.train_mem": "llava",
           "llava.train.train": "llava"}
FORMAT_OF_PATH = {"llava/train/": "llava", "qwenvl/train/train_qwen.py": "qwenvl",
                  "src/train/train_sft.py": "qwen_series"}
"""Part of a script's path -> the format of its flags."""
DESCRIPTION = "the training's configuration"


def read(*, path: str | None = None, words: Sequence[str] | None = None, form: str | None = None,
         options: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], Source]:
    """Reads the keys of a workload from a file (YAML, JSON, or a shell script), or from the words of a command.

    Args:
        form: one of :data:`FORMATS`; None: detect the format from the content.
        options: keys of the workload that the user also gave as options; they replace values that a shell leaves open.

    Returns:
        The keys of the workload, and the origin of each value.

    Raises:
        InputError: names the file, the key and the problem.
    """
    user_input = command.from_words(words) if words is not None else _file(str(path))
    user_input, implied = _named_by_command(replace(user_input, options=options or {}))
    user_input = trl_launch.launched(user_input) if implied == "trl" else user_input
    launched = accelerate.launched(user_input)
    if launched.problem and launched.gpus is None:
        raise InputError(launched.problem)
    chosen = _format(launched, form or implied, by_user=form is not None)
    values, source = read_without_arguments(launched) if chosen.name == "deepspeed" else read_fields(chosen, launched)
    words_of = OwnWords(chosen, user_input)
    return values, replace(source, own=words_of, own_lacks=words_of.lacks, own_refusal=words_of.refusal)


def _file(path: str) -> UserInput:
    name = file_name(path)
    text = read_text(path, DESCRIPTION)
    if name.lower().endswith((".sh", ".bash", ".slurm")) or text.startswith("#!"):
        return command.from_script(text, name, path)
    value = parse_json(text, name) if name.lower().endswith(".json") else parse_yaml(text, name)
    if not isinstance(value, dict):
        raise InputError(f"{name}: holds no mapping of keys to values: give YAML, JSON, or a shell script (.sh)")
    for key in value:
        if not isinstance(key, str):
            raise InputError(f"{name}: the key {quoted(key)} is not text")
    return UserInput(name, value, path, text=text)


def _named_by_command(user_input: UserInput) -> tuple[UserInput, str | None]:
    """Replaces a command that names a configuration file by the file's content and the command's other flags."""
    if not user_input.flags:
        return user_input, None
    program = user_input.program
    implied = FORMAT_OF_PROGRAM.get(program.partition(" ")[0]) or FORMAT_OF_MODULE.get(program) or (
        next((form for path, form in FORMAT_OF_PATH.items() if path in program), None)) or (
        "trl" if trainer_detection.is_sft(user_input) else None)
    values = dict(user_input.values)
    words = values.pop("", [])
    words = [words] if isinstance(words, str) else words
    if implied in ("swift", "trl") and "config" in values:
        paths = values.pop("config")
        words = [*(paths if isinstance(paths, list) else [str(paths)]), *words]
    files = [word for word in words if word.lower().endswith((".yaml", ".yml", ".json"))]
    if not files:
        if words:
            raise InputError(f"{user_input.name}: {quoted(words[0])} is not expected there: give flags")
        return replace(user_input, values=values), implied
    inner = _file(files[0])
    extra = {key: {"true": True, "false": False}.get(item.lower(), item) for key, _, item in (  # OmegaConf's overrides
        word.partition("=") for word in words if "=" in word and word not in files)}
    stray = [word for word in words if word not in files and "=" not in word]
    if stray:
        raise InputError(f"{user_input.name}: {quoted(stray[0])} is not expected there: give KEY=VALUE or flags")
    flags = {key.replace("-", "_"): value for key, value in values.items()}
    return replace(user_input, name=inner.name, path=inner.path, flags=False, values={**inner.values, **extra, **flags},
                   started_in=user_input.name, besides=frozenset(flags),
                   assigned=frozenset(extra.keys() - flags.keys()), text=inner.text), implied


def _format(user_input: UserInput, name: str | None, *, by_user: bool) -> Format:
    """The format of that name, or the one whose marks the configuration has."""
    if name is not None and name not in FORMATS:
        raise InputError(f"--from-format {quoted(name)}: known are {', '.join(FORMATS)}{nearest(name, FORMATS)}")
    keys = {key.replace("-", "_") for key in user_input.values}
    unknown_of = partial(_unknown_flags, user_input)
    for candidate, module in FORMATS.items():
        form: Format = import_module(module).FORMAT
        if candidate == name or (name is None and keys & form.marks and _may_be(candidate, user_input)):
            if candidate == "transformers":
                trainer_detection.check(user_input, by_user=by_user, unknown_of=unknown_of)
            else:
                trainer_detection.check_of_format(candidate, user_input)
            return form
    trainer_detection.check(user_input, by_user=by_user, unknown_of=unknown_of)
    known = f"--from-format ({', '.join(FORMATS)})"
    if user_input.flags:
        raise NotPredicted(f"{user_input.name}: only the settings on the command line are read, not those in "
                           f"{quoted(user_input.program, 80)[1:-1]}, and none of them is known",
                           f"give the model and its settings as options, or name the format of the flags with {known}")
    raise NotPredicted(f"{user_input.name}: is in no known format: name one with {known}")


def _unknown_flags(user_input: UserInput, name: str) -> Sequence[str]:
    """The flags of a command that a format does not know."""
    try:
        Reading(import_module(FORMATS[name]).FORMAT, user_input)
    except UnknownKeys as error:
        return error.names
    except InputError:  # said when the command is read in that format
        pass
    return ()


def _may_be(name: str, user_input: UserInput) -> bool:
    """False for training arguments that share keys with a DeepSpeed config: only the config has sections."""
    if name == "deepspeed":
        return not user_input.flags and any(isinstance(user_input.values.get(key), dict) for key in (
            "zero_optimization", "bf16", "fp16", "optimizer"))
    return True

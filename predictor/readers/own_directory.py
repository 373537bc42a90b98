"""Writes the user's changed files into one directory, which has every configuration that they name.

A training starts where it always did, so files name each other by the paths that they have from there.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from predictor.common.errors import InputError
from predictor.common.files import read_text
from predictor.common.suggestions import file_name
from predictor.readers.accelerate import FILE
from predictor.readers.accelerate_launch import SECTION, section_of
from predictor.readers.fields import LAUNCHER, Edit
from predictor.readers.own_files import COMMAND, in_script, in_words, shell_word, with_values
from predictor.readers.own_words import OwnWords, by_command, raw_name
from predictor.readers.reading import Reading
from predictor.readers.user_input import UserInput, beside
from predictor.workload.value_sources import Source

SCRIPT = "command.sh"
"""Name of the file that has a command line."""
FILES = ("deepspeed", "fsdp_config")
"""Keys of training arguments that may name a file."""


def in_directory(source: Source, texts: Mapping[str, str], folder: str) -> dict[str, str]:
    """The text of each file by its name in a directory. The first one starts the training.

    Args:
        texts: changed files, as :func:`predictor.readers.files` returns them.
        folder: the directory, which need not exist.

    Raises:
        InputError: a named configuration cannot be read, or two files have the same name.
    """
    if not texts or not isinstance(source.own, OwnWords):
        return {}
    user_input = source.own.user_input
    _, now = source.own.read(user_input)
    named = [edit for edit in _named(user_input, now) if beside(edit.value, user_input.path)]
    whole = dict(texts)
    for edit in named:
        path = beside(edit.value, user_input.path) or edit.value
        whole.setdefault(edit.value, read_text(path, "a configuration"))
    start = _start(user_input.path, [edit.value for edit in named])

    def place(path: str) -> str:
        return _from(start, Path(folder, _name(path)))

    for edit in named:
        _rename(whole, user_input, now, replace(edit, value=place(edit.value)))
    if user_input.words and not user_input.flags:  # the command names the file that has the keys
        command = user_input.started_in or COMMAND
        words = shlex.split(whole[command]) if command in whole else user_input.words
        line = " ".join(shell_word(place(word) if word == user_input.path else word) for word in words)
        whole = {command: line + "\n"} | {path: text for path, text in whole.items() if path != command}
    placed = {_name(path): text for path, text in whole.items()}
    if len(placed) < len(whole):
        raise InputError(f"{file_name(folder)}: two of {', '.join(whole)} would have the same name there: rename one")
    return placed


def _named(user_input: UserInput, now: Reading | None) -> Iterator[Edit]:
    """The configurations that the user's own one names: each as the key that names it, with its path."""
    launch = user_input.launch
    config = launch.options.get("config_file") if launch else None
    if launch and config:
        yield Edit("config_file", config, LAUNCHER)
    if launch and FILE in launch.options:
        yield Edit(FILE, launch.options[FILE], LAUNCHER)
    elif launch and config and (path := section_of(launch.document, SECTION, config).get(FILE)):
        yield Edit(f"{SECTION}.{FILE}", path, config)
    if now is None:  # a DeepSpeed config, which names none
        return
    for key in FILES:
        path = now[key] if key in now.form.fields and key not in now.input.launched_with else None
        if isinstance(path, str) and path not in now.form.configs:
            yield Edit(key, path)


def _rename(texts: dict[str, str], user_input: UserInput, now: Reading | None, edit: Edit) -> None:
    """Changes one key, which names a file, in the text that has it."""
    raw = raw_name(user_input, now, edit.name) or edit.name
    if edit.place not in ("", LAUNCHER):
        texts[edit.place] = with_values(texts[edit.place], edit.place, {edit.name: edit.value})
    elif not edit.place and not by_command(user_input, edit.name):
        text = texts.get(user_input.name, user_input.text)
        texts[user_input.name] = with_values(text, user_input.name, {raw: edit.value})
    elif user_input.flags and user_input.text:
        text = texts[user_input.name]
        texts[user_input.name] = in_script(text, user_input, edit, raw) or text
    else:
        command = user_input.started_in or COMMAND
        words = shlex.split(texts[command]) if command in texts else list(user_input.words)
        texts[command] = " ".join(map(shell_word, in_words(words, user_input, edit, raw))) + "\n"


def _name(path: str) -> str:
    return SCRIPT if path == COMMAND else Path(path).name


def _start(path: str | None, named: Sequence[str]) -> Path:
    """The directory in which the training starts: from there the paths lead to the files that are named."""
    folders = (Path(), *(Path(path).resolve().parents if path else ()))
    return next((folder for folder in folders if all((folder / name).is_file() for name in named)), Path()).resolve()


def _from(start: Path, path: Path) -> str:
    """A path as seen from a directory; absolute unless it lies below."""
    path = path.resolve()
    return str(path.relative_to(start)) if path.is_relative_to(start) else str(path)

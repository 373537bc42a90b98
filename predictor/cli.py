"""The ``peakcast`` command: finds the subcommand, runs it, and prints a user's mistake as one line.

The subcommands are in :mod:`predictor.commands.registry`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from types import ModuleType

from predictor.commands.registry import COMMANDS, Parser, load_command
from predictor.common import storage, streams
from predictor.common.errors import InputError, NotPredicted
from predictor.common.suggestions import nearest, quoted

# (command, option) -> the module whose ``run(arguments)`` takes over if the option is given.
ANSWERED_BY = {("explain", "measured"): "calibrate.commands.attribution",
               ("predict", "run"): "calibrate.commands.predict_run"}

ALSO_CALLED = {
    "config": "--from", "yaml": "--from", "script": "--from", "config_file": "--from", "max_batch": "--maximum-load",
    "max_batch_size": "--maximum-load", "largest_batch": "--maximum-load", "qlora": "--quantization load_in_4bit=true",
    "load_in_4bit": "--quantization load_in_4bit=true", "load_in_8bit": "--quantization load_in_8bit=true",
}
"""Words for options, besides those for the keys of a workload."""
MODEL = ("model", "model_name", "model_name_or_path", "model_id")
"""Options of other programs for what is MODEL here."""
NO_EFFECT = {"lr", "learning_rate", "epochs", "num_train_epochs", "warmup_ratio", "warmup_steps", "seed", "output_dir",
             "save_steps", "logging_steps", "report_to", "run_name"}
"""Options of trainers that do not change memory."""
CONFIGURATIONS = (r"\.yaml", r"\.yml", r"\.json")
"""Patterns of the suffixes of files that say how to train, but not with which program."""
WIDTH = 100
"""Characters in a line of the list of commands."""
BAD_INPUT = 2
INTERRUPTED = 128 + 2
BROKEN_PIPE = 128 + 13


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 success, 1 a negative result ("does not fit" …), 2 bad input."""
    storage.ensure_user_name()
    with streams.harmless_streams():
        return _answered(list(sys.argv[1:] if argv is None else argv))


def _answered(argv: list[str]) -> int:
    try:
        code = _code(argv)
        if sys.stdout:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return BROKEN_PIPE
    except OSError as error:  # errors of other files are InputError already, so this one is of stdout
        _drop_stdout()
        streams.say(f"peakcast: error: the output cannot be written: {error.strerror or error}")
        return BAD_INPUT


def _code(argv: list[str]) -> int:
    try:
        return _run(argv)
    except InputError as error:
        from predictor.oom.pointer import led

        text = led(argv, str(error))
        if isinstance(error, NotPredicted) and text == str(error):  # else it is a log, and no job
            text += _run_instead(argv) + f"; or {error.otherwise}" * bool(error.otherwise)
        streams.say(f"peakcast: error: {' '.join(text.split())}")
        return BAD_INPUT
    except SystemExit as stop:  # argparse, after --help
        return int(stop.code or 0)


def _drop_stdout() -> None:
    """Redirects stdout to the null device, so that the interpreter's last flush does not fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    name, *rest = argv
    if name == "--version":
        from predictor.version import VERSION

        print(f"peakcast {VERSION}")
        return 0
    module, parser = load_command(name)
    arguments = parsed(parser, rest)
    if sys.stdout is None:  # the shell closed it with >&-
        if getattr(arguments, "output", None) is None:
            raise InputError("standard output is closed: give -o FILE, or leave it open")
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  stays open until the process ends
    for (command, option), path in ANSWERED_BY.items():
        if command == name and getattr(arguments, option) is not None:
            module = importlib.import_module(path)
    try:
        code = module.run(arguments)
        if note := getattr(arguments, "note", None):  # of a mistake, the error is the only line
            print(f"peakcast: {note}", file=sys.stderr)
        return code
    except InputError as error:
        source = getattr(arguments, "source", None)
        if source:
            error.args = (source.told(str(error)),)
        raise


def parsed(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command; its options may be written with underscores.

    Raises:
        InputError: a word is no argument of that command.
    """
    arguments, unknown = parser.parse_known_args(_hyphens(words))
    if unknown:
        raise InputError(f"unknown argument {quoted(unknown[0])}{_hint(unknown[0], parser)}")
    return arguments


def _run_instead(argv: list[str]) -> str:
    """The command line that runs a job which is not predicted; empty for commands other than ``predict``."""
    if argv[0] != "predict" or "--run" in argv:
        return ""
    end = argv.index("--") if "--" in argv else len(argv)
    is_file = re.search(rf"--from[ =]\S+({'|'.join(CONFIGURATIONS)})\b", " ".join(argv[:end]))
    words = "-- COMMAND, with the training's own command," if is_file else shlex.join(
        [*_without_searches(_hyphens(argv[1:end])), *argv[end:]])
    return f"; peakcast predict --run {words} would run it on an emulated GPU"


def _without_searches(words: Sequence[str]) -> Iterator[str]:
    """The words of a ``predict`` command but the options that ``--run`` does not take, and their values."""
    from predictor.commands.options import SEARCHES

    actions, left = load_command("predict")[1]._option_string_actions, iter(words)
    for word in left:
        action = actions.get(word.partition("=")[0])
        if action is None or action.dest not in SEARCHES:
            yield word
        elif action.nargs != 0 and "=" not in word:
            next(left, None)
        if action is not None and action.dest == "samples" and not any("--sequence-length" in one for one in words):
            yield from ("--sequence-length", "N")  # which the samples told


def _hint(argument: str, parser: argparse.ArgumentParser) -> str:
    from predictor.workload import keys

    options = parser._option_string_actions
    name = argument.partition("=")[0]
    word = name.strip("-").replace("-", "_")
    if word in NO_EFFECT:
        return ": it does not change memory; leave it out"
    if word in MODEL and any(action.dest == "model" for action in parser._actions if not action.option_strings):
        return ": give the model as it is, without an option"
    option = ALSO_CALLED.get(word) or "--" + keys.ALSO_CALLED.get(word, "").replace("_", "-")
    if option.partition(" ")[0] in options:
        return f' (did you mean "{option}"?)'
    is_other = name[:1] != "-" or word in ALSO_CALLED  # that of another command is no slip of the pen
    return (not is_other and nearest(name, options)) or f" (see {parser.prog} --help)"


def _hyphens(words: Sequence[str]) -> list[str]:
    """Replaces underscores in option names, such as Hugging Face's: ``--zero_stage=2`` becomes ``--zero-stage=2``.

    Words after ``--`` belong to another program and stay as they are.
    """
    end = words.index("--") if "--" in words else len(words)
    ours = [word.partition("=") if word.startswith("--") else (word, "", "") for word in words[:end]]
    return [name.replace("_", "-") + equals + value if name[:2] == "--" else name for name, equals, value in ours] \
        + list(words[end:])


def _overview() -> str:
    def summary(module: ModuleType) -> str:
        return (module.__doc__ or "").strip().partition("\n")[0]

    lines = [line for name, path in COMMANDS.items() for line in textwrap.wrap(
        f"  {name:<10} {summary(importlib.import_module(path))}", WIDTH, subsequent_indent=" " * 13)]
    return "\n".join([
        "usage: peakcast COMMAND [options]", "",
        "Predicts the peak GPU memory of training a multimodal model, or of its replies, without a GPU.", "",
        "commands:", *lines, "",
        "peakcast COMMAND --help lists a command's options and examples; peakcast --version the release.",
        "Exit codes: 0 it fits or no GPU was named, 1 it does not fit or is uncertain, 2 bad input."])


if __name__ == "__main__":
    sys.exit(main())

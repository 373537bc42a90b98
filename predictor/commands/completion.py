"""Print a script with which a shell completes commands, options and their values."""

from __future__ import annotations

import argparse

from predictor.commands import output, registry
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.installing import pip_install
from predictor.model.models import known_names

EXAMPLES = """examples:
  peakcast completion bash -o ~/.local/share/bash-completion/completions/peakcast
  peakcast completion zsh -o ~/.zfunc/_peakcast

The script names every command and option of this release; make it again after an update. It needs
peakcast[completion].

exit codes: 0 all is well, 2 bad input, or shtab is missing
"""
SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the shell and the options of the output."""
    parser.add_argument("shell", choices=SHELLS, help="the shell that will read the script")
    output.add_file(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the script for one shell."""
    output.check_path(arguments.output, arguments.force)
    try:
        import shtab
    except ImportError:
        raise InputError("completion needs shtab, which is not installed: "
                         f"{pip_install('peakcast[completion]')}") from None
    whole = registry.Parser(prog="peakcast")
    commands = whole.add_subparsers(parser_class=registry.Parser)
    for name in registry.COMMANDS:
        module, parser = registry.load_command(name)
        summary = (module.__doc__ or "").partition("\n")[0]
        for action in commands.add_parser(name, parents=[parser], add_help=False, help=summary)._actions:
            if action.metavar in ("FILE", "DIR", "PATH"):
                action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]
            action.choices = action.choices or _values(action)
    output.emit(arguments.output, shtab.complete(whole, arguments.shell) + "\n")
    return 0


def _values(action: argparse.Action) -> tuple[str, ...] | None:
    """The values that a shell proposes for an argument: names that are known, though others are taken, too."""
    if action.dest == "model":
        return known_names()
    if action.dest in ("gpu", "also_gpu"):
        return tuple(gpus.GPUS)
    listed = str(action.metavar)
    return tuple(listed[1:-1].split(",")) if listed.startswith("{") and listed.endswith("}") else None

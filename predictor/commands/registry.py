"""The subcommands of ``peakcast``, and the parser of each.

A subcommand is a module with a docstring (the help text, its first line the summary), ``EXAMPLES``,
``add_arguments(parser)`` and ``run(arguments) -> int`` (the exit code). It is imported only when it is used.
"""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType
from typing import NoReturn

from predictor.common.errors import InputError
from predictor.common.suggestions import nearest, quoted

# The module of each command. Only this table and that of cli.ANSWERED_BY may name calibrate.
COMMANDS = {
    "predict": "predictor.commands.predict",
    "explain": "predictor.commands.explain",
    "oom": "predictor.commands.oom",
    "plan": "predictor.commands.plan",
    "fits": "predictor.commands.fits",
    "explore": "predictor.commands.explore",
    "measure": "calibrate.commands.measure",
    "calibrate": "calibrate.commands.calibrate",
    "report": "calibrate.commands.report",
    "learn": "calibrate.commands.learn",
    "dryrun": "calibrate.commands.dryrun",
    "replay": "predictor.commands.replay",
    "models": "predictor.commands.models",
    "profiles": "predictor.commands.profiles",
    "samples": "predictor.commands.samples",
    "schema": "predictor.commands.schema",
    "completion": "predictor.commands.completion",
}


class Parser(argparse.ArgumentParser):
    """An argument parser that reports mistakes as :class:`InputError`, like all other code."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def load_command(name: str) -> tuple[ModuleType, Parser]:
    """The module of a command, and its parser.

    Raises:
        InputError: there is no such command.
    """
    if name not in COMMANDS:
        raise InputError(f"unknown command {quoted(name)}{nearest(name, COMMANDS)}: commands are {', '.join(COMMANDS)}")
    module = importlib.import_module(COMMANDS[name])
    parser = Parser(prog=f"peakcast {name}", description=module.__doc__, epilog=module.EXAMPLES, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    module.add_arguments(parser)
    return module, parser

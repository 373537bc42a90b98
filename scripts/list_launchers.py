"""Writes the options of torchrun, deepspeed and accelerate launch, and the keys of accelerate's configuration file.

They are read from the parsers and classes of the installed packages; needs torch, DeepSpeed and accelerate:

    python scripts/list_launchers.py -o predictor/readers/launchers.json
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", required=True, metavar="FILE")
    path = parser.parse_args().output
    from accelerate.commands.launch import launch_command_parser
    from deepspeed.launcher import runner
    from torch.distributed import launch

    from predictor.common.files import write_whole

    accelerate = launch_command_parser()
    document = {
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "deepspeed", "accelerate")},
        "torchrun": options(parser_in(launch.parse_args)),  # torch.distributed.run's, and --use-env
        "deepspeed": options(parser_in(runner.parse_args)),
        "accelerate": options(accelerate),
        "accelerate's file": keys(accelerate),
    }
    write_whole(path, (json.dumps(document, indent=1) + "\n").encode())


def parser_in(parse: Callable[[list[str]], Any]) -> argparse.ArgumentParser:
    """The argument parser that a function creates and uses."""
    parsers: list[argparse.ArgumentParser] = []
    with mock.patch.object(argparse.ArgumentParser, "parse_args", lambda self, args=None: parsers.append(self)):
        parse([])
    return parsers[0]


def options(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """The options with a value and those without, each with all spellings, the usual one first. If every option has a
    spelling with hyphens and one with underscores, only one of both is listed."""
    either = all(word.replace("_", "-") in parser._option_string_actions for word in parser._option_string_actions)
    spellings: dict[bool, list[str]] = {True: [], False: []}
    for action in parser._actions:
        spelled = [word for word in action.option_strings if not (either and "-" in word[2:])]
        if spelled:
            spellings[action.nargs != 0].append("|".join(sorted(spelled, key=lambda word: not word.startswith("--"))))
    return {"abbreviated": parser.allow_abbrev, "either_hyphen": either, "with_value": lines(spellings[True]),
            "without": lines(spellings[False])}


def keys(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Section ("" is the top level) -> its keys: those that the launcher has an option for or reads, and those that
    ``accelerate config`` writes; without the section's prefix."""
    from accelerate.commands.config import cluster
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.utils import launch

    groups = {group.title: {action.dest for action in group._group_actions} for group in parser._action_groups}
    named = {action.dest for action in parser._actions} | set(
        re.findall(r'getattr\(args, "(\w+)"', inspect.getsource(launch)))
    fields = {field.name for field in dataclasses.fields(ClusterConfig)}
    # BaseConfig.process_config also accepts keys of older files
    sections = {"": fields | {"fp16", "dynamo_backend"}, "deepspeed_config": groups["DeepSpeed Arguments"]}
    for section in sorted(name for name in fields if name.endswith("_config")):
        written = set(re.findall(rf'\b{section}\["(\w+)"\]', inspect.getsource(cluster)))
        own = [name for name in named if name.startswith(f"{section}_")]
        prefix = f"{section}_" if own else section.removesuffix("config")
        sections[section] = {name if section == "deepspeed_config" else name.removeprefix(prefix) for name in (
            *sections.get(section, ()), *written, *(name for name in named if name.startswith(prefix)))}
    return {section: lines(sorted(names)) for section, names in sections.items()}


def lines(words: Iterable[str]) -> list[str]:
    """Wraps words into lines of readable length."""
    return textwrap.wrap(" ".join(words), 116, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    main()

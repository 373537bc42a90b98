"""Parses the options of torchrun, deepspeed and accelerate, and counts the processes that they start.

``launchers.json`` lists the options of their own parsers.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, NoReturn

from predictor.common.errors import InputError
from predictor.common.suggestions import nearest, quoted
from predictor.readers import hostfile, shell_expansion

PACKAGES = {"torchrun": "torch", "deepspeed": "deepspeed", "accelerate": "accelerate"}
"""Launcher -> the package that contains it."""
BY = "num_processes_by"
"""Entry among accelerate's options that names the key of its file with the number of processes."""
TOOLS = ("swift", "llamafactory-cli", "lmf", "trl")
"""Commands that start processes themselves. Without NPROC_PER_NODE they start one for each GPU, except ms-swift, which
starts one."""


class _ParserError(Exception):
    """An error message of argparse."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _ParserError(message)


@lru_cache(maxsize=1)
def table() -> Mapping[str, Any]:
    """The launchers' options and versions, as ``scripts/list_launchers.py`` wrote them."""
    return json.loads((resources.files(__package__) / "launchers.json").read_text("utf-8"))


def release(launcher: str) -> str:
    """The package of a launcher, with the release whose options are known."""
    package = PACKAGES[launcher]
    return f"{package} {table()['versions'][package]}"


@lru_cache
def _parser(launcher: str) -> _Parser:
    known = table()[launcher]
    parser = _Parser(add_help=False, allow_abbrev=known["abbreviated"], argument_default=argparse.SUPPRESS)
    groups: tuple[tuple[str, dict[str, Any]], ...] = (
        ("with_value", {}), ("without", {"action": "store_const", "const": ""}))
    for group, settings in groups:
        for word in " ".join(known[group]).split():
            spelled = [*word.split("|"), *([word.split("|")[0].replace("_", "-")] if known["either_hyphen"] else [])]
            parser.add_argument(*dict.fromkeys(spelled), **settings)
    parser.add_argument("program")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    return parser


def options(launcher: str, words: Sequence[str], name: str) -> tuple[dict[str, str], list[str]]:
    """Splits a launcher's arguments into its options, by their long names, and the words of the command it starts.

    No words if it starts nothing.

    Raises:
        InputError: the launcher has no such option.
    """
    parser = _parser(launcher)
    try:
        parsed, stray = parser.parse_known_args(list(words))
    except _ParserError as error:
        if "are required" in str(error):
            return {}, []
        raise InputError(f"{name}: {launcher}: {quoted(str(error), 200)[1:-1]}") from None
    if stray:
        word = stray[0].partition("=")[0]
        raise InputError(f"{name}: {word}: {release(launcher)}'s launcher has no such option"
                         f"{nearest(word, parser._option_string_actions)}")
    values = vars(parsed)
    return values, [values.pop("program"), *values.pop("words")]


def started(launcher: str, program: str, launcher_options: Mapping[str, str], environment: Mapping[str, str], name: str,
            path: str | None, unknown: Mapping[str, str]) -> tuple[int | None, str]:
    """The number of processes, one for each GPU, and the option or variable that sets it.

    None if the launcher starts one process for each GPU of the machine.

    Raises:
        InputError: the launcher would reject its options.
        Uncounted: the number cannot be determined from the command.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if launcher == "torchrun":
        each = launcher_options.get("nproc_per_node") or environment.get("PET_NPROC_PER_NODE")
        nodes = launcher_options.get("nnodes") or environment.get("PET_NNODES", "1")
        total, by = product(name, unknown, ("--nproc_per_node", each or "1"), ("--nnodes", nodes))
        return total, by if each else by.replace("--nproc_per_node 1", "torchrun without --nproc_per_node")
    if launcher == "accelerate" and "num_processes" in launcher_options:
        return product(name, unknown, (launcher_options.get(BY, "--num_processes"), launcher_options["num_processes"]))
    if launcher == "deepspeed":
        named = {option: launcher_options[option] for option in ("hostfile", *hostfile.CHOOSING)
                 if launcher_options.get(option)}
        for option, text in {**{f"--{option}": text for option, text in named.items()},
                             "CUDA_VISIBLE_DEVICES": visible}.items():
            check_known(name, option, text, unknown)
        numbers = {option: product(name, unknown, (f"--{option}", launcher_options[option]))[0]
                   for option in ("num_nodes", "num_gpus") if option in launcher_options}
        return hostfile.count(name, path, named, numbers, visible)
    tool = program.partition(" ")[0]
    if tool in TOOLS and launcher not in PACKAGES and "NPROC_PER_NODE" in environment:
        return product(name, unknown, ("NPROC_PER_NODE", environment["NPROC_PER_NODE"]),
                       ("NNODES", environment.get("NNODES", "1")))
    if tool == "swift":
        return 1, "no NPROC_PER_NODE"
    if visible and (launcher == "accelerate" or tool in TOOLS):
        check_known(name, "CUDA_VISIBLE_DEVICES", visible, unknown)
        return len(visible.split(",")), f"CUDA_VISIBLE_DEVICES={visible}"
    return None, launcher or (program if tool in TOOLS else "")


def check_known(name: str, what: str, text: str, unknown: Mapping[str, str]) -> None:
    """Rejects a value that contains an unexpanded shell variable.

    Raises:
        Uncounted: the value is not known.
    """
    if shell_expansion.LEFT.search(text):
        raise hostfile.Uncounted(f"{name}: {what} is {quoted(text)}: {shell_expansion.why(text, unknown)}")


def product(name: str, unknown: Mapping[str, str], *parts: tuple[str, str]) -> tuple[int, str]:
    """Multiplies the numbers of several options.

    Returns:
        The product, and the options as text without those that are 1.

    Raises:
        Uncounted: a value is not a number, or not known.
    """
    total = 1
    names: list[str] = []
    for option, text in parts:
        check_known(name, option, text, unknown)
        if not re.fullmatch(r"[1-9]\d{0,4}", text):
            raise hostfile.Uncounted(f"{name}: {option} is {quoted(text)}: a number of GPUs or nodes is needed")
        total *= int(text)
        if text != "1" or not names:
            names.append(f"{option} {text}")
    return total, ", ".join(names)

"""The options of launchers, as their own parsers take them (``launchers.json``), and how many processes they start."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

from predictor.common.errors import InputError
from predictor.common.suggestions import nearest, show
from predictor.readers import hostfile, shell_expansion

PACKAGES = {"torchrun": "torch", "deepspeed": "deepspeed", "accelerate": "accelerate"}
"""Launcher -> the package that it comes with."""
BY = "num_processes_by"
"""Among accelerate's options: what of its file says how many start."""
TOOLS = ("swift", "llamafactory-cli", "lmf", "trl")
"""Commands that start processes themselves, all but ms-swift's one for each GPU if NPROC_PER_NODE does not say."""


class _Wrong(Exception):
    """What argparse says."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise _Wrong(message)


@lru_cache(maxsize=1)
def table() -> Mapping[str, Any]:
    """What the launchers know, by ``scripts/list_launchers.py``."""
    return json.loads((resources.files(__package__) / "launchers.json").read_text())


def release(launcher: str) -> str:
    """The package of a launcher, with the release that is known."""
    package = PACKAGES[launcher]
    return f"{package} {table()['versions'][package]}"


@lru_cache
def _parser(launcher: str) -> _Parser:
    known = table()[launcher]
    parser = _Parser(add_help=False, allow_abbrev=known["abbreviated"], argument_default=argparse.SUPPRESS)
    for kind, more in (("with_value", {}), ("without", {"action": "store_const", "const": ""})):
        for word in " ".join(known[kind]).split():
            spelled = [*word.split("|"), *([word.split("|")[0].replace("_", "-")] if known["either_hyphen"] else [])]
            parser.add_argument(*dict.fromkeys(spelled), **more)
    parser.add_argument("program")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    return parser


def options(launcher: str, words: Sequence[str], name: str) -> tuple[dict[str, str], list[str]]:
    """A launcher's options by their long names, and the words of what it starts; none if it starts nothing.

    Raises:
        InputError: an option that it does not have.
    """
    parser = _parser(launcher)
    try:
        found, stray = parser.parse_known_args(list(words))
    except _Wrong as wrong:
        if "are required" in str(wrong):
            return {}, []
        raise InputError(f"{name}: {launcher}: {show(str(wrong), 200)[1:-1]}") from None
    if stray:
        word = stray[0].partition("=")[0]
        raise InputError(f"{name}: {word}: {release(launcher)}'s launcher has no such option"
                         f"{nearest(word, parser._option_string_actions)}")
    given = vars(found)
    return given, [given.pop("program"), *given.pop("words")]


def started(launcher: str, program: str, given: Mapping[str, str], environment: Mapping[str, str], name: str,
            path: str | None, unknown: Mapping[str, str]) -> tuple[int | None, str]:
    """Processes, one a GPU, and what says so; None where there are as many as the machine has GPUs.

    Raises:
        InputError: the launcher stops at its options.
        Uncounted: what they are cannot be known.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if launcher == "torchrun":
        each = given.get("nproc_per_node") or environment.get("PET_NPROC_PER_NODE")
        nodes = given.get("nnodes") or environment.get("PET_NNODES", "1")
        total, by = product(name, unknown, ("--nproc_per_node", each or "1"), ("--nnodes", nodes))
        return total, by if each else by.replace("--nproc_per_node 1", "torchrun without --nproc_per_node")
    if launcher == "accelerate" and "num_processes" in given:
        return product(name, unknown, (given.get(BY, "--num_processes"), given["num_processes"]))
    if launcher == "deepspeed":
        named = {option: given[option] for option in ("hostfile", *hostfile.CHOOSING) if given.get(option)}
        for option, text in {**{f"--{option}": text for option, text in named.items()},
                             "CUDA_VISIBLE_DEVICES": visible}.items():
            settled(name, option, text, unknown)
        numbers = {option: product(name, unknown, (f"--{option}", given[option]))[0]
                   for option in ("num_nodes", "num_gpus") if option in given}
        return hostfile.count(name, path, named, numbers, visible)
    tool = program.partition(" ")[0]
    if tool in TOOLS and launcher not in PACKAGES and "NPROC_PER_NODE" in environment:
        return product(name, unknown, ("NPROC_PER_NODE", environment["NPROC_PER_NODE"]),
                       ("NNODES", environment.get("NNODES", "1")))
    if tool == "swift":
        return 1, "no NPROC_PER_NODE"
    if visible and (launcher == "accelerate" or tool in TOOLS):
        settled(name, "CUDA_VISIBLE_DEVICES", visible, unknown)
        return len(visible.split(",")), f"CUDA_VISIBLE_DEVICES={visible}"
    return None, launcher or (program if tool in TOOLS else "")


def settled(name: str, what: str, text: str, unknown: Mapping[str, str]) -> None:
    """Refuses a value that the shell leaves open."""
    if shell_expansion.LEFT.search(text):
        raise hostfile.Uncounted(f"{name}: {what} is {show(text)}: {shell_expansion.why(text, unknown)}")


def product(name: str, unknown: Mapping[str, str], *parts: tuple[str, str]) -> tuple[int, str]:
    """Of numbers that options give, with those that are not one."""
    total, shown = 1, []
    for option, text in parts:
        settled(name, option, text, unknown)
        if not re.fullmatch(r"[1-9]\d{0,4}", text):
            raise hostfile.Uncounted(f"{name}: {option} is {show(text)}: a number of GPUs or nodes is needed")
        total *= int(text)
        if text != "1" or not shown:
            shown.append(f"{option} {text}")
    return total, ", ".join(shown)

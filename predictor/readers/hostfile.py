"""Counts the GPUs that the ``deepspeed`` launcher uses, from its options and a hostfile.

DeepSpeed 0.19.8, launcher/runner.py: ``main``, ``_parse_hostfile``, ``parse_resource_filter``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from predictor.common.errors import InputError
from predictor.common.files import read_text
from predictor.common.suggestions import file_name, quoted
from predictor.readers.user_input import beside

CHOOSING = ("include", "exclude")


class Uncounted(InputError):
    """The number of GPUs cannot be determined from the command; an option of peakcast may give it instead."""


def count(name: str, path: str | None, machine_options: Mapping[str, str], numbers: Mapping[str, int],
          visible: str) -> tuple[int | None, str]:
    """The number of GPUs, and the options that set it; None if the launcher uses all GPUs of the machine.

    Args:
        machine_options: those of the options hostfile, include and exclude that were given.
        numbers: those of num_nodes and num_gpus that were given.
        visible: CUDA_VISIBLE_DEVICES, which counts if neither an option nor a hostfile does.

    Raises:
        InputError: DeepSpeed would reject the options.
        Uncounted: the hostfile does not exist, or a machine's number of GPUs is not known.
    """
    by = ", ".join(f"--{option} {text}" for option, text in {**machine_options, **numbers}.items())
    chosen = {f"--{option}": machine_options[option] for option in CHOOSING if option in machine_options}
    if visible and not machine_options and "num_gpus" not in numbers and numbers.get("num_nodes", 1) == 1:
        chosen, by = {"CUDA_VISIBLE_DEVICES": f"localhost:{visible}"}, f"CUDA_VISIBLE_DEVICES={visible}"
    settings = [*chosen, *(f"--{option}" for option in numbers)]
    if chosen and len(settings) > 1:
        raise InputError(f"{name}: {settings[0]} and {settings[1]} are both given, and DeepSpeed stops at that: keep "
                         "one")
    machines = _machines(name, path, machine_options["hostfile"]) if "hostfile" in machine_options else None
    for what, text in chosen.items():
        return _filtered(f"{name}: {what}", text, machines, what == "--exclude"), by
    if machines is not None:
        each = list(machines.values())[:numbers.get("num_nodes")]
        return sum(numbers.get("num_gpus", own) for own in each), by
    return (numbers["num_gpus"] * numbers.get("num_nodes", 1), by) if "num_gpus" in numbers else (None, "deepspeed")


def _machines(name: str, path: str | None, hostfile: str) -> dict[str, int]:
    """Machine -> number of its GPUs, from lines such as ``worker-1 slots=8``."""
    file = beside(hostfile, path)
    if file is None:
        raise Uncounted(f"{name}: --hostfile names {quoted(hostfile, 200)}, and there is no such file")
    machines: dict[str, int] = {}
    lines = [line.strip() for line in read_text(file, "a hostfile").splitlines()]
    for line in filter(None, lines):
        match = re.match(r"(\S+)\s+slots=(\d{1,5})", line)
        if match and match[1] in machines:
            raise InputError(f"{file_name(file)}: {match[1]} has two lines, and DeepSpeed stops at that: keep one")
        if match and not line.startswith("#"):
            machines[match[1]] = int(match[2])
        elif not line.startswith("#"):
            raise InputError(f"{file_name(file)}: a hostfile has lines such as worker-1 slots=8, not "
                             f"{quoted(line, 80)}")
    if not machines:
        raise InputError(f"{file_name(file)}: a hostfile has lines such as worker-1 slots=8")
    return machines


def _filtered(where: str, text: str, machines: Mapping[str, int] | None, excluded: bool) -> int:
    """The number of GPUs in a filter, or, if ``excluded``, of the others.

    ``worker-0@worker-1:0,2`` names all GPUs of one machine and two of another.
    """
    chosen: dict[str, set[int]] = {}
    for node in text.split("@"):
        machine, colon, numbers = node.partition(":")
        texts = numbers.split(",") if colon else []
        wrong = [slot for slot in texts if not re.fullmatch(r"\s*\d{1,5}\s*", slot)]
        if wrong:
            raise InputError(f"{where} has {quoted(wrong[0])} for a GPU's number, and DeepSpeed stops at that: write "
                             "each, as in localhost:0,1,2")
        chosen.setdefault(machine, set()).update(map(int, texts))
    if machines is None:
        whole = next((machine for machine, slots in chosen.items() if excluded or not slots), None)
        if whole is not None:
            raise Uncounted(f"{where} is {quoted(text)}, and nothing says how many GPUs {whole} has: give --hostfile")
        return sum(map(len, chosen.values()))
    for machine, slots in chosen.items():
        if machine not in machines or max(slots, default=-1) >= machines[machine]:
            raise InputError(f"{where} is {quoted(text)}, and the hostfile has no such GPU: it has " + ", ".join(
                f"{known} with {size}" for known, size in machines.items()))
    taken = sum(len(slots) or machines[machine] for machine, slots in chosen.items())
    left = sum(machines.values()) - taken if excluded else taken
    if not left:
        raise InputError(f"{where} is {quoted(text)}, which leaves no GPU")
    return left

"""How many GPUs the ``deepspeed`` launcher takes, of those that a hostfile names or that its options say.

DeepSpeed 0.19.8, launcher/runner.py: ``main``, ``_parse_hostfile``, ``parse_resource_filter``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from predictor.common.errors import InputError
from predictor.common.files import read_text
from predictor.common.suggestions import named, show
from predictor.readers.fields import beside

CHOOSING = ("include", "exclude")


class Uncounted(InputError):
    """What says how many GPUs there are cannot be read here: their number may be given instead."""


def count(name: str, path: str | None, given: Mapping[str, str], numbers: Mapping[str, int],
          visible: str) -> tuple[int | None, str]:
    """GPUs, and what says so; None where it takes as many as there are.

    Args:
        given: hostfile, include, exclude, as far as they are options.
        numbers: num_nodes and num_gpus, likewise.
        visible: CUDA_VISIBLE_DEVICES, which counts where no option and no hostfile does.

    Raises:
        InputError: DeepSpeed stops at it.
        Uncounted: no such hostfile, or a machine's GPUs are needed and nothing says how many it has.
    """
    by = ", ".join(f"--{option} {text}" for option, text in {**given, **numbers}.items())
    chosen = {f"--{option}": given[option] for option in CHOOSING if option in given}
    if visible and not given and "num_gpus" not in numbers and numbers.get("num_nodes", 1) == 1:
        chosen, by = {"CUDA_VISIBLE_DEVICES": f"localhost:{visible}"}, f"CUDA_VISIBLE_DEVICES={visible}"
    said = [*chosen, *(f"--{option}" for option in numbers)]
    if chosen and len(said) > 1:
        raise InputError(f"{name}: {said[0]} and {said[1]} are both given, and DeepSpeed stops at that: keep one")
    machines = _machines(name, path, given["hostfile"]) if "hostfile" in given else None
    for what, text in chosen.items():
        return _filtered(f"{name}: {what}", text, machines, what == "--exclude"), by
    if machines is not None:
        each = list(machines.values())[:numbers.get("num_nodes")]
        return sum(numbers.get("num_gpus", own) for own in each), by
    return (numbers["num_gpus"] * numbers.get("num_nodes", 1), by) if "num_gpus" in numbers else (None, "deepspeed")


def _machines(name: str, path: str | None, hostfile: str) -> dict[str, int]:
    """Machine -> its GPUs, of lines ``worker-1 slots=8``."""
    found = beside(hostfile, path)
    if found is None:
        raise Uncounted(f"{name}: --hostfile names {show(hostfile, 200)}, and there is no such file")
    machines: dict[str, int] = {}
    lines = [line.strip() for line in read_text(found, "a hostfile").splitlines()]
    for line in filter(None, lines):
        match = re.match(r"(\S+)\s+slots=(\d{1,5})", line)
        if match and match[1] in machines:
            raise InputError(f"{named(found)}: {match[1]} has two lines, and DeepSpeed stops at that: keep one")
        if match and not line.startswith("#"):
            machines[match[1]] = int(match[2])
        elif not line.startswith("#"):
            raise InputError(f"{named(found)}: a hostfile has lines such as worker-1 slots=8, not {show(line, 80)}")
    if not machines:
        raise InputError(f"{named(found)}: a hostfile has lines such as worker-1 slots=8")
    return machines


def _filtered(where: str, text: str, machines: Mapping[str, int] | None, excluded: bool) -> int:
    """GPUs that ``worker-0@worker-1:0,2`` names: all of one machine, two of the other; or the rest of them."""
    asked: dict[str, set[int]] = {}
    for node in text.split("@"):
        machine, colon, numbers = node.partition(":")
        slots = numbers.split(",") if colon else []
        wrong = [slot for slot in slots if not re.fullmatch(r"\s*\d{1,5}\s*", slot)]
        if wrong:
            raise InputError(f"{where} has {show(wrong[0])} for a GPU's number, and DeepSpeed stops at that: write "
                             "each, as in localhost:0,1,2")
        asked.setdefault(machine, set()).update(map(int, slots))
    if machines is None:
        whole = next((machine for machine, slots in asked.items() if excluded or not slots), None)
        if whole is not None:
            raise Uncounted(f"{where} is {show(text)}, and nothing says how many GPUs {whole} has: give --hostfile")
        return sum(map(len, asked.values()))
    for machine, slots in asked.items():
        if machine not in machines or max(slots, default=-1) >= machines[machine]:
            raise InputError(f"{where} is {show(text)}, and the hostfile has no such GPU: it has " + ", ".join(
                f"{known} with {size}" for known, size in machines.items()))
    taken = sum(len(slots) or machines[machine] for machine, slots in asked.items())
    left = sum(machines.values()) - taken if excluded else taken
    if not left:
        raise InputError(f"{where} is {show(text)}, which leaves no GPU")
    return left

"""Command lines as users run them: launcher, script, flags; also those in a shell script."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from predictor.errors import InputError
from predictor.files import read_text
from predictor.readers import accelerate, shell
from predictor.readers.fields import Given, beside
from predictor.suggest import named, show

LAUNCHERS = {
    "deepspeed": ("no_local_rank", "no_python", "save_pid", "enable_each_rank_log", "force_multi", "no_ssh", "module",
                  "bind_cores_to_rank", "elastic_training"),
    "torchrun": ("standalone", "m", "module", "no_python", "run_path", "use_env"),
    "accelerate": ("use_deepspeed", "use_fsdp", "multi_gpu", "cpu", "use_megatron_lm", "tpu", "m", "module",
                   "no_python", "quiet", "q", "debug", "same_network", "dynamo_use_fullgraph", "dynamo_use_dynamic",
                   "enable_cpu_affinity"),
}
"""Launcher -> its options that take no value."""
LAUNCHING_MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
                     "deepspeed.launcher.runner": "deepspeed"}
TOOLS = {"swift": ("sft", "pt", "rlhf"), "llamafactory-cli": ("train",), "lmf": ("train",), "axolotl": ("train",),
         "trl": ("sft", "dpo", "grpo", "kto", "reward", "rloo", "distillation")}
"""Commands of frameworks -> what they train by."""
RLHF = re.compile(r"swift rlhf|swift\.cli\.rlhf|(?:.*/)?swift/cli/rlhf\.py")
SHELLS = ("bash", "sh")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass
class Command:
    """One command on its way: what launches it, what runs, and its words."""

    environment: dict[str, str] = field(default_factory=dict)
    launcher: str = ""
    options: dict[str, str] = field(default_factory=dict)
    program: str = ""
    words: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)


def from_words(words: Sequence[str], name: str = "the command", path: str | None = None,
               environment: Mapping[str, str] | None = None, unknown: Mapping[str, str] | None = None) -> Given:
    """A command's flags, and what its launcher starts.

    Raises:
        InputError: nothing that trains.
    """
    command = parse(words, name)
    if command is None:
        raise InputError(f"{name}: {show(' '.join(words), 80)} starts no training that can be read: give a launcher "
                         "(deepspeed, torchrun, accelerate launch), python, swift, llamafactory-cli or axolotl")
    if RLHF.fullmatch(command.program):
        raise InputError(f"{name}: {command.program} is not supported: supervised training with next-token loss (swift "
                         "sft, swift pt) is predicted")
    command.environment = {**(environment or {}), **command.environment}
    unknown = {**command.unknown, **(unknown or {})}
    if command.launcher in LAUNCHERS and shell.LEFT.match(command.program):
        raise _stray(name, command.program, unknown)
    for option, given in command.options.items() if command.launcher == "accelerate" else ():
        if option in accelerate.OPTIONS or option.startswith("fsdp_"):
            _known(name, f"--{option}", given, unknown)
    values = _flags(command.words, name, unknown)
    decided = accelerate.arguments(command.options, values, name, path) if command.launcher == "accelerate" else {}
    world_size, launched_by, problem = None, "", ""
    try:
        world_size, launched_by = _world_size(command, name, path, unknown)
    except InputError as error:
        problem = f"{error}, or give --data-parallel-size"
    return Given(name, values | {key: item for key, (item, _) in decided.items()}, path, True, command.program,
                 command.environment, world_size, launched_by, problem, {key: by for key, (_, by) in decided.items()},
                 unknown=unknown)


def from_script(text: str, name: str, path: str) -> Given:
    """The one training command of a shell script: continued lines joined, its own variables put in.

    Raises:
        InputError: it has none, or several.
    """
    lines = shell.commands(text, name)
    found = _training(lines, name, "lines")
    for line in lines if not found else ():
        first = line.words[0]
        if shell.LEFT.match(first) and _trains(Command(program="python", words=line.words)):
            raise InputError(f"{name}: {show(first)} starts a training: {shell.why(first, line.unknown)}")
    if not found:
        raise InputError(f"{name}: no line starts a training that can be read: give the command itself after --")
    line, _ = found
    return from_words(line.words, name, path, line.exported, line.unknown)


def _training(lines: Sequence[shell.Command], name: str, what: str) -> tuple[shell.Command, Command] | None:
    """The one command of a script that trains, and its parts; None without one."""
    found = [(line, made) for line in lines if (made := parse(line.words, name)) and _trains(made)]
    if len(found) > 1:
        raise InputError(f"{name}: {len(found)} {what} start a training: give the one that is meant after --")
    return found[0] if found else None


def parse(words: Sequence[str], name: str) -> Command | None:
    """The parts of a command in the file of that name; None for one that runs no program that could train."""
    command, rest = Command(), list(words)
    while rest and (match := ASSIGNMENT.fullmatch(rest[0])):
        command.environment[match[1]] = match[2]
        rest.pop(0)
    if rest[:1] == ["nohup"] or rest[:1] == ["exec"] or rest[:1] == ["env"]:
        inner = parse(rest[1:], name)
        if inner:
            inner.environment = command.environment | inner.environment
        return inner
    if not rest:
        return None
    first, rest = os.path.basename(rest[0]), rest[1:]
    if first == "srun" or first in SHELLS and rest and re.fullmatch(r"-\w*c", rest[0]):
        inner = _step(rest, name) if first == "srun" else _inner(rest[1:], f"{name}: {first} {rest[0]}")
        if inner:
            inner.environment = command.environment | inner.environment
        return inner
    if first in TOOLS and rest[:1] and rest[0] in TOOLS[first]:
        command.program, command.words = f"{first} {rest[0]}", rest[1:]
        return command
    if re.fullmatch(r"python[\d.]*", first):
        while rest and rest[0] in ("-u", "-O", "-B"):
            rest.pop(0)
        if rest[:1] == ["-m"] and len(rest) > 1:
            module = rest[1]
            if module in LAUNCHING_MODULES:
                return _launched(command, LAUNCHING_MODULES[module], rest[2:])
            command.program, command.words = module, rest[2:]
        elif rest:
            command.program, command.words = rest[0], rest[1:]
        return command if command.program else None
    if first == "accelerate" and rest[:1] == ["launch"]:
        return _launched(command, "accelerate", rest[1:])
    if first in ("deepspeed", "torchrun"):
        return _launched(command, first, rest)
    if first.endswith(".py"):
        command.program, command.words = first, rest
        return command
    return None


def _inner(words: list[str], name: str) -> Command | None:
    """The one training of ``bash -c TEXT``."""
    found = _training(shell.commands(words[0], name) if words else [], name, "commands")
    if not found:
        return None
    line, made = found
    made.environment = {**line.exported, **made.environment}
    made.unknown = {**line.unknown, **made.unknown}
    return made


def _step(words: list[str], name: str) -> Command | None:
    """What Slurm's ``srun`` starts, behind options of its own."""
    starts = (*LAUNCHERS, *TOOLS, *SHELLS)
    at = next((at for at, word in enumerate(words) if os.path.basename(word) in starts or
               re.fullmatch(r"python[\d.]*", os.path.basename(word))), len(words))
    found = parse(words[at:], name)
    if found and not found.launcher:
        found.launcher = "srun"
    return found


def _launched(command: Command, launcher: str, rest: list[str]) -> Command | None:
    command.launcher = launcher
    while rest and rest[0].startswith("-"):
        word, equals, item = rest.pop(0).partition("=")
        option = word.lstrip("-").replace("-", "_")
        if not equals and option not in LAUNCHERS[launcher] and rest:
            item = rest.pop(0)
        command.options[option] = item
    if not rest:
        return None
    command.program, command.words = rest[0], rest[1:]
    if re.fullmatch(r"python[\d.]*", os.path.basename(rest[0])):  # deepspeed --no_python python train.py
        command.program, command.words = (rest[1], rest[2:]) if len(rest) > 1 else ("", [])
    return command if command.program else None


def _trains(command: Command) -> bool:
    """Whether a line of a script is a training: launched, a framework's, or with a flag that only trainings have."""
    trains = ("--per_device_train_batch_size", "--per-device-train-batch-size", "--output_dir", "--deepspeed")
    return bool(command.launcher or command.program.split()[0] in TOOLS or
                any(word.partition("=")[0] in trains for word in command.words))


def _world_size(command: Command, name: str, path: str | None,
                unknown: Mapping[str, str]) -> tuple[int | None, str]:
    """GPUs that the launcher starts, and what says so; None where it takes as many as there are."""
    options, environment = command.options, command.environment
    if command.launcher == "torchrun":
        each, nodes = options.get("nproc_per_node", "1"), options.get("nnodes", "1")
        return _product(name, unknown, ("--nproc_per_node", each), ("--nnodes", nodes))
    if command.launcher == "accelerate" and "num_processes" in options:
        return _product(name, unknown, ("--num_processes", options["num_processes"]))
    if command.launcher == "deepspeed":
        hostfile = options.get("hostfile", options.get("H"))
        if hostfile is not None:
            return _of_hosts(name, path, hostfile, options, unknown)
        if "num_gpus" in options:
            return _product(name, unknown, ("--num_gpus", options["num_gpus"]),
                            ("--num_nodes", options.get("num_nodes", "1")))
        chosen = options.get("include", options.get("i"))
        if chosen is not None:
            _known(name, "--include", chosen, unknown)
            return sum(len(node.partition(":")[2].split(",")) for node in chosen.split("@")), f"--include {chosen}"
    if "NPROC_PER_NODE" in environment:
        return _product(name, unknown, ("NPROC_PER_NODE", environment["NPROC_PER_NODE"]),
                        ("NNODES", environment.get("NNODES", "1")))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible and (command.launcher == "deepspeed" or command.program.startswith(("llamafactory", "axolotl", "lmf"))):
        _known(name, "CUDA_VISIBLE_DEVICES", visible, unknown)
        return len(visible.split(",")), f"CUDA_VISIBLE_DEVICES={visible}"
    if command.program.startswith("swift "):
        return 1, "no NPROC_PER_NODE"
    return None, command.launcher or (command.program if command.program.split()[0] in TOOLS else "")


def _of_hosts(name: str, path: str | None, hostfile: str, options: Mapping[str, str],
              unknown: Mapping[str, str]) -> tuple[int, str]:
    """GPUs of the hosts in a file of lines ``worker-1 slots=8`` (DeepSpeed 0.19.8, launcher/runner.py,
    ``_parse_hostfile`` and ``main``), or of the first of them, or some of each."""
    _known(name, "--hostfile", hostfile, unknown)
    chosen = next((option for option in ("include", "i", "exclude", "e") if option in options), None)
    found = beside(hostfile, path)
    if found is None or chosen:
        why = f"is given, and so is --{chosen}" if chosen else f"names {show(hostfile, 200)}, and there is no such file"
        raise InputError(f"{name}: --hostfile {why}")
    lines = [line.strip() for line in read_text(found, "a hostfile").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    slots = [re.match(r"\S+\s+slots=(\d{1,5})", line) for line in lines]
    if not lines or None in slots:
        raise InputError(f"{named(found)}: a hostfile has lines such as worker-1 slots=8" + (
            f", not {show(lines[slots.index(None)], 80)}" if lines else ""))
    each = [int(match[1]) for match in slots]
    each = each[:_product(name, unknown, ("--num_nodes", options["num_nodes"]))[0]] if "num_nodes" in options else each
    if "num_gpus" in options:
        each = [_product(name, unknown, ("--num_gpus", options["num_gpus"]))[0]] * len(each)
    return sum(each), ", ".join(f"--{option} {options[option]}" for option in ("hostfile", "H", "num_nodes", "num_gpus")
                                if option in options)


def _known(name: str, what: str, text: str, unknown: Mapping[str, str]) -> None:
    """Refuses a value that the shell leaves open."""
    if shell.LEFT.search(text):
        raise InputError(f"{name}: {what} is {show(text)}: {shell.why(text, unknown)}")


def _product(name: str, unknown: Mapping[str, str], *parts: tuple[str, str]) -> tuple[int, str]:
    total, shown = 1, []
    for option, text in parts:
        _known(name, option, text, unknown)
        if not re.fullmatch(r"[1-9]\d{0,4}", text):
            raise InputError(f"{name}: {option} is {show(text)}: a number of GPUs or nodes is needed")
        total *= int(text)
        if text != "1" or not shown:
            shown.append(f"{option} {text}")
    return total, ", ".join(shown)


def _flags(words: Sequence[str], name: str, unknown: Mapping[str, str]) -> dict[str, str | list[str]]:
    """Flags and their values; a flag without one is true; words before the first flag are under ``""``."""
    flags: dict[str, list[str] | None] = {}
    current: list[str] = flags.setdefault("", [])
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            flag, equals, item = word.lstrip("-").partition("=")
            if flag in flags:
                raise InputError(f"{name}: --{flag} is given twice: keep one")
            current = flags[flag] = [item] if equals else []
        elif shell.LEFT.match(word) and word not in ("$@", "$*") and (current or "" in flags and len(flags) == 1):
            raise _stray(name, word, unknown)
        elif word not in ("$@", "$*"):
            current.append(word)
    return {flag: "true" if not found else found[0] if len(found) == 1 else found
            for flag, found in flags.items() if found or flag}


def _stray(name: str, word: str, unknown: Mapping[str, str]) -> InputError:
    return InputError(f"{name}: {show(word)} stands where flags may stand: {shell.why(word, unknown)}")

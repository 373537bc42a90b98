"""Parses training commands into launcher, program and flags; finds the training command of a shell script."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, takewhile

from predictor.common import gpus
from predictor.common.errors import InputError, NotPredicted
from predictor.common.suggestions import quoted
from predictor.readers import accelerate, hostfile, launchers, shell, shell_expansion
from predictor.readers.user_input import UserInput

LAUNCHING_MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
                     "deepspeed.launcher.runner": "deepspeed", "accelerate.commands.launch": "accelerate"}
TOOLS = {"swift": ("sft", "pt", "rlhf"), "llamafactory-cli": ("train",), "lmf": ("train",), "axolotl": ("train",),
         "trl": ("sft", "dpo", "grpo", "kto", "reward", "rloo", "distillation")}
"""Command of a framework -> its subcommands that train."""
RLHF = re.compile(r"swift rlhf|swift\.cli\.rlhf|(?:.*/)?swift/cli/rlhf\.py")
SHELLS = ("bash", "sh")
PYTHON = re.compile(r"python[\d.]*")
PASSING_ON = ("nohup", "exec", "env")
"""Commands that run the command given as their arguments."""
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass
class Command:
    """One command: its launcher, the program that runs, and the program's arguments.

    Attributes:
        options: the launcher's own options.
        words: the program's arguments.
        unknown: unexpanded text of a shell script -> why its value is not known.
    """

    environment: dict[str, str] = field(default_factory=dict)
    launcher: str = ""
    options: dict[str, str] = field(default_factory=dict)
    program: str = ""
    words: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)


def from_words(words: Sequence[str], name: str = "the command", path: str | None = None,
               environment: Mapping[str, str] | None = None, unknown: Mapping[str, str] | None = None) -> UserInput:
    """Reads a command's flags, and the number of processes that its launcher starts.

    Raises:
        InputError: the command starts no training that can be read.
    """
    command = parse(words, name)
    if command is None and len(words) == 2 and os.path.basename(words[0]) in SHELLS and os.path.isfile(words[1]):
        raise InputError(f"{name}: {words[1]} is a shell script: give it as --from {words[1]}, which reads it")
    if command is None:
        raise NotPredicted(f"{name}: {quoted(' '.join(words), 80)} starts no training that can be read: give a "
                           "launcher (deepspeed, torchrun, accelerate launch), python, swift, llamafactory-cli, "
                           "axolotl or trl")
    if RLHF.fullmatch(command.program):
        raise NotPredicted(f"{name}: {command.program} is not supported: supervised training with next-token loss "
                           "(swift sft, swift pt) is predicted")
    command.environment = {**(environment or {}), **command.environment}
    unknown = {**command.unknown, **(unknown or {})}
    if command.launcher in launchers.PACKAGES and shell_expansion.LEFT.match(command.program):
        raise _stray(name, command.program, unknown)
    for option, text in command.options.items() if command.launcher == "accelerate" else ():
        if option in accelerate.OPTIONS or option.startswith("fsdp_"):
            launchers.check_known(name, f"--{option}", text, unknown)
    values = _flags(command.words, name, unknown)
    gpu = values.get("gpu")
    if path is None and isinstance(gpu, str) and gpus.is_known(gpu):
        raise InputError(f"{name}: --gpu {gpu} stands among the training's own arguments: put it before --")
    launch = accelerate.launch(command.options, name, path) if command.launcher == "accelerate" else None
    world_size, launched_by, problem = None, "", ""
    try:
        world_size, launched_by = launchers.started(command.launcher, command.program, command.options,
                                                    command.environment, name, path, unknown)
    except hostfile.Uncounted as error:
        problem = f"{error}, or give --data-parallel-size"
    return UserInput(name, values, path, True, command.program, command.environment, world_size, launched_by, problem,
                 launch, unknown=unknown, words=tuple(words))


def from_script(text: str, name: str, path: str) -> UserInput:
    """Reads the training command of a shell script: joins continued lines and expands the script's variables.

    Raises:
        InputError: the script has no training command, or several.
    """
    lines = shell.commands(text, name)
    training = _training(lines, name, "lines")
    for line in lines if not training else ():
        first = line.words[0]
        if shell_expansion.LEFT.match(first) and _trains(Command(program="python", words=line.words)):
            raise InputError(f"{name}: {quoted(first)} starts a training: {shell_expansion.why(first, line.unknown)}")
    if not training:
        raise NotPredicted(f"{name}: no line starts a training that can be read: give the command itself after --")
    line, _ = training
    return replace(from_words(line.words, name, path, line.exported, line.unknown), text=text)


def _training(lines: Sequence[shell.Command], name: str, what: str) -> tuple[shell.Command, Command] | None:
    """The single command of a script that trains, unparsed and parsed; None without one."""
    trainings = [(line, parsed) for line in lines if (parsed := parse(line.words, name)) and _trains(parsed)]
    if len(trainings) > 1:
        raise InputError(f"{name}: {len(trainings)} {what} start a training: give the right one after --")
    return trainings[0] if trainings else None


def parse(words: Sequence[str], name: str) -> Command | None:
    """Parses the words of a command from the file ``name``; None if its program cannot start a training."""
    before = list(takewhile(lambda word: ASSIGNMENT.fullmatch(word) or word in PASSING_ON, words))
    if len(before) == len(words):
        return None
    first, *rest = words[len(before):]
    program = os.path.basename(first)
    read = next((read for programs, read in READERS if programs.fullmatch(program)), None)
    command = read(program, rest, name) if read else None
    if command:
        command.environment = {match[1]: match[2] for word in before if (match := ASSIGNMENT.fullmatch(word))} | \
            command.environment
    return command


def _script(program: str, words: list[str], name: str) -> Command:
    """Parses a Python file that is run as a program."""
    return Command(program=program, words=words)


def _python(program: str, words: list[str], name: str) -> Command | None:
    """Parses the arguments of ``python``: a file, or with ``-m`` a module, which may be a launcher."""
    words = list(dropwhile(lambda word: word in ("-u", "-O", "-B"), words))
    if words[:1] == ["-m"] and len(words) > 1:
        words = words[1:]
        if words[0] in LAUNCHING_MODULES:
            return _launched(LAUNCHING_MODULES[words[0]], words[1:], name)
    return Command(program=words[0], words=words[1:]) if words and words[0] else None


def _tool(tool: str, words: list[str], name: str) -> Command | None:
    """Parses a framework's own command, such as ``swift sft``; None if its subcommand does not train."""
    if not words or words[0] not in TOOLS[tool]:
        return None
    if tool == "axolotl":
        return _of_axolotl(words[1:], name)
    return Command(program=f"{tool} {words[0]}", words=words[1:])


def _accelerate(program: str, words: list[str], name: str) -> Command | None:
    """Parses ``accelerate launch``; None for accelerate's other commands."""
    return _launched(program, words[1:], name) if words[:1] == ["launch"] else None


def _inner(program: str, words: list[str], name: str) -> Command | None:
    """Parses the training command in ``bash -c TEXT``; None for a shell that runs a file."""
    if not words or not re.fullmatch(r"-\w*c", words[0]):
        return None
    name = f"{name}: {program} {words[0]}"
    training = _training(shell.commands(words[1], name) if words[1:] else [], name, "commands")
    if not training:
        return None
    line, command = training
    command.environment = {**line.exported, **command.environment}
    command.unknown = {**line.unknown, **command.unknown}
    return command


def _step(program: str, words: list[str], name: str) -> Command | None:
    """Parses the command behind Slurm's ``srun`` and its options."""
    starts = (*launchers.PACKAGES, *TOOLS, *SHELLS)
    at = next((at for at, word in enumerate(words) if os.path.basename(word) in starts or
               PYTHON.fullmatch(os.path.basename(word))), len(words))
    command = parse(words[at:], name)
    if command and not command.launcher:
        command.launcher = "srun"
    return command


def _launched(launcher: str, rest: list[str], name: str) -> Command | None:
    options, words = launchers.options(launcher, rest, name)
    if words and PYTHON.fullmatch(os.path.basename(words[0])):  # deepspeed --no_python python train.py
        words = words[1:]
    if not words:
        return None
    return Command(launcher=launcher, options=options, program=words[0], words=words[1:])


def _of_axolotl(words: list[str], name: str) -> Command | None:
    """Parses ``axolotl train FILE --launcher torchrun -- OPTIONS``, where the options are the launcher's (axolotl 0.19,
    cli/utils/train.py, ``launch_training``)."""
    at = words.index("--") if "--" in words else len(words)
    own, launcher_options, launcher = [], words[at + 1:], "accelerate"
    rest = iter(words[:at])
    for word in rest:
        option, equals, item = word.replace("-", "_").partition("=")
        if option == "__launcher":
            launcher = item if equals else next(rest, "")
        elif option in ("__num_processes", "__main_process_port"):
            launcher_options = [word, *([] if equals else [next(rest, "")]), *launcher_options]
        else:
            own.append(word)
    if launcher not in ("accelerate", "torchrun", "python"):
        raise InputError(f"{name}: --launcher is {quoted(launcher)}: axolotl's are accelerate, torchrun and python")
    if launcher != "python":
        return _launched(launcher, [*launcher_options, "-m", "axolotl.cli.train", *own], name)
    return Command(program="axolotl.cli.train", words=own)


READERS: tuple[tuple[re.Pattern[str], Callable[[str, list[str], str], Command | None]], ...] = (
    (re.compile("srun"), _step),
    (re.compile("|".join(SHELLS)), _inner),
    (re.compile("|".join(TOOLS)), _tool),
    (PYTHON, _python),
    (re.compile("accelerate"), _accelerate),
    (re.compile("deepspeed|torchrun"), _launched),
    (re.compile(r".*\.py", re.DOTALL), _script),
)
"""Pattern of a program's name -> function that parses its arguments."""


def _trains(command: Command) -> bool:
    """True if a command trains: it has a launcher, is a framework's own, or has a flag that only trainings have."""
    trains = ("--per_device_train_batch_size", "--per-device-train-batch-size", "--output_dir", "--deepspeed")
    return bool(command.launcher or command.program.partition(" ")[0] in (*TOOLS, "axolotl.cli.train") or
                any(word.partition("=")[0] in trains for word in command.words))


def _flags(words: Sequence[str], name: str, unknown: Mapping[str, str]) -> dict[str, str | bool | list[str]]:
    """Flags and their values. A flag without a value is true; words before the first flag are under ``""``."""
    flags: dict[str, list[str]] = {}
    current: list[str] = flags.setdefault("", [])
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            flag, equals, item = word.lstrip("-").partition("=")
            if flag in flags:
                raise InputError(f"{name}: --{flag} is given twice: keep one")
            current = [item] if equals else []
            flags[flag] = current
        elif (shell_expansion.LEFT.match(word) and word not in ("$@", "$*")
              and (current or "" in flags and len(flags) == 1)):
            raise _stray(name, word, unknown)
        elif word not in ("$@", "$*"):
            current.append(word)
    return {flag: True if not values else values[0] if len(values) == 1 else values
            for flag, values in flags.items() if values or flag}


def _stray(name: str, word: str, unknown: Mapping[str, str]) -> InputError:
    return InputError(f"{name}: {quoted(word)} stands where flags may stand: {shell_expansion.why(word, unknown)}")

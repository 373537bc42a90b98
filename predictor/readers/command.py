"""Command lines as users run them: launcher, script, flags; also those in a shell script."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile

from predictor.common.errors import InputError
from predictor.common.suggestions import show
from predictor.readers import accelerate, hostfile, launchers, shell, shell_expansion
from predictor.readers.fields import Given

LAUNCHING_MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
                     "deepspeed.launcher.runner": "deepspeed", "accelerate.commands.launch": "accelerate"}
TOOLS = {"swift": ("sft", "pt", "rlhf"), "llamafactory-cli": ("train",), "lmf": ("train",), "axolotl": ("train",),
         "trl": ("sft", "dpo", "grpo", "kto", "reward", "rloo", "distillation")}
"""Commands of frameworks -> what they train by."""
RLHF = re.compile(r"swift rlhf|swift\.cli\.rlhf|(?:.*/)?swift/cli/rlhf\.py")
SHELLS = ("bash", "sh")
PYTHON = re.compile(r"python[\d.]*")
PASSING_ON = ("nohup", "exec", "env")
"""What runs the command behind it."""
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
    if command.launcher in launchers.PACKAGES and shell_expansion.LEFT.match(command.program):
        raise _stray(name, command.program, unknown)
    for option, given in command.options.items() if command.launcher == "accelerate" else ():
        if option in accelerate.OPTIONS or option.startswith("fsdp_"):
            launchers.settled(name, f"--{option}", given, unknown)
    values = _flags(command.words, name, unknown)
    launch = accelerate.launch(command.options, name, path) if command.launcher == "accelerate" else None
    world_size, launched_by, problem = None, "", ""
    try:
        world_size, launched_by = launchers.started(command.launcher, command.program, command.options,
                                                    command.environment, name, path, unknown)
    except hostfile.Uncounted as error:
        problem = f"{error}, or give --data-parallel-size"
    return Given(name, values, path, True, command.program, command.environment, world_size, launched_by, problem,
                 launch, unknown=unknown)


def from_script(text: str, name: str, path: str) -> Given:
    """The one training command of a shell script: continued lines joined, its own variables put in.

    Raises:
        InputError: it has none, or several.
    """
    lines = shell.commands(text, name)
    found = _training(lines, name, "lines")
    for line in lines if not found else ():
        first = line.words[0]
        if shell_expansion.LEFT.match(first) and _trains(Command(program="python", words=line.words)):
            raise InputError(f"{name}: {show(first)} starts a training: {shell_expansion.why(first, line.unknown)}")
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
    before = list(takewhile(lambda word: ASSIGNMENT.fullmatch(word) or word in PASSING_ON, words))
    if len(before) == len(words):
        return None
    first, *rest = words[len(before):]
    program = os.path.basename(first)
    read = next((read for programs, read in READERS if programs.fullmatch(program)), None)
    found = read(program, rest, name) if read else None
    if found:
        found.environment = {match[1]: match[2] for word in before if (match := ASSIGNMENT.fullmatch(word))} | \
            found.environment
    return found


def _script(program: str, words: list[str], name: str) -> Command:
    """A Python file that runs by itself."""
    return Command(program=program, words=words)


def _python(program: str, words: list[str], name: str) -> Command | None:
    """What Python runs: a file, or with ``-m`` a module, which may be a launcher."""
    words = list(dropwhile(lambda word: word in ("-u", "-O", "-B"), words))
    if words[:1] == ["-m"] and len(words) > 1:
        words = words[1:]
        if words[0] in LAUNCHING_MODULES:
            return _launched(LAUNCHING_MODULES[words[0]], words[1:], name)
    return Command(program=words[0], words=words[1:]) if words and words[0] else None


def _tool(tool: str, words: list[str], name: str) -> Command | None:
    """What a framework's own command trains by."""
    if not words or words[0] not in TOOLS[tool]:
        return None
    if tool == "axolotl":
        return _of_axolotl(words[1:], name)
    return Command(program=f"{tool} {words[0]}", words=words[1:])


def _accelerate(program: str, words: list[str], name: str) -> Command | None:
    """``accelerate launch``; its other commands train nothing."""
    return _launched(program, words[1:], name) if words[:1] == ["launch"] else None


def _inner(program: str, words: list[str], name: str) -> Command | None:
    """The one training of ``bash -c TEXT``; None for a shell that runs a file."""
    if not words or not re.fullmatch(r"-\w*c", words[0]):
        return None
    name = f"{name}: {program} {words[0]}"
    found = _training(shell.commands(words[1], name) if words[1:] else [], name, "commands")
    if not found:
        return None
    line, made = found
    made.environment = {**line.exported, **made.environment}
    made.unknown = {**line.unknown, **made.unknown}
    return made


def _step(program: str, words: list[str], name: str) -> Command | None:
    """What Slurm's ``srun`` starts, behind options of its own."""
    starts = (*launchers.PACKAGES, *TOOLS, *SHELLS)
    at = next((at for at, word in enumerate(words) if os.path.basename(word) in starts or
               PYTHON.fullmatch(os.path.basename(word))), len(words))
    found = parse(words[at:], name)
    if found and not found.launcher:
        found.launcher = "srun"
    return found


def _launched(launcher: str, rest: list[str], name: str) -> Command | None:
    options, words = launchers.options(launcher, rest, name)
    if words and PYTHON.fullmatch(os.path.basename(words[0])):  # deepspeed --no_python python train.py
        words = words[1:]
    if not words:
        return None
    return Command(launcher=launcher, options=options, program=words[0], words=words[1:])


def _of_axolotl(words: list[str], name: str) -> Command | None:
    """What ``axolotl train FILE --launcher torchrun -- OPTIONS`` starts, options being the launcher's
    (axolotl 0.19, cli/utils/train.py, ``launch_training``)."""
    at = words.index("--") if "--" in words else len(words)
    own, handed, launcher = [], words[at + 1:], "accelerate"
    rest = iter(words[:at])
    for word in rest:
        option, equals, item = word.replace("-", "_").partition("=")
        if option == "__launcher":
            launcher = item if equals else next(rest, "")
        elif option in ("__num_processes", "__main_process_port"):
            handed = [word, *([] if equals else [next(rest, "")]), *handed]
        else:
            own.append(word)
    if launcher not in ("accelerate", "torchrun", "python"):
        raise InputError(f"{name}: --launcher is {show(launcher)}: axolotl's are accelerate, torchrun and python")
    if launcher != "python":
        return _launched(launcher, [*handed, "-m", "axolotl.cli.train", *own], name)
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
"""Programs -> what reads the words behind them, in the file of a name."""


def _trains(command: Command) -> bool:
    """Whether a line of a script is a training: launched, a framework's, or with a flag that only trainings have."""
    trains = ("--per_device_train_batch_size", "--per-device-train-batch-size", "--output_dir", "--deepspeed")
    return bool(command.launcher or command.program.split()[0] in (*TOOLS, "axolotl.cli.train") or
                any(word.partition("=")[0] in trains for word in command.words))


def _flags(words: Sequence[str], name: str, unknown: Mapping[str, str]) -> dict[str, str | bool | list[str]]:
    """Flags and their values; a flag without one is true; words before the first flag are under ``""``."""
    flags: dict[str, list[str] | None] = {}
    current: list[str] = flags.setdefault("", [])
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            flag, equals, item = word.lstrip("-").partition("=")
            if flag in flags:
                raise InputError(f"{name}: --{flag} is given twice: keep one")
            current = flags[flag] = [item] if equals else []
        elif (shell_expansion.LEFT.match(word) and word not in ("$@", "$*")
              and (current or "" in flags and len(flags) == 1)):
            raise _stray(name, word, unknown)
        elif word not in ("$@", "$*"):
            current.append(word)
    return {flag: True if not found else found[0] if len(found) == 1 else found
            for flag, found in flags.items() if found or flag}


def _stray(name: str, word: str, unknown: Mapping[str, str]) -> InputError:
    return InputError(f"{name}: {show(word)} stands where flags may stand: {shell_expansion.why(word, unknown)}")

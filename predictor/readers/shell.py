"""Lists the simple commands of a shell script with the script's variables expanded, without running the script.

A variable that is set under a condition, or by something that only a shell can evaluate, is unknown from there on. Its
``$NAME`` stays in the words, and :func:`predictor.readers.shell_expansion.why` explains which value is missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from predictor.common.errors import InputError
from predictor.common.files import read_bytes
from predictor.common.suggestions import quoted
from predictor.readers.shell_expansion import LEFT, Variables
from predictor.readers.shell_words import (
    DEEPEST,
    LOOPS,
    Lexer,
    Statement,
    Word,
    assigned_within,
    set_otherwise,
    too_deep,
)

DECLARING = ("export", "declare", "typeset", "local", "readonly")
SUCCEEDS = (*DECLARING, "cd", "source", ".", "set", "echo", "mkdir", "unset", ":")
ACTIVATING = ("activate", "conda.sh", "mamba.sh")
"""Scripts of virtual environments and conda; they set only the variables in :data:`ACTIVATED`."""
ACTIVATED = ("PATH", "PS1", "PYTHONHOME", "PKG_CONFIG_PATH", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "CONDA_EXE",
             "CONDA_PYTHON_EXE", "CONDA_SHLVL", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_PROMPT_MODIFIER",
             "MAMBA_EXE", "MAMBA_ROOT_PREFIX")
CONDA = ("conda", "mamba", "micromamba")
HOOK = re.compile(rf"\$\((?:(?:\$\(conda…info…--base\)|[^;|&…])*/)?(?:{'|'.join(CONDA)})"
                  r"…shell(?:\.\w+)?…(?:hook|activate)(?:…[^;|&$]*)?\)")
"""An expansion that defines conda's shell functions and sets only :data:`ACTIVATED` (conda, activate.py, ``hook``).
Blanks in it are ``…``, as in :attr:`Variables.unknown`."""
ALLOCATOR = re.compile(r"PYTORCH_(?:CUDA_)?ALLOC_CONF")


@dataclass(frozen=True)
class Command:
    """A simple command with its words expanded.

    Attributes:
        exported: environment variables that the script set before the command.
        unknown: text of an expansion that stayed in the words -> why its value is not known.
    """

    words: list[str]
    exported: Mapping[str, str]
    unknown: Mapping[str, str]


@dataclass
class _Block:
    """An open compound command.

    Attributes:
        construct: reserved word that opened it, ``(`` for a subshell, or ``group`` for ``{``.
        before: variables at its beginning.
        changed: names of variables that a branch or a loop changes.
    """

    construct: str
    before: dict[str, str | list[str]]
    changed: set[str] = field(default_factory=set)


def commands(text: str, name: str) -> list[Command]:
    """Every simple command of a script, in order.

    Raises:
        InputError: a quotation or bracket is not closed, or the script is too long or too deeply nested.
    """
    shell = _Shell(name)
    try:
        shell.run(text.replace("\r\n", "\n"))
    except RecursionError:
        raise too_deep(name) from None
    return shell.commands


class _Shell:
    """Walks through the statements of a script and keeps track of its variables."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.variables = Variables(name)
        self.exported: set[str] = set()
        self.blocks: list[_Block] = []
        self.commands: list[Command] = []

    def run(self, text: str, line: int | None = None) -> None:
        self.variables.spend(len(text))
        statements = [statement for statement in Lexer(text, self.name, line).statements()
                      if statement.words or statement.after != "\n"]
        within = assigned_within(statements, self.name)
        before, certain, function = "\n", True, False
        for at, statement in enumerate(statements):
            self.variables.line, words = statement.line, list(statement.words)
            certain = certain or before not in ("&&", "||")
            if statement.names_function:
                function = function or bool(words)
                continue
            while words and (keyword := self._keyword(words, within[at], function, certain)):
                function = function and keyword != "{" or keyword == "function"
            if self.blocks and self.blocks[-1].construct == "case" and statement.after == ")":
                words = []  # a pattern
            if words:
                self._command(words, certain)
            certain = certain and statement.after == "&&" and bool(words) and (
                words[0].keyword in SUCCEEDS or all(word.assigned for word in words))
            self._operator(statement, function)
            before = statement.after

    def _operator(self, statement: Statement, function: bool) -> None:
        inside = self.blocks[-1].construct if self.blocks else ""
        if statement.after == "(":
            self._open("(")
        elif statement.after == ")" and inside == "(" and not function:
            self.variables.values = self.blocks.pop().before
        elif statement.after == ";;" and inside == "case":
            self._next_branch()

    def _open(self, construct: str) -> None:
        if len(self.blocks) >= DEEPEST:
            raise too_deep(self.name)
        self.variables.spend(variables=len(self.variables.values))
        self.blocks.append(_Block(construct, dict(self.variables.values)))

    def _keyword(self, words: list[Word], within: set[str], function: bool, certain: bool) -> str:
        """Removes a reserved word from the front, applies it and returns it; empty if there is none.

        ``within`` are the variables assigned in the loop that begins here, if one does.
        """
        word = words[0].keyword
        if word in ("then", "do", "!", "time"):
            del words[0]
        elif word in ("else", "elif"):
            del words[0]
            self._next_branch()
        elif word in ("if", "case", "{", *LOOPS):
            construct = "group" if word == "{" and certain and not function else word
            self._open(construct)
            del words[0]
            if word in LOOPS:
                self.variables.spend(variables=len(within))
                self.blocks[-1].changed = set(within)
                if word in ("for", "select") and words:
                    self.blocks[-1].changed |= words[0].names
                for name in self.blocks[-1].changed:
                    self.variables.lines[name] = self.variables.line
                    self.variables.forget(name)
            if word in ("case", "for", "select"):
                words.clear()
        elif word in ("fi", "esac", "done", "}"):
            del words[0]
            self._close()
        elif word == "function":
            del words[:2]
        else:
            return ""
        return word

    def _next_branch(self) -> None:
        if self.blocks:
            block = self.blocks[-1]
            self.variables.spend(variables=len(self.variables.values) + len(block.before))
            block.changed |= {name for name in self.variables.values | block.before
                              if self.variables.values.get(name) != block.before.get(name)}
            self.variables.values = dict(block.before)

    def _close(self) -> None:
        if self.blocks and self.blocks[-1].construct != "group":
            self._next_branch()
        for name in self.blocks.pop().changed if self.blocks else ():
            self.variables.forget(name)

    def _source(self, file: str, activates: bool = False) -> None:
        """Marks the variables that another, sourced file may set as unknown.

        A file that ``activates`` an environment sets only :data:`ACTIVATED`. The allocator's settings become unknown
        only if the file's text names them.
        """
        because = f"may be set by {quoted(file)[1:-1]}, which is not read (line {self.variables.line}): say its value"
        named: set[str] = set()
        for path in {Path(self.name).parent / name for name in (file, Path(file).name)}:
            text = ""
            with suppress(InputError, OSError, ValueError):
                text = read_bytes(path, "a script").decode("utf-8", "replace") if path.is_file() else ""
            self.variables.spend(len(text))
            named.update(ALLOCATOR.findall(text))
        self.exported |= named
        if activates or Path(file).name in ACTIVATING:
            named.update(ACTIVATED)
        else:
            self.variables.sourced = because
            self.variables.spend(variables=len(self.variables.values))
            named.update(name for name in self.variables.values if not ALLOCATOR.fullmatch(name))
        for name in named:
            self.variables.may_be_set(name, because)

    def _command(self, words: list[Word], certain: bool) -> None:
        first = words[0].keyword
        declares = first in DECLARING or all(word.assigned for word in words)
        if declares:
            self._declare(words, certain)
        for name in set_otherwise(words):
            self.variables.lines[name] = self.variables.line
            self.variables.forget(name, "is set by a command")
        if first == "unset":
            for word in words[1:]:
                self.variables.values.pop(word.keyword, None)
        elif not declares:
            self._start(words)

    def _declare(self, words: list[Word], certain: bool) -> None:
        """Assigns the variables of a declaration, or of a command of assignments only; exports them for ``export``."""
        first = words[0].keyword
        exports = first == "export" or (first == "declare" and any(word.keyword == "-x" for word in words))
        for word in words[first in DECLARING:]:
            if word.assigned:
                self._assign(word, certain)
            elif any(part.expands for part in word.parts):  # export $(cat .env)
                self._source("a command's output")
            if exports:
                self.exported.add(word.assigned[1] if word.assigned else word.keyword)

    def _start(self, words: list[Word]) -> None:
        """Expands a command's words. Applies ``source`` and ``eval`` to the variables; records any other command."""
        leading = next((at for at, word in enumerate(words) if not word.assigned), len(words))
        expanded = ["".join(self.variables.expanded(word, False)) for word in words[:leading]]
        expanded += [text for word in words[leading:] for text in self.variables.expanded(word)]
        if sourced := _sourced(expanded, leading):
            self._source(*sourced)
        elif expanded[:1] == ["eval"]:
            self.run(" ".join(expanded[1:]), self.variables.line)
        elif expanded:
            self.variables.spend(sum(map(len, expanded)), len(self.exported) + len(self.variables.unknown))
            self.commands.append(Command(expanded, self.variables.texts(self.exported), dict(self.variables.unknown)))

    def _assign(self, word: Word, certain: bool) -> None:
        assignment = word.assigned
        assert assignment is not None
        name = assignment[1]
        self.variables.lines[name] = self.variables.line
        item = self.variables.assigned(word)
        if "[" in assignment[0]:
            self.variables.forget(name, "is set in part")
        elif not certain or any(name in block.changed for block in self.blocks if block.construct in LOOPS):
            self.variables.forget(name)
        else:
            self.variables.values[name] = item


def _sourced(words: list[str], leading: int) -> tuple[str, bool] | None:
    """The file or command whose output may set this shell's variables, and whether it only activates an environment.

    ``leading`` is the number of assignments before the command. None for a command that starts a program.
    """
    command = words[leading:]
    if command[:1] in (["source"], ["."]):
        return "".join(command[1:2]) or "a command's output", False
    if words[:1] == ["eval"] and LEFT.match("".join(words[1:2])):
        return "a command's output", bool(HOOK.fullmatch(re.sub("['\"]", "", " ".join(words[1:]))))
    if words[:1] and words[0] in CONDA and words[1:2] in (["activate"], ["deactivate"]):
        return " ".join(words[:2]), True
    return None

"""What a shell script runs: its simple commands with its own variables put in, as far as the text alone decides them.

A variable that is set under a condition, or by something that only a shell can do, is unknown behind that: it stays
``$NAME`` in the words, and :func:`predictor.readers.shell_expansion.why` says what is missing where such a word
matters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from predictor.common.errors import InputError
from predictor.common.files import read_bytes
from predictor.common.suggestions import show
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
"""Files of virtual environments and conda, which set :data:`ACTIVATED` alone."""
ACTIVATED = ("PATH", "PS1", "PYTHONHOME", "PKG_CONFIG_PATH", "VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "CONDA_EXE",
             "CONDA_PYTHON_EXE", "CONDA_SHLVL", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_PROMPT_MODIFIER",
             "MAMBA_EXE", "MAMBA_ROOT_PREFIX")
CONDA = ("conda", "mamba", "micromamba")
HOOK = re.compile(rf"\$\((?:(?:\$\(conda…info…--base\)|[^;|&…])*/)?(?:{'|'.join(CONDA)})"
                  r"…shell(?:\.\w+)?…(?:hook|activate)(?:…[^;|&$]*)?\)")
"""What defines functions and sets no more than an activation does (conda, activate.py, ``hook``), in one word."""
ALLOCATOR = re.compile(r"PYTORCH_(?:CUDA_)?ALLOC_CONF")


@dataclass(frozen=True)
class Command:
    """A simple command.

    Attributes:
        exported: variables that it finds in its environment.
        unknown: what is left of an expansion in words -> why its value is not known.
    """

    words: list[str]
    exported: Mapping[str, str]
    unknown: Mapping[str, str]


@dataclass
class _Block:
    """A construct that is open: its variables before, and those that a branch or a loop changes."""

    kind: str
    before: dict[str, str | list[str]]
    changed: set[str] = field(default_factory=set)


def commands(text: str, name: str) -> list[Command]:
    """Every simple command of a script, in its order.

    Raises:
        InputError: a quotation that does not end.
    """
    shell = _Shell(name)
    try:
        shell.run(text.replace("\r\n", "\n"))
    except RecursionError:
        raise too_deep(name) from None
    return shell.found


class _Shell:
    def __init__(self, name: str) -> None:
        self.name = name
        self.known = Variables(name)
        self.exported: set[str] = set()
        self.blocks: list[_Block] = []
        self.found: list[Command] = []

    def run(self, text: str, line: int | None = None) -> None:
        self.known.spend(len(text))
        statements = [statement for statement in Lexer(text, self.name, line).statements()
                      if statement.words or statement.after != "\n"]
        within = assigned_within(statements, self.name)
        before, certain, function = "\n", True, False
        for at, statement in enumerate(statements):
            self.known.line, words = statement.line, list(statement.words)
            certain = certain or before not in ("&&", "||")
            if statement.names_function:
                function = function or bool(words)
                continue
            while words and (found := self._keyword(words, within[at], function, certain)):
                function = function and found != "{" or found == "function"
            if self.blocks and self.blocks[-1].kind == "case" and statement.after == ")":
                words = []  # a pattern
            if words:
                self._command(words, certain)
            certain = certain and statement.after == "&&" and bool(words) and (
                words[0].keyword in SUCCEEDS or all(word.assigned for word in words))
            self._operator(statement, function)
            before = statement.after

    def _operator(self, statement: Statement, function: bool) -> None:
        inside = self.blocks[-1].kind if self.blocks else ""
        if statement.after == "(":
            self._open("(")
        elif statement.after == ")" and inside == "(" and not function:
            self.known.values = self.blocks.pop().before
        elif statement.after == ";;" and inside == "case":
            self._next_branch()

    def _open(self, kind: str) -> None:
        if len(self.blocks) >= DEEPEST:
            raise too_deep(self.name)
        self.known.spend(variables=len(self.known.values))
        self.blocks.append(_Block(kind, dict(self.known.values)))

    def _keyword(self, words: list[Word], within: set[str], function: bool, certain: bool) -> str:
        """Takes a reserved word from the front, and does what it says; empty if there is none. ``within`` are the
        variables that a loop assigns which begins here."""
        word = words[0].keyword
        if word in ("then", "do", "!", "time"):
            del words[0]
        elif word in ("else", "elif"):
            del words[0]
            self._next_branch()
        elif word in ("if", "case", "{", *LOOPS):
            kind = "group" if word == "{" and certain and not function else word
            self._open(kind)
            del words[0]
            if word in LOOPS:
                self.known.spend(variables=len(within))
                self.blocks[-1].changed = set(within)
                if word in ("for", "select") and words:
                    self.blocks[-1].changed |= words[0].names
                for name in self.blocks[-1].changed:
                    self.known.lines[name] = self.known.line
                    self.known.forget(name)
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
            self.known.spend(variables=len(self.known.values) + len(block.before))
            block.changed |= {name for name in self.known.values | block.before
                              if self.known.values.get(name) != block.before.get(name)}
            self.known.values = dict(block.before)

    def _close(self) -> None:
        if self.blocks and self.blocks[-1].kind != "group":
            self._next_branch()
        for name in self.blocks.pop().changed if self.blocks else ():
            self.known.forget(name)

    def _source(self, file: str, activates: bool = False) -> None:
        """Another file is run here, which may set anything, unless it ``activates`` an environment; the allocator's
        settings if it names them."""
        because = f"may be set by {show(file)[1:-1]}, which is not read (line {self.known.line}): say its value"
        named: set[str] = set()
        for path in {Path(self.name).parent / name for name in (file, Path(file).name)}:
            text = ""
            with suppress(InputError, OSError, ValueError):
                text = read_bytes(path, "a script").decode("utf-8", "replace") if path.is_file() else ""
            self.known.spend(len(text))
            named.update(ALLOCATOR.findall(text))
        self.exported |= named
        if activates or Path(file).name in ACTIVATING:
            named.update(ACTIVATED)
        else:
            self.known.sourced = because
            self.known.spend(variables=len(self.known.values))
            named.update(name for name in self.known.values if not ALLOCATOR.fullmatch(name))
        for name in named:
            self.known.may_be_set(name, because)

    def _command(self, words: list[Word], certain: bool) -> None:
        first = words[0].keyword
        declares = first in DECLARING or all(word.assigned for word in words)
        if declares:
            self._declare(words, certain)
        for name in set_otherwise(words):
            self.known.lines[name] = self.known.line
            self.known.forget(name, "is set by a command")
        if first == "unset":
            for word in words[1:]:
                self.known.values.pop(word.keyword, None)
        elif not declares:
            self._start(words)

    def _declare(self, words: list[Word], certain: bool) -> None:
        """Assigns the variables of a declaration, or of assignments that stand alone, and exports them if it says."""
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
        """Runs a command with its words expanded: here what changes this shell's variables, others are found."""
        leading = next((at for at, word in enumerate(words) if not word.assigned), len(words))
        found = ["".join(self.known.expanded(word, False)) for word in words[:leading]]
        found += [text for word in words[leading:] for text in self.known.expanded(word)]
        if sourced := _sourced(found, leading):
            self._source(*sourced)
        elif found[:1] == ["eval"]:
            self.run(" ".join(found[1:]), self.known.line)
        elif found:
            self.known.spend(sum(map(len, found)), len(self.exported) + len(self.known.unknown))
            self.found.append(Command(found, self.known.texts(self.exported), dict(self.known.unknown)))

    def _assign(self, word: Word, certain: bool) -> None:
        name = word.assigned[1]
        self.known.lines[name] = self.known.line
        item = self.known.assigned(word)
        if "[" in word.assigned[0]:
            self.known.forget(name, "is set in part")
        elif not certain or any(name in block.changed for block in self.blocks if block.kind in LOOPS):
            self.known.forget(name)
        else:
            self.known.values[name] = item


def _sourced(words: list[str], leading: int) -> tuple[str, bool] | None:
    """What a command, behind so many ``leading`` assignments, lets set variables of this shell, and whether that only
    activates an environment; None for one that starts a program."""
    command = words[leading:]
    if command[:1] in (["source"], ["."]):
        return "".join(command[1:2]) or "a command's output", False
    if words[:1] == ["eval"] and LEFT.match("".join(words[1:2])):
        return "a command's output", bool(HOOK.fullmatch(re.sub("['\"]", "", " ".join(words[1:]))))
    if words[:1] and words[0] in CONDA and words[1:2] in (["activate"], ["deactivate"]):
        return " ".join(words[:2]), True
    return None

"""What a shell script runs: its simple commands with its own variables put in, as far as the text alone decides them.

A variable that is set under a condition, or by something that only a shell can do, is unknown behind that: it stays
``$NAME`` in the words, and :func:`why` says what is missing where such a word matters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from predictor.errors import InputError
from predictor.readers import arithmetic
from predictor.readers.words import LOOPS, Lexer, Part, Statement, Word, assigned_within, set_otherwise
from predictor.suggest import show

PARAMETER = re.compile(r"(\w+)(?:\[([@*]|\d+)\])?(?:(:?)([-=+])(.*))?", re.DOTALL)
SUBSTRING = re.compile(r"(\w+):(\s*(?:\d|[1-9]\d{1,8})|\s+-[1-9]\d{0,8})(?::(\d|[1-9]\d{1,8}))?")
LEFT = re.compile(r"\$[\w{(@*]")
"""What is left where a value is not known."""
BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
"""What bash makes several words of."""
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
LONGEST = 1 << 19
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


def why(text: str, unknown: Mapping[str, str]) -> str:
    """What is missing where the shell's ``$`` is left in a word."""
    names = {f"${name}" for name in re.findall(r"\$\{?(\w+)", text)}
    for left in sorted(unknown, key=len, reverse=True):  # what is around before what is inside
        if left in names or left.startswith(("$(", "${")) and left in text:
            return unknown[left]
    return "the variable is not set there; write its value"


def commands(text: str, name: str) -> list[Command]:
    """Every simple command of a script, in its order.

    Raises:
        InputError: a quotation that does not end.
    """
    shell = _Shell(name)
    try:
        shell.run(text.replace("\r\n", "\n"))
    except RecursionError:
        raise InputError(f"{name}: is nested too deeply to be read: give the command itself after --") from None
    return shell.found


class _Shell:
    def __init__(self, name: str) -> None:
        self.name = name
        self.variables: dict[str, str | list[str]] = {}
        self.unknown: dict[str, str] = {}
        self.exported: set[str] = set()
        self.blocks: list[_Block] = []
        self.found: list[Command] = []
        self.line = 1
        self.sourced = ""  # why a variable is not known since a file was sourced
        self.lines: dict[str, int] = {}
        self.unread: dict[str, dict[int, None]] = {}  # where an expansion stands that is not understood

    def run(self, text: str, line: int | None = None) -> None:
        statements = list(Lexer(text, self.name, line).statements())
        before, certain, function = "\n", True, False
        for at, statement in enumerate(statements):
            self.line, words = statement.line, list(statement.words)
            certain = certain or before not in ("&&", "||")
            if not words and statement.after == "\n" or statement.names_function:
                function = function or bool(words)
                continue
            while words and (found := self._keyword(words, statements, at, function, certain)):
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
            self.blocks.append(_Block("(", dict(self.variables)))
        elif statement.after == ")" and inside == "(" and not function:
            self.variables = self.blocks.pop().before
        elif statement.after == ";;" and inside == "case":
            self._next_branch()

    def _keyword(self, words: list[Word], statements: list[Statement], at: int, function: bool, certain: bool) -> str:
        """Takes a reserved word from the front, and does what it says; empty if there is none."""
        word = words[0].keyword
        if word in ("then", "do", "!", "time"):
            del words[0]
        elif word in ("else", "elif"):
            del words[0]
            self._next_branch()
        elif word in ("if", "case", "{", *LOOPS):
            kind = "group" if word == "{" and certain and not function else word
            self.blocks.append(_Block(kind, dict(self.variables)))
            del words[0]
            if word in LOOPS:
                self.blocks[-1].changed = assigned_within(statements, at)
                if word in ("for", "select") and words:
                    self.blocks[-1].changed |= words[0].names
                for name in self.blocks[-1].changed:
                    self.lines[name] = self.line
                    self._forget(name)
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
            block.changed |= {name for name in self.variables | block.before
                              if self.variables.get(name) != block.before.get(name)}
            self.variables = dict(block.before)

    def _close(self) -> None:
        if self.blocks and self.blocks[-1].kind != "group":
            self._next_branch()
        for name in self.blocks.pop().changed if self.blocks else ():
            self._forget(name)

    def _forget(self, name: str, because: str = "is set under a condition") -> None:
        self.unknown[f"${name}"] = (f"{name} {because} in line {self.lines.get(name, self.line)}: say its value "
                                    f"(write it in place of ${name})")
        self.variables[name] = f"${name}"

    def _source(self, file: str, activates: bool = False) -> None:
        """Another file is run here, which may set anything, unless it ``activates`` an environment; the allocator's
        settings if it names them."""
        because = f"may be set by {show(file)[1:-1]}, which is not read (line {self.line}): say its value"
        named: set[str] = set()
        for path in {Path(self.name).parent / name for name in (file, Path(file).name)}:
            with suppress(OSError, ValueError):
                named.update(ALLOCATOR.findall(path.read_text("utf-8", "replace")) if path.is_file() else ())
        self.exported |= named
        if activates or Path(file).name in ACTIVATING:
            named.update(ACTIVATED)
        else:
            self.sourced = because
            named.update(name for name in self.variables if not ALLOCATOR.fullmatch(name))
        for name in named:
            self._may_be_set(name, because)

    def _may_be_set(self, name: str, because: str) -> None:
        self.unknown[f"${name}"] = f"{name} {because}"
        self.variables[name] = f"${name}"

    def _unread(self, text: str, line: int, because: str = "") -> str:
        """What stays of an expansion that is not understood, in one word, which another shell would leave as well."""
        left = re.sub(r"\s+", "…", text)
        lines = self.unread.setdefault(left, {})
        lines[line] = None
        where = " and ".join(map(str, lines))
        self.unknown[left] = because or f"{show(text, 60)} in line {where} is not understood: write its value"
        return left

    def _command(self, words: list[Word], certain: bool) -> None:
        first = words[0].keyword
        if first in DECLARING or all(word.assigned for word in words):
            for word in words[first in DECLARING:]:
                if word.assigned:
                    self._assign(word, certain)
                elif any(part.expands for part in word.parts):  # export $(cat .env)
                    self._source("a command's output")
                name = word.assigned[1] if word.assigned else word.keyword
                if first == "export" or (first == "declare" and any(other.keyword == "-x" for other in words)):
                    self.exported.add(name)
        for name in set_otherwise(words):
            self.lines[name] = self.line
            self._forget(name, "is set by a command")
        if first in DECLARING or all(word.assigned for word in words):
            return
        if first == "unset":
            for word in words[1:]:
                self.variables.pop(word.keyword, None)
            return
        leading = next((at for at, word in enumerate(words) if not word.assigned), len(words))
        found = ["".join(self.expanded(word, False)) for word in words[:leading]]
        found += [text for word in words[leading:] for text in self.expanded(word)]
        if found[leading:leading + 1] in (["source"], ["."]):
            self._source("".join(found[leading + 1:leading + 2]) or "a command's output")
        elif found[:1] == ["eval"] and LEFT.match(found[1] if found[1:] else ""):
            self._source("a command's output", bool(HOOK.fullmatch(re.sub("['\"]", "", " ".join(found[1:])))))
        elif found[:1] and found[0] in CONDA and found[1:2] in (["activate"], ["deactivate"]):
            self._source(" ".join(found[:2]), True)
        elif found[:1] == ["eval"]:
            self.run(" ".join(found[1:]), self.line)
        elif found:
            exported = {name: self._text(self.variables[name]) for name in self.exported & self.variables.keys()}
            self.found.append(Command(found, exported, dict(self.unknown)))

    def _assign(self, word: Word, certain: bool) -> None:
        name, more = word.assigned[1], word.assigned[2]
        self.lines[name] = self.line
        if more and self.sourced and name not in self.variables:
            self._may_be_set(name, self.sourced)
        if word.items is not None:
            item: str | list[str] = [text for inner in word.items for text in self.expanded(inner)]
            item = [*self._list(name), *item] if more else item
        else:
            item = "".join(self.expanded(word, False))[word.assigned.end():]
            item = self._text(self.variables.get(name, "")) + item if more else item
        if "[" in word.assigned[0]:
            self._forget(name, "is set in part")
        elif not certain or any(name in block.changed for block in self.blocks if block.kind in LOOPS):
            self._forget(name)
        else:
            self.variables[name] = item

    def expanded(self, word: Word, splits: bool = True) -> list[str]:
        """The words that a word becomes."""
        done, current, size = [], None, 0
        for part in word.parts:
            found = self._value(part) if part.expands else part.text
            if splits and not (part.quoted or part.expands) and BRACES.search(part.text):
                found = self._unread(f"${part.text}", self.line)
            size += len(found) + sum(map(len, found))
            if size > LONGEST:
                raise InputError(f"{self.name}: line {self.line}: a word grows too long to be read")
            if not splits or (part.quoted or not part.expands) and isinstance(found, str):
                current = (current or "") + self._text(found, " ".join)
                continue
            inner = found if part.quoted else " ".join([found] if isinstance(found, str) else found).split()
            if isinstance(found, str) and found[:1].isspace() and current is not None:
                done, current = [*done, current], None
            for at, text in enumerate(inner):
                if at:
                    done.append(current or "")
                current = text if at else (current or "") + text
            if isinstance(found, str) and found[-1:].isspace() and current is not None:
                done, current = [*done, current], None
        return done + ([current] if current is not None else [])

    @staticmethod
    def _text(item: str | list[str], of_list=lambda items: items[0] if items else "") -> str:
        return of_list(item) if isinstance(item, list) else item

    def _list(self, name: str) -> list[str]:
        item = self.variables.get(name, [])
        return item if isinstance(item, list) else [item]

    def _value(self, part: Part) -> str | list[str]:
        """What an expansion stands for; itself if that is not known."""
        text = part.text
        if text.startswith("$(("):
            return self._arithmetic(part)
        inner = text[2:-1] if text.startswith("${") else text[1:]
        if re.match(r"\$\(\s*expr\s", text):
            return self._expr(part)
        if text.startswith("$(") or inner in ("@", "*") or inner.startswith("@:"):
            return self._unread(text, part.line) if text.startswith("$(") else "$@"
        if cut := SUBSTRING.fullmatch(inner):
            return self._substring(part, *cut.groups())
        match = PARAMETER.fullmatch(inner)
        if not match:
            return self._unread(text, part.line)
        name, index, colon, sign, word = match.groups()
        if self.sourced and name not in self.variables and not re.match(r"\d|SLURM_", name):  # which no file sets
            self._may_be_set(name, self.sourced)
        item = self.variables.get(name)
        if item == f"${name}":  # unknown
            return item
        if index in ("@", "*") and item is not None:
            return " ".join(self._list(name)) if index == "*" and part.quoted else self._list(name)
        if index and index.isdigit() and item is not None:
            item = dict(enumerate(self._list(name))).get(int(index[:6]), "")
        missing = item is None or bool(colon) and self._text(item) == ""
        if sign == "+":
            return "" if missing else self._default(word, part.line)
        if sign and missing:
            item = self._default(word, part.line)
            if sign == "=":
                self.variables[name] = item
        return f"${name}" if item is None else self._text(item)

    def _default(self, word: str, line: int) -> str:
        return "".join(self.expanded(Word([part for part in Lexer(word, self.name, line).double("")
                                           if part.text not in ('"', "'")]), False))

    def _substring(self, part: Part, name: str, offset: str, length: str | None) -> str:
        """From an offset on, which counts from the end if it is negative, by plain integers."""
        text = self._text(self._value(Part(f"${name}", True, True, part.line)))
        start = int(offset) + (len(text) if "-" in offset else 0)
        found = text[start:][:length and int(length)] if start >= 0 else ""
        return self._computed(part, None if LEFT.search(text) else found, text)

    def _arithmetic(self, part: Part) -> str:
        """Plain integers, with ``+ - * /``."""
        inner = re.sub(r"(?<![\w$])[A-Za-z_]\w*", lambda name: self._text(self._value(Part(f"${name[0]}", True))),
                       self._default(part.text[3:-2], part.line))
        return self._computed(part, arithmetic.computed(inner), inner)

    def _expr(self, part: Part) -> str:
        """A command's output: that of ``expr`` with plain integers, each in a word of its own."""
        first, *others = Lexer(part.text[2:-1], self.name, part.line).statements()
        plain = first.first == "expr" and not others and all(word.keyword != "*" for word in first.words)  # no files
        values = [value for word in first.words[1:] for value in self.expanded(word)] if plain else []
        return self._computed(part, arithmetic.of_expr(values), " ".join(values))

    def _computed(self, part: Part, found: int | str | None, text: str) -> str:
        """A result; where there is none, what stays, because of the first variable that is left."""
        if found is not None:
            return str(found)
        left = next(iter(re.findall(r"\$[A-Za-z_]\w*", text)), "")
        because = self.unknown.get(left, left and f"{left[1:]} in line {part.line} is not set: write its value")
        return self._unread(part.text, part.line, because)

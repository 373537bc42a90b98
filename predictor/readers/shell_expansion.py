"""What the words of a shell script become, as far as its text decides it: parameters, arrays, arithmetic."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set

from predictor.common.errors import InputError
from predictor.common.suggestions import show
from predictor.readers import shell_arithmetic
from predictor.readers.shell_words import Lexer, Part, Word, too_long

PARAMETER = re.compile(r"(\w+)(?:\[([@*]|\d+)\])?(?:(:?)([-=+])(.*))?", re.DOTALL)
SUBSTRING = re.compile(r"(\w+):(\s*(?:\d|[1-9]\d{1,8})|\s+-[1-9]\d{0,8})(?::(\d|[1-9]\d{1,8}))?")
LEFT = re.compile(r"\$[\w{(@*]")
"""What is left where a value is not known."""
BRACES = re.compile(r"\{(?=[^{}]*\})[^{}]*(?:,|\.\.)")
"""What bash makes several words of."""
LONGEST = 1 << 19
"""Characters of a word."""
MOST_WORK = 1 << 24
"""Characters that are looked at for a whole script; those of the frameworks take some ten thousand."""
VARIABLE = 16
"""Characters that take as long as a variable."""
MOST_LINES = 8
"""Of a message."""


def why(text: str, unknown: Mapping[str, str]) -> str:
    """What is missing where the shell's ``$`` is left in a word."""
    names = {f"${name}" for name in re.findall(r"\$\{?(\w+)", text)}
    for left in sorted(unknown, key=len, reverse=True):  # what is around before what is inside
        if left in names or left.startswith(("$(", "${")) and left in text:
            return unknown[left]
    return "the variable is not set there; write its value"


def _end(word: list[str], words: list[str]) -> None:
    """The pieces of a word become one of the words, if there are any."""
    if word:
        words.append("".join(word))
        word.clear()


class Variables:
    """The variables of a script as it runs, and what its words become by them.

    Attributes:
        values: by name; ``$NAME`` where they are not known.
        unknown: what is left of an expansion in words -> why its value is not known.
        line: of the statement that is read.
        lines: where a variable was set last.
        sourced: why a variable is not known since a file was sourced.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, str | list[str]] = {}
        self.unknown: dict[str, str] = {}
        self.line = 1
        self.lines: dict[str, int] = {}
        self.sourced = ""
        self._unread_at: dict[str, dict[int, None]] = {}  # where an expansion stands that is not understood
        self._work = 0

    def spend(self, characters: int = 0, variables: int = 0) -> None:
        """Counts what is looked at.

        Raises:
            InputError: it is more than :data:`MOST_WORK`.
        """
        self._work += characters + VARIABLE * variables
        if self._work > MOST_WORK:
            raise too_long(self.name)

    def texts(self, names: Set[str]) -> dict[str, str]:
        """Those of these names that are set, as an environment has them."""
        return {name: self._text(self.values[name]) for name in names & self.values.keys()}

    def forget(self, name: str, because: str = "is set under a condition") -> None:
        """What it is set to is not known."""
        self.unknown[f"${name}"] = (f"{name} {because} in line {self.lines.get(name, self.line)}: say its value "
                                    f"(write it in place of ${name})")
        self.values[name] = f"${name}"

    def may_be_set(self, name: str, because: str) -> None:
        """Whether it is set at all is not known."""
        self.unknown[f"${name}"] = f"{name} {because}"
        self.values[name] = f"${name}"

    def _unread(self, text: str, line: int, because: str = "") -> str:
        """What stays of an expansion that is not understood, in one word, which another shell would leave as well."""
        left = re.sub(r"\s+", "…", text)
        lines = self._unread_at.setdefault(left, {})
        if len(lines) < MOST_LINES:
            lines[line] = None
        where = " and ".join(map(str, lines)) + ("" if line in lines else " and others")
        self.unknown[left] = because or f"{show(text, 60)} in line {where} is not understood: write its value"
        return left

    def assigned(self, word: Word) -> str | list[str]:
        """What a word sets that is an assignment."""
        name, more = word.assigned[1], word.assigned[2]
        if more and self.sourced and name not in self.values:
            self.may_be_set(name, self.sourced)
        if word.items is not None:
            item = [text for inner in word.items for text in self.expanded(inner)]
            before = self._list(name) if more else []
            self.spend(variables=len(before))
            return [*before, *item]
        text = "".join(self.expanded(word, False))[word.assigned.end():]
        before = self._text(self.values.get(name, "")) if more else ""
        self.spend(len(before))
        return before + text

    def expanded(self, word: Word, splits: bool = True) -> list[str]:
        """The words that a word becomes."""
        done: list[str] = []
        current: list[str] = []  # pieces of the word that is not yet done; none: there is none
        size = 0
        for part in word.parts:
            found = self._value(part) if part.expands else part.text
            if splits and not (part.quoted or part.expands) and BRACES.search(part.text):
                found = self._unread(f"${part.text}", self.line)
            size += len(found) + sum(map(len, found))
            if size > LONGEST:
                raise InputError(f"{self.name}: line {self.line}: a word grows too long to be read")
            if not splits or (part.quoted or not part.expands) and isinstance(found, str):
                current.append(self._text(found, " ".join))
                continue
            inner = found if part.quoted else " ".join([found] if isinstance(found, str) else found).split()
            if isinstance(found, str) and found[:1].isspace():
                _end(current, done)
            for at, text in enumerate(inner):
                if at:
                    _end(current, done)
                current.append(text)
            if isinstance(found, str) and found[-1:].isspace():
                _end(current, done)
        self.spend(size)
        _end(current, done)
        return done

    @staticmethod
    def _text(item: str | list[str], of_list=lambda items: items[0] if items else "") -> str:
        return of_list(item) if isinstance(item, list) else item

    def _list(self, name: str) -> list[str]:
        item = self.values.get(name, [])
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
        return self._parameter(part, *match.groups()) if match else self._unread(text, part.line)

    def _parameter(self, part: Part, name: str, index: str | None, colon: str | None, sign: str | None,
                   word: str | None) -> str | list[str]:
        """A variable's value, or an element of an array's, or what ``${NAME:-WORD}`` and its like have instead."""
        if self.sourced and name not in self.values and not re.match(r"\d|SLURM_", name):  # which no file sets
            self.may_be_set(name, self.sourced)
        item = self.values.get(name)
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
                self.values[name] = item
        return f"${name}" if item is None else self._text(item)

    def _default(self, word: str, line: int) -> str:
        self.spend(len(word))
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
        return self._computed(part, shell_arithmetic.computed(inner), inner)

    def _expr(self, part: Part) -> str:
        """A command's output: that of ``expr`` with plain integers, each in a word of its own."""
        self.spend(len(part.text))
        first, *others = Lexer(part.text[2:-1], self.name, part.line).statements()
        plain = first.first == "expr" and not others and all(word.keyword != "*" for word in first.words)  # no files
        values = [value for word in first.words[1:] for value in self.expanded(word)] if plain else []
        return self._computed(part, shell_arithmetic.of_expr(values), " ".join(values))

    def _computed(self, part: Part, found: int | str | None, text: str) -> str:
        """A result; where there is none, what stays, because of the first variable that is left."""
        if found is not None:
            return str(found)
        left = next(iter(re.findall(r"\$[A-Za-z_]\w*", text)), "")
        because = self.unknown.get(left, left and f"{left[1:]} in line {part.line} is not set: write its value")
        return self._unread(part.text, part.line, because)

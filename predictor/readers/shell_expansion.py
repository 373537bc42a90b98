"""Expands the words of a shell script: parameters, arrays and arithmetic, as far as the text determines them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set

from predictor.common.errors import InputError
from predictor.common.suggestions import quoted
from predictor.readers import shell_arithmetic
from predictor.readers.shell_words import Lexer, Part, Word, too_long

PARAMETER = re.compile(r"(\w+)(?:\[([@*]|\d+)\])?(?:(:?)([-=+])(.*))?", re.DOTALL)
SUBSTRING = re.compile(r"(\w+):(\s*(?:\d|[1-9]\d{1,8})|\s+-[1-9]\d{0,8})(?::(\d|[1-9]\d{1,8}))?")
LEFT = re.compile(r"\$[\w{(@*]")
"""The beginning of an expansion that stayed in a word, because its value is not known."""
BRACES = re.compile(r"\{(?=[^{}]*\})[^{}]*(?:,|\.\.)")
"""A brace expansion, which bash turns into several words."""
LONGEST = 1 << 19
"""Largest number of characters of a word."""
MOST_WORK = 1 << 24
"""Largest number of characters examined for a whole script; the frameworks' own scripts take some ten thousand."""
VARIABLE = 16
"""Cost of examining a variable, in characters."""
MOST_LINES = 8
"""Largest number of line numbers in a message."""


def why(text: str, unknown: Mapping[str, str]) -> str:
    """Explains which value is missing in a word in which an expansion stayed."""
    names = {f"${name}" for name in re.findall(r"\$\{?(\w+)", text)}
    for left in sorted(unknown, key=len, reverse=True):  # an outer expansion before an inner one
        if left in names or left.startswith(("$(", "${")) and left in text:
            return unknown[left]
    return "the variable is not set there; write its value"


def _end(word: list[str], words: list[str]) -> None:
    """Joins the pieces of a word, if there are any, and appends it to the words."""
    if word:
        words.append("".join(word))
        word.clear()


class Variables:
    """The variables of a script at one point of its run, and the expansion of words with them.

    Attributes:
        values: values by name; ``$NAME`` if the value is not known.
        unknown: text of an expansion that stays in words -> why its value is not known.
        line: line number of the current statement.
        lines: name of a variable -> line where it was set last.
        sourced: why variables are not known after a file was sourced; empty before.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, str | list[str]] = {}
        self.unknown: dict[str, str] = {}
        self.line = 1
        self.lines: dict[str, int] = {}
        self.sourced = ""
        self._unread_at: dict[str, dict[int, None]] = {}  # expansions that are not understood -> their lines
        self._work = 0

    def spend(self, characters: int = 0, variables: int = 0) -> None:
        """Counts the work done for the script.

        Raises:
            InputError: the work exceeds :data:`MOST_WORK`.
        """
        self._work += characters + VARIABLE * variables
        if self._work > MOST_WORK:
            raise too_long(self.name)

    def texts(self, names: Set[str]) -> dict[str, str]:
        """The values of those of these names that are set, as environment variables."""
        return {name: self._text(self.values[name]) for name in names & self.values.keys()}

    def forget(self, name: str, because: str = "is set under a condition") -> None:
        """Marks a variable as set to an unknown value."""
        self.unknown[f"${name}"] = (f"{name} {because} in line {self.lines.get(name, self.line)}: say its value "
                                    f"(write it in place of ${name})")
        self.values[name] = f"${name}"

    def may_be_set(self, name: str, because: str) -> None:
        """Marks a variable as perhaps set, with an unknown value."""
        self.unknown[f"${name}"] = f"{name} {because}"
        self.values[name] = f"${name}"

    def _unread(self, text: str, line: int, because: str = "") -> str:
        """Text that stays in place of an expansion that is not understood: the expansion itself, without blanks."""
        left = re.sub(r"\s+", "…", text)
        lines = self._unread_at.setdefault(left, {})
        if len(lines) < MOST_LINES:
            lines[line] = None
        where = " and ".join(map(str, lines)) + ("" if line in lines else " and others")
        self.unknown[left] = because or f"{quoted(text, 60)} in line {where} is not understood: write its value"
        return left

    def assigned(self, word: Word) -> str | list[str]:
        """The value that an assignment gives its variable."""
        assignment = word.assigned
        assert assignment is not None
        name, more = assignment[1], assignment[2]
        if more and self.sourced and name not in self.values:
            self.may_be_set(name, self.sourced)
        if word.items is not None:
            item = [text for inner in word.items for text in self.expanded(inner)]
            items = self._list(name) if more else []
            self.spend(variables=len(items))
            return [*items, *item]
        text = "".join(self.expanded(word, False))[assignment.end():]
        before = self._text(self.values.get(name, "")) if more else ""
        self.spend(len(before))
        return before + text

    def expanded(self, word: Word, splits: bool = True) -> list[str]:
        """The words that a word expands to. Without ``splits`` it stays one word."""
        done: list[str] = []
        current: list[str] = []  # pieces of the unfinished word; empty if no word has begun
        size = 0
        for part in word.parts:
            value = self._value(part) if part.expands else part.text
            if splits and not (part.quoted or part.expands) and BRACES.search(part.text):
                value = self._unread(f"${part.text}", self.line)
            size += len(value) + sum(map(len, value))
            if size > LONGEST:
                raise InputError(f"{self.name}: line {self.line}: a word grows too long to be read")
            if not splits or (part.quoted or not part.expands) and isinstance(value, str):
                current.append(self._text(value, " ".join))
                continue
            inner = value if part.quoted else " ".join([value] if isinstance(value, str) else value).split()
            if isinstance(value, str) and value[:1].isspace():
                _end(current, done)
            for at, text in enumerate(inner):
                if at:
                    _end(current, done)
                current.append(text)
            if isinstance(value, str) and value[-1:].isspace():
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
        """The value of an expansion, or its own text if the value is not known."""
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
                   default: str | None) -> str | list[str]:
        """The value of a variable or of an array's element, with the default in ``${NAME:-WORD}`` and its like."""
        # a sourced file sets neither the script's arguments nor Slurm's variables
        if self.sourced and name not in self.values and not re.match(r"\d|SLURM_", name):
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
            return "" if missing else self._default(default or "", part.line)
        if sign and missing:
            item = self._default(default or "", part.line)
            if sign == "=":
                self.values[name] = item
        return f"${name}" if item is None else self._text(item)

    def _default(self, word: str, line: int) -> str:
        self.spend(len(word))
        return "".join(self.expanded(Word([part for part in Lexer(word, self.name, line).double("")
                                           if part.text not in ('"', "'")]), False))

    def _substring(self, part: Part, name: str, offset: str, length: str | None) -> str:
        """``${NAME:OFFSET:LENGTH}`` with plain integers; a negative offset counts from the end."""
        text = self._text(self._value(Part(f"${name}", True, True, part.line)))
        start = int(offset) + (len(text) if "-" in offset else 0)
        cut = text[start:][:int(length) if length else None] if start >= 0 else ""
        return self._computed(part, None if LEFT.search(text) else cut, text)

    def _arithmetic(self, part: Part) -> str:
        """The value of ``$((…))``: plain integers with ``+ - * /``."""
        inner = re.sub(r"(?<![\w$])[A-Za-z_]\w*", lambda name: self._text(self._value(Part(f"${name[0]}", True))),
                       self._default(part.text[3:-2], part.line))
        return self._computed(part, shell_arithmetic.computed(inner), inner)

    def _expr(self, part: Part) -> str:
        """The output of ``$(expr …)`` with plain integers, each in a separate word."""
        self.spend(len(part.text))
        first, *others = Lexer(part.text[2:-1], self.name, part.line).statements()
        # a bare * would list files
        plain = first.first == "expr" and not others and all(word.keyword != "*" for word in first.words)
        values = [value for word in first.words[1:] for value in self.expanded(word)] if plain else []
        return self._computed(part, shell_arithmetic.of_expr(values), " ".join(values))

    def _computed(self, part: Part, result: int | str | None, text: str) -> str:
        """A result as text. Without a result the expansion stays; the first unknown variable in it explains why."""
        if result is not None:
            return str(result)
        left = next(iter(re.findall(r"\$[A-Za-z_]\w*", text)), "")
        because = self.unknown.get(left, left and f"{left[1:]} in line {part.line} is not set: write its value")
        return self._unread(part.text, part.line, because)

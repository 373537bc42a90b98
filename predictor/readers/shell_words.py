"""The words of a shell script, as POSIX has them (XCU 2.2, 2.3): quotation, comments, operators; not yet expanded."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from predictor.common.errors import InputError

CONTINUED = re.compile(r"\\\n")
"""A line that goes on."""
BROKEN = re.compile(r"\\[ \t]+(?:\n|$)")
"""A line that is meant to go on, and does not."""
COMMENTS = re.compile(r"(?:[ \t]*#[^\n]*\n)*")
"""Lines of nothing else."""
OPERATOR = re.compile(r";;|&&|\|\||\|&|[;|()\n]|&(?!>)")
REDIRECTION = re.compile(r"(?:\d*(?:>>|>&|>\||<<<|<<-?|<>|<&|>|<)|&>>?)[ \t]*")
NAME = re.compile(r"\$(?:\w+|[@*#?$!-])")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\[\d+\])?(\+?)=")
RESERVED = ("if", "then", "elif", "else", "while", "until", "for", "select", "do", "!", "time", "{")
LOOPS = ("for", "while", "until", "select")
SETTING = ("read", "mapfile", "readarray", "getopts")
COMPUTED = re.compile(r"(?<!\w)([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&^|]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)")
"""What ``((…))`` and ``let`` set."""
DEEPEST = 100
MOST_PIECES = 100_000
"""Of the words of one text; a long script has a few thousand."""
CLOSED = {"$((": "))", "((": "))", "$(": ")", "${": "}"}


@dataclass(frozen=True)
class Part:
    """A piece of a word: text as it stands, or what ``$`` begins, with its line."""

    text: str
    quoted: bool
    expands: bool = False
    line: int = 0


@dataclass
class Word:
    """A word, or the assignment of an array, which has ``items``."""

    parts: list[Part] = field(default_factory=list)
    items: list[Word] | None = None

    @property
    def plain(self) -> str:
        """Its text up to the first quotation or expansion."""
        at = next((at for at, part in enumerate(self.parts) if part.quoted or part.expands), len(self.parts))
        return "".join(part.text for part in self.parts[:at])

    @property
    def keyword(self) -> str:
        """Its text if nothing in it is quoted or expands."""
        return self.plain if not any(part.quoted or part.expands for part in self.parts) else ""

    @property
    def assigned(self) -> re.Match[str] | None:
        """What an assignment begins with."""
        return ASSIGNED.match(self.plain)

    @property
    def names(self) -> set[str]:
        """All that could be names of variables."""
        return set(re.findall(r"[A-Za-z_]\w*", " ".join(part.text for part in self.parts)))


@dataclass(frozen=True)
class Statement:
    """A simple command: its words, the line where it begins, the operator behind it."""

    words: list[Word]
    line: int
    after: str

    @property
    def first(self) -> str:
        """Its first word behind ``do`` and ``then``."""
        skipped = ("do", "then", "else", "{", "!")
        return next((word.keyword for word in self.words if word.keyword not in skipped), "")

    @property
    def names_function(self) -> bool:
        """Whether the parenthesis behind it is that of ``name ()``."""
        words = [word.keyword for word in self.words]
        return self.after == "(" and (len(words) == 1 and words[0] not in ("", *RESERVED) or
                                      len(words) == 2 and words[0] == "function")


class Lexer:
    """Reads one text; all of it stands in ``line``, if one is given.

    Raises:
        InputError: a quotation or bracket that does not end; the line is named.
    """

    def __init__(self, text: str, name: str, line: int | None = None) -> None:
        self.text, self.name, self.line, self.at, self.documents = text, name, line, 0, []
        self.pieces = 0
        self.breaks = [found.start() for found in re.finditer("\n", text)]

    def line_at(self, at: int) -> int:
        """From 1."""
        return self.line or bisect_left(self.breaks, at) + 1

    def statements(self) -> Iterator[Statement]:
        """Every simple command, and empty ones between operators."""
        words, line = [], 1
        while True:
            if not words and not self.documents:
                self.at = COMMENTS.match(self.text, self.at).end()
            self._blank(inside=bool(words))
            line = line if words else self.line_at(self.at)
            if self.at >= len(self.text):
                yield Statement(words, line, "\n")
                return
            if all(word.keyword in RESERVED for word in words) and self.text.startswith("((", self.at):
                words.append(Word([Part(self._closed("(("), False, True, line)]))
            elif found := REDIRECTION.match(self.text, self.at):
                self.at = found.end()
                target = self.word()
                if found[0].rstrip() in ("<<", "<<-"):
                    self.documents.append("".join(part.text for part in target.parts))
            elif found := OPERATOR.match(self.text, self.at):
                self.at = found.end()
                if found[0] == "\n":
                    self._here_documents()
                yield Statement(words, line, found[0])
                words = []
            else:
                words.append(self.word())

    def word(self) -> Word:
        """The word that begins here."""
        word, text = Word(), self.text
        while self.at < len(text) and text[self.at] not in " \t\n|&;<>)":
            self._count()
            letter = text[self.at]
            if letter == "(":
                if not (word.assigned and word.assigned.end() == len(word.keyword)):
                    break
                self.at += 1
                word.items = self._array()
            elif found := CONTINUED.match(text, self.at):
                self.at = found.end()
            elif BROKEN.match(text, self.at):
                raise self._ends("a blank behind the backslash", self.at, "take it out")
            elif letter == "\\":
                word.parts.append(Part(text[self.at + 1 : self.at + 2], True))
                self.at += 2
            elif letter == "'" or text.startswith("$'", self.at):
                start = self.at + 1 + (letter == "$")
                self.at = self._find("'", start) + 1
                word.parts.append(Part(text[start : self.at - 1], True))
            elif letter == '"':
                self.at += 1
                word.parts += self.double('"')
            elif letter in "$`":
                word.parts.append(self._expansion(False))
            else:
                end = re.compile(r"[^\s|&;<>()\\'\"$`]+").match(text, self.at).end()
                word.parts.append(Part(text[self.at : end], False))
                self.at = end
        return word

    def double(self, end: str) -> list[Part]:
        """What stands in double quotes, up to ``end``, or of the whole text if that is empty."""
        parts, start, text = [Part("", True)], self.at, self.text
        while self.at < len(text) and text[self.at] != (end or None):
            self._count()
            if text[self.at] == "\\":
                following = text[self.at + 1 : self.at + 2]
                escaped = "" if following == "\n" else following if following in '$`"\\' else f"\\{following}"
                parts.append(Part(escaped, True))
                self.at += 2
            elif text[self.at] in "$`":
                parts.append(self._expansion(True))
            else:
                found = re.compile(r'[^"\\$`]+|"').match(text, self.at)
                parts.append(Part(found[0], True))
                self.at = found.end()
        if end and self.at >= len(text):
            raise self._endless('"', start)
        self.at += len(end)
        return parts

    def _count(self) -> None:
        self.pieces += 1
        if self.pieces > MOST_PIECES:
            raise too_long(self.name)

    def _expansion(self, quoted: bool) -> Part:
        text, start = self.text, self.at
        line = self.line_at(start)
        if text[start] == "`":
            self.at = self._find("`", start + 1) + 1
            return Part(f"$({text[start + 1 : self.at - 1]})", quoted, True, line)
        opening = next((opening for opening in CLOSED if text.startswith(opening, start)), None)
        if opening:
            return Part(self._closed(opening), quoted, True, line)
        found = NAME.match(text, start)
        self.at = found.end() if found else start + 1
        return Part(found[0] if found else "$", quoted, bool(found), line)

    def _closed(self, opening: str) -> str:
        """From a bracket to the one that closes it."""
        start, inner, closing = self.at, opening[-1], CLOSED[opening][-1]
        depth = 0
        for found in re.compile(rf"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|\{inner}|\{closing}", re.DOTALL).finditer(
                self.text, start):
            depth += (found[0] == inner) - (found[0] == closing)
            if depth > DEEPEST:
                raise too_deep(self.name)
            if found[0] == closing and depth == 0:
                self.at = found.end()
                return self.text[start : self.at]
        raise self._endless(opening, start)

    def _array(self) -> list[Word]:
        items, start = [], self.at
        while True:
            self._blank(newlines=True)
            if self.at >= len(self.text):
                raise self._endless("(", start)
            if self.text[self.at] == ")":
                self.at += 1
                return items
            before = self.at
            items.append(self.word())
            self.at += self.at == before  # an operator, which no array has

    def _blank(self, newlines: bool = False, inside: bool = False) -> None:
        blank = re.compile((r"(?:[ \t\n]|" if newlines else r"(?:[ \t]|") + CONTINUED.pattern + ")*")
        while True:
            self.at = blank.match(self.text, self.at).end()
            if not self.text.startswith("#", self.at):
                return
            start, end = self.at, self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
            if inside:
                self._check_comment(start)
            if not newlines:
                return

    def _check_comment(self, start: int) -> None:
        """A comment among the words of a command: is more of the command meant to follow?"""
        first = not self.text[self.text.rfind("\n", 0, start) + 1 : start].strip()
        following = re.compile(r"(?:\n[ \t]*#[^\n]*)*\n[ \t]*[^\s#]").match(self.text, self.at)
        if following and (first or self.text[self.at - 1] == "\\"):
            raise self._ends("a comment", start, "move it out")

    def _here_documents(self) -> None:
        for delimiter in self.documents:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                line = self.text[self.at : end if end >= 0 else len(self.text)]
                self.at += len(line) + 1
                if line.strip() == delimiter:
                    break
        self.documents.clear()

    def _find(self, mark: str, start: int) -> int:
        end = self.text.find(mark, start)
        if end < 0:
            raise self._endless(mark, start)
        return end

    def _ends(self, what: str, at: int, instead: str) -> InputError:
        return InputError(f"{self.name}: line {self.line_at(at)}: {what} ends the command here: "
                          f"bash runs it without what follows; {instead}")

    def _endless(self, opening: str, start: int) -> InputError:
        return InputError(f"{self.name}: line {self.line_at(start)}: {opening} has no end")


def too_deep(name: str) -> InputError:
    """The error of a script whose constructs stand in each other without end."""
    return InputError(f"{name}: is nested too deeply to be read: give the command itself after --")


def too_long(name: str) -> InputError:
    """The error of a script that takes more work than any that trains."""
    return InputError(f"{name}: is too long to be read: give the command itself after --")


def assigned_within(statements: list[Statement], name: str) -> list[set[str]]:
    """Of each statement, the variables that it assigns, and if it begins a loop those that the loop assigns."""
    found, around = [], []
    for statement in statements:
        names = {word.assigned[1] for word in statement.words if word.assigned}
        found.append(names)
        first = statement.first
        if first in LOOPS:
            around.append(found[-1])
        elif around:
            around[-1] |= names
            if first == "done":
                _leave(around)
        if len(around) > DEEPEST:
            raise too_deep(name)
    while around:
        _leave(around)
    return found


def _leave(around: list[set[str]]) -> None:
    """The innermost loop ends; what it assigns, the one around it does."""
    names = around.pop()
    if around:
        around[-1] |= names


def set_otherwise(words: list[Word]) -> set[str]:
    """Variables that a command sets which is no assignment, and all that could be such."""
    words = words[next((at for at, word in enumerate(words) if not word.assigned), 0):]
    first, options = words[0].keyword, [word.keyword for word in words[1:]]
    text = " ".join(part.text for word in words for part in word.parts)
    if first == "let" or text.startswith("(("):
        return {name for found in COMPUTED.findall(text) for name in found if name}
    if first in ("declare", "typeset", "local") and any(re.match(r"-\w*n", option) for option in options):
        # one name refers to another
        return set().union(*(word.names for word in words if word.assigned))
    if first == "printf" and options[:1] == ["-v"]:
        return words[2].names if len(words) > 2 else set()
    return set().union(*(word.names for word in words[1:])) if first in SETTING else set()

"""Splits a shell script into statements and words by POSIX rules (XCU 2.2, 2.3), before any expansion."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from predictor.common.errors import InputError

CONTINUED = re.compile(r"\\\n")
"""A backslash that continues the line."""
BROKEN = re.compile(r"\\[ \t]+(?:\n|$)")
"""A backslash meant to continue the line, but followed by blanks."""
COMMENTS = re.compile(r"(?:[ \t]*#[^\n]*\n)*")
"""Lines that hold only a comment."""
OPERATOR = re.compile(r";;|&&|\|\||\|&|[;|()\n]|&(?!>)")
REDIRECTION = re.compile(r"(?:\d*(?:>>|>&|>\||<<<|<<-?|<>|<&|>|<)|&>>?)[ \t]*")
NAME = re.compile(r"\$(?:\w+|[@*#?$!-])")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\[\d+\])?(\+?)=")
RESERVED = ("if", "then", "elif", "else", "while", "until", "for", "select", "do", "!", "time", "{")
LOOPS = ("for", "while", "until", "select")
SETTING = ("read", "mapfile", "readarray", "getopts")
COMPUTED = re.compile(r"(?<!\w)([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&^|]|<<|>>)?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)")
"""A variable that ``((…))`` or ``let`` sets."""
DEEPEST = 100
MOST_PIECES = 100_000
"""Largest number of pieces of words in one text; a long script has a few thousand."""
CLOSED = {"$((": "))", "((": "))", "$(": ")", "${": "}"}


@dataclass(frozen=True)
class Part:
    """A piece of a word: literal text, or an expansion that begins with ``$``, with its line number."""

    text: str
    quoted: bool
    expands: bool = False
    line: int = 0


@dataclass
class Word:
    """A word, as its pieces. An assignment of an array has ``items``."""

    parts: list[Part] = field(default_factory=list)
    items: list[Word] | None = None

    @property
    def plain(self) -> str:
        """The text before the first quotation or expansion."""
        at = next((at for at, part in enumerate(self.parts) if part.quoted or part.expands), len(self.parts))
        return "".join(part.text for part in self.parts[:at])

    @property
    def keyword(self) -> str:
        """The whole text; empty if any of it is quoted or expands."""
        return self.plain if not any(part.quoted or part.expands for part in self.parts) else ""

    @property
    def assigned(self) -> re.Match[str] | None:
        """Match of ``NAME=`` or ``NAME+=`` at the beginning; None if the word is not an assignment."""
        return ASSIGNED.match(self.plain)

    @property
    def names(self) -> set[str]:
        """All parts of the text that could be names of variables."""
        return set(re.findall(r"[A-Za-z_]\w*", " ".join(part.text for part in self.parts)))


@dataclass(frozen=True)
class Statement:
    """A simple command: its words, the line where it begins, and the operator that follows it."""

    words: list[Word]
    line: int
    after: str

    @property
    def first(self) -> str:
        """The first word after reserved words such as ``do`` and ``then``."""
        skipped = ("do", "then", "else", "{", "!")
        return next((word.keyword for word in self.words if word.keyword not in skipped), "")

    @property
    def names_function(self) -> bool:
        """True if the parenthesis after it belongs to a function definition, ``name ()``."""
        words = [word.keyword for word in self.words]
        return self.after == "(" and (len(words) == 1 and words[0] not in ("", *RESERVED) or
                                      len(words) == 2 and words[0] == "function")


class Lexer:
    """Splits one text into statements. ``line``, if given, is the line number of all of it.

    Raises:
        InputError: a quotation or bracket is not closed; the message names the line.
    """

    def __init__(self, text: str, name: str, line: int | None = None) -> None:
        self.text, self.name, self.line, self.at = text, name, line, 0
        self.documents: list[str] = []
        self.pieces = 0
        self.breaks = [match.start() for match in re.finditer("\n", text)]

    def line_at(self, at: int) -> int:
        """The line number of a position, from 1."""
        return self.line or bisect_left(self.breaks, at) + 1

    def statements(self) -> Iterator[Statement]:
        """Yields every simple command, and empty statements between operators."""
        words: list[Word] = []
        line, is_begun = 1, False  # whether the words have one that is not reserved
        while True:
            if not words and not self.documents:
                self.at = _end_of(COMMENTS, self.text, self.at)
            self._blank(inside=bool(words))
            line = line if words else self.line_at(self.at)
            if self.at >= len(self.text):
                yield Statement(words, line, "\n")
                return
            if not is_begun and self.text.startswith("((", self.at):
                words.append(Word([Part(self._closed("(("), False, True, line)]))
                is_begun = True
            elif match := REDIRECTION.match(self.text, self.at):
                self.at = match.end()
                target = self.word()
                if match[0].rstrip() in ("<<", "<<-"):
                    self.documents.append("".join(part.text for part in target.parts))
            elif match := OPERATOR.match(self.text, self.at):
                self.at = match.end()
                if match[0] == "\n":
                    self._here_documents()
                yield Statement(words, line, match[0])
                words, is_begun = [], False
            else:
                words.append(self.word())
                is_begun = is_begun or words[-1].keyword not in RESERVED

    def word(self) -> Word:
        """Reads the word that begins at the current position."""
        word, text = Word(), self.text
        while self.at < len(text) and text[self.at] not in " \t\n|&;<>)":
            self._count()
            letter = text[self.at]
            if letter == "(":
                if not (word.assigned and word.assigned.end() == len(word.keyword)):
                    break
                self.at += 1
                word.items = self._array()
            elif match := CONTINUED.match(text, self.at):
                self.at = match.end()
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
                end = _end_of(re.compile(r"[^ \t\n|&;<>()\\'\"$`]+"), text, self.at)  # other blanks end no word
                word.parts.append(Part(text[self.at : end], False))
                self.at = end
        return word

    def double(self, end: str) -> list[Part]:
        """Reads text in double quotes up to the character ``end``, or to the end of the text if ``end`` is empty."""
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
                stop = _end_of(re.compile(r'[^"\\$`]+|"'), text, self.at)
                parts.append(Part(text[self.at : stop], True))
                self.at = stop
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
        match = NAME.match(text, start)
        self.at = match.end() if match else start + 1
        return Part(match[0] if match else "$", quoted, bool(match), line)

    def _closed(self, opening: str) -> str:
        """Reads from an opening bracket to the bracket that closes it."""
        start, inner, closing = self.at, opening[-1], CLOSED[opening][-1]
        depth = 0
        for match in re.compile(rf"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|\{inner}|\{closing}", re.DOTALL).finditer(
                self.text, start):
            depth += (match[0] == inner) - (match[0] == closing)
            if depth > DEEPEST:
                raise too_deep(self.name)
            if match[0] == closing and depth == 0:
                self.at = match.end()
                return self.text[start : self.at]
        raise self._endless(opening, start)

    def _array(self) -> list[Word]:
        items: list[Word] = []
        start = self.at
        while True:
            self._blank(newlines=True)
            if self.at >= len(self.text):
                raise self._endless("(", start)
            if self.text[self.at] == ")":
                self.at += 1
                return items
            before = self.at
            items.append(self.word())
            self.at += self.at == before  # skip an operator, which is a syntax error in an array

    def _blank(self, newlines: bool = False, inside: bool = False) -> None:
        blank = re.compile((r"(?:[ \t\n]|" if newlines else r"(?:[ \t]|") + CONTINUED.pattern + ")*")
        while True:
            self.at = _end_of(blank, self.text, self.at)
            if not self.text.startswith("#", self.at):
                return
            start, end = self.at, self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
            if inside:
                self._check_comment(start)
            if not newlines:
                return

    def _check_comment(self, start: int) -> None:
        """Rejects a comment within a command if the command seems to continue after it."""
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


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    """End of a match at a position where the pattern always matches."""
    match = pattern.match(text, at)
    assert match is not None
    return match.end()


def too_deep(name: str) -> InputError:
    """The error of a script that is nested too deeply."""
    return InputError(f"{name}: is nested too deeply to be read: give the command itself after --")


def too_long(name: str) -> InputError:
    """The error of a script that takes too much work to read; no real training script does."""
    return InputError(f"{name}: is too long to be read: give the command itself after --")


def assigned_within(statements: list[Statement], name: str) -> list[set[str]]:
    """For each statement, the variables that it assigns; for one that begins a loop, also those of the loop's body."""
    assigned: list[set[str]] = []
    around: list[set[str]] = []
    for statement in statements:
        names = {word.assigned[1] for word in statement.words if word.assigned}
        assigned.append(names)
        first = statement.first
        if first in LOOPS:
            around.append(assigned[-1])
        elif around:
            around[-1] |= names
            if first == "done":
                _leave(around)
        if len(around) > DEEPEST:
            raise too_deep(name)
    while around:
        _leave(around)
    return assigned


def _leave(around: list[set[str]]) -> None:
    """Closes the innermost loop and adds its variables to those of the loop around it."""
    names = around.pop()
    if around:
        around[-1] |= names


def set_otherwise(words: list[Word]) -> set[str]:
    """Variables that a command other than an assignment sets, or may set."""
    words = words[next((at for at, word in enumerate(words) if not word.assigned), 0):]
    first, options = words[0].keyword, [word.keyword for word in words[1:]]
    text = " ".join(part.text for word in words for part in word.parts)
    if first == "let" or text.startswith("(("):
        return {name for match in COMPUTED.findall(text) for name in match if name}
    if first in ("declare", "typeset", "local") and any(re.match(r"-\w*n", option) for option in options):
        # one name refers to another
        return set().union(*(word.names for word in words if word.assigned))
    if first == "printf" and options[:1] == ["-v"]:
        return words[2].names if len(words) > 2 else set()
    return set().union(*(word.names for word in words[1:])) if first in SETTING else set()

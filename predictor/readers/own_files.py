"""Writes the user's own configuration with a change: the same file or command, with the keys that change.

Known limitations:

* In YAML and in shell scripts, comments, order and layout stay. Where a change does not fit into the text as it stands,
  YAML is written anew without its comments, and of a script the training command alone is written.
* JSON is written anew, with the same order and indentation; comments are lost.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import parse_json, parse_yaml, read_text
from predictor.readers import accelerate, command
from predictor.readers.fields import ENVIRONMENT, LAUNCHER, Edit
from predictor.readers.own_words import Edited, OwnWords, by_command, flag_value, raw_name, user_input_name, yaml_text
from predictor.readers.user_input import UserInput, beside
from predictor.workload.value_sources import Source

COMMAND = "the command"
WORD = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s\\"'|&;<>()]|\\[^\n])+"""
"""A word of a shell script, as a regular expression."""
BLANK = r"(?:[ \t]|\\\n)+"


def written(source: Source, changes: Mapping[str, Any]) -> str | None:
    """The user's own file, or command line, with a change of the workload; None if it cannot be expressed.

    The text is as it was if only other files or the environment change (:func:`files`).

    Args:
        source: what :func:`predictor.readers.read` returned.
        changes: keys of the workload -> new values, as in :meth:`Source.in_own_words`.
    """
    every = files(source, changes)
    return None if every is None else next(iter(every.values()))


def files(source: Source, changes: Mapping[str, Any]) -> dict[str, str] | None:
    """The text of every file that a change of the workload changes, by its path; the user's own file comes first.

    A command line is under ``the command``. The other files are DeepSpeed's and accelerate's configurations, under the
    paths that the user gave. Each text is read again: it has the changed keys, and the others as they were.

    Returns:
        None if the change cannot be expressed.
    """
    edited = source.own.edited(changes) if isinstance(source.own, OwnWords) else None
    if edited is None or not isinstance(source.own, OwnWords):
        return None
    try:
        return _files(source.own, edited)
    except InputError:  # a file is no longer there, or cannot be read twice
        return None


def _files(own: OwnWords, edited: Edited) -> dict[str, str] | None:
    before, after = own.user_input, edited.user_input
    _, now = own.read(before)
    names = {edit.name: raw_name(before, now, edit.name) or edit.name for edit in edited.edits if not edit.place}
    of_command = [edit for edit in edited.edits if edit.place in (ENVIRONMENT, LAUNCHER) or (
        not edit.place and (by_command(before, edit.name) or edit.name in before.assigned))]
    of_file = [edit for edit in edited.edits if not edit.place and edit not in of_command]
    texts: dict[str, str] = {}
    if before.text and not before.flags:
        texts[before.name] = _document(before, {names[edit.name]: edit.value for edit in of_file})
    if before.words:
        name = before.started_in or (before.name if before.text else COMMAND)
        line = _command(before, after, of_command, names)
        if line is None:
            return None
        if before.flags or of_command:
            texts[name] = line
    others: dict[str, dict[str, Any]] = {}
    for edit in edited.edits:
        if edit.place not in ("", ENVIRONMENT, LAUNCHER):
            others.setdefault(edit.place, {})[edit.name] = edit.value
    return texts | {place: _other(before, place, edits) for place, edits in others.items()}


def _document(user_input: UserInput, values: Mapping[str, Any]) -> str:
    """The text of a YAML or JSON file with other values of some keys. Dotted keys lead into sections."""
    return with_values(user_input.text, user_input.name, values)


def _other(user_input: UserInput, place: str, values: Mapping[str, Any]) -> str:
    path = beside(place, user_input.path) or place
    return with_values(read_text(path, "a configuration"), path, values)


def with_values(text: str, name: str, values: Mapping[str, Any]) -> str:
    """The text of a YAML or JSON file with other values of some keys; None takes a key out.

    Args:
        values: key, or dotted path of a key -> value. A dotted path counts only if no key is called so.
    """
    is_json = name.lower().endswith(".json")
    document = parse_json(text, name) if is_json else parse_yaml(text, name)
    for key, item in values.items():
        _put(document, key, item)
    if is_json:
        indent = re.search(r"\n([ \t]+)\S", text)
        return json.dumps(document, indent=indent[1] if indent else 4, ensure_ascii=False) + "\n"
    changed = text
    for key, item in values.items():
        changed = _in_yaml(changed, key, item)
    try:
        if parse_yaml(changed, name) == document:
            return changed
    except InputError:
        pass
    import yaml  # imported late: most commands write no YAML

    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _put(document: dict[str, Any], key: str, item: Any) -> None:
    sections = [] if key in document else key.split(".")[:-1]
    for section in sections:
        document = document.setdefault(section, {})
    last = key.split(".")[-1] if sections else key
    if item is None:
        document.pop(last, None)
    else:
        document[last] = item


def _in_yaml(text: str, key: str, item: Any) -> str:
    """YAML with one line of a plain block mapping changed; a key of the top level that is not there is added."""
    name = re.escape(key.rpartition(".")[2])
    line = re.compile(rf"^(?P<key>[ \t]*{name}[ \t]*:)(?P<value>[^\n#]*?)(?P<rest>[ \t]+#[^\n]*)?$\n?"
                      rf"(?P<below>(?:^(?:[ \t]+|- )[^\n]*\n?)*)", re.MULTILINE)
    match = line.search(text)
    if match is None:
        return text if item is None else f"{text.rstrip()}\n{key}: {yaml_text(item)}\n" if text.strip() else text
    below = match["below"] if not match["key"][:1].strip() or match["value"].strip() else ""
    new = "" if item is None else f"{match['key']} {yaml_text(item)}{match['rest'] or ''}\n{below}"
    return text[:match.start()] + new + text[match.end():]


def _command(before: UserInput, after: UserInput, edits: Iterable[Edit], names: Mapping[str, str]) -> str | None:
    """The script, or else the command line, with edits of flags and environment; None if it does not read as wanted."""
    edits = list(edits)
    if before.flags and before.text:
        script = before.text
        for edit in edits:
            script = in_script(script, before, edit, names.get(edit.name, edit.name)) if script else ""
        if script and _reads_as(script, before, after, script=True):
            return script
    words = list(before.words)
    for edit in edits:
        words = in_words(words, before, edit, names.get(edit.name, edit.name))
    line = " ".join(shell_word(word) for word in words)
    return line if not before.flags or _reads_as(line, before, after, script=False) else None


def shell_word(word: str) -> str:
    """A word of a command as a shell needs it written."""
    name, equals, item = word.partition("=")
    return f"{name}={shlex.quote(item)}" if equals and re.fullmatch(r"[A-Za-z_]\w*", name) else shlex.quote(word)


def _reads_as(text: str, before: UserInput, after: UserInput, *, script: bool) -> bool:
    """True if a script or a command line is read as the changed configuration."""
    try:
        read = command.from_script(text, before.name, before.path or "") if script else \
            command.from_words(shlex.split(text), before.name, before.path, before.environment, before.unknown)
    except (InputError, ValueError):
        return False
    wanted, found = accelerate.launched(after), accelerate.launched(read)
    skipped = {key for key, item in wanted.values.items() if isinstance(item, Mapping)}  # their files are elsewhere
    same = {key: item for key, item in found.values.items() if key not in skipped}
    return same == {key: item for key, item in wanted.values.items() if key not in skipped} and (
        found.environment, found.world_size) == (wanted.environment, wanted.world_size)


def _flag(raw: str) -> str:
    return "--" + "[-_]".join(map(re.escape, re.split("[-_]", raw)))


def in_script(text: str, before: UserInput, edit: Edit, raw: str) -> str:
    """A script with one flag or variable changed; empty if the place is not certain."""
    if edit.place == ENVIRONMENT:
        found = [*re.finditer(rf"(?m)^(?!\s*#)(?:[^#\n]*\s)?{edit.name}=(?P<value>{WORD})", text)]
        if len(found) == 1:
            return _spliced(text, *found[0].span("value"), shlex.quote(str(edit.value)))
        start = text.find("\n") + 1 if text.startswith("#!") else 0
        return "" if found else _spliced(text, start, start, f"export {edit.name}={shlex.quote(str(edit.value))}\n")
    has = before.values.get(raw)
    further = len(has) - 1 if isinstance(has, list) else 0
    value = "" if has is True else rf"(?:(?:=|{BLANK})(?!--){WORD}(?:{BLANK}(?!-){WORD}){{0,{further}}})?"
    found = [match for match in re.finditer(rf"(?<![\w-]){_flag(raw)}(?![\w-]){value}", text)
             if "#" not in text[text.rfind("\n", 0, match.start()) + 1:match.start()]]
    if len(found) == 1:
        match = found[0]
        if edit.value is None:
            return text[:match.start()] + text[match.end():].lstrip(" ")
        name = re.match(r"--[\w-]+", match[0])
        assert name is not None  # the match begins with the flag
        kept = name[0] if not name[0].startswith(("--no_", "--no-")) else f"--{edit.name}"
        return _spliced(text, match.start(), match.end(), f"{kept} {_words(before, edit)}")
    if found or edit.value is None or edit.place:
        return ""
    places = ([*re.finditer(rf"(?<![\w-]){_flag(raw)}(?![\w-])", text)] for raw in before.values if raw)
    first = next((found[0].start() for found in places if len(found) == 1), None)
    return "" if first is None else _spliced(
        text, first, first, f"--{user_input_name(before, edit.name)} {_words(before, edit)} ")


def _spliced(text: str, start: int, end: int, new: str) -> str:
    return text[:start] + new + text[end:]


def _words(before: UserInput, edit: Edit) -> str:
    value = flag_value(before, edit.value)
    return " ".join(map(shlex.quote, [value] if isinstance(value, str) else value))


def in_words(words: list[str], before: UserInput, edit: Edit, raw: str) -> list[str]:
    """The words of a command with one flag, variable or KEY=VALUE changed or added."""
    if edit.place == ENVIRONMENT:
        start = next((at for at, word in enumerate(words) if word.startswith(f"{edit.name}=")), None)
        new = [f"{edit.name}={edit.value}"]
        return new + words if start is None else [*words[:start], *new, *words[start + 1:]]
    if edit.name in before.assigned:
        return [f"{edit.name}={yaml_text(edit.value)}" if word.startswith(f"{edit.name}=") else word for word in words]
    value = flag_value(before, edit.value) if edit.value is not None else []
    flags = [f"--{edit.name if raw.replace('-', '_').startswith('no_') else raw}"] if edit.value is not None else []
    new = [*flags, *([value] if isinstance(value, str) else value)]
    same = re.compile(rf"-{{1,2}}{_flag(raw)[2:]}(=.*)?", re.DOTALL)
    at = next((at for at, word in enumerate(words) if same.fullmatch(word)), None)
    if at is None:
        shown = [f"--{user_input_name(before, edit.name)}", *new[1:]] if new else []
        if edit.place:  # a launcher's option stands before the program
            start = next(at for at, word in enumerate(words) if word in ("launch", "accelerate.commands.launch"))
            return [*words[:start + 1], f"--{edit.name}", *new[1:], *words[start + 1:]]
        end = next((at for at, word in enumerate(words) if word in ("$@", "$*")), len(words))
        return [*words[:end], *shown, *words[end:]]
    end = next((end for end in range(at + 1, len(words)) if re.match(r"--?[A-Za-z]|\$[@*]$", words[end])), len(words))
    end = at + 1 if "=" in words[at] else at + 2 if edit.place else end
    return [*words[:at], *new, *words[end:]]

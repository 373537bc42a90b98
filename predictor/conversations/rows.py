"""Reads the rows of a dataset from JSON, JSON Lines or Parquet, and each as one conversation.

    {"image": "a.jpg", "conversations": [{"from": "human", "value": "<image>\\nWhat is it?"}, …]}    LLaVA, ShareGPT
    {"images": ["a.jpg"], "messages": [{"role": "user", "content": "<image>What is it?"}, …]}      LLaMA-Factory
    {"messages": [{"role": "user", "content": [{"type": "image", "image": "a.jpg"}, …]}, …]}       transformers, TRL
    {"prompt": …, "completion": …}                                                                 TRL
    {"instruction": …, "input": …, "output": …}                                                    Alpaca
    {"query": …, "response": …}                                                                    ms-swift
    {"text": "a text without turns"}
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from predictor.common.errors import InputError
from predictor.common.files import CHUNK_BYTES, lines, opened, parse_json, read_text
from predictor.common.installing import pip_install
from predictor.common.suggestions import file_name, quoted

LARGEST_FILE_BYTES = 2 << 30
"""Bytes of a file, and of what the rows of a Parquet file unpack to."""
AT_ONCE = 16
"""Rows of a Parquet file that are unpacked together: a few bytes of it may stand for many."""
MOST_TIMES, SPARE_BYTES = 64, 64 << 20
"""Most by which a Parquet file may grow when it is unpacked: so many times its bytes, and so many bytes more."""
SPARE_ROWS = 200_000
"""Rows of a Parquet file of any size. A larger file has at most one for each byte."""
MOST_GROUPS = 10_000
"""Row groups of a Parquet file. Writers make one of thousands of rows."""
OBJECT_BYTES = 50
"""Memory of any value in Python, about."""
MARKER = "<image>"
"""Stands in a text for the next picture (LLaVA, llava/constants.py; LLaMA-Factory, extras/constants.py; ms-swift)."""
ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "function_call": "assistant",
         "observation": "tool"}
"""Names of roles in ShareGPT's form and others -> those of chat templates (LLaMA-Factory, data/parser.py)."""
KNOWN_ROLES = ("system", "user", "assistant", "tool")
PICTURE_TYPES = ("image", "image_url")
"""Types of parts of a message that are pictures (transformers, apply_chat_template; TRL, data_utils.py)."""
SAID_BY = ("image", "image_url", "url", "path")
"""Keys of such a part, of which the first with a value says which picture."""
KNOWN_FORMS = "messages, conversations, prompt and completion, instruction and output, query and response, or text"
Picture = Any
"""What a row says of a picture: a path, or a mapping with ``bytes``, ``path`` or ``url``."""


@dataclass(frozen=True)
class Conversation:
    """One sample.

    Attributes:
        messages: each turn's role and its parts, texts (``str``) and places of pictures (None), in order.
        pictures: what the row says of each picture, in the order of their places.
        text: the whole text of a sample without turns, which no chat template changes; then there are no messages.
    """

    messages: tuple[tuple[str, tuple[str | None, ...]], ...] = ()
    pictures: tuple[Picture, ...] = ()
    text: str = ""


def read(path: str) -> list[tuple[str, Conversation]]:
    """The rows of a file as conversations, each with its place for messages.

    Raises:
        InputError: the file cannot be read, or holds no row; or the first wrong row (:func:`conversation`).
    """
    name, ending = file_name(path), path.lower().rpartition(".")[2]
    if ending not in FORMS:
        raise InputError(f"{name}: must end in .{', .'.join(FORMS)}, which says how its rows are written")
    rows = [(where, conversation(row, where)) for where, row in FORMS[ending](path, name)]
    if not rows:
        raise InputError(f"{name}: holds no sample")
    return rows


def _json(path: str, name: str) -> Iterator[tuple[str, Any]]:
    document = parse_json(read_text(path, "the dataset", LARGEST_FILE_BYTES), name, "a dataset")
    if not isinstance(document, list):
        raise InputError(f"{name}: must be a list of samples")
    for number, row in enumerate(document, start=1):
        yield f"{name}: sample {number:,}", row


def _jsonl(path: str, name: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines(read_text(path, "the dataset", LARGEST_FILE_BYTES)), start=1):
        if line.strip():
            where = f"{name}: line {number:,}"
            yield where, parse_json(line, where, "a dataset")


def _parquet(path: str, name: str) -> Iterator[tuple[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{name}: Parquet files are read with pyarrow: {pip_install('pyarrow')}") from None
    with opened(path, "the dataset", pipes=False) as stream:
        size = stream.seek(0, io.SEEK_END)
        most = min(LARGEST_FILE_BYTES, MOST_TIMES * size + SPARE_BYTES)
        number = unpacked = 0
        try:
            file = parquet.ParquetFile(stream, buffer_size=CHUNK_BYTES)
            if file.metadata.num_rows > max(SPARE_ROWS, size):
                raise InputError(f"{name}: has {file.metadata.num_rows:,} rows in {size:,} bytes: give fewer rows")
            if file.metadata.num_row_groups > MOST_GROUPS:
                raise InputError(f"{name}: has {file.metadata.num_row_groups:,} row groups: write it with at most "
                                 f"{MOST_GROUPS:,}")
            groups = range(file.metadata.num_row_groups)
            _check_unpacked(sum(file.metadata.row_group(group).total_byte_size for group in groups), most, name)
            for batch in file.iter_batches(AT_ONCE):
                _check_unpacked(unpacked + batch.nbytes, most, name)
                for row in batch.to_pylist():
                    number += 1
                    unpacked += _bytes_of(row)
                    _check_unpacked(unpacked, most, name)
                    yield f"{name}: row {number:,}", row
        except InputError:
            raise
        except Exception as error:  # besides its own errors, those of Python's values: dates after 9999, time zones
            reason = quoted(str(error), 200)[1:-1]
            raise InputError(f"{name}: is no Parquet file that can be read: {reason}") from None


def _check_unpacked(size: int, most: int, name: str) -> None:
    if size > most:
        raise InputError(f"{name}: unpacks to more than {most >> 20} MiB: give fewer rows")


def _bytes_of(value: Any) -> int:
    """About the memory of a row's values. A table counts a text once that many of its rows share."""
    if isinstance(value, dict):
        return OBJECT_BYTES + sum(map(_bytes_of, value.values()))
    if isinstance(value, (list, tuple)):
        return OBJECT_BYTES + sum(map(_bytes_of, value))
    return OBJECT_BYTES + (len(value) if isinstance(value, (str, bytes)) else 0)


Rows = Callable[[str, str], Iterator[tuple[str, Any]]]
FORMS: dict[str, Rows] = {"jsonl": _jsonl, "json": _json, "parquet": _parquet}
"""Ending of a file's name -> function that yields its rows, each with its place in the file."""


def conversation(row: Any, where: str) -> Conversation:
    """A row as one conversation.

    Raises:
        InputError: the row has none of the known forms, or more places for pictures than pictures.
    """
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: must be a mapping with {KNOWN_FORMS}, not {quoted(row)}")
    row = {key: value for key, value in row.items() if value is not None}
    for key in ("video", "videos", "audio", "audios", "chosen", "tools"):
        if row.get(key):
            raise InputError(f"{where}: has {key}, whose tokens are not counted: write them to a file tokens,images")
    turns = next((turns for form in ROW_FORMS if (turns := form(row, where)) is not None), None)
    if turns is None:
        has = f"has {quoted(', '.join(map(str, row)))}" if row else "has no value"
        raise InputError(f"{where}: must have {KNOWN_FORMS}, but {has}")
    said = row.get("images", row.get("image")) or ()
    pictures = said if isinstance(said, (list, tuple)) else [said]
    found = turns if isinstance(turns, Conversation) else _conversation(turns, where)
    return _placed(replace(found, pictures=(*found.pictures, *pictures)), where)


def _messages(row: Mapping[str, Any], where: str) -> Any:
    """Turns, after the row's own system prompt (ms-swift, dataset/preprocessor/core.py; LLaMA-Factory's column)."""
    turns, system = row.get("messages", row.get("conversations")), row.get("system")
    return [{"role": "system", "content": system}, *turns] if system and isinstance(turns, (list, tuple)) else turns


def _prompt(row: Mapping[str, Any], where: str) -> Any:
    if "prompt" not in row or "completion" not in row:
        return None
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        return Conversation(text=prompt + completion)
    if isinstance(prompt, list) and isinstance(completion, list):
        return [*prompt, *completion]
    raise InputError(f"{where}: prompt and completion must both be texts, or both lists of messages")


def _instruction(row: Mapping[str, Any], where: str) -> Any:
    """Alpaca's form, and that of ms-swift. (LLaMA-Factory, data/converter.py, AlpacaDatasetConverter.)"""
    asked, answer = (("instruction", "output") if "instruction" in row else ("query", "response"))
    if asked not in row or answer not in row:
        return None
    turns = [("system", row["system"])] if row.get("system") else []
    history = row.get("history") or ()
    for pair in history if isinstance(history, (list, tuple)) else [history]:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise InputError(f"{where}: history must be a list of pairs, question and answer")
        turns += [("user", pair[0]), ("assistant", pair[1])]
    question = "\n".join(str(part) for part in (row[asked], row.get("input")) if part)
    return [{"role": role, "content": text} for role, text in [*turns, ("user", question), ("assistant", row[answer])]]


def _text(row: Mapping[str, Any], where: str) -> Any:
    return Conversation(text=row["text"]) if isinstance(row.get("text"), str) else None


ROW_FORMS = (_messages, _prompt, _instruction, _text)
"""Functions that give a row's turns, or None if the row does not have their form."""


def _conversation(turns: Any, where: str) -> Conversation:
    if not isinstance(turns, (list, tuple)) or not turns:
        raise InputError(f"{where}: must have a list of messages, not {quoted(turns)}")
    messages, pictures = [], []
    for turn in turns:
        if not isinstance(turn, Mapping):
            raise InputError(f"{where}: a message must be a mapping with role and content, not {quoted(turn)}")
        role = turn.get("role", turn.get("from"))
        role = ROLES.get(role, role) if isinstance(role, str) else role
        if role not in KNOWN_ROLES:
            raise InputError(f"{where}: role must be one of {', '.join([*KNOWN_ROLES, *ROLES])}, not {quoted(role)}")
        parts: list[str | None] = []
        content = turn.get("content", turn.get("value"))
        _check_content(turn, content, where)
        for part in [content] if isinstance(content, str) else content:
            if isinstance(part, str):
                parts += _with_places(part)
            elif isinstance(part, Mapping) and part.get("type") in PICTURE_TYPES:
                parts.append(None)
                pictures += [said for key in SAID_BY if (said := part.get(key))][:1]
            elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
                parts.append(part["text"])
            else:
                raise InputError(f"{where}: a message has {quoted(part)}, which is neither a text nor a picture")
        messages.append((role, tuple(parts)))
    return Conversation(tuple(messages), tuple(pictures))


def _check_content(turn: Mapping[str, Any], content: Any, where: str) -> None:
    if turn.get("tool_calls"):
        raise InputError(f"{where}: a message has tool_calls, whose tokens are not counted: write them to a file "
                         "tokens,images")
    if content is None:
        raise InputError(f"{where}: a message has no content: give a text, or leave the message out")
    if not isinstance(content, (str, list, tuple)):
        raise InputError(f"{where}: a message must be a text or a list of parts, not {quoted(content)}")


def _with_places(text: str) -> Iterator[str | None]:
    first, *others = text.split(MARKER)
    yield from [first] if first or not others else []
    for other in others:
        yield None
        yield from [other] if other else []


def _placed(found: Conversation, where: str) -> Conversation:
    """With a place for each picture: without any, all come first in the user's first message (TRL, data_utils.py)."""
    places = sum(part is None for _, parts in found.messages for part in parts)
    if not places and found.pictures:
        users = [number for number, (role, _) in enumerate(found.messages) if role == "user"]
        if not users:
            raise InputError(f"{where}: has {len(found.pictures)} picture(s), but no message of the user")
        messages = list(found.messages)
        role, parts = messages[users[0]]
        messages[users[0]] = role, (*[None] * len(found.pictures), *parts)
        return replace(found, messages=tuple(messages))
    if places != len(found.pictures):
        raise InputError(f"{where}: has {len(found.pictures)} picture(s), but {places} place(s) for them ({MARKER})")
    return found

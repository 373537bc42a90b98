"""What reads an input: the command, or the Python function that a command calls first. Nothing is traced or run."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from predictor.common.errors import InputError
from predictor.formula import store
from tests.attack import commands

ANSWERS = (0, 1, 2)
"""Exit codes of a command."""
REFUSED = 2


class Broken(Exception):
    """A target behaved as none may. The message says how."""


def command(*words: str) -> None:
    """Runs ``peakcast`` with these words, in this process.

    Raises:
        InputError: the command refused its input, in one line.
        Broken: the command ended with another exit code, or did not say one line.
    """
    code, out, said = commands.run(*words)
    if code not in ANSWERS:
        raise Broken(f"exit code {code}")
    if re.search(r"^Traceback \(most recent call last\):$", said, re.MULTILINE):
        raise Broken(f"a traceback on stderr: {said[-400:]}")
    if code == REFUSED and words[:1] == ("fits",):  # its table says which files could not be read
        raise InputError("a file could not be read")
    if code == REFUSED:
        told = [line for line in said.splitlines() if line.startswith("peakcast: error: ")]
        if len(told) != 1 or out:
            raise Broken(f"exit code 2 with {len(told)} lines of error and {len(out)} characters on stdout")
        raise InputError(told[0])


def read(path: str, form: str | None = None) -> None:
    """Reads a framework's file, as ``--from`` does, and makes its workload."""
    from predictor import readers

    _workload(*readers.read(path=path, form=form))


def words(*given: str) -> None:
    """Reads a training's command line, as behind ``--``, and makes its workload."""
    from predictor import readers

    _workload(*readers.read(words=given))


def words_on_gpus(*given: str) -> None:
    """The same with an option for the number of GPUs, which replaces one that the command does not say."""
    from predictor import readers

    _workload(*readers.read(words=given, options={"data_parallel_size": 8}))


def _workload(values: dict[str, Any], source: Any) -> None:
    from predictor.workload.workload import Workload

    Workload.from_mapping(values, source=lambda name: name).read_from(source)


def workload(path: str) -> None:
    """Reads a file for ``--workload``."""
    from predictor.workload.workload import Workload

    Workload.from_file(path)


def snapshot(path: str) -> None:
    """Reads and replays a memory snapshot."""
    from predictor.snapshot import read
    from predictor.snapshot.replay import replay

    replay(read(path), 0, None, None)


def formula(path: str) -> None:
    """Reads a traced formula, and evaluates its sizes."""
    from pathlib import Path

    from predictor.common import gpus
    from predictor.events.sizes import Shape
    from predictor.formula.formula import load

    found = load(Path(path))
    shape = Shape(2, 1024, 2)
    found.at(shape).micro.events.sizes.at(shape, gpus.find("h100-80gb"))


def learned(path: str) -> None:
    """Reads a learned formula."""
    from predictor.formula import learned

    learned.load(path)


def profile(path: str) -> None:
    """Reads a profile."""
    from predictor.profile import profile

    profile.read(path)


def record(path: str) -> None:
    """Reads the record of a measured job."""
    from calibrate.records import record

    record.read(path).to_json()


def campaign(path: str) -> None:
    """Reads the rows of a campaign."""
    from calibrate.campaign import rows

    rows.read(path)


def measurements(path: str) -> None:
    """Reads measured jobs, as ``report`` does: those that it cannot read are named, and skipped."""
    from calibrate.regression import files

    files.read([path])


def gates(path: str) -> None:
    """Reads gates."""
    from calibrate.regression import gates

    gates.read(path)


def samples(path: str) -> None:
    """Reads the samples of a dataset."""
    from predictor.workload import samples

    samples.read(path)


def dataset(path: str) -> None:
    """Reads the conversations of a dataset."""
    from predictor.conversations import rows

    rows.read(path)


def picture(said: str) -> None:
    """Reads the size of a picture, which a row names or holds."""
    import json

    from predictor.conversations import pictures

    pictures.size(json.loads(said), "", "a row")


def tokens(path: str, processor: str) -> None:
    """Counts the tokens of a dataset with a processor."""
    from predictor.conversations import tokens

    tokens.read(path, processor)


def log(path: str) -> None:
    """Finds and explains the out-of-memory messages of a log."""
    from predictor.common.files import read_text
    from predictor.oom.explanation import explain
    from predictor.oom.log import LARGEST_LOG_BYTES
    from predictor.oom.message import find

    for message in find(read_text(path, "the log", LARGEST_LOG_BYTES)):
        _ = explain(message).limit


def model(path: str) -> None:
    """Reads a model's configuration and asks for its formula. There is none: to be about to trace it counts as read."""
    from predictor.jobs import dispatch
    from predictor.workload.workload import Workload
    from tests.attack import model_numbers

    with contextlib.suppress(store.NotTraced):
        dispatch.prepare(Workload(model=path, sequence_length=1024), None)
    if wrong := model_numbers.impossible(path):
        raise Broken(f"a model is about to be built although {wrong}")


TARGETS: dict[str, Callable[..., None]] = {
    function.__name__: function for function in (
        command, read, words, words_on_gpus, workload, snapshot, formula, learned, profile, record, campaign, measurements, gates, samples, dataset, picture, tokens, log,
        model)}
"""Name -> what reads an input. It returns if it could, and raises InputError if not; anything else is a finding."""


TOKENIZED = ("tokens",)
"""Formats whose inputs are read with transformers."""


@contextlib.contextmanager
def nothing_traced(tokenized: bool = False) -> Iterator[None]:
    """Inside this context no model is traced: a formula that is not shipped is refused, and torch cannot be imported.

    Args:
        tokenized: torch and transformers can be imported, for tokenizers and processors.
    """
    with store.existing_only(), mock.patch.object(sys, "stdin", io.StringIO()), contextlib.ExitStack() as stack:
        for name in () if tokenized else ("torch", "transformers"):
            stack.enter_context(_not_importable(name))
        yield


@contextlib.contextmanager
def _not_importable(name: str) -> Iterator[None]:
    """Inside this context a module cannot be imported. Others that are imported meanwhile stay: torch cannot be imported twice."""
    before = sys.modules.get(name)
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before


def imported() -> None:
    """Imports what the inputs of :data:`TOKENIZED` need: seconds and some 700 MB, which no input can change."""
    from tests.attack import conversations

    for name in conversations.PROCESSORS:
        conversations.processor(name)
    with tempfile.TemporaryDirectory() as place:
        for name, content in {**conversations.processor("llava"), "d.jsonl": DATASET}.items():
            (Path(place) / name).write_bytes(content)
        tokens(f"{place}/d.jsonl", place)


DATASET = b'{"messages": [{"role": "user", "content": "x"}]}'

"""Turns a framework's configuration into the keys of a workload, and records the origin of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from predictor.common.errors import InputError
from predictor.readers.fields import for_rules
from predictor.readers.reading import Format, Reading
from predictor.readers.user_input import UserInput
from predictor.readers.value_types import TEXT
from predictor.workload.keys import ALLOCATOR_VARIABLES, Keys
from predictor.workload.value_sources import READ, Note, Source, value

SETTINGS = for_rules(TEXT, option="allocator_conf")
LOOP = {"keep_outputs": "none", "zero_grad": "after_step"}
"""Keys of the loop of transformers' Trainer, which trains in every format with rules (5.17, trainer.py:
``compute_loss`` returns only the loss, and ``zero_grad`` follows the optimizer step)."""


def read(form: Format, user_input: UserInput) -> tuple[dict[str, Any], Source]:
    """Reads a configuration of a known format.

    Returns:
        The keys of the workload, and the origin of each.

    Raises:
        InputError: the framework does not have a key, a key is rejected, or a value is invalid. The message names file
            and key.
    """
    reading = with_rules(form, user_input)
    keys_of_notes: dict[Note, list[str]] = {}
    for name, written in reading.written.items():
        if not reading.is_listed(name):
            _list(reading, name, written, keys_of_notes)
    reading.notes = [replace(note, text=f"{', '.join(keys_of_notes[note])}: {note.text}")
                     if note in keys_of_notes else note for note in reading.notes]
    return reading.workload, reading.source()


def _list(reading: Reading, name: str, written: str, keys_of_notes: dict[Note, list[str]]) -> None:
    """Lists a key that no value and no note names yet.

    The configuration is read again without the key. The key is added to the values and notes that change; if none
    changes, it is listed as one without effect.
    """
    rest = {key: item for key, item in reading.input.values.items() if key not in (written, written.replace("_", "-"))}
    try:
        other = with_rules(reading.form, replace(reading.input, values=rest))
    except InputError:
        reading.rows["recipe"] = reading.rows["recipe"].also_from(reading.input.name, reading.called(name))
        return
    rows = [key for key, row in reading.rows.items() if key not in other.rows or other.rows[key].value != row.value]
    notes = [note for note in reading.notes if note not in other.notes]
    for key in rows:
        reading.rows[key] = reading.rows[key].also_from(reading.input.name, reading.called(name))
    for note in notes if not rows else ():
        keys_of_notes.setdefault(note, []).append(name)
    if not notes and not rows:
        reading.unread.append(written)


def with_rules(form: Format, user_input: UserInput) -> Reading:
    reading = Reading(form, user_input)
    if user_input.world_size is not None:
        reading.workload["data_parallel_size"] = user_input.world_size
        reading.rows["data_parallel_size"] = value("data_parallel_size", user_input.world_size, READ, user_input.starts,
                                                   user_input.launched_by)
    elif user_input.launched_by and user_input.gpus is None:
        reading.note(f"{user_input.launched_by} starts a process for each GPU that it finds: one GPU is assumed "
                     "(give data_parallel_size)")
    elif not user_input.launched_by and user_input.gpus is None and \
            "," in user_input.environment.get("CUDA_VISIBLE_DEVICES", ""):
        reading.note("nn.DataParallel, which the Trainer uses where several GPUs are visible and no launcher starts a "
                     "process for each: one GPU is predicted, with one micro batch")
    _allocator(reading)
    for name, known in form.fields.items():
        if known.ours and (name in reading or known.default is not None):
            reading.put(known.ours, reading[name], name)
    if reading["bf16"] in (True, "full") and reading["fp16"]:  # transformers 5.17, training_args.py, __post_init__
        raise reading.wrong("fp16", f"is true, and so is {reading.called('bf16')}: keep one")
    form.rules(reading)
    for name, item in LOOP.items():
        reading.put(name, item, because="the Trainer's loop")
    reading.note("inputs of a step's further micro-batches, which the Trainer fetches in advance", _accumulates)
    return reading


def _accumulates(workload: Keys) -> str | None:
    return "" if workload.gradient_accumulation_steps > 1 else None


def _allocator(reading: Reading) -> None:
    """Reads the settings of PyTorch's caching allocator from the environment variables."""
    user_input = reading.input
    settings = {name: user_input.environment[name] for name in ALLOCATOR_VARIABLES if user_input.environment.get(name)}
    if len(set(settings.values())) > 1:
        raise InputError(f"{user_input.starts}: {' and '.join(settings)} differ: keep one")
    for name, text in settings.items():
        reading.workload["allocator_conf"] = reading.checked(name, SETTINGS, text)
        reading.rows["allocator_conf"] = value("allocator_conf", text, READ, user_input.starts, name)

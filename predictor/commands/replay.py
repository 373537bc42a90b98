"""Replay a recorded memory history: does the simulated allocator agree, or what would other settings change?"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from predictor.commands import output
from predictor.common import numbers
from predictor.common.errors import InputError
from predictor.common.suggestions import file_name, quoted
from predictor.common.value_types import Invalid, Size

if TYPE_CHECKING:
    from rich.console import Console

    from predictor.allocator import AllocatorSettings
    from predictor.snapshot.records import Snapshot

EXAMPLES = """examples:
  peakcast replay snapshot.pickle
  peakcast replay snapshot.pickle.xz --device 1 --json -o replay.json
  peakcast replay snapshot.pickle --allocator-conf expandable_segments:True
  peakcast replay snapshot.pickle --allocator-conf max_split_size_mb:512 --capacity-bytes 80GiB
  peakcast replay snapshot.pickle --capacity-bytes 20GiB

SNAPSHOT is a file that torch.cuda.memory._dump_snapshot(FILE) writes after
torch.cuda.memory._record_memory_history(), or that peakcast measure --snapshot FILE writes (PyTorch 2.1 or
later). It may be compressed with xz, gzip or bzip2. No code in it is run. The history may begin in the middle
of a run: the blocks that the allocator held before are derived from the state at its end.

With settings other than the recorded ones, or with --capacity-bytes, the job's allocations and frees are played with
those, and the answer says what changes and whether the job survives. PyTorch then gets the memory of --capacity-bytes,
or what it had where the recording ran out, or the device's memory in the snapshot less 1 GiB for what is outside
PyTorch, as peakcast predict assumes.

exit codes: 0 simulation and recording agree, or nothing was recorded, 1 they differ, 2 bad input; with other settings
or --capacity-bytes 0 the job survives, 1 it runs out of memory
"""

MOST_SHOWN = 16
"""Devices that a message lists."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the file, the device, the allocator's settings, and the options of the output."""
    parser.add_argument("snapshot", metavar="SNAPSHOT", help="the recorded memory history")
    parser.add_argument("--device", metavar="N", help="number of the device; default: the only one that has a history")
    parser.add_argument("--allocator-conf", metavar="SETTINGS",
                        help="allocator settings, as in PYTORCH_CUDA_ALLOC_CONF; default: those in the snapshot. "
                             "With others the answer is what they change")
    parser.add_argument("--capacity-bytes", metavar="SIZE",
                        help="the memory that PyTorch can have, such as 80GiB: would the job survive with it? Default: "
                             "what it had where the recording ran out, or the device's memory in the snapshot "
                             "(peakcast predict writes it, PyTorch does not) less 1 GiB")
    output.add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    """Reads, replays and reports. The exit code says whether simulation and recording agree."""
    output.check_path(arguments.output, arguments.force)
    device = None if arguments.device is None else _number(arguments.device)
    settings = None
    if arguments.allocator_conf is not None:
        from predictor.allocator import AllocatorSettings

        settings = AllocatorSettings.parse(arguments.allocator_conf)
    capacity = None if arguments.capacity_bytes is None else _size(arguments.capacity_bytes)
    from predictor.snapshot import read
    from predictor.snapshot.replay import replay

    path = arguments.snapshot
    name = file_name(path)
    snapshot = read(path)
    try:
        device = _only(snapshot) if device is None else device
        if _is_what_if(snapshot, device, settings, capacity):
            return _what_if(arguments, snapshot, device, settings, capacity)
        result = replay(snapshot, device, settings, capacity)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None

    def document() -> dict[str, Any]:
        from predictor.report.replay import document

        return document(result, path)

    def report(console: Console) -> None:
        from predictor.report.replay import report

        report(console, result, name)

    output.write(arguments, document, report)
    return 1 if result.agrees is False else 0


def _is_what_if(snapshot: Snapshot, device: int, settings: AllocatorSettings | None, capacity: int | None) -> bool:
    """Whether a capacity, or other settings than the recorded ones, are asked for, and there is a history to play."""
    from predictor.snapshot.what_if import is_other

    if settings is not None and is_other(snapshot, settings):
        return True
    return capacity is not None and device < len(snapshot.traces) and len(snapshot.traces[device]) > 0


def _what_if(arguments: argparse.Namespace, snapshot: Snapshot, device: int, settings: AllocatorSettings | None,
             capacity: int | None) -> int:
    """Plays the history with other settings and reports. The exit code says whether the job survives."""
    from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES
    from predictor.report import replay as rendered
    from predictor.snapshot.replay import replay, settings_of
    from predictor.snapshot.what_if import what_if

    played = settings_of(snapshot.settings) if settings is None else settings
    result = what_if(snapshot, device, played, capacity, ASSUMED_RUNTIME_BYTES)
    recorded = replay(snapshot, device, None, snapshot.total_bytes.get(device, capacity))
    name = file_name(arguments.snapshot)
    output.write(arguments, lambda: rendered.what_if_document(result, recorded, arguments.snapshot),
                 lambda console: rendered.what_if_report(console, result, recorded, name))
    return 0 if result.failure is None else 1


def _only(snapshot: Snapshot) -> int:
    """The only device with a history; without a history, the first device that holds memory."""
    recorded = [number for number, trace in enumerate(snapshot.traces) if len(trace)]
    if len(recorded) > 1:
        shown = ", ".join(map(str, recorded[:MOST_SHOWN])) + (" and others" if len(recorded) > MOST_SHOWN else "")
        raise InputError(f"it has the histories of devices {shown}: choose one with --device")
    if not snapshot.traces:
        raise InputError("it lists no devices: record with torch.cuda.memory._record_memory_history()")
    holding = [segment.device for segment in snapshot.segments if segment.device < len(snapshot.traces)]
    return recorded[0] if recorded else min(holding, default=0)


def device_of(snapshot: Snapshot, text: str | None) -> int:
    """The device that an option names, or the only one with a history.

    Raises:
        InputError: it is no number, there is no such device, or none is named and several have a history.
    """
    device = _only(snapshot) if text is None else _number(text)
    if device >= len(snapshot.traces):
        raise InputError(f"it has no device {device}: it lists {len(snapshot.traces)} device(s)")
    return device


def _size(text: str) -> int:
    try:
        return Size().from_text(text)
    except Invalid as error:
        raise InputError(f"--capacity-bytes {error}") from None


def _number(text: str) -> int:
    number = numbers.whole(text)
    if number is None or number > 99_999:
        raise InputError(f"--device must be the number of a device, such as 0, not {quoted(text)}")
    return number

"""Replay a recorded memory history through the simulated allocator, and compare the two."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from predictor.commands import output
from predictor.common.errors import InputError
from predictor.common.suggestions import file_name, quoted
from predictor.common.value_types import Invalid, Size

if TYPE_CHECKING:
    from rich.console import Console

    from predictor.snapshot.records import Snapshot

EXAMPLES = """examples:
  peakcast replay snapshot.pickle
  peakcast replay snapshot.pickle.xz --device 1 --json -o replay.json
  peakcast replay snapshot.pickle --allocator-conf max_split_size_mb:512

SNAPSHOT is a file that torch.cuda.memory._dump_snapshot(FILE) writes after
torch.cuda.memory._record_memory_history(), or that peakcast measure --snapshot FILE writes (PyTorch 2.1 or
later). It may be compressed with xz, gzip or bzip2. No code in it is run. The history may begin in the middle
of a run: the blocks that the allocator held before are derived from the state at its end.

exit codes: 0 simulation and recording agree, or nothing was recorded, 1 they differ, 2 bad input
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the file, the device, the allocator's settings, and the options of the output."""
    parser.add_argument("snapshot", metavar="SNAPSHOT", help="the recorded memory history")
    parser.add_argument("--device", metavar="N", help="number of the device; default: the only one that has a history")
    parser.add_argument("--allocator-conf", metavar="SETTINGS",
                        help="allocator settings, as in PYTORCH_CUDA_ALLOC_CONF; default: those in the snapshot")
    parser.add_argument("--capacity-bytes", metavar="SIZE",
                        help="the device's memory, such as 80GiB; only expandable segments need it; default: the one "
                             "in the snapshot (peakcast predict writes it, PyTorch does not)")
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
        result = replay(snapshot, _only(snapshot) if device is None else device, settings, capacity)
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


def _only(snapshot: Snapshot) -> int:
    """The only device with a history; without a history, the first device that holds memory."""
    recorded = [number for number, trace in enumerate(snapshot.traces) if len(trace)]
    if len(recorded) > 1:
        raise InputError(f"it has the histories of devices {', '.join(map(str, recorded))}: choose one with --device")
    if not snapshot.traces:
        raise InputError("it lists no devices: record with torch.cuda.memory._record_memory_history()")
    holding = [segment.device for segment in snapshot.segments if segment.device < len(snapshot.traces)]
    return recorded[0] if recorded else min(holding, default=0)


def _size(text: str) -> int:
    try:
        return Size().from_text(text)
    except Invalid as error:
        raise InputError(f"--capacity-bytes {error}") from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 5:
        raise InputError(f"--device must be the number of a device, such as 0, not {quoted(text)}")
    return int(text)

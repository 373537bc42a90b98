"""PyTorch's own allocator on the emulated GPU and the simulation, side by side.

``run`` starts a job on the emulated GPU; inside it (``main``) both sides take each event of a sequence in turn and
are compared after it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from calibrate.emulator.injection import injected_values
from predictor.allocator import AllocatorSettings, CachingAllocator, OutOfMemory, SimulatedDriver
from predictor.allocator.constants import FIRST_ADDRESS, LAST_ADDRESS
from tests.calibrate.allocator_sequences import MIB, STREAMS, Case, case

COMPLETIONS = ("immediate", "launches:3", "synchronization")

#: Compared after every event: the name in torch.cuda.memory_stats, and here.
COUNTERS = {
    "requested_bytes": "requested_bytes", "allocated_bytes": "allocated_bytes", "active_bytes": "active_bytes",
    "reserved_bytes": "reserved_bytes", "segment": "segments", "inactive_split_bytes": "inactive_split_bytes",
}
PEAKS = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")


def step() -> int:
    """The address step of this job's emulated GPU, in bytes."""
    return int((injected_values() or {}).get("address_step_bytes", 0))


class Simulated:
    """The simulation, driven by events."""

    def __init__(self, case: Case, completion: str, capacity_bytes: int, total_bytes: int) -> None:
        driver = SimulatedDriver(capacity_bytes, total_bytes, step())
        if case.room_bytes is not None:
            driver.allocate(capacity_bytes - case.room_bytes)
        self.allocator = CachingAllocator(AllocatorSettings.parse(case.settings), driver, completion)
        self.allocator.set_per_process_memory_fraction(case.fraction)
        self.blocks = {}

    def do(self, event: tuple) -> object:
        """Play one event; what a program could see of it."""
        allocator, (kind, *arguments) = self.allocator, event
        if kind == "malloc":
            buffer, size, stream = arguments
            try:
                self.blocks[buffer] = block = allocator.malloc(size, stream)
            except OutOfMemory:
                return "out of memory"
            return block.address
        if kind == "settings":
            allocator.change_settings(AllocatorSettings.parse(arguments[0]))
        elif kind in ("free", "record"):
            block = self.blocks.get(arguments[0]) if kind == "record" else self.blocks.pop(arguments[0], None)
            if block is not None:
                getattr(allocator, "free" if kind == "free" else "record_stream")(block, *arguments[1:])
        else:
            getattr(allocator, kind)(*arguments)
        return None

    def counters(self) -> list[int]:
        allocator = self.allocator
        return [*(getattr(allocator, name) for name in COUNTERS.values()), allocator.num_alloc_retries,
                allocator.num_ooms, *(getattr(allocator, f"peak_{name}") for name in PEAKS)]

    def segments(self) -> list:
        return [[segment.address, segment.total_size, segment.stream, segment.pool, segment.is_expandable,
                 [[block.address, block.size, block.state, block.requested_size if block.state != "inactive" else 0]
                  for block in segment.blocks]] for segment in self.allocator.snapshot_segments()]


class Real:
    """PyTorch's allocator in this process, from empty to empty."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        torch.cuda.init()
        self.streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(STREAMS - 1))]
        self.number = {stream.cuda_stream: number for number, stream in enumerate(self.streams)}
        self.library = ctypes.CDLL(None)  # the emulated CUDA, preloaded
        self.capacity_bytes, self.total_bytes = torch.cuda.mem_get_info()
        self.ballast = ctypes.c_void_p()
        self.tensors = {}

    def begin(self, case: Case) -> None:
        torch = self.torch
        if case.room_bytes is not None:
            size = ctypes.c_size_t(self.capacity_bytes - case.room_bytes)
            assert self.library.cudaMalloc(ctypes.byref(self.ballast), size) == 0
        self.change_settings(case.settings)
        torch.cuda.set_per_process_memory_fraction(case.fraction)
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()

    def end(self) -> None:
        """Give everything back, so that the next sequence starts from an empty allocator."""
        self.tensors.clear()
        self.torch.cuda.empty_cache()
        if self.ballast:
            assert self.library.cudaFree(self.ballast) == 0
            self.ballast = ctypes.c_void_p()
        self._give_back_addresses()
        assert self.torch.cuda.memory_reserved() == 0
        assert self.torch.cuda.mem_get_info()[0] == self.capacity_bytes

    def _give_back_addresses(self) -> None:
        """An expandable segment that never got a page is not given back until it had one."""
        self.torch.cuda.set_per_process_memory_fraction(1.0)
        self.change_settings("expandable_segments:True")
        for stream in range(STREAMS):
            for size in (1, 2 * MIB):
                self.do(("malloc", 0, size, stream))
                self.do(("free", 0))
        self.torch.cuda.empty_cache()
        self.change_settings("")
        self.do(("malloc", 0, 1, 0))
        assert self.tensors[0].data_ptr() == (LAST_ADDRESS - step() if step() else FIRST_ADDRESS)
        self.tensors.clear()
        self.torch.cuda.empty_cache()

    def change_settings(self, text: str) -> None:
        """Two keys that a change leaves as they were are always said (AllocatorConfig.cpp, parseArgs)."""
        said = ["large_segment_size_mb:20"] * ("large_segment" not in text)
        said += ["expandable_segments:False"] * ("expandable" not in text)
        self.torch._C._accelerator_setAllocatorSettings(",".join([*said, text]).rstrip(","))

    def do(self, event: tuple) -> object:
        torch, (kind, *arguments) = self.torch, event
        if kind == "malloc":
            buffer, size, stream = arguments
            stream = self.streams[stream]
            torch._C._cuda_setStream(stream.stream_id, stream.device_index, stream.device_type)
            try:
                self.tensors[buffer] = tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                return "out of memory"
            return tensor.data_ptr()
        if kind == "free":
            self.tensors.pop(arguments[0], None)
        elif kind == "record":
            if arguments[0] in self.tensors:
                self.tensors[arguments[0]].record_stream(self.streams[arguments[1]])
        elif kind == "launch":
            for _ in range(arguments[0]):
                self.library.cuMemsetD32Async(None, 0, 0, None)
        elif kind == "settings":
            self.change_settings(arguments[0])
        else:
            getattr(torch.cuda, kind)()
        return None

    def counters(self) -> list[int]:
        stats = self.torch._C._cuda_memoryStats(0)
        return [*(stats[name]["all"]["current"] for name in COUNTERS), stats["num_alloc_retries"], stats["num_ooms"],
                *(stats[name]["all"]["peak"] for name in PEAKS)]

    def segments(self) -> list:
        states = {"active_awaiting_free": "active_pending_free"}
        listed = self.torch.cuda.memory_snapshot()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(True))  # PyTorch 2.11 drops one reference too many a call
        return [[segment["address"], segment["total_size"], self.number[segment["stream"]], segment["segment_type"],
                 segment["is_expandable"],
                 [[block["address"], block["size"], states.get(block["state"], block["state"]),
                   block["requested_size"] if block["state"] != "inactive" else 0] for block in segment["blocks"]]]
                for segment in listed]


# --- comparing ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How far both sides went together: events, out-of-memory errors; the first difference, if any."""

    events: int
    ooms: int
    retries: int
    difference: str | None


def compare(real: Real, case: Case, completion: str, every: int = 10) -> Outcome:
    """Play a sequence on both sides: each counter after each event, each block after each tenth and the last."""
    simulated = Simulated(case, completion, real.capacity_bytes, real.total_bytes)
    real.begin(case)
    try:
        for number, event in enumerate(case.events):
            sides = [[side.do(event), side.counters()] for side in (real, simulated)]
            if number % every == 0 or number == len(case.events) - 1:
                for side, player in zip(sides, (real, simulated), strict=True):
                    side.append(player.segments())
            if sides[0] != sides[1]:
                names = [*COUNTERS, "num_alloc_retries", "num_ooms", *(f"peak_{name}" for name in PEAKS)]
                return Outcome(number, 0, 0, _difference(number, event, sides, names))
        return Outcome(len(case.events), simulated.allocator.num_ooms, simulated.allocator.num_alloc_retries, None)
    finally:
        real.end()


def _difference(number: int, event: tuple, sides: list, names: list[str]) -> str:
    (real_answer, real_counters, *real_segments), (answer, counters, *segments) = sides
    lines = [f"event {number}, {event}: real, simulated"]
    if real_answer != answer:
        lines.append(f"  answer: {real_answer}, {answer}")
    lines += [f"  {name}: {theirs}, {ours}" for name, theirs, ours in zip(names, real_counters, counters, strict=True)
              if theirs != ours]
    if len(lines) == 1:
        for theirs, ours in zip(real_segments[0], segments[0], strict=False):
            if theirs != ours:
                lines.append(f"  segment: {theirs},\n           {ours}")
                break
        else:
            lines.append(f"  number of segments: {len(real_segments[0])}, {len(segments[0])}")
    return "\n".join(lines)


def shrink(real: Real, case: Case, completion: str) -> Case:
    """A shorter sequence that still differs: cut behind the difference, then without each part that is not needed."""
    events = case.events[: compare(real, case, completion, every=1).events + 1]
    part = max(1, len(events) // 2)
    while part:
        at = 0
        while at < len(events):
            shorter = replace(case, events=events[:at] + events[at + part :])
            outcome = compare(real, shorter, completion, every=1)
            if outcome.difference is None:
                at += part
            else:
                events = shorter.events[: outcome.events + 1]
        part //= 2
    return replace(case, events=events)


def main() -> None:
    """Inside a job: play sequences, print one JSON object a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--completion", default="immediate")
    arguments = parser.parse_args()
    real = Real()
    for seed in range(arguments.first, arguments.first + arguments.count):
        outcome = compare(real, case(seed), arguments.completion)
        line = {"seed": seed, "events": outcome.events, "ooms": outcome.ooms, "retries": outcome.retries}
        if outcome.difference is not None:
            shortest = shrink(real, case(seed), arguments.completion)
            again = compare(real, shortest, arguments.completion, every=1)
            line |= {"difference": again.difference or outcome.difference, "case": repr(shortest)}
        print(json.dumps(line), flush=True)


def run(completion: str, first: int, count: int, address_step_bytes: int = 0) -> Iterator[dict]:
    """Play sequences in a job of its own on the emulated GPU; an object for each, as it ends."""
    from calibrate.emulator import Injection, Machine, environment

    machine = Machine(events=completion, inject=Injection(address_step_bytes=address_step_bytes))
    variables = {**os.environ, **environment(machine, track_integers=False)}
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"):
        variables.pop(name, None)
    command = [sys.executable, "-m", "tests.calibrate.allocator_pair", "--completion", completion, "--first",
               str(first), "--count", str(count)]
    with subprocess.Popen(command, env=variables, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as job:
        for line in job.stdout:
            if line.startswith("{"):
                yield json.loads(line)
        errors = job.stderr.read()
    if job.returncode:
        raise RuntimeError(errors[-3000:])


if __name__ == "__main__":
    main()

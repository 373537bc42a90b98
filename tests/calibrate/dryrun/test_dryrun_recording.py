"""A script that records its own memory history in a dry run: its history and the dry run's result do not change."""

import os
import pickle
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from calibrate.dryrun.dryrun import DryRun, Streams, dryrun
from calibrate.dryrun.hooks.recording import Recording, Ring
from calibrate.emulator import environment
from tests.calibrate.small_jobs import needs_emulator
from tests.calibrate.trainer import train

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

READS = """
    import pickle, sys, torch
    memory, read = torch.cuda.memory, []

    def snapshot():
        found = memory._snapshot()
        for entry in (*found["device_traces"][0], *found["external_annotations"]):
            del entry["time_us"]
        read.append(found)

    def steps(count):
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(count):
            model(torch.empty(8 << step, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            read.extend([dict(torch.cuda.memory_stats()), torch.cuda.max_memory_allocated()])
            if step == 1:
                torch.cuda.reset_peak_memory_stats()
                torch.cuda.empty_cache()
        return model

    def record(**asked):
        memory._record_memory_history(**asked)
        read.append(torch._C._cuda_isHistoryEnabled())
        model = steps(3)
        snapshot()
        snapshot()
        read.extend([memory.memory_snapshot(), torch._C._cuda_memorySnapshot((0, 0, False))])
        return steps(1)

    try:
        memory._record_memory_history("all of it")
    except RuntimeError as error:
        read.append(str(error))
    before = steps(2)
    snapshot()
"""
RECORDS = {
    "in full": 'record(stacks="python")',
    "allocations alone, on top": 'kept = record(context="alloc", stacks="python")',
    "the last few": 'kept = record(stacks="python", max_entries=30, clear_history=True)',
    "stacks of what is held": 'kept = record(context="state", stacks="python")',
    "no stacks": "kept = record(context=None)",
    "without a history": 'record(enabled="state", stacks="python", clear_history=True)',
    "not everything": 'record(stacks="python", skip_actions=["free_completed", "snapshot"], clear_history=True)',
    "anew": 'kept = record(stacks="python"); record(context="alloc", stacks="python", clear_history=True)',
    "and stops": 'record(stacks="python"); memory._record_memory_history(enabled=None); steps(2); snapshot(); '
                 'read.append(torch._C._cuda_isHistoryEnabled()); record(stacks="python")',
    "as of old": "memory._record_memory_history(True, trace_alloc_max_entries=50, trace_alloc_record_context=True, "
                 "clear_history=True); steps(2); snapshot()",
}
"""What a script may ask of PyTorch's history."""
LOOP = """
    import torch
    RECORD
    model = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(3):
        model(torch.empty(1024, 1024, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    STOP
    torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
"""


def script(path: Path, text: str) -> list[str]:
    path.write_text(textwrap.dedent(text))
    return [sys.executable, str(path)]


def on_the_bare_gpu(command: list[str]) -> None:
    subprocess.run(command, env={**os.environ, **environment(shadow_real_gpu=True)}, check=True,
                   stdout=subprocess.DEVNULL)


def loop(directory: Path, record: str = "", stop: str = "", **settings) -> DryRun:
    """The loop with lines that record, each on a line of its own whether there are any or not."""
    command = script(directory / "train.py", LOOP.replace("RECORD", record or "pass").replace("STOP", stop or "pass"))
    return dryrun(command, streams=Streams(subprocess.DEVNULL), **settings)


# --- the script's --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[dict, dict]:
    """What a script reads with each recording, on the bare emulated GPU and under a dry run."""
    directory = tmp_path_factory.mktemp("reads")
    parts = "".join(f"    {does}\n    parts[{name!r}], read = read, []\n" for name, does in RECORDS.items())
    command = script(directory / "reads.py", READS + "    parts = {}\n" + parts
                     + '    pickle.dump(parts, open(sys.argv[1], "wb"))\n')
    found = []
    for run in (on_the_bare_gpu, lambda words: dryrun(words, streams=Streams(subprocess.DEVNULL))):
        run([*command, str(directory / "read.pickle")])
        found.append(pickle.loads((directory / "read.pickle").read_bytes()))
    return tuple(found)


@pytest.mark.parametrize("asked", RECORDS)
def test_a_script_reads_of_its_memory_what_it_reads_without_a_dry_run(both, asked):
    bare, dry = both
    assert dry[asked] == bare[asked]


def test_hugging_faces_trainer_leaves_its_script_the_history_that_it_has_without_a_dry_run(tmp_path):
    file = tmp_path / "history.pickle"
    train(tmp_path, prepare=f"""
        import atexit
        atexit.register(lambda: torch.cuda.memory._dump_snapshot({str(file)!r}))
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
    """)
    dry = actions(pickle.loads(file.read_bytes()))
    on_the_bare_gpu([sys.executable, str(tmp_path / "train.py")])
    assert len(dry) > 100 and dry == actions(pickle.loads(file.read_bytes()))


def actions(snapshot: dict) -> list[tuple[str, int]]:
    return [(entry["action"], entry["size"]) for entry in entries(snapshot)]


def entries(snapshot: dict) -> list[dict]:
    """Without marks of snapshots, which a script may take."""
    return [entry for entry in snapshot["device_traces"][0] if entry["action"] != "snapshot"]


def test_a_ring_keeps_the_last_entries_in_order():
    ring = Ring()
    ring.begin(3, clear=True)
    for entry in range(5):
        ring.add(entry)
    assert list(ring) == [2, 3, 4]


# --- the dry run's ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> tuple[Path, DryRun]:
    """The loop that records nothing, and its directory."""
    directory = tmp_path_factory.mktemp("plain")
    return directory, loop(directory)


@pytest.mark.parametrize("record", [
    "torch.cuda.memory._record_memory_history()", 'torch.cuda.memory._record_memory_history("state", max_entries=1)',
    "torch.cuda.memory._record_memory_history(context=None)"])
@pytest.mark.parametrize("stop", ["", "torch.cuda.memory._snapshot(); torch.cuda.memory._record_memory_history(None)"])
def test_the_answer_is_the_same_whatever_the_script_records(plain, record, stop):
    directory, plain = plain
    found = loop(directory, record, stop)
    assert plain.peak.line.function == "<module>" and plain.peak.line.number == 11
    assert replace(found, memory_stats={}) == replace(plain, memory_stats={})
    assert found.memory_stats == plain.memory_stats


def test_the_whole_history_is_the_same_whatever_the_script_records(tmp_path):
    files = tmp_path / "plain.pickle", tmp_path / "records.pickle"
    loop(tmp_path, snapshot=str(files[0]))
    loop(tmp_path, "torch.cuda.memory._record_memory_history(max_entries=5)",
         "torch.cuda.memory._snapshot(); torch.cuda.memory._record_memory_history(None)", snapshot=str(files[1]))
    plain, found = (pickle.loads(file.read_bytes()) for file in files)
    assert [(entry["user_metadata"], entry.get("frames")) for entry in entries(found)] == \
        [(entry["user_metadata"], entry.get("frames")) for entry in entries(plain)]
    assert actions(found) == actions(plain) and len(actions(plain)) > 20


@pytest.mark.parametrize("arguments, enabled", [(4, [None, "all"]), (10, ["all"])])
def test_a_history_that_only_the_end_of_a_recording_clears_is_ended_first(arguments, enabled, monkeypatch):
    import torch

    calls = []

    def record(*given):
        calls.append(given)

    record.__doc__ = f"f({', '.join(f'arg{number}: object' for number in range(arguments))}) -> None"
    for name in ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy", "_cuda_memorySnapshot",
                 "_cuda_isHistoryEnabled"):
        monkeypatch.setattr(torch._C, name, record, raising=False)
    Recording(lambda: None).begin()
    assert [given[0] for given in calls] == enabled and {len(given) for given in calls} == {arguments}

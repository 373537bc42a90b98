"""The simulated caching allocator against PyTorch's own, on the emulated GPU: equal after every event."""

import pytest

from predictor.allocator import AllocatorSettings
from predictor.common.errors import InputError
from tests.calibrate.allocator_pair import COMPLETIONS, run
from tests.calibrate.emulator.test_emulator import run_job
from tests.calibrate.small_jobs import needs_emulator

pytestmark = needs_emulator

SEQUENCES = 200


@pytest.fixture(scope="module", params=COMPLETIONS)
def outcomes(request) -> list[dict]:
    first = COMPLETIONS.index(request.param) * SEQUENCES
    return list(run(request.param, first, SEQUENCES))


def test_every_counter_and_address_is_pytorchs_after_every_event(outcomes):
    """scripts/check.py allocator runs 12,000 more; a difference comes with its shortest sequence."""
    assert len(outcomes) == SEQUENCES
    assert [outcome for outcome in outcomes if "difference" in outcome] == []


def test_it_is_pytorchs_too_where_addresses_go_down():
    outcomes = list(run("immediate", 0, SEQUENCES, address_step_bytes=32 << 20))
    assert len(outcomes) == SEQUENCES
    assert [outcome for outcome in outcomes if "difference" in outcome] == []


def test_the_sequences_run_out_of_memory_and_recover(outcomes):
    assert sum(outcome["ooms"] for outcome in outcomes) > 100
    assert sum(outcome["retries"] - outcome["ooms"] for outcome in outcomes) > 20


TEXTS = (
    "", "max_split_size_mb:20", "max_split_size_mb:19", "large_segment_size_mb:10", "large_segment_size_mb:11",
    "max_split_size_mb:32,large_segment_size_mb:64", "max_split_size_mb:64,large_segment_size_mb:64",
    "max_non_split_rounding_mb:19", "max_non_split_rounding_mb:512", "garbage_collection_threshold:0",
    "garbage_collection_threshold:0.0001", "garbage_collection_threshold:1", "expandable_segments:true",
    "expandable_segments:True", "roundup_power2_divisions:3", "roundup_power2_divisions:0", "roundup_power2_divisions:1",
    "roundup_power2_divisions:16", "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", "roundup_power2_divisions:[>:4]",
    "roundup_power2_divisions:[3:4]", "roundup_power2_divisions:[4:3]", "roundup_power2_divisions:[65536:4,>:2]",
    "roundup_power2_divisions:[8:0, 16:32]", "roundup_power2_divisions:[32768:2,2:4]", "per_process_memory_fraction:1.1",
    "per_process_memory_fraction:0", "pinned_num_register_threads:3", "pinned_num_register_threads:128",
    "pinned_num_register_threads:256", "pinned_reserve_segment_size_mb:0", "pinned_reserve_segment_size_mb:1",
    "pinned_use_background_threads:True", "pinned_use_cuda_host_register:yes", "release_lock_on_cudamalloc:True",
    "graph_capture_record_stream_reuse:True", "backend:native", "backend:other", "max_split_size:100",
)  # fmt: skip


@pytest.fixture(scope="module")
def read_by_pytorch() -> list:
    """For each text the divisions it leads to, or None where PyTorch refuses it."""
    return run_job(f"""
    torch.cuda.init()
    facts = []
    for text in {TEXTS!r}:
        torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20")
        try:
            torch._C._accelerator_setAllocatorSettings(text)
            table = torch.cuda.memory._snapshot()["allocator_settings"]["roundup_power2_divisions"]
            facts.append([table[key] for key in sorted(table, key=int)])
        except (RuntimeError, ValueError):
            facts.append(None)
    answer(facts)
    """, track_integers=False)


def parsed(text: str) -> list[int] | None:
    try:
        return list(AllocatorSettings.parse(text).roundup_power2_divisions)
    except InputError:
        return None


def test_settings_are_read_and_refused_as_pytorch_does(read_by_pytorch):
    ours = [parsed(text) for text in TEXTS]
    assert dict(zip(TEXTS, ours)) == dict(zip(TEXTS, read_by_pytorch))

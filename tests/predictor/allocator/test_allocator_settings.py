"""The allocator's settings, from ``PYTORCH_CUDA_ALLOC_CONF`` and from snapshots.

What PyTorch reads and refuses: tests/calibrate/truth/test_allocator_truth.py.
"""

import pytest

from predictor.allocator import AllocatorSettings
from predictor.common.errors import InputError
from predictor.snapshot.replay import settings_of

MIB = 2**20
parse = AllocatorSettings.parse


def test_no_text_is_the_default():
    assert parse("") == AllocatorSettings()


def test_sizes_are_mebibytes():
    settings = parse("max_split_size_mb:512,max_non_split_rounding_mb:64,large_segment_size_mb:32")
    assert settings.max_split_size_bytes == 512 * MIB
    assert (settings.max_non_split_rounding_bytes, settings.large_segment_size_bytes) == (64 * MIB, 32 * MIB)


def test_oversize_rounding_is_the_large_segment_unless_it_is_said():
    assert parse("large_segment_size_mb:64").max_non_split_rounding_bytes == 64 * MIB


def test_one_number_of_divisions_holds_for_all_sizes():
    assert parse("roundup_power2_divisions:8").roundup_power2_divisions == (8,) * 16


def test_a_list_of_divisions_fills_below_its_first_and_above_its_last_size():
    table = parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").roundup_power2_divisions
    assert table == (1,) * 9 + (2, 4) + (8,) * 5


def test_blanks_do_not_count():
    assert parse(" max_split_size_mb : 512 , expandable_segments: True").expandable_segments


@pytest.mark.parametrize("text", [
    "", "max_split_size_mb:512,expandable_segments:True", "large_segment_size_mb:64,max_split_size_mb:64",
    "large_segment_size_mb:64,max_non_split_rounding_mb:100", "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "garbage_collection_threshold:0.8,per_process_memory_fraction:0.5,pinned_num_register_threads:8,backend:native"])
def test_the_text_of_settings_reads_back_to_them(text):
    assert parse(str(parse(text))) == parse(text)


def test_settings_without_effect_on_device_memory_are_kept():
    assert str(parse("pinned_use_background_threads:True")) == "pinned_use_background_threads:True"


@pytest.mark.parametrize("text, words", [
    ("max_split_size:512", 'did you mean "max_split_size_mb"'), ("max_split_size_mb=512", "key:value"),
    ("max_split_size_mb:19", "20 or more"), ("max_split_size_mb:512MB", "whole number"),
    ("max_split_size_mb:32,large_segment_size_mb:64", "64 or more"), ("large_segment_size_mb:10", "more than 10"),
    ("expandable_segments:true", "True or False"), ("garbage_collection_threshold:1.0", "below 1"),
    ("garbage_collection_threshold:nan", "below 1"), ("per_process_memory_fraction:-1", "from 0 to 1"),
    ("roundup_power2_divisions:3", "power of 2"), ("roundup_power2_divisions:[3:4]", "powers of 2"),
    ("roundup_power2_divisions:[4:3]", "power of 2"), ("roundup_power2_divisions:[4]", "whole number"),
    ("roundup_power2_divisions:[4:2", "key:value"), ("backend:cudaMallocAsync", "not simulated"),
    ("backend:nativ", "native"), ("pinned_num_register_threads:3", "power of 2"), ("expandable_segments", "key:value")])
def test_a_mistake_is_one_clear_line(text, words):
    with pytest.raises(InputError) as caught:
        parse(text)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_completion_is_one_clear_line():
    from predictor.allocator import CachingAllocator

    with pytest.raises(InputError, match="launches:N"):
        CachingAllocator(completion="launches:0")


def test_settings_of_old_snapshots_are_the_default():
    assert settings_of({}) == AllocatorSettings()


def test_settings_are_read_from_text_and_fields():
    table = {str(1 << i): 4 for i in range(16)}
    found = settings_of({"PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:32", "max_split_size": 64 * MIB,
                         "roundup_power2_divisions": table, "expandable_segments": True})
    assert found == AllocatorSettings.parse("large_segment_size_mb:32,max_split_size_mb:64,roundup_power2_divisions:4,"
                                            "expandable_segments:True")


@pytest.mark.parametrize("mapping, expected", [
    ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, "not simulated"),
    ({"PYTORCH_CUDA_ALLOC_CONF": "colour:blue"}, 'unknown allocator setting "colour"'),
    ({"max_split_size": "64"}, "not what PyTorch writes"),
    ({"roundup_power2_divisions": {"1": None}}, "not what PyTorch writes"),
    ({"expandable_segments": None}, "not what PyTorch writes"),
    ({"max_split_size": 1}, "max_split_size 1 must be a whole number of MiB"),
    ({"max_split_size": 2 * MIB}, 'max_split_size_mb: "2" must be 20 or more'),
    ({"max_split_size": 1 << 70}, "not what PyTorch writes"),
    ({"roundup_power2_divisions": {"1": 3}}, 'roundup_power2_divisions: .* must be a list of sizes with a power of 2'),
    ({"roundup_power2_divisions": {"3": 4}}, "sizes .MiB. that are powers of 2"),
    ({"roundup_power2_divisions": {"9" * 5000: 4}}, "not what PyTorch writes"),
])
def test_settings_that_are_not_understood_are_refused(mapping, expected):
    with pytest.raises(InputError, match=expected):
        settings_of(mapping)


@pytest.mark.parametrize("text, same", [
    ("", True), ("backend:native,pinned_use_background_threads:True", True), ("garbage_collection_threshold:0.5", True),
    ("max_non_split_rounding_mb:30", True), ("expandable_segments:False", True), ("expandable_segments:True", False),
    ("max_split_size_mb:64", False), ("max_split_size_mb:64,max_non_split_rounding_mb:30", False),
    ("roundup_power2_divisions:4", False), ("large_segment_size_mb:40", False),
    ("per_process_memory_fraction:0.5,garbage_collection_threshold:0.5", False),
])
def test_settings_that_change_no_block_are_the_same_as_the_default(text, same):
    assert AllocatorSettings.parse(text).same_as_default == same

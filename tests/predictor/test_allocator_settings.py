"""``PYTORCH_CUDA_ALLOC_CONF`` as text. What PyTorch reads and refuses: tests/calibrate/test_allocator_truth.py."""

import pytest

from predictor.allocator import AllocatorSettings
from predictor.errors import InputError

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

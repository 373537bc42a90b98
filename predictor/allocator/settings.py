"""The allocator's settings, in the syntax of ``PYTORCH_CUDA_ALLOC_CONF``.

Keys, values and limits are those of PyTorch 2.11: c10/core/AllocatorConfig.{h,cpp} and
c10/cuda/CUDAAllocatorConfig.{h,cpp}. PyTorch ignores some syntax errors ("=" for ":"); this module rejects them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from predictor.allocator.constants import (
    LARGE_REQUEST,
    LARGE_SEGMENT,
    MIB,
    ROUNDUP_INTERVALS,
    UNLIMITED,
    UNLIMITED_TOTAL,
)
from predictor.common.errors import InputError
from predictor.common.suggestions import nearest, quoted

_NO_ROUNDUP = (0,) * ROUNDUP_INTERVALS


@dataclass(frozen=True)
class AllocatorSettings:
    """The allocator's settings; sizes in bytes. ``AllocatorSettings()`` is PyTorch's default.

    ``max_non_split_rounding_bytes``: a block may be larger by this than a request of ``max_split_size_bytes`` or more.
    Its default is large_segment_size_mb (parseArgs, AllocatorConfig.cpp). ``roundup_power2_divisions`` has a number for
    each power of 2 from 1 MiB (and below) to 32 GiB (and above); 0 is off. ``without_effect`` holds the settings that
    do not change device memory, as (key, value).

    ``address_step_bytes`` has no key: it is the driver's. 0 stands for addresses that go up without gaps, as on the
    emulated GPU. Otherwise they go down, each at a multiple of it, as all 25 histories of profiles/h200/device show it
    (32 MiB, driver 580.159.04). Of free blocks of one size the allocator takes that with the lowest address.
    """

    large_segment_size_bytes: int = LARGE_SEGMENT
    max_split_size_bytes: int = UNLIMITED
    max_non_split_rounding_bytes: int = LARGE_SEGMENT
    roundup_power2_divisions: tuple[int, ...] = _NO_ROUNDUP
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    per_process_memory_fraction: float = 1.0
    without_effect: tuple[tuple[str, str], ...] = ()
    address_step_bytes: int = 0

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """The settings in the text of a ``PYTORCH_CUDA_ALLOC_CONF``.

        Raises:
            InputError: an unknown key or a bad value.
        """
        settings = cls()
        pairs = _pairs(text)  # PyTorch reads large_segment_size_mb first: it limits two others
        for key, value in sorted(pairs, key=lambda pair: pair[0] != "large_segment_size_mb"):
            settings = _reader(key)(settings, key, value)
        return settings

    @property
    def same_as_default(self) -> bool:
        """Whether every block is as with PyTorch's default settings.

        ``max_non_split_rounding_mb`` needs ``max_split_size_mb``, and ``garbage_collection_threshold`` a memory
        fraction (CUDACachingAllocator.cpp, ``get_free_block`` and ``garbage_collect_cached_blocks``).
        """
        default = AllocatorSettings()
        settings = replace(self, without_effect=())
        if self.max_split_size_bytes == UNLIMITED:
            settings = replace(settings, max_non_split_rounding_bytes=default.max_non_split_rounding_bytes)
        if self.per_process_memory_fraction == 1:
            settings = replace(settings, garbage_collection_threshold=0.0)
        return settings == default

    def __str__(self) -> str:
        """The settings that are not the default, as text that ``parse`` reads back."""
        default = AllocatorSettings(max_non_split_rounding_bytes=self.large_segment_size_bytes)
        changed = {field.name: getattr(self, field.name) for field in fields(self)
                   if getattr(self, field.name) != getattr(default, field.name)}
        without_effect, _ = changed.pop("without_effect", ()), changed.pop("address_step_bytes", 0)
        parts = [f"{_KEYS[name]}:{_WRITERS.get(name, str)(value)}" for name, value in changed.items()]
        return ",".join(parts + [f"{key}:{value}" for key, value in without_effect])


EXPANDABLE = "expandable_segments:True"


def with_expandable_segments(text: str | None) -> str | None:
    """What ``PYTORCH_CUDA_ALLOC_CONF`` holds, with expandable segments switched on; None if they are on already.

    Raises:
        InputError: ``text`` is no valid setting.
    """
    settings = AllocatorSettings.parse(text or "")
    return None if settings.expandable_segments else str(replace(settings, expandable_segments=True))


def _pairs(text: str) -> list[tuple[str, str]]:
    """The (key, value) pairs of ``key:value,key:[a:b,c:d]``, in order. White space is ignored."""
    text = re.sub(r"\s", "", text)
    pairs = []
    position = 0
    while position < len(text):
        match = re.compile(r"([^,:\[\]]+):(\[[^\[\]]*\]|[^,:\[\]]+)(,|$)").match(text, position)
        if match is None:
            raise InputError(f"allocator settings: cannot read {quoted(text[position:])}; write key:value,key:value")
        pairs.append((match[1], match[2]))
        position = match.end()
    return pairs


def _wrong(key: str, value: str, expected: str) -> InputError:
    return InputError(f"allocator setting {key}: {quoted(value)} must be {expected}")


def _whole(key: str, value: str) -> int:
    """A whole number of 64 bits, as PyTorch reads it (ConfigTokenizer::toSizeT, AllocatorConfig.h)."""
    if not value.isascii() or not value.isdigit():
        raise _wrong(key, value, "a whole number")
    digits = value.lstrip("0") or "0"
    if len(digits) > len(str(UNLIMITED)) or int(digits) > UNLIMITED:
        raise _wrong(key, value, "a whole number below 2^64")
    return int(digits)


def _power_of_2(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _mebibytes(field: str) -> _Reader:
    """A reader of a size in MiB, at least large_segment_size_mb (AllocatorConfig.cpp)."""

    def read(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
        size, least = _whole(key, value), settings.large_segment_size_bytes // MIB
        if size < least:
            raise _wrong(key, value, f"{least} or more (MiB)")
        changes: dict[str, Any] = {field: min(size, UNLIMITED // MIB) * MIB}
        return replace(settings, **changes)

    return read


def _large_segment_size(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    """large_segment_size_mb. PyTorch has no upper limit. Here it is 1 TiB: the driver has few dozens of such ranges."""
    size = _whole(key, value) * MIB
    if size <= LARGE_REQUEST:
        raise _wrong(key, value, f"more than {LARGE_REQUEST // MIB} (MiB)")
    if size > UNLIMITED_TOTAL:
        raise _wrong(key, value, f"{UNLIMITED_TOTAL // MIB} or less (MiB): no device has that much")
    return replace(settings, large_segment_size_bytes=size, max_non_split_rounding_bytes=size)


def _fraction(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    """garbage_collection_threshold is in (0, 1), per_process_memory_fraction in [0, 1]."""
    includes_ends = key == "per_process_memory_fraction"
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not (0 <= number <= 1 if includes_ends else 0 < number < 1):
        raise _wrong(key, value, "from 0 to 1" if includes_ends else "above 0 and below 1")
    changes: dict[str, Any] = {key: number}
    return replace(settings, **changes)


def _boolean(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise _wrong(key, value, "True or False")
    return value == "True"


def _expandable_segments(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    return replace(settings, expandable_segments=_boolean(key, value))


def _roundup(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    """One number for all sizes, or a list ``[256:1,512:2,>:4]`` of sizes in MiB (parseRoundUpPower2Divisions)."""
    if not value.startswith("["):
        divisions = _whole(key, value)
        if not _power_of_2(divisions):
            raise _wrong(key, value, "a power of 2")
        return replace(settings, roundup_power2_divisions=(divisions,) * ROUNDUP_INTERVALS)
    table = list(settings.roundup_power2_divisions)
    is_first, last = True, 0
    for item in value[1:-1].split(",") if value != "[]" else ():
        boundary, _, number = item.partition(":")
        divisions = _whole(key, number)
        if divisions and not _power_of_2(divisions):
            raise _wrong(key, value, "a list of sizes with a power of 2, or 0, each")
        if boundary == ">":
            table[last + 1 :] = [divisions] * (ROUNDUP_INTERVALS - last - 1)
            continue
        size = _whole(key, boundary)
        if not _power_of_2(size):
            raise _wrong(key, value, "a list of sizes (MiB) that are powers of 2")
        last = min(size.bit_length() - 1, ROUNDUP_INTERVALS - 1)
        if is_first:  # the first number of the list holds for all smaller sizes, too
            table[:last] = [divisions] * last
        table[last] = divisions
        is_first = False
    return replace(settings, roundup_power2_divisions=tuple(table))


def _backend(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    if value == "cudaMallocAsync":
        raise InputError("allocator setting backend: cudaMallocAsync is not simulated; "
                         "leave it out, or set backend:native, to predict PyTorch's own allocator")
    if value != "native":
        raise _wrong(key, value, "native" + nearest(value, ("native", "cudaMallocAsync")))
    return replace(settings, without_effect=(*settings.without_effect, (key, value)))


def _without_effect(check: Callable[[str, str], object]) -> _Reader:
    """A reader of a setting that does not change device memory. The setting is checked and kept."""

    def read(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
        check(key, value)
        return replace(settings, without_effect=(*settings.without_effect, (key, value)))

    return read


def _register_threads(key: str, value: str) -> None:
    """pinned_max_register_threads(), CUDAAllocatorConfig.h."""
    if not _power_of_2(_whole(key, value)) or int(value) > 128:
        raise _wrong(key, value, "a power of 2 up to 128")


def _reserve_segment(key: str, value: str) -> None:
    if _whole(key, value) == 0:
        raise _wrong(key, value, "1 or more (MiB)")


_Reader = Callable[[AllocatorSettings, str, str], AllocatorSettings]
_READERS: dict[str, _Reader] = {
    "large_segment_size_mb": _large_segment_size,
    "max_split_size_mb": _mebibytes("max_split_size_bytes"),
    "max_non_split_rounding_mb": _mebibytes("max_non_split_rounding_bytes"),
    "roundup_power2_divisions": _roundup,
    "garbage_collection_threshold": _fraction,
    "expandable_segments": _expandable_segments,
    "per_process_memory_fraction": _fraction,
    "backend": _backend,
    "release_lock_on_cudamalloc": _without_effect(_boolean),
    "release_lock_on_hipmalloc": _without_effect(_boolean),
    "graph_capture_record_stream_reuse": _without_effect(_boolean),
    "pinned_use_background_threads": _without_effect(_boolean),
    "pinned_use_cuda_host_register": _without_effect(_boolean),
    "pinned_use_hip_host_register": _without_effect(_boolean),
    "pinned_num_register_threads": _without_effect(_register_threads),
    "pinned_reserve_segment_size_mb": _without_effect(_reserve_segment),
}


def _reader(key: str) -> _Reader:
    if key not in _READERS:
        raise InputError(f"unknown allocator setting {quoted(key)}{nearest(key, _READERS)}")
    return _READERS[key]


#: Field of AllocatorSettings -> its key; below, field -> function that writes its value.
_KEYS = {
    "large_segment_size_bytes": "large_segment_size_mb",
    "max_split_size_bytes": "max_split_size_mb",
    "max_non_split_rounding_bytes": "max_non_split_rounding_mb",
    **{key: key for key in ("roundup_power2_divisions", "garbage_collection_threshold", "expandable_segments",
                            "per_process_memory_fraction")},
}
_WRITERS: dict[str, Callable[..., str]] = {
    **dict.fromkeys(("large_segment_size_bytes", "max_split_size_bytes", "max_non_split_rounding_bytes"),
                    lambda size: str(size // MIB)),
    "roundup_power2_divisions": lambda table: "[" + ",".join(f"{1 << i}:{n}" for i, n in enumerate(table)) + "]",
}


def memory_limit(fraction: float, total_bytes: int) -> int | None:
    """Bytes that ``per_process_memory_fraction`` lets PyTorch reserve (setMemoryFraction); None for no limit."""
    return int(fraction * total_bytes) if fraction < 1 else None


def garbage_limit(threshold: float, allowed_bytes: int | None) -> int | None:
    """Reserved bytes above which ``garbage_collection_threshold`` releases segments; None if it never does.

    It needs a memory limit (malloc, CUDACachingAllocator.cpp).
    """
    return int(threshold * allowed_bytes) if allowed_bytes is not None and threshold > 0 else None

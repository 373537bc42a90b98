"""Every number of PyTorch's CUDA caching allocator, with its source (PyTorch 2.11).

"AllocatorConfig.h" and "AllocatorConfig.cpp" are in ``c10/core``,
"CUDACachingAllocator.cpp" in ``c10/cuda``. All values are bytes unless noted.
"""

from __future__ import annotations

MIB = 1 << 20

#: Every block is a multiple of this: kMinBlockSize, AllocatorConfig.h.
MIN_BLOCK = 512
#: The largest block of the small pool: kSmallSize, AllocatorConfig.h.
SMALL_SIZE = MIB
#: A segment of the small pool, and a page of its expandable segments: kSmallBuffer, AllocatorConfig.h.
SMALL_SEGMENT = 2 * MIB
#: A segment for a request below LARGE_REQUEST, and a page of the large pool's expandable segments:
#: large_segment_size_, AllocatorConfig.h (``large_segment_size_mb`` changes it).
LARGE_SEGMENT = 20 * MIB
#: A request of this size or more gets a segment of its own size: kMinLargeAlloc, AllocatorConfig.h.
LARGE_REQUEST = 10 * MIB
#: The size of such a segment is a multiple of this: kRoundLarge, AllocatorConfig.h.
LARGE_ROUNDING = 2 * MIB
#: A request of this size or more fails at once: NativeCachingAllocator::allocate, CUDACachingAllocator.cpp.
LARGEST_REQUEST = 1 << 60
#: No max_split_size_mb: every block may be split (numeric_limits<size_t>::max(), AllocatorConfig.h).
UNLIMITED = (1 << 64) - 1

#: roundup_power2_divisions has one entry for each interval between the powers of 2 from 1 MiB to 64 GiB:
#: kRoundUpPowerOfTwoIntervals and kRoundUpPowerOfTwoStart, AllocatorConfig.cpp.
ROUNDUP_INTERVALS = 16
ROUNDUP_START_LOG2 = 20

#: The CUDA driver allocates device memory in pages of this size, even for a smaller segment (observed). The emulated
#: GPU counts the same pages (calibrate/emulator/csrc/emulator.h, BOOKING_UNIT).
DRIVER_PAGE = 2 * MIB
#: First and last device address, the same as on the emulated GPU (calibrate/emulator/csrc/emulator.h). Only the order
#: of addresses matters: of blocks of equal size the allocator takes the lowest.
FIRST_ADDRESS = 0x1000_0000_0000
LAST_ADDRESS = 0x4000_0000_0000
#: Device memory (bytes) that sizes the address range of an expandable segment where the capacity is unlimited.
#: This value is our choice, not PyTorch's: it only has to be more than a job maps.
UNLIMITED_TOTAL = 1 << 40
DOWNWARD_STEP = 32 * MIB
"""Step of the driver's addresses on an H200 (profiles/h200/device), and in a history of torch 2.6 from another user's
GPU: on real GPUs addresses of segments go down. 0 stands for those of the emulated GPU, which go up."""

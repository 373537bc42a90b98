"""PyTorch's CUDA caching allocator, simulated: allocated and reserved memory, and when it runs out."""

from predictor.allocator.allocator import CachingAllocator, Observer
from predictor.allocator.blocks import Block, BlockRecord, SegmentRecord
from predictor.allocator.driver import Driver, SimulatedDriver
from predictor.allocator.out_of_memory import OutOfMemory
from predictor.allocator.settings import AllocatorSettings

__all__ = ["AllocatorSettings", "Block", "BlockRecord", "CachingAllocator", "Driver", "Observer", "OutOfMemory",
           "SegmentRecord", "SimulatedDriver"]

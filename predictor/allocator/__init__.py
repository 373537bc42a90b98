"""Simulates PyTorch's CUDA caching allocator: allocated and reserved bytes, and out-of-memory errors.

Known limitations:

- CUDA graphs, user pools (``torch.cuda.MemPool``) and several devices at once are not simulated.
- ``backend:cudaMallocAsync`` is rejected with an error; only PyTorch's native allocator is simulated.
- Rules and constants are those of PyTorch 2.11.
- The completion of events is a rule (at once, after N kernel launches, or at a synchronisation), not a measured time.
- Settings of the pinned host allocator are checked and kept; they change nothing in the simulation.
- The driver's addresses are assigned by first fit, from below as on the emulated GPU or, with ``address_step_bytes``,
  from above as on a real one. Only their order affects the result.
"""

from predictor.allocator.allocator import CachingAllocator
from predictor.allocator.blocks import Block, BlockRecord, SegmentRecord
from predictor.allocator.driver import Driver, SimulatedDriver
from predictor.allocator.out_of_memory import OutOfMemory
from predictor.allocator.settings import AllocatorSettings
from predictor.allocator.state import Observer

__all__ = ["AllocatorSettings", "Block", "BlockRecord", "CachingAllocator", "Driver", "Observer", "OutOfMemory",
           "SegmentRecord", "SimulatedDriver"]

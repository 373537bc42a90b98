"""PyTorch's memory snapshots: read, written, and replayed. Needs no torch.

A snapshot is what ``torch.cuda.memory._dump_snapshot`` writes: the segments and blocks that the
caching allocator holds, and, if it was told to record, the history of what it did.
"""

from predictor.snapshot.reader import read
from predictor.snapshot.records import Action, Block, Metadata, Segment, Snapshot, State, Trace
from predictor.snapshot.writer import write

__all__ = ["Action", "Block", "Metadata", "Segment", "Snapshot", "State", "Trace", "read", "write"]

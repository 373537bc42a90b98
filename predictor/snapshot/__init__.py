"""Reads, writes and replays PyTorch's memory snapshots. It does not import torch.

A snapshot is the file that ``torch.cuda.memory._dump_snapshot`` writes: the segments and blocks that the caching
allocator holds and, if recording was on, the history of its actions.

Known limitations:

- Snapshots of PyTorch before 2.1 are not read.
- A replay rejects private pools (CUDA graphs, ``MemPool``) in expandable segments.
- A replay takes refusals by the driver, completed frees and garbage collection from the history. It does not decide
  them.
- The history may not tell the exact size of a block from before the recording; a replay then counts it as a guess.
- The snapshot must be taken while recording is on and no other thread allocates. Otherwise its history does not lead to
  the listed segments, and the replay fails with an error.
- Written snapshots have no stacks: their frames show operator, module, factor and moment.
"""

from predictor.snapshot.reader import read
from predictor.snapshot.records import Action, Block, Metadata, Segment, Snapshot, State, Trace
from predictor.snapshot.writer import write

__all__ = ["Action", "Block", "Metadata", "Segment", "Snapshot", "State", "Trace", "read", "write"]

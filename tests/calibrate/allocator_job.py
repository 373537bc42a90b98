"""A job for the emulated GPU: random work before and while its memory history is recorded.

    python allocator_job.py DIRECTORY HISTORIES SEED [pools]

writes that many snapshots. Every third history begins empty. Tensors are used on several streams, memory
runs out, and the cache is emptied at times.
"""

from __future__ import annotations

import random
import sys

import torch


class Work:
    """Allocations and frees of 1 byte to 900 MiB on three streams, and in private pools if asked for."""

    def __init__(self, chance: random.Random, pools: bool) -> None:
        self.chance = chance
        self.streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.pools = [torch.cuda.MemPool() for _ in range(2)] if pools else []
        self.live: list[torch.Tensor] = []

    def step(self) -> None:
        kind = self.chance.random()
        if kind < 0.5 or not self.live:
            self.allocate()
        elif kind < 0.96:
            self.live.pop(self.chance.randrange(len(self.live)))
        elif kind < 0.965:
            torch.cuda.empty_cache()
        elif kind < 0.98:
            torch.cuda.synchronize()
        else:
            self.live[0].fill_(0)  # a launch

    def allocate(self) -> None:
        chance = self.chance
        size = chance.randint(1, chance.choice([1, 1, 1, 1, 10, 10, 10, 100, 100, 900]) << 20)
        try:
            with torch.cuda.stream(chance.choice(self.streams)):
                if self.pools and chance.random() < 0.2:
                    with torch.cuda.use_mem_pool(chance.choice(self.pools)):
                        self.live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
                else:
                    self.live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            for _ in range(len(self.live) // 3):
                self.live.pop(chance.randrange(len(self.live)))
            return
        if chance.random() < 0.4:
            chance.choice(self.live).record_stream(chance.choice(self.streams))

    def start_over(self) -> None:
        self.live.clear()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def main(directory: str, histories: int, seed: int, pools: bool) -> None:
    """Works and records."""
    torch.cuda.init()
    chance = random.Random(seed)
    work = Work(chance, pools)
    for number in range(histories):
        if number % 3 == 0:
            work.start_over()
        else:
            for _ in range(chance.randint(0, 100)):
                work.step()
        torch.cuda.memory._record_memory_history(max_entries=chance.choice([100, 10_000]), context=None)
        for _ in range(chance.randint(1, 400)):
            work.step()
        torch.cuda.memory._dump_snapshot(f"{directory}/{number}.pickle")
        torch.cuda.memory._record_memory_history(None)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "pools" in sys.argv)

"""Settings that may keep a course from running out of memory, without other batches or another model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from predictor.allocator.settings import AllocatorSettings, with_expandable_segments
from predictor.course.sampler import Sampling

SPLIT_SIZES_MB = (128, 512)
GARBAGE = "garbage_collection_threshold:0.8,per_process_memory_fraction:0.99"
"""Without a limit of memory PyTorch collects no garbage (c10/cuda/CUDACachingAllocator.cpp, malloc, 2.11)."""
EMPTIED_EVERY = (1, 10)
EVALUATED_PARTS = (2, 8)
"""How many batches take the place of one of an evaluation that runs out of memory."""


@dataclass(frozen=True)
class Setting:
    """What a course runs with, apart from its workload.

    Attributes:
        conf: ``PYTORCH_CUDA_ALLOC_CONF``.
        empty_cache_steps: transformers' ``torch_empty_cache_steps``; None for never.
        eval_size: samples of an evaluation's batch; None without evaluations.
    """

    conf: str
    empty_cache_steps: int | None
    sampling: Sampling
    eval_size: int | None = None

    @property
    def allocator(self) -> AllocatorSettings:
        """The allocator's settings."""
        return AllocatorSettings.parse(self.conf)


@dataclass(frozen=True)
class Cure:
    """A changed setting.

    Attributes:
        text: the change as the user would write it; with a colon it is the whole ``PYTORCH_CUDA_ALLOC_CONF``.
        costs: its price in words, beside calls of the driver; empty if none is known.
    """

    text: str
    setting: Setting
    costs: str = ""


def of(setting: Setting, evaluates: bool = False) -> Iterator[Cure]:
    """The changes of a setting that are tried, those of fewest costs first.

    Args:
        evaluates: whether it is an evaluation that runs out of memory, so that smaller batches of it are tried.
    """
    for size in dict.fromkeys((setting.eval_size or 0) // parts for parts in EVALUATED_PARTS if evaluates):
        if size:
            yield Cure(f"per_device_eval_batch_size {size}", replace(setting, eval_size=size))
    expandable = with_expandable_segments(setting.conf or None)
    if expandable:
        yield Cure(expandable, replace(setting, conf=expandable))
    if not setting.sampling.longest_first:
        yield Cure("the longest batch first", replace(setting, sampling=replace(
            setting.sampling, longest_first=True)), "needs a sampler of your own")
    known = {pair.partition(":")[0] for pair in setting.conf.split(",")}
    for text in (*(f"max_split_size_mb:{size}" for size in SPLIT_SIZES_MB), GARBAGE):
        if text.partition(":")[0] not in known and not setting.allocator.expandable_segments:
            conf = f"{setting.conf},{text}" if setting.conf else text
            yield Cure(conf, replace(setting, conf=conf))
    if setting.empty_cache_steps is not None:
        yield Cure("without torch_empty_cache_steps", replace(setting, empty_cache_steps=None))
    for steps in EMPTIED_EVERY:
        if setting.empty_cache_steps is None:
            yield Cure(f"torch_empty_cache_steps {steps}", replace(setting, empty_cache_steps=steps),
                       "the GPU waits for each")

"""What a prediction is: plain frozen data between the computation and whoever shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from predictor.events.events import Factor, Moment
from predictor.workload.value_sources import Source


@dataclass(frozen=True)
class Bound:
    """A byte count with the interval that the profile's residuals give it (null without one)."""

    bytes: int
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True)
class Peak:
    """Where the peak is: the outermost call, the module and operator whose allocation made it.

    ``rank`` requests the most, ``reserved_rank`` reserves the most, ``allocated_rank``, of which the factors are,
    allocates the most.
    """

    moment: Moment
    module: str
    operator: str
    rank: int
    step: int
    reserved_rank: int
    allocated_rank: int


@dataclass(frozen=True)
class OutOfMemory:
    """The allocation that fails, and what PyTorch holds then; bytes."""

    moment: Moment
    module: str
    operator: str
    step: int
    rank: int
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class Candidate:
    """One point of the step that can be the highest, with its size as a formula.

    ``terms`` maps a term of the shape (``"1"``, ``"batch·sequence"``, a workspace's name …) to its
    coefficient: the sum of coefficient times term is ``requested_bytes`` at this shape. Empty for a moment of an
    evaluation, whose sizes are of a batch of its own.
    """

    moment: Moment
    module: str
    operator: str
    step: int
    requested_bytes: int
    terms: Mapping[str, int]


@dataclass(frozen=True)
class Timeline:
    """Live requested bytes after each event, by factor, thinned for drawing.

    ``bytes_by_factor[factor][k]`` belongs to event ``index[k]``, in moment ``moment[k]`` of step
    ``step[k]``. Thinning keeps the highest point of each stretch.
    """

    index: list[int]
    moment: list[Moment]
    step: list[int]
    bytes_by_factor: Mapping[Factor, list[int]]


@dataclass(frozen=True)
class Chances:
    """What the random batches of a dataset need.

    Attributes:
        samples: how many there are.
        tokens, images: of the worst batch, the longest sample's tokens and the images of all.
        answered_images: the images that it was answered with: formulas are of batches with some.
        varied: whether samples differ in length.
        probability: of a batch that needs as much as the worst.
        median_peak_requested_bytes: half of the batches stay within it; without a profile.
        percentile_99_peak_requested_bytes: 99 of 100 do.
        verdicts: probability that a batch fits, that this is uncertain, that it does not fit; None without a capacity.
    """

    samples: int
    tokens: int
    images: int
    answered_images: int
    varied: bool
    probability: float
    median_peak_requested_bytes: int
    percentile_99_peak_requested_bytes: int
    verdicts: Mapping[str, float] | None


@dataclass(frozen=True)
class TurnMemory:
    """One call of ``generate``; ``tokens``, ``images``, ``new_tokens`` and ``cached_tokens`` are of each sequence.

    Attributes:
        role: whose words come in, ``user`` or ``tool``.
        tokens: that the model sees at once.
        cached_tokens: in the cache afterwards.
        cache_bytes: of keys and values of all sequences afterwards.
        prefill_peak_requested_bytes: the highest until the first token is there.
        decode_peak_requested_bytes: the highest from then on; None where there is one token.
    """

    turn: int
    role: str
    tokens: int
    images: int
    new_tokens: int
    cached_tokens: int
    cache_bytes: int
    prefill_peak_requested_bytes: int
    decode_peak_requested_bytes: int | None


@dataclass(frozen=True)
class Paged:
    """What paged serving would reserve, as vLLM accounts for it: assumed, never measured.

    Attributes:
        block_bytes: keys and values of ``block_size`` tokens, of all layers.
        reserved_bytes: what ``gpu_memory_utilization`` gives less weights, activations and runtime; 0 if less.
        least_gpu_memory_utilization: that the blocks of one sequence need; above 1, no such GPU has them.
        tokens: that the blocks hold.
        sequences: of the workload's length that they hold at once.
    """

    gpu_memory_utilization: float
    block_size: int
    block_bytes: int
    activations_bytes: int
    runtime_bytes: int
    reserved_bytes: int
    least_gpu_memory_utilization: float
    blocks: int
    tokens: int
    sequences: int


@dataclass(frozen=True)
class Inference:
    """What inference holds.

    Attributes:
        weights_bytes: of the model on the GPU.
        cache_bytes: of keys and values at the end of the last reply.
        cache_bytes_per_token: what the last token of a sequence added to them, nothing in a sliding window that is
            full; of a static cache, or of replies too short to tell, its share.
        turns: each call of ``generate``.
        paged: None without ``gpu_memory_utilization``.
        longest_prompt_tokens: the longest prompt that fits with this reply, 0 if none does; None if nobody asked, or of
            a conversation.
        most_turns: of a conversation that goes on with turns like its last one, how many fit; None if nobody asked, or
            of a single prompt.
        longest_context_tokens: in the cache after the reply to that prompt, or to the last of those turns.
        concurrent_sequences: the most sequences (conversations) at once that fit; None if nobody asked.
        search_limits: where a search ended for another reason than memory, in sentences.
    """

    weights_bytes: int
    cache_bytes: int
    cache_bytes_per_token: int
    turns: tuple[TurnMemory, ...]
    paged: Paged | None = None
    longest_prompt_tokens: int | None = None
    most_turns: int | None = None
    longest_context_tokens: int | None = None
    concurrent_sequences: int | None = None
    search_limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """The answer for one workload. All sizes are whole bytes.

    ``factors`` adds up to ``peak_allocated.bytes``; ``modules`` splits the same sum by modality
    module, then factor; ``layers`` by dotted layer path, then factor; ``moments`` is the highest
    requested point of each moment. ``fragmentation_bytes`` is what PyTorch holds beyond the allocated
    bytes when these are highest; ``headroom_bytes`` what of the capacity it does not hold at most.
    ``history`` is what ``torch.cuda.memory._snapshot()`` would return, if it was asked for.
    ``samples``: what other batches of the dataset need, if the answer is of its worst.
    ``inference``: of ``mode`` inference alone.
    ``frozen_bytes`` are parameters that do not train and that every GPU holds whole; None where the engine shares them.
    ``source``: where the workload's values came from, if a framework's configuration was read.
    ``passed_bytes``: activations that modality modules which do not train keep for backward, which runs through them.
    """

    workload: Mapping[str, Any]
    filled_in: tuple[str, ...]
    peak_requested: Bound
    peak_allocated: Bound
    peak_reserved: Bound | None
    peak_device: Bound | None
    capacity_bytes: int | None
    headroom_bytes: int | None
    verdict: str | None
    peak: Peak
    factors: Mapping[Factor, int]
    modules: Mapping[str, Mapping[Factor, int]]
    layers: Mapping[str, Mapping[Factor, int]]
    moments: Mapping[Moment, Mapping[str, Any]]
    not_modelled: tuple[str, ...]
    provenance: Mapping[str, Any]
    candidates: tuple[Candidate, ...] = ()
    curve: Timeline | None = field(default=None, repr=False)
    history: Mapping[str, Any] | None = field(default=None, repr=False)
    fragmentation_bytes: int | None = None
    out_of_memory: OutOfMemory | None = None
    minimum_capacity_bytes: int | None = None
    frozen_bytes: int | None = None
    passed_bytes: Mapping[str, int] = field(default_factory=dict)
    samples: Chances | None = None
    source: Source | None = None
    inference: Inference | None = None

    def to_json(self) -> dict[str, Any]:
        """The result JSON (design, section 5): every key always present, unit in its name."""
        document: dict[str, Any] = {"workload": dict(self.workload), "filled_in": list(self.filled_in)}
        for name in ("peak_requested", "peak_allocated", "peak_reserved", "peak_device"):
            bound = getattr(self, name) or Bound(None)  # type: ignore[arg-type]
            document[f"{name}_bytes"] = bound.bytes
            document[f"{name}_bytes_low"] = bound.low
            document[f"{name}_bytes_high"] = bound.high
        document |= {
            "fragmentation_bytes": self.fragmentation_bytes,
            "capacity_bytes": self.capacity_bytes,
            "headroom_bytes": self.headroom_bytes,
            "verdict": self.verdict,
            "out_of_memory": None if self.out_of_memory is None else
            asdict(self.out_of_memory) | {"moment": self.out_of_memory.moment.value},
            "minimum_capacity_bytes": self.minimum_capacity_bytes,
            "peak": {
                "moment": self.peak.moment.value,
                "module": self.peak.module,
                "operator": self.peak.operator,
                "rank": self.peak.rank,
                "reserved_rank": self.peak.reserved_rank,
                "allocated_rank": self.peak.allocated_rank,
                "step": self.peak.step,
            },
            "factors": {factor.value: self.factors.get(factor, 0) for factor in Factor},
            "modules": {name: {f.value: b for f, b in split.items()} for name, split in self.modules.items()},
            "moments": {moment.value: dict(point) for moment, point in self.moments.items()},
            "samples": None if self.samples is None else asdict(self.samples),
            "source": self.source and self.source.to_json(),
            "inference": None if self.inference is None else asdict(self.inference),
            "not_modelled": list(self.not_modelled),
            "provenance": dict(self.provenance),
        }
        return document

    def to_frame(self):
        """Factors by modality module at the peak, in bytes, as a pandas DataFrame (needs pandas)."""
        import pandas

        return pandas.DataFrame(
            {name: {f.value: b for f, b in split.items()} for name, split in self.modules.items()}
        ).fillna(0).astype("int64")

    def timeline(self) -> Timeline:
        """Live bytes over start-up and three steps, by factor."""
        if self.curve is None:
            raise ValueError("this prediction was made without its timeline: predict(workload, timeline=True)")
        return self.curve

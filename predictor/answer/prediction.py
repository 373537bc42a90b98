"""The prediction: plain, frozen data that ``predict()`` returns and reports render. Sizes are whole bytes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from predictor.common.value_types import thaw
from predictor.course.course import Course
from predictor.events.events import Factor, Moment
from predictor.workload.value_sources import Source

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Bound:
    """A byte count with the interval that the profile's residuals give it (None without an interval)."""

    bytes: int
    low: int | None = None
    high: int | None = None

    @property
    def most(self) -> int:
        """The upper end of the interval, in bytes."""
        return self.bytes if self.high is None else self.high

    def not_below(self, part: Bound) -> Bound:
        """This size of a whole, whose lower end is no less than that of its part."""
        if self.low is None or part.low is None or part.low <= self.low:
            return self
        return replace(self, low=part.low)

    @classmethod
    def of(cls, size: int, relative: tuple[float, float] | None, low: int | None = None,
           high: int | None = None) -> Bound:
        """A size with its interval.

        Args:
            relative: lower and upper relative error from the profile; None without a profile.
            low, high: range of the size itself, in bytes, if the run leaves it open.
        """
        if relative is None:
            return cls(size, low, high)
        below, above = relative
        return cls(size, math.floor((size if low is None else low) * (1 + below)),
                   math.ceil((size if high is None else high) * (1 + above)))


@dataclass(frozen=True)
class Peak:
    """The moment of the peak, with the module and the operator whose allocation reaches it.

    ``operator`` is the outermost call. ``rank`` requests the most memory of all ranks, ``reserved_rank`` reserves the
    most, and ``allocated_rank`` allocates the most; the factors are those of ``allocated_rank``.
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
    """The allocation that fails, and what PyTorch's allocator holds at that time, in bytes."""

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
    """A point of the step that can be its highest, with its size as a formula.

    ``terms`` maps a term of the shape (``"1"``, ``"batch·sequence"``, a workspace's name …) to its
    coefficient: the sum of coefficient times term is ``requested_bytes`` at this shape. ``terms`` is empty for a
    moment of an evaluation, because an evaluation has its own batch size.
    """

    moment: Moment
    module: str
    operator: str
    step: int
    requested_bytes: int
    terms: Mapping[str, int]


@dataclass(frozen=True)
class LoopVariant:
    """A job in one training loop.

    Attributes:
        reserved_bytes: its reserved peak; None if it runs out of memory there.
        failed_at: the optimizer step in which it does, of a course; 0 is start-up.
    """

    loop: str
    reserved_bytes: int | None
    failed_at: int | None = None


@dataclass(frozen=True)
class Timeline:
    """Live requested bytes after each event, by factor, thinned for drawing.

    ``bytes_by_factor[factor][k]`` belongs to event ``index[k]``, in moment ``moment[k]`` of step
    ``step[k]``. Thinning keeps the highest point of each stretch. ``allocated_bytes[k]`` and ``reserved_bytes[k]`` are
    the most that PyTorch's allocator has in blocks and in segments during that stretch, on the same rank.
    """

    index: list[int]
    moment: list[Moment]
    step: list[int]
    bytes_by_factor: Mapping[Factor, list[int]]
    allocated_bytes: list[int] = field(default_factory=list)
    reserved_bytes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Chances:
    """Memory that random batches of a dataset need.

    Attributes:
        samples: number of samples in the dataset.
        tokens, images: of the worst batch: the tokens of its longest sample, and the images of all its samples.
        answered_images: number of images that the worst batch was predicted with. Formulas start at two images, or at
            one in a batch of one sample; ``images`` below that are raised to it.
        varied: whether samples differ in length.
        probability: probability of a batch that needs as much memory as the worst batch.
        median_peak_requested_bytes: half of the batches stay within this peak; the profile is not applied.
        percentile_99_peak_requested_bytes: 99 of 100 batches stay within this peak; the profile is not applied.
        verdicts: probability of each verdict (``fits``, ``uncertain``, ``does_not_fit``) for a batch; None without a
            capacity.
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
    """Memory of one call of ``generate``. Token and image counts are per sequence.

    Attributes:
        role: who wrote the new words of the prompt: ``user`` or ``tool``.
        tokens: number of tokens in the prefill.
        cached_tokens: number of tokens in the cache after the call.
        cache_bytes: keys and values of all sequences after the call.
        prefill_peak_requested_bytes: peak until the first new token exists.
        decode_peak_requested_bytes: peak from the second new token on; None if the reply has one token.
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
    """The paged KV cache that vLLM would reserve by its own accounting. It is assumed, and was never measured.

    Attributes:
        block_bytes: keys and values of ``block_size`` tokens, of all layers.
        reserved_bytes: ``gpu_memory_utilization`` of the GPU minus weights, activations and runtime; at least 0.
        least_gpu_memory_utilization: the fraction of the GPU with which the blocks of one sequence fit. Above 1, this
            GPU is too small.
        tokens: number of tokens that the blocks hold.
        sequences: number of sequences of the workload's length that the blocks hold at once.
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
class ConcurrentMemory:
    """Memory of ``generate`` with the most concurrent sequences that fit. The last four sum to ``reserved_bytes``.

    Attributes:
        moment: ``prefill`` or ``decode``: when most is requested. The next three are of that point.
        cache_bytes: keys and values, with both copies of a layer's while ``torch.cat`` extends them.
        other_bytes: what the forward pass of all sequences holds beside weights and cache.
        idle_bytes: reserved by the allocator beyond the requested peak.
    """

    sequences: int
    moment: str
    reserved_bytes: int
    weights_bytes: int
    cache_bytes: int
    other_bytes: int
    idle_bytes: int


@dataclass(frozen=True)
class Inference:
    """Memory of inference.

    Attributes:
        weights_bytes: the model's weights on the GPU.
        cache_bytes: keys and values at the end of the last reply.
        cache_bytes_per_token: bytes that the last token of a sequence added to the cache (nothing in a sliding window
            that is full). With a static cache, or with replies too short to show growth, the cache's size per token.
        turns: the calls of ``generate``, in order.
        paged: None without ``gpu_memory_utilization``.
        longest_prompt_tokens: the longest prompt that fits with this reply, 0 if none fits; None for a conversation, or
            if the maximum load was not searched.
        most_turns: number of turns that fit if the conversation goes on with turns like its last one; None for a
            single prompt, or if the maximum load was not searched.
        longest_context_tokens: tokens in the cache after the reply to that prompt, or after the last of those turns.
        concurrent_sequences: the largest number of concurrent sequences (conversations) that fit; None if the maximum
            load was not searched.
        search_limits: sentences that say where a search ended for another reason than memory.
        concurrent: memory with ``concurrent_sequences``; None unless paged serving is predicted too, which it explains.
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
    concurrent: ConcurrentMemory | None = None


@dataclass(frozen=True)
class Caution:
    """Memory that the prediction may leave out.

    Attributes:
        text: a sentence about its cause.
        more_bytes: bytes by which the job may need more than was predicted.
        free_bytes: bytes that the job may need more while the verdict stays.
        name: the cause in a few words; empty if ``text`` is short.
        verdict: the verdict that it can turn into another: ``fits``, or ``uncertain``, which becomes ``does_not_fit``.
    """

    text: str
    more_bytes: int
    free_bytes: int
    name: str = ""
    verdict: str = "fits"


@dataclass(frozen=True)
class Remedy:
    """Changes of a workload with their judgement.

    Attributes:
        changes: one change, or several that are made together, each in words.
        keys: the workload's changed keys. Those that the user's framework decides by the change are among them.
        own_words: the changes as the user would type them into ``where``, a file or the command that was read, or as
            options of peakcast if nothing was read and ``where`` is empty. Empty if they cannot be typed.
        costs: the price of each change, in words.
        differs: how training or its result differs; empty if the same model trains in the same way.
        fits: whether the changed workload surely fits; None if it was not predicted.
        peak_requested_bytes: predicted peak of the rank that requests the most; None if it was not predicted.
        peak_allocated_bytes, peak_reserved_bytes: predicted peaks; None if it does not surely fit.
        peak_reserved_bytes_high: upper end of the reserved peak's interval; None where there is none.
        why_not: the reason why it was not predicted; empty otherwise.
        needs_trace: whether that reason is that the model must be traced first.
        needs_time: whether that reason is that judging it takes longer than an answer may.
        room_bytes: bytes that the requested peak leaves of what PyTorch surely gets; negative if tensors alone do not
            fit, None if it was not predicted. A change with room that does not fit fails by idle memory.
        cautions: memory that the prediction of a change that fits may leave out, where it is enough to change that.
    """

    changes: tuple[str, ...]
    keys: Mapping[str, Any]
    costs: tuple[str, ...]
    differs: tuple[str, ...]
    fits: bool | None
    peak_requested_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_reserved_bytes_high: int | None = None
    why_not: str = ""
    needs_trace: bool = False
    needs_time: bool = False
    own_words: str = ""
    where: str = ""
    room_bytes: int | None = None
    cautions: tuple[Caution, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The remedy as plain data."""
        document = asdict(replace(self, keys={}))
        return document | {"keys": {key: thaw(value) for key, value in self.keys.items()}}


@dataclass(frozen=True)
class GpuShare:
    """How a job fits one kind of GPU among several that train it together.

    Attributes:
        gpu: name of the kind.
        capacity_bytes, peak_reserved_bytes, headroom_bytes, verdict: as those of a prediction for this kind.
        per_device_train_batch_size: the largest micro-batch that fits there, in samples; 0 if none fits.
        search_limits: sentences that say where that search ended for another reason than memory.
    """

    gpu: str
    capacity_bytes: int
    verdict: str
    peak_reserved_bytes: int
    headroom_bytes: int
    per_device_train_batch_size: int
    search_limits: tuple[str, ...]


@dataclass(frozen=True)
class MaximumLoad:
    """The largest loads that surely fit in training. Each is searched alone: all other keys keep their values.

    Each fits, and the next larger size does not fit or is not predicted (``search_limits`` then says why). Much larger
    sizes may fit, as fitting is not monotone: ``search_limits`` says which of them were not all tried.

    Attributes:
        per_device_train_batch_size: the largest batch that fits, in samples; 0 if none fits.
        per_device_train_batch_size_expandable: the same with ``expandable_segments:True``; None if the workload has
            that already.
        sequence_length: the longest sequence that fits at the given batch, in tokens; 0 if none fits, None for a model
            that takes no tokens.
        search_limits: sentences that say where a search ended for another reason than memory, at a size that a learned
            formula was not recorded at, or with larger sizes that were not all tried.
        cautions: name of one of these loads -> what the user's loop or framework may take beyond it, where that is
            enough to change that it surely fits.
        cautious: name of such a load -> a smaller one that fits even then; 0 if none was found. Absent where each size
            needs a trace.
    """

    per_device_train_batch_size: int
    per_device_train_batch_size_expandable: int | None
    sequence_length: int | None
    search_limits: tuple[str, ...] = ()
    cautions: Mapping[str, Caution] = field(default_factory=dict)
    cautious: Mapping[str, int] = field(default_factory=dict)


def _deprecated(name: str, interval: str) -> property:
    """A property that still returns the interval under its old name, with a warning that names the new attributes."""
    def get(prediction: Prediction) -> Bound | None:
        warnings.warn(
            f"prediction.{name} is deprecated: use the integers prediction.{name}_bytes, prediction.{name}_bytes_low "
            f"and prediction.{name}_bytes_high, or the interval prediction.{interval}",
            DeprecationWarning, stacklevel=2)
        bound: Bound | None = getattr(prediction, interval)
        return bound

    return property(get)


@dataclass(frozen=True)
class Prediction:
    """The prediction for one workload. All sizes are whole bytes.

    Every key of the result JSON that is a number of bytes is an ``int`` attribute of the same name, or None where the
    JSON has null: ``peak_allocated_bytes``, ``peak_allocated_bytes_low``, ``headroom_bytes`` …

    Attributes:
        workload: the workload's keys with their values.
        filled_in: keys that the user left out, and that have defaults.
        requested, allocated, reserved, device: peaks with their intervals. ``requested`` counts what tensors need,
            ``allocated`` whole blocks of PyTorch's caching allocator, ``reserved`` its segments, and ``device`` what
            ``nvidia-smi`` shows (None without a profile).
        headroom_bytes: the capacity minus the reserved peak; None of a course that fails.
        verdict: ``fits``, ``uncertain`` or ``does_not_fit``; None without a capacity.
        factors: allocated bytes at the peak, by factor. They add up to ``peak_allocated_bytes``.
        modules: the same sum by modality module, then by factor.
        layers: requested bytes at the same point by dotted layer path, then by factor.
        modules_attributed, layers_attributed: the same sums, but with the loss's tensors under the head, flat buffers
            split among the layers that train, and inputs under the module that reads them; what is left is under
            the module "shared" and the empty path. Tables show these.
        moments: the highest requested point of each moment.
        not_modelled: sentences that name what the prediction leaves out.
        provenance: library versions, profile and formula behind the numbers; ``answered_by`` is ``shipped formula``,
            ``trace``, ``learned formula`` or ``emulated run``.
        candidates: points of the step that can be its highest; empty unless the timeline was requested.
        curve: live bytes by factor; None unless the timeline was requested.
        history: what ``torch.cuda.memory._snapshot()`` would return; None unless the history was requested.
        fragmentation_bytes: reserved minus allocated bytes at the time of the allocated peak.
        out_of_memory: the allocation that fails; None if none does. If an evaluation of a course fails, more may be
            allocated then than at the peak, which is that of training's largest batch.
        minimum_capacity_bytes: the smallest GPU memory in which the job survives; None unless it was searched.
        frozen_bytes: parameters that do not train and that every GPU holds in full; None where the engine shards them.
        passed_bytes: activations that frozen modality modules keep for backward, which runs through them.
        samples: memory of other batches of the dataset; None unless samples were passed.
        source: the files that the workload's values came from, if a framework's configuration was read.
        inference: memory of inference; None for training.
        maximum_load: the largest batch and the longest sequence that fit; None unless they were searched, and for
            inference, where ``inference`` has what fits.
        gpus: each kind of GPU of the job, beginning with the one where it fits worst, for which the prediction is; None
            unless several were named.
        cautions: memory that the prediction may leave out, where it is enough to change the verdict.
        remedies: changes of the workload that were judged; None unless they were searched.
        assumptions: sentences about defaults that decide the prediction although nobody gave them.
        course: the steps of a training over a dataset; None unless they were simulated. Reserved and device bytes, the
            verdict and the allocation that fails are then those of the course; the other peaks, with their place and
            parts, are of one training batch repeated.
        loops: the reserved peak in other training loops, on the rank that reserves the most; None unless they were
            simulated.
        is_fragile: whether reserved memory differs by more than 1 % between those loops; None as before.
    """

    workload: Mapping[str, Any]
    filled_in: tuple[str, ...]
    requested: Bound
    allocated: Bound
    reserved: Bound
    device: Bound | None
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
    maximum_load: MaximumLoad | None = None
    gpus: tuple[GpuShare, ...] | None = None
    modules_attributed: Mapping[str, Mapping[Factor, int]] = field(default_factory=dict)
    layers_attributed: Mapping[str, Mapping[Factor, int]] = field(default_factory=dict)
    cautions: tuple[Caution, ...] = ()
    remedies: tuple[Remedy, ...] | None = None
    assumptions: tuple[str, ...] = ()
    course: Course | None = None
    loops: tuple[LoopVariant, ...] | None = None
    is_fragile: bool | None = None

    peak_requested = _deprecated("peak_requested", "requested")
    peak_allocated = _deprecated("peak_allocated", "allocated")
    peak_reserved = _deprecated("peak_reserved", "reserved")
    peak_device = _deprecated("peak_device", "device")

    @property
    def peak_requested_bytes(self) -> int:
        return self.requested.bytes

    @property
    def peak_requested_bytes_low(self) -> int | None:
        return self.requested.low

    @property
    def peak_requested_bytes_high(self) -> int | None:
        return self.requested.high

    @property
    def peak_allocated_bytes(self) -> int:
        return self.allocated.bytes

    @property
    def peak_allocated_bytes_low(self) -> int | None:
        return self.allocated.low

    @property
    def peak_allocated_bytes_high(self) -> int | None:
        return self.allocated.high

    @property
    def peak_reserved_bytes(self) -> int:
        return self.reserved.bytes

    @property
    def peak_reserved_bytes_low(self) -> int | None:
        return self.reserved.low

    @property
    def peak_reserved_bytes_high(self) -> int | None:
        return self.reserved.high

    @property
    def peak_device_bytes(self) -> int | None:
        return None if self.device is None else self.device.bytes

    @property
    def peak_device_bytes_low(self) -> int | None:
        return None if self.device is None else self.device.low

    @property
    def peak_device_bytes_high(self) -> int | None:
        return None if self.device is None else self.device.high

    @property
    def has_no_room_for_pages(self) -> bool:
        """Whether the share of the GPU that paged serving may use has no room for the cache of one sequence."""
        return self.inference is not None and self.inference.paged is not None and not self.inference.paged.sequences

    def to_json(self) -> dict[str, Any]:
        """The result JSON: names of numbers end with their unit. Every key is always present but ``course``, which only
        ``--steps`` and ``--epochs`` add, and ``loops`` and ``is_fragile``, which only ``--loops`` adds."""
        document: dict[str, Any] = {"workload": dict(self.workload), "filled_in": list(self.filled_in)}
        for counter in ("requested", "allocated", "reserved", "device"):
            for name in (f"peak_{counter}_bytes", f"peak_{counter}_bytes_low", f"peak_{counter}_bytes_high"):
                document[name] = getattr(self, name)
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
            "maximum_load": None if self.maximum_load is None else asdict(self.maximum_load),
            "gpus": None if self.gpus is None else [asdict(share) for share in self.gpus],
            "assumptions": list(self.assumptions),
            "cautions": [asdict(caution) for caution in self.cautions],
            "remedies": None if self.remedies is None else [remedy.to_json() for remedy in self.remedies],
            "not_modelled": list(self.not_modelled),
            "provenance": dict(self.provenance),
        }
        if self.course is not None:
            document["course"] = self.course.to_json()
        if self.loops is not None:
            document |= {"loops": [asdict(variant) for variant in self.loops], "is_fragile": self.is_fragile}
        return document

    def to_frame(self) -> pandas.DataFrame:
        """The factors at the peak by modality module, in bytes, as a pandas DataFrame (needs pandas).

        Rows are factors and columns are modules.
        """
        import pandas

        return pandas.DataFrame(
            {name: {f.value: b for f, b in split.items()} for name, split in self.modules.items()}
        ).fillna(0).astype("int64")

    def timeline(self) -> Timeline:
        """Live bytes over start-up and three steps, by factor.

        Raises:
            ValueError: the prediction was made without ``timeline=True``.
        """
        if self.curve is None:
            raise ValueError("this prediction was made without its timeline: predict(workload, timeline=True)")
        return self.curve

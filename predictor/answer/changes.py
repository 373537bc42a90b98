"""Changes that can lower a workload's memory: one table, from which plans take knobs and predictions take remedies.

Each function of :data:`TRAINING` and :data:`INFERENCE` yields families of changes. The changes of a family are steps of
one kind, such as ever smaller batches: the first changes the workload least, and each saves more than the one before.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from predictor.allocator.settings import with_expandable_segments
from predictor.common import gpus
from predictor.common.value_types import thaw
from predictor.jobs import dispatch
from predictor.workload import deepspeed_document
from predictor.workload.command_line import change_words
from predictor.workload.deepspeed_settings import BATCH_KEYS, SAME_AS, with_zero
from predictor.workload.value_sources import OwnChange
from predictor.workload.workload import Workload

BATCH, STEPS = BATCH_KEYS
LENGTH, EVALUATED = "sequence_length", "per_device_eval_batch_size"
SMALL_BUCKET = 50_000_000
"""Elements; larger communication buckets are changed to this size."""
LENGTH_STEP = 256
"""Tokens between the shorter sequences of a family, down to half the sequence."""
FURTHER = 16
"""Steps below half a sequence are at least one part in so many of it, so that they stay few."""
SHORTEST = 8
"""Remedies keep at least one part in so many of a sequence."""
OF_SIDES = (0.75, 0.5)
"""Sides of smaller pictures, relative to the workload's."""
HARDWARE = {"gpu", "data_parallel_size"}
SMALLER = "a smaller global batch"
"""How training differs with a smaller micro batch and no more accumulation."""
QLORA = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "bf16"}


@dataclass(frozen=True)
class Change:
    """A change of a workload.

    Attributes:
        text: the change in words.
        keys: the workload's changed keys.
        costs: its price in words.
        differs: how training or its result differs; empty if the same model trains in the same way.
    """

    text: str
    keys: Mapping[str, Any]
    costs: str
    differs: str = ""

    @property
    def is_hardware(self) -> bool:
        """Whether other GPUs, or more of them, are the change."""
        return bool(HARDWARE & self.keys.keys())

    @property
    def keeps_training(self) -> bool:
        """Whether the same model trains in the same way, on the same GPUs."""
        return not self.differs and not self.is_hardware

    @property
    def is_other_engine(self) -> bool:
        """Whether another engine is the change."""
        return "engine" in self.keys


Families = Iterator[tuple[Change, ...]]
Proposals = tuple[Callable[[Workload], Families], ...]


def of(workload: Workload) -> list[tuple[Change, ...]]:
    """The families of changes of a workload: those that keep training the same, then others; other hardware last.

    Those within the same engine come before those to another engine, and last those for which the user's framework has
    no setting.

    Raises:
        InputError: the workload cannot be predicted.
    """
    families = proposed(workload, INFERENCE if workload.mode == "inference" else TRAINING)
    return sorted(families, key=lambda family: (
        bool(family[0].differs), family[0].is_hardware, family[0].is_other_engine, _changes_code(workload, family[0])))


def _changes_code(workload: Workload, change: Change) -> bool:
    return workload.source is not None and bool(workload.source.without_setting(change.keys))


def proposed(workload: Workload, table: Proposals) -> list[tuple[Change, ...]]:
    """The families that these functions propose."""
    return [family for propose in table for family in propose(workload) if family]


def _allocator(w: Workload) -> Families:
    conf = with_expandable_segments(w.allocator_conf)
    if conf:
        yield (Change(f"PYTORCH_CUDA_ALLOC_CONF={shlex.quote(conf)}", {"allocator_conf": conf},
                      "nothing that is known"),)


def _precision(w: Workload) -> Families:
    if not w.gradient_checkpointing:
        yield (Change("gradient_checkpointing off → on", {"gradient_checkpointing": True},
                      "one more forward of the layers"),)
    if w.attn_implementation == "eager":
        yield (Change("attn_implementation eager → sdpa", {"attn_implementation": "sdpa"}, "nothing"),)
    if not w.use_liger_kernel:
        yield (Change("use_liger_kernel off → on", {"use_liger_kernel": True}, "a package; logits are never whole"),)
    if w.lora is not None and w.dtype == "fp32" and w.mixed_precision != "none" and w.quantization is None:
        yield (Change(f"dtype fp32 → {w.mixed_precision}", {"dtype": w.mixed_precision}, "nothing",
                      f"frozen weights in {w.mixed_precision}, in which autocast computes"),)
    offloaded = dict(w.gradient_checkpointing_kwargs) | {"offload": True}
    if w.gradient_checkpointing and offloaded != w.gradient_checkpointing_kwargs:
        yield (Change("inputs of checkpoints → host", {"gradient_checkpointing_kwargs": offloaded},
                      "copies over PCIe in each micro-step"),)


def _batch(w: Workload) -> Families:
    """Smaller micro batches. With more accumulation the global batch size stays; without, it shrinks."""
    batch, steps = w.per_device_train_batch_size, w.gradient_accumulation_steps
    total, now = batch * steps, f" in place of {steps}" if steps > 1 else ""
    yield tuple(Change(f"micro batch {batch} → {size}, accumulation {steps} → {total // size}",
                       _shape(w, size, total // size), f"{total // size} micro-steps a step{now}")
                for size in range(batch - 1, 0, -1) if total % size == 0)
    yield tuple(Change(f"micro batch {batch} → {size}", _shape(w, size, steps), "more steps an epoch",
                       SMALLER) for size in range(batch - 1, 0, -1))


def _evaluation(w: Workload) -> Families:
    evaluated = w.per_device_eval_batch_size
    if evaluated:
        yield tuple(Change(f"{EVALUATED} {evaluated} → {size}", {EVALUATED: size}, "more evaluation steps")
                    for size in range(evaluated - 1, 0, -1))


def _shape(w: Workload, batch: int, steps: int) -> dict[str, Any]:
    """The changed keys of the shape; numbers in the user's DeepSpeed config change with them."""
    keys: dict[str, Any] = {BATCH: batch, STEPS: steps}
    config = thaw(w.deepspeed) if w.deepspeed else {}
    theirs = {name: keys[ours] for name, ours in SAME_AS.items()
              if ours in BATCH_KEYS and isinstance(config.get(name), int)}
    if theirs or isinstance(config.get("train_batch_size"), int):
        config.pop("train_batch_size", None)
        keys["deepspeed"] = config | theirs
    return keys


def _optimizer(w: Workload) -> Families:
    if w.optim in ("adamw_torch", "adamw_torch_forloop"):
        yield (Change(f"optim {w.optim} → adamw_torch_fused", {"optim": "adamw_torch_fused"}, "nothing"),)
    if w.optim.startswith("adamw_torch"):
        yield (Change(f"optim {w.optim} → adamw_bnb_8bit", {"optim": "adamw_bnb_8bit"}, "bitsandbytes",
                      "optimizer states of 8 bits"),)


def _engine(w: Workload) -> Families:
    if w.engine == "ddp" and w.data_parallel_size == w.world_size > 1:
        yield (_to_zero(w, "DDP", 2, "", "reductions in each micro-step"),)
    if w.engine == "torch" and w.world_size == 1 and w.optim.startswith("adamw_torch"):
        yield tuple(_to_zero(w, "plain PyTorch", stage, f" with the {what} on the host",
                             f"AdamW on the CPU, {traffic} over PCIe", offload=offload)
                    for stage, offload, what, traffic in OFFLOADED
                    if w.lora is None or offload == "all")  # adapters alone have small optimizer states
    if w.engine == "deepspeed":
        yield from _stages(w)
        yield from _deepspeed(w)


OFFLOADED = (
    (2, "optimizer", "optimizer", "gradients and weights"),
    (3, "optimizer", "optimizer", "gradients and weights"),
    (3, "all", "optimizer and parameters", "gradients, and weights in each micro-step,"),
)
"""Ways in which DeepSpeed uses the host's memory: stage, the value of ``offload``, its words, what PCIe carries."""


def _to_zero(w: Workload, plain: str, stage: int, besides: str, costs: str, **more: Any) -> Change:
    """DeepSpeed in place of a plain loop. It casts the weights, trains without autocast, and updates fp32 masters.

    (DeepSpeed 0.19, runtime/engine.py, ``_configure_distributed_model``; runtime/zero/stage_1_and_2.py,
    ``single_partition_of_fp32_groups``; runtime/zero/stage3.py, ``fp32_partitioned_groups_flat``. In fp32 there is
    nothing to cast.)
    """
    keys = {"engine": None, "ddp": None, "zero_stage": stage, **more, "mixed_precision": None, "dtype": w.computes_in}
    text = f"{plain} → DeepSpeed ZeRO-{stage}{besides}"
    text += ", which needs a DeepSpeed config" if w.source and w.source.knows("deepspeed") else ""
    differs = "" if w.computes_in == "fp32" else f"{w.computes_in} weights with fp32 master weights" + (
        ", without autocast" if w.mixed_precision != "none" else "")
    return Change(text, keys, f"DeepSpeed in place of the plain loop, {costs}", differs)


def _stages(w: Workload) -> Families:
    traffic = {1: "an all-reduce less, a partition more", 2: "reductions in each micro-step",
               3: "weights are gathered in each micro-step"}
    assert w.zero_stage is not None  # DeepSpeed has a stage
    for stage in range(w.zero_stage + 1, 4):
        yield (Change(f"zero_stage {w.zero_stage} → {stage}", _zero(w, stage=stage), traffic[stage]),)
    yield tuple(_to_host(w))


def _to_host(w: Workload) -> Iterator[Change]:
    cpu = {"device": "cpu", "pin_memory": True}
    if w.zero_stage and not w.offload:
        keys = {"offload": "optimizer"} if w.deepspeed is None else _zero(w, offload_optimizer=cpu)
        yield Change("optimizer → host", keys, "AdamW on the CPU, gradients and weights over PCIe")
    if w.zero_stage == 3 and w.offload != "all":
        keys = {"offload": "all"} if w.deepspeed is None else _zero(w, offload_optimizer=cpu, offload_param=cpu)
        yield Change("optimizer and parameters → host", keys, "weights over PCIe in each micro-step, too")


def _deepspeed(w: Workload) -> Families:
    if w.zero_stage == 0:
        return
    settings = dispatch.prepare(w).setup.zero
    assert settings is not None  # the engine is DeepSpeed
    if settings.reduce_bucket_size > SMALL_BUCKET:
        yield (Change(f"reduce_bucket_size {settings.reduce_bucket_size:.3g} → {SMALL_BUCKET:.3g}",
                      _zero(w, reduce_bucket_size=SMALL_BUCKET), "more, smaller messages"),)
    if settings.overlap_comm:
        yield (Change("overlap_comm on → off", _zero(w, overlap_comm=False), "communication waits for computation"),)
    if not settings.contiguous_gradients:
        yield (Change("contiguous_gradients off → on", _zero(w, contiguous_gradients=True),
                      "a copy of each gradient"),)


def _zero(w: Workload, **changes: Any) -> dict[str, Any]:
    """The changed keys if settings of ``zero_optimization`` change; a stage alone needs no config."""
    if w.deepspeed is None and changes.keys() == {"stage"}:
        return {"zero_stage": changes["stage"]}
    document = thaw(w.deepspeed) if w.deepspeed else deepspeed_document.document(
        w, dispatch.prepare(w).formula.facts.hidden_size)
    assert document is not None  # the engine is DeepSpeed
    return by_config(with_zero(document, **changes))


def named(workload: Workload, change: Change) -> Change:
    """A change for which the user's file has no words, with the reason if the framework has no setting for it."""
    if workload.source is None or change.is_hardware or change.is_other_engine:
        return change
    framework = workload.source.without_setting(change.keys)
    return change if not framework else replace(
        change, text=f"{change.text}, for which {framework} has no known setting: change the code")


def said(workload: Workload, keys: Mapping[str, Any]) -> tuple[dict[str, Any], OwnChange | None]:
    """The keys with which to predict a change, and the change as the user would type it.

    The words are those of the user's own file. If none was read, or an option of peakcast overrides one of the keys in
    it, they are such options. None if they cannot say the change. A framework may decide further keys by the change,
    and a DeepSpeed config says others.
    """
    gpu = {key: item for key, item in keys.items() if key == "gpu"}
    rest = {key: item for key, item in keys.items() if key != "gpu"}
    own = None if workload.source is None or not rest else workload.source.in_own_words(rest)
    if own is not None and gpu:
        own = replace(own, text=f"{change_words(workload, gpu)} and {own.text}", workload={**own.workload, **gpu})
    if own is None and (not rest or workload.source is None or workload.source.overridden & keys.keys()):
        words = change_words(workload, keys)
        own = OwnChange(words, {}, "", {}) if words else None
    if own is None:
        return dict(keys), None
    config = by_config(own.workload["deepspeed"]) if "deepspeed" in own.workload else {}
    return {**keys, **own.workload, **config}, own


def by_config(document: Mapping[str, Any]) -> dict[str, Any]:
    """The changed keys of a workload whose DeepSpeed config changes: it says the stage and what is offloaded."""
    return {"zero_stage": None, "offload": None, "deepspeed": document}


def _adapters(w: Workload) -> Families:
    if w.recipe in ("finetune", "full"):
        yield (Change(f"recipe {w.recipe} → lora", {"recipe": "lora"}, "nothing", "adapters train"),)
    if w.quantization is None:
        adapted = w.recipe == "lora"
        yield (Change("weights of 4 bits (QLoRA)", {"quantization": QLORA} | ({} if adapted else {"recipe": "lora"}),
                      "bitsandbytes", "weights of 4 bits" if adapted else "adapters train over weights of 4 bits"),)


def _samples(w: Workload, shortest: int = 2) -> Families:
    """Shorter sequences, down to that part of the length, and smaller pictures."""
    if w.sequence_length is not None:
        longest, half = (w.sequence_length - 1) // LENGTH_STEP * LENGTH_STEP, w.sequence_length // 2
        step = max(1, -(-w.sequence_length // FURTHER // LENGTH_STEP)) * LENGTH_STEP
        below = (half - 1) // step * step
        yield tuple(Change(f"sequence_length {w.sequence_length} → {length}", {LENGTH: length}, "nothing",
                           "longer samples are cut")
                    for length in (*range(longest, half - 1, -LENGTH_STEP),
                                   *range(below, w.sequence_length // shortest - 1, -step)) if length)
    if w.image_sizes:
        smaller = (",".join(f"{int(height * part)}x{int(width * part)}" for height, width in w.image_sizes)
                   for part in OF_SIDES)
        yield tuple(Change(f"image_size {w.image_size} → {size}", {"image_size": size}, "nothing", "smaller pictures")
                    for size in smaller)


def _hardware(w: Workload) -> Families:
    """More GPUs, up to a whole node or twice as many, and GPUs with more memory, the smallest first."""
    if w.mode == "training" and w.engine in ("deepspeed", "fsdp1", "fsdp2") and w.zero_stage != 0 and w.rank == "worst":
        size = w.data_parallel_size
        yield tuple(Change(f"{size} → {times * size} GPUs", {"data_parallel_size": times * size},
                           f"{times} times the GPUs", f"{times} times the global batch")
                    for times in (2, 4, 8) if times == 2 or times * size <= gpus.NODE)
    if w.gpu and w.capacity_bytes is None:
        here = gpus.find(w.gpu)
        as_able = min(here.compute_capability, gpus.AMPERE)  # older ones have no bf16
        larger = sorted((gpu for gpu in gpus.TABLE
                         if gpu.capacity_bytes > here.capacity_bytes and gpu.compute_capability >= as_able
                         and not gpus.are_alike(gpu.capacity_bytes, here.capacity_bytes)),
                        key=lambda gpu: gpu.capacity_bytes)
        yield tuple(Change(f"{w.gpu} → {gpu.name}", {"gpu": gpu.name},
                           f"a larger GPU{'' if gpu.measured else ', of an assumed capacity'}")
                    for gpu in larger)


def _served(w: Workload) -> Families:
    batch = w.per_device_eval_batch_size or 1
    yield tuple(Change(f"batch {batch} → {size}", {EVALUATED: size}, "more batches", "fewer sequences at once")
                for size in range(batch - 1, 0, -1))
    if w.quantization is None:
        for bits in (8, 4):
            yield (Change(f"weights of {bits} bits", {"quantization": QLORA if bits == 4 else {"load_in_8bit": True}},
                          "bitsandbytes", f"weights of {bits} bits"),)


TRAINING: Proposals = (_allocator, _precision, _batch, _evaluation, _engine, _optimizer, _adapters,
                       partial(_samples, shortest=SHORTEST), _hardware)
"""Functions that propose changes of a training, in the order in which a person would try them."""
ADAPTERS: Proposals = (_adapters,)
"""Those that train adapters in place of the model."""
SAMPLES: Proposals = (_samples,)
"""Those that train with less of each sample, and at least half of its tokens."""
INFERENCE: Proposals = (_allocator, _served, _hardware)
"""The same for inference."""

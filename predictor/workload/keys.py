"""The keys of a workload: names, value types, defaults and help texts, and properties derived from several keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from predictor.common import gpus
from predictor.common.dtypes import SHORT_NAMES
from predictor.common.errors import InputError
from predictor.common.files import parse_json, read_mapping
from predictor.common.suggestions import nearest, quoted
from predictor.common.value_types import (
    Choice,
    Flag,
    FrozenMap,
    Invalid,
    NotYetSupported,
    Number,
    Patterns,
    RankOrWorst,
    Schema,
    Size,
    Table,
    Text,
    Whole,
    check_few,
    freeze,
    one_or_several,
)
from predictor.workload import engines, fsdp1_keys, fsdp_keys, lora_keys, modes, optimizers, quantization_keys
from predictor.workload.conversation import Conversation
from predictor.workload.deepspeed_keys import STAGE
from predictor.workload.limits import MOST_SAMPLES, MOST_STEPS

DDP = {"bucket_cap_mb": Number(), "gradient_as_bucket_view": Flag(),
       "find_unused_parameters": Flag(),
       "static_graph": NotYetSupported("leave it out: without it DDP allocates less")}
PINNED = {"torch": "2.11.0", "transformers": "5.17.0", "deepspeed": "0.19.8"}

# Names in other tools -> the workload's key; an error for an unknown key suggests it.
ALSO_CALLED = {
    "batch_size": "per_device_train_batch_size", "batchsize": "per_device_train_batch_size",
    "micro_batch_size": "per_device_train_batch_size",
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size", "model_max_length": "sequence_length",
    "max_length": "sequence_length", "cutoff_len": "sequence_length", "sequence_len": "sequence_length",
    "seq_len": "sequence_length", "bf16": "mixed_precision", "fp16": "mixed_precision", "torch_dtype": "dtype",
    "expandable_segments": "allocator_conf", "freeze_vision_tower": "frozen",
    "attn_impl": "attn_implementation", "flash_attn": "attn_implementation", "optimizer": "optim",
    "gpus": "data_parallel_size", "num_gpus": "data_parallel_size", "world_size": "data_parallel_size",
    "num_processes": "data_parallel_size",
    "model_name_or_path": "model", "capacity": "capacity_bytes", "zero": "zero_stage",
    "liger": "use_liger_kernel", "loss_type": "loss",
    "bs": "per_device_train_batch_size", "batch": "per_device_train_batch_size", "mbs": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size", "bsz": "per_device_train_batch_size",
    "b": "per_device_train_batch_size", "micro_batch": "per_device_train_batch_size", "4bit": "quantization",
    "8bit": "quantization", "ngpu": "data_parallel_size", "offload_optimizer": "offload", "offload_param": "offload",
    "ga": "gradient_accumulation_steps", "grad_accum": "gradient_accumulation_steps",
    "accumulation": "gradient_accumulation_steps", "accumulation_steps": "gradient_accumulation_steps",
    "gradient_accumulation": "gradient_accumulation_steps", "grad_accumulation_steps": "gradient_accumulation_steps",
    "seq": "sequence_length", "seqlen": "sequence_length", "seq_length": "sequence_length",
    "max_seq_length": "sequence_length", "max_seq_len": "sequence_length", "block_len": "sequence_length",
    "context_length": "sequence_length", "tokens": "sequence_length",
    "eval_batch_size": "per_device_eval_batch_size", "dp": "data_parallel_size", "nproc_per_node": "data_parallel_size",
    "ngpus": "data_parallel_size", "n_gpus": "data_parallel_size", "tp": "tensor_parallel_size",
    "precision": "dtype", "attention": "attn_implementation", "attn": "attn_implementation",
    "checkpointing": "gradient_checkpointing", "grad_checkpointing": "gradient_checkpointing",
    "gc": "gradient_checkpointing", "ds": "deepspeed", "ds_config": "deepspeed", "deepspeed_config": "deepspeed",
    "stage": "zero_stage", "zero2": "zero_stage", "zero3": "zero_stage",
    "lora_r": "lora", "lora_rank": "lora", "lora_alpha": "lora", "lora_target_modules": "lora", "use_lora": "lora",
    "qlora": "quantization", "load_in_4bit": "quantization", "quantization_bit": "quantization", "bits": "quantization",
    "images": "images_per_sample", "num_images": "images_per_sample", "resolution": "image_size",
    "image_resolution": "image_size", "finetuning_type": "recipe", "tuner_type": "recipe",
    "memory": "capacity_bytes", "vram": "capacity_bytes", "gpu_memory": "capacity_bytes", "device": "gpu",
    "gpu_type": "gpu", "clip": "max_grad_norm", "grad_clip": "max_grad_norm", "max_tokens": "max_new_tokens",
    "tp_size": "tensor_parallel_size", "autotp_size": "tensor_parallel_size",
}


class _DeepSpeed:
    """Value type of ``deepspeed``: the path of a DeepSpeed JSON, or its content."""

    metavar = "FILE"

    def check(self, value: Any) -> FrozenMap:
        if isinstance(value, str):
            value = read_mapping(Text().check(value), "the DeepSpeed config")
        if not isinstance(value, Mapping):
            raise Invalid(f"must be the path of a DeepSpeed JSON or its content, not {quoted(value)}")
        return freeze(value)

    def from_text(self, text: str) -> Any:
        """A path, or a JSON object written out."""
        return parse_json(text, "deepspeed") if text.lstrip().startswith("{") else text

    def schema(self) -> Schema:
        return {"type": ["string", "object"]}


class _OptimArgs:
    """Value type of ``optim_args``: Hugging Face's text ``momentum=0.9,nesterov=true``, or a mapping.

    :func:`predictor.workload.optimizers.read` checks the names and values for each optimizer.
    """

    metavar = "KEY=VALUE,…"

    def check(self, value: Any) -> FrozenMap:
        if isinstance(value, str):
            pairs = [part.partition("=") for part in value.replace(" ", "").split(",")]
            if not all(name and equals and item for name, equals, item in pairs):
                raise Invalid(f"must be KEY=VALUE, with commas between several, not {quoted(value)}")
            value = {name: item for name, _, item in pairs}
        if not isinstance(value, Mapping):
            raise Invalid(f"must be text such as momentum=0.9 or a mapping, not {quoted(value)}")
        return FrozenMap(value)

    from_text = check

    def schema(self) -> Schema:
        return {"type": ["string", "object"]}


class _Offload(Choice):
    """Value type of ``offload``; false and ``none`` become None."""

    def check(self, value: Any) -> str | None:
        return None if value is False or value == "none" else super().check(value)

    def schema(self) -> Schema:
        return {"enum": [*self.names, "none", False]}


def image_sizes(image_size: int | str | None) -> tuple[tuple[int, int], ...]:
    """(height, width) of each size in the key ``image_size``, in pixels; empty for None."""
    sizes = [] if image_size is None else [size.partition("x") for size in str(image_size).split(",")]
    return tuple((int(height), int(width or height)) for height, _, width in sizes)


class ImageSize:
    """Value type of ``image_size``: pixels of a side, or ``HEIGHTxWIDTH`` such as ``768x1024``.

    Several sizes are a list, or text with commas.
    """

    metavar = "N|HxW,…"
    side = Whole(1, 16_384)

    def check(self, value: Any) -> int | str:
        sizes = value.split(",") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
        check_few(sizes)
        try:
            checked = [self._checked_size(size) for size in sizes]
        except Invalid as error:
            raise Invalid(f"must be pixels of a side or HEIGHTxWIDTH, or several of these, not {quoted(value)}: one "
                          f"{error}") from None
        if not checked:
            raise Invalid("must be pixels of a side or HEIGHTxWIDTH, or several of these, not none")
        return checked[0] if len(set(checked)) == 1 else ",".join(map(str, checked))

    def _checked_size(self, value: Any) -> int | str:
        if not isinstance(value, str):
            return self.side.check(value)
        sides = [self.side.from_text(part) for part in value.strip().lower().split("x")]
        if len(sides) > 2:
            raise Invalid(f"has {len(sides)} sides")
        return sides[0] if len(set(sides)) == 1 else f"{sides[0]}x{sides[1]}"

    from_text = check

    def schema(self) -> Schema:
        text = {"type": "string", "pattern": r"^[0-9xX, ]+$"}
        return one_or_several({"anyOf": [self.side.schema(), text]})


class _Gpu(Text):
    """Value type of ``gpu``: a GPU's name, which becomes its canonical name."""

    def check(self, value: Any) -> str:
        try:
            return gpus.find(super().check(value)).name
        except InputError as error:
            raise Invalid(f"names an {error}") from None

    from_text = check

    def schema(self) -> Schema:
        return {"anyOf": [{"enum": list(gpus.GPUS)}, super().schema()]}  # an editor completes the names of the first


ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Environment variables from which PyTorch reads what ``allocator_conf`` has."""


class _AllocatorConf(Text):
    """Value type of ``allocator_conf``: the text of ``PYTORCH_CUDA_ALLOC_CONF``."""

    def check(self, value: Any) -> str:
        from predictor.allocator import AllocatorSettings

        try:
            settings = AllocatorSettings.parse(super().check(value))
        except InputError as error:
            raise Invalid(f"is wrong: {error}") from None
        if settings.per_process_memory_fraction < 1:
            raise Invalid("per_process_memory_fraction is not supported: give that share as capacity_bytes")
        return value

    from_text = check


class _Version(Text):
    """Value type of a package version, such as ``0.19.8`` or ``2.11.0+cu130``."""

    def check(self, value: Any) -> str:
        if not re.fullmatch(r"\d{1,4}\.\d{1,4}(\.\d{1,4})?([-+.a-zA-Z]\S{0,40})?", super().check(value)):
            raise Invalid(f'must be a version such as "0.19.8", not {quoted(value)}')
        return value

    from_text = check


def key(value_type: Any, default: Any, group: str, help: str) -> Any:
    """A field of :class:`Keys`. Files, options and messages are built from its metadata.

    Args:
        value_type: the value type, with ``check(value)`` and ``from_text(text)``.
        default: value of a key that was not given; None also means not given.
        group: heading in ``--help``.
        help: the option's help text.
    """
    return field(metadata={"kind": value_type, "default": default, "group": group, "help": help})


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The value of every key of a workload."""

    model: str = key(Text("MODEL"), None, "model", "known name, local directory, config.json, "
                     "module:function of a model in Python, or an id on the Hugging Face hub: of a known model, or of "
                     "one in the local cache")
    mode: str = key(modes.VALUE_TYPE, "training", "model", "inference: what transformers' generate allocates, prefill "
                    "and decoding")
    recipe: str = key(Choice(("finetune", "pretrain", "lora", "full")), "finetune", "model",
                      "pretrain: the projector trains; finetune: projector and language model; lora: projector and "
                      "adapters of the language model; full: all")
    trainable: tuple[str, ...] = key(Patterns(), (), "model", "module paths that train, whatever the recipe says")
    frozen: tuple[str, ...] = key(Patterns(), (), "model", "module paths that do not train")
    lora: FrozenMap | None = key(lora_keys.VALUE_TYPE, None, "model", "peft's LoraConfig: r=16, "
                                 "target_modules=q_proj,v_proj (all linear layers of the language model), "
                                 "lora_dropout=0.05, use_dora=true, …")

    quantization: FrozenMap | None = key(quantization_keys.VALUE_TYPE, None, "model", quantization_keys.HELP)

    per_device_train_batch_size: int = key(Whole(1, MOST_SAMPLES), 1, "shape", "samples in a GPU's micro batch")
    sequence_length: int | None = key(Whole(1, 1 << 22), None, "shape", "tokens the language model sees, images "
                                      "included")
    # the one default that needs the model's configuration: filled in when the model is known (Workload.fill)
    images_per_sample: int | None = key(Whole(0, 4_096), None, "shape", "images, or audio clips, of a sample; 0 for "
                                         "text alone; default: 1 if the model takes them")
    image_size: int | str | None = key(ImageSize(), None, "shape", "size of images before the model's own "
                                       "processor: pixels of a side, or HxW; with several sizes, the images of a batch "
                                       "take them in turn; default: the size that the model expects")
    video_frames: int | None = key(Whole(1, 4_096), None, "shape", "frames of a video: each image is then a "
                                   "video; default: still images")
    padding: str = key(Choice(("none", "right", "packed")), "none", "shape", "right: padded samples with an attention "
                       "mask; packed: samples concatenated into one row, separated by position_ids")
    per_device_eval_batch_size: int | None = key(
        Whole(1, MOST_SAMPLES), None, "shape", "samples in a batch of the evaluation after training steps, which keeps "
        "only the loss; default: no evaluation. With mode inference: sequences generated together (1)")
    gradient_accumulation_steps: int = key(Whole(1, MOST_STEPS), 1, "shape", "micro batches to an optimizer step")

    max_new_tokens: int = key(Whole(1, 1 << 22), 64, "inference", "tokens of the reply")
    cache_implementation: str = key(
        Choice(("dynamic", "static"), dict.fromkeys(("offloaded", "offloaded_static", "quantized", "paged"),
                                                    "use dynamic or static")),
        "dynamic", "inference", "cache of keys and values: dynamic grows, static is allocated once")
    max_cache_len: int | None = key(Whole(1, 1 << 22), None, "inference", "tokens that a static cache holds at least; "
                                    "default: those of the prompt and the reply")
    conversation: tuple[FrozenMap, ...] | None = key(
        Conversation(), None, "inference", "file with turns, each with tokens, new_tokens, images and role (user or "
        "tool), that share one cache")
    gpu_memory_utilization: float | None = key(Number(), None, "inference", "also say how many blocks of keys and "
                                               "values vLLM would reserve with this share of the GPU")
    block_size: int | None = key(Whole(1, 1024), None, "inference", "tokens in a block of vLLM's; default: 16")

    dtype: str = key(Choice(("bf16", "fp16", "fp32"), {}, SHORT_NAMES), "bf16", "compute",
                     "dtype of the weights; default with mixed_precision: fp32")
    mixed_precision: str = key(Choice(("none", "bf16", "fp16"), {"autocast": "say which: bf16 or fp16"},
                                      SHORT_NAMES | {"no": "none"}), "none", "compute",
                               "autocast, as Trainer's bf16 and fp16 (with loss scaling) have it")
    attn_implementation: str = key(Choice(("sdpa", "eager", "flash_attention_2"), dict.fromkeys(
                                       ("flash_attention_3", "flex_attention"), "use flash_attention_2, or sdpa")),
                                   "sdpa", "compute", "flash_attention_2: the flash-attn package")
    sdpa_backend: str = key(Choice(("auto", "flash", "efficient", "cudnn", "math")), "auto", "compute",
                            "auto: what PyTorch picks on the GPU")
    gradient_checkpointing: bool = key(Flag(), True, "compute", "recompute each layer in backward")
    gradient_checkpointing_kwargs: FrozenMap = key(
        Table({"use_reentrant": Flag(), "every_n_layers": Whole(1, 999), "offload": Flag()}, {"use_reentrant": False}),
        FrozenMap({"use_reentrant": False}), "compute",
        "use_reentrant=true, every_n_layers=2, offload=true (layer inputs in host memory), as in transformers")
    no_grad: tuple[str, ...] = key(Patterns(), (), "compute", "module paths that run under torch.no_grad, as LLaVA's "
                                   "own vision tower does")
    gradient_checkpointing_modules: tuple[str, ...] = key(
        Patterns(), (), "compute", "module paths, such as *language_model*: only their layers are recomputed")
    use_liger_kernel: bool = key(Flag(), False, "compute", "Liger's RMSNorm, SwiGLU, rotary embedding and fused linear "
                                 "cross entropy, as the Trainer applies them")
    loss: str = key(Choice(("model", "trl_sft", "label_smoothing")), "model", "compute", "trl_sft: as TRL's SFTTrainer "
                    "computes it since release 1.16: log-probabilities of the labels in tiles, without logits of all "
                    "tokens; label_smoothing: as the Trainer's label_smoothing_factor has it")
    neftune_noise_alpha: float | None = key(Number(), None, "compute", "NEFTune's noise on the embeddings, as the "
                                            "Trainer adds it; its size changes nothing")
    torch_compile: None = key(NotYetSupported("compiled models allocate differently; leave it out"), None, "compute",
                              "not predicted yet")

    optim: str = key(Choice(tuple(optimizers.OPTIMIZERS), optimizers.LATER), "adamw_torch_fused", "optimizer",
                     "adamw_torch: PyTorch's default (foreach); _forloop: foreach=False")
    optim_args: FrozenMap = key(_OptimArgs(), FrozenMap({}), "optimizer",
                                f"arguments of {optimizers.listed(optimizers.WITH_ARGUMENTS, 'and')}: momentum=0.9")
    weight_decay: float = key(Number(), 0.0, "optimizer",
                              f"with {optimizers.listed(optimizers.DECAY_ALLOCATES, 'and')} it takes memory")
    param_groups: str = key(Choice(("huggingface", "single")), "huggingface", "optimizer",
                            "huggingface: one group with weight decay, one without")
    max_grad_norm: float = key(Number(), 1.0, "optimizer", "norm that gradients are clipped to; 0: no clipping")

    keep_outputs: str = key(Choice(("none", "backward", "next_forward")), "none", "loop", "how long a loop of your own "
                            "keeps the model's output, logits included: none: freed before backward, as the Trainer "
                            "does; backward: until a function that trains one micro batch returns; next_forward: "
                            "until the next call of the model has returned, as in a plain script")
    zero_grad: str = key(Choice(("after_step", "before_forward", "before_backward")), "after_step", "loop",
                         "when the loop calls optimizer.zero_grad(): before_backward keeps the last step's gradients "
                         "through forward")

    engine: str = key(Choice(engines.choices(), {"fsdp": "say which: fsdp1 or fsdp2"}), None, "engine",
                      "default: deepspeed if one of its keys is given")
    deepspeed: FrozenMap | None = key(_DeepSpeed(), None, "engine", "DeepSpeed config (JSON)")
    zero_stage: int | None = key(STAGE, None, "engine", "short for a config with that stage")
    ddp: FrozenMap | None = key(Table(DDP, engines.DDP_DEFAULTS), None, "engine",
                                "bucket_cap_mb=25, gradient_as_bucket_view=true, as in DistributedDataParallel")
    fsdp: FrozenMap | None = key(
        fsdp_keys.VALUE_TYPE, None, "engine", "reshard_after_forward=true, param_dtype=bf16 (trained parameters stay "
        "fp32), reduce_dtype=fp32, transformer_layer_cls_to_wrap=NAME, wrap=accelerate (embeddings and head are units "
        "too), sync_each_batch=true (reduce in each micro batch)")
    fsdp1: FrozenMap | None = key(
        fsdp1_keys.VALUE_TYPE, None, "engine", "FullyShardedDataParallel: sharding_strategy=SHARD_GRAD_OP, "
        "backward_prefetch=NO_PREFETCH, cpu_offload=true, use_orig_params=false, param_dtype=bf16, "
        "transformer_layer_cls_to_wrap=NAME, sharding_group_size=8 (of HYBRID_SHARD); with mixed_precision as "
        "accelerate has it")
    offload: str | None = key(_Offload(("optimizer", "parameters", "all")), None, "engine",
                              "what DeepSpeed keeps in the host's memory: offload_optimizer, offload_param, or both")
    data_parallel_size: int = key(Whole(1, 65_536), 1, "engine", "number of GPUs that share the work")
    tensor_parallel_size: int = key(Whole(1, 1_024), 1, "engine", "GPUs that share each layer, as the model's tp_plan "
                                    "(transformers) says, with DeepSpeed by AutoTP; in all: so many times "
                                    "data_parallel_size")
    rank: str | int = key(RankOrWorst(), "worst", "engine", "rank of the GPU; worst: the one with the highest peak")

    gpu: str | None = key(_Gpu("GPU"), None, "gpu", "such as h100-80gb, a100-40gb, l40s; the report says whether "
                         "the job fits it")
    capacity_bytes: int | None = key(Size(), None, "gpu", "memory of the GPU, such as 80GiB; overrides the GPU's own")
    allocator_conf: str | None = key(_AllocatorConf("SETTINGS"), None, "gpu",
                                     "as PYTORCH_CUDA_ALLOC_CONF, such as expandable_segments:True")
    profile: str | None = key(Text("FILE"), None, "gpu",
                              "calibration file; none: no calibration; device, emulated: the shipped one that was "
                              "measured there; default: the one shipped for the GPU, if any")
    versions: FrozenMap = key(Table(dict.fromkeys([*PINNED, "peft", "bitsandbytes"], _Version()), PINNED),
                              FrozenMap(PINNED), "gpu", "of torch, transformers, deepspeed, peft, bitsandbytes")

    @property
    def image_sizes(self) -> tuple[tuple[int, int], ...]:
        """(height, width) of each size in ``image_size``, in pixels; empty if it was not given."""
        return image_sizes(self.image_size)

    @property
    def evaluates(self) -> bool:
        """True if an evaluation follows the training steps."""
        return self.mode == "training" and self.per_device_eval_batch_size is not None

    @property
    def world_size(self) -> int:
        """Number of GPUs: data-parallel times tensor-parallel."""
        return self.data_parallel_size * self.tensor_parallel_size

    @property
    def autotp(self) -> bool:
        """True if DeepSpeed's AutoTP shards the layers; with any other engine transformers shards them."""
        return self.tensor_parallel_size > 1 and self.engine == "deepspeed"

    @property
    def computes_in(self) -> str:
        """The dtype of matrix products: the autocast dtype, or without autocast that of the weights in forward."""
        if self.fsdp1 and self.fsdp1["param_dtype"]:
            return self.fsdp1["param_dtype"]
        return self.dtype if self.mixed_precision == "none" else self.mixed_precision

    @property
    def capacity(self) -> int | None:
        """Memory of the GPU in bytes, or None if neither a GPU nor a capacity was given."""
        if self.capacity_bytes is not None:
            return self.capacity_bytes
        return gpus.find(self.gpu).capacity_bytes if self.gpu else None


KEYS = {entry.name: entry for entry in fields(Keys)}
DEFAULTS = {name: entry.metadata["default"] for name, entry in KEYS.items()}
OF_ONE_TRAINER = ("loss",)
"""Keys that one trainer sets. Answers show them only where they are set."""


def check_names(mapping: Mapping[Any, Any], source: str) -> None:
    """Rejects an unknown key and suggests the nearest known one.

    Raises:
        InputError: ``source`` (a file's name, may be empty) and the key.
    """
    for name in mapping:
        if name not in KEYS:
            hint = f' (did you mean "{ALSO_CALLED[name]}"?)' if name in ALSO_CALLED else nearest(name, KEYS)
            raise InputError(f"{source}{': ' if source else ''}unknown key {quoted(name)}{hint}")

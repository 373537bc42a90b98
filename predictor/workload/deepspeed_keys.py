"""Tables of the keys of a DeepSpeed config (0.19.8), by their effect on memory under ZeRO stages 0 to 3.

Each section has three tables: keys that are read (with their value type), keys without effect on memory, and keys that
are rejected while they are on, because their effect is not modelled. A key in none of them is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from predictor.common.suggestions import quoted
from predictor.common.value_types import Choice, Flag, Invalid, NotYetSupported, Number, Table, Text, Whole

ELEMENTS_LIMIT = 1 << 50


class Count(Whole):
    """Value type of a whole number that JSON may write as ``5e8``."""

    def check(self, value: Any) -> int:
        return super().check(int(value) if isinstance(value, float) and value.is_integer() else value)


class Lower(Choice):
    """Value type of a choice that ignores case."""

    def check(self, value: Any) -> Any:
        return super().check(value.lower() if isinstance(value, str) else value)


class _Whole(Number):
    """Value type of a share that must be 1: partial offload is not supported."""

    def check(self, value: Any) -> float:
        if super().check(value) != 1:
            raise Invalid(f"{value:g} is not supported yet: leave it out, all is offloaded then")
        return 1.0


FLAG = Flag()
_OFFLOAD = {"device": Choice(("none", "cpu"), {"nvme": "use cpu; offload to disk is not predicted"}),
            "pin_memory": FLAG, "nvme_path": Text(), "buffer_count": Count(0, 1 << 50)}
OFFLOAD_OPTIMIZER = Table(
    _OFFLOAD | dict.fromkeys(("pipeline_read", "pipeline_write", "fast_init"), FLAG)
    | {"ratio": _Whole(), "super_offload": NotYetSupported("leave it out"), "cpuadam_cores_perc": Number()},
    {"device": "none"})
OFFLOAD_PARAM = Table(_OFFLOAD | dict.fromkeys(("buffer_size", "max_in_cpu"), Count(0, 1 << 50)), {"device": "none"})
AUTOTP = Table({"tp_size": Count(1, 1_024), "tp_grain_size": Choice((1,))}, {"tp_size": 1})
STAGE = Choice((0, 1, 2, 3))
DTYPE = Choice(("bf16", "fp16", "fp32"), {}, {
    "bfloat16": "bf16", "torch.bfloat16": "bf16", "float16": "fp16", "torch.float16": "fp16", "half": "fp16",
    "float32": "fp32", "torch.float32": "fp32", "float": "fp32"})

READ: dict[str, Any] = {
    "train_batch_size": Count(1, 1 << 40),
    "train_micro_batch_size_per_gpu": Count(1, 65_536),
    "gradient_accumulation_steps": Count(1, 1 << 20),
    "gradient_clipping": Number(),
    "communication_data_type": Lower(("bf16", "fp16", "fp32")),
    "zero_optimization.stage": STAGE,
    "zero_optimization.contiguous_gradients": FLAG,
    "zero_optimization.overlap_comm": FLAG,
    "zero_optimization.reduce_scatter": FLAG,
    "zero_optimization.reduce_bucket_size": Count(1, ELEMENTS_LIMIT),
    "zero_optimization.allgather_bucket_size": Count(0, ELEMENTS_LIMIT),
    "zero_optimization.round_robin_gradients": FLAG,
    "zero_optimization.use_multi_rank_bucket_allreduce": FLAG,
    "zero_optimization.parameter_alignment": FLAG,
    "zero_optimization.compute_grad_norm": FLAG,
    "zero_optimization.sub_group_size": Count(0, ELEMENTS_LIMIT),
    "zero_optimization.stage3_prefetch_bucket_size": Count(0, ELEMENTS_LIMIT),
    "zero_optimization.stage3_param_persistence_threshold": Count(0, ELEMENTS_LIMIT),
    "zero_optimization.stage3_model_persistence_threshold": Count(0, 1 << 63),
    "zero_optimization.stage3_max_live_parameters": Count(0, ELEMENTS_LIMIT),
    "zero_optimization.stage3_max_reuse_distance": Count(0, ELEMENTS_LIMIT),
    "zero_optimization.stage3_allgather_sequential": FLAG,
    "zero_optimization.offload_optimizer": OFFLOAD_OPTIMIZER,
    "zero_optimization.offload_param": OFFLOAD_PARAM,
    "bf16.enabled": FLAG,
    "bf16.check_grad_overflow": FLAG,
    "fp16.enabled": FLAG,
    "data_types.grad_accum_dtype": DTYPE,
    "data_types.param_dtype": DTYPE,
    "tensor_parallel.autotp_size": Count(0, 1_024),
    "tensor_parallel.tp": AUTOTP,
    "memory_breakdown": FLAG,
}

# Keys whose "auto" Hugging Face replaces, from the training arguments or the model.
# For any other key DeepSpeed reads "auto" as "not given".
FILLED_BY_HUGGING_FACE = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    "zero_optimization.reduce_bucket_size", "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold", "bf16.enabled", "fp16.enabled",
)
NAMES_WITHOUT_PREFIX = frozenset(("prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold",
                                  "max_live_parameters", "max_reuse_distance", "allgather_sequential",
                                  "module_granularity_threshold", "use_all_reduce_for_fetch_params"))
"""Keys that DeepSpeed also reads without the prefix ``stage3_``."""
REFUSED_IN_STAGE_3 = {"memory_efficient_linear": True, "stage3_use_all_reduce_for_fetch_params": False,
                      "stage3_module_granularity_threshold": 0, "leaf_module": None}
"""Key with an effect on stage 3's allocations that is not modelled -> its value without that effect."""

_WITHOUT_EFFECT = {
    "": """scheduler steps_per_print wall_clock_breakdown dump_state disable_allgather disable_python_gc
        prescale_gradients gradient_predivide_factor gradient_allreduce_op managed_gradient_accumulation
        checkpoint dataloader_drop_last log_level zero_allow_untested_optimizer zero_force_ds_cpu_optimizer
        comms_logger tensorboard wandb csv_monitor comet monitor_config aio vocabulary_size timers pipeline
        use_data_before_expert_parallelism use_data_before_expert_parallel_ flops_profiler
        seq_parallel_communication_data_type datastates_ckpt train_steps seed""",
    "zero_optimization": """allgather_partitions load_from_fp32_weights elastic_checkpoint
        cpu_offload_use_pin_memory ignore_unused_parameters memory_efficient_linear pipeline_loading_checkpoint
        override_module_apply log_trace_cache_warnings enable_sanity_checks leaf_module
        save_muon_momentum_buffer_in_memory fast_sharding_for_leaf_module grad_hooks
        stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save
        stage3_module_granularity_threshold stage3_use_all_reduce_for_fetch_params
        gather_16bit_weights_on_model_save""",
    "bf16": "immediate_grad_update auto_cast",
    "fp16": """auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis
        min_loss_scale fp16_opt_level opt_level""",
    "data_types": "",
    "tensor_parallel": "dtype vocab_parallel_ce_backend replace_with_kernel_inject kernel_inject",
    "optimizer": "legacy_fusion",
}
WITHOUT_EFFECT = {section: frozenset(keys.split()) for section, keys in _WITHOUT_EFFECT.items()}

_DROPPED = "DeepSpeed has dropped it; remove it"
_LATER = "its effect on memory is not modelled yet"
REFUSED = {
    "": dict.fromkeys(("amp", "sparse_gradients", "sparse_attention", "quantize_training", "compression_training",
                       "eigenvalue", "elasticity", "graph_harvesting", "curriculum_learning", "nebula",
                       "progressive_layer_drop"), _DROPPED)
    | dict.fromkeys(("torch_autocast", "compile", "activation_checkpointing", "data_efficiency", "hybrid_engine",
                     "weight_quantization", "expert_parallel", "sequence_parallel_size", "autotuning",
                     "zenflow", "moe"), _LATER),
    "zero_optimization": dict.fromkeys(("mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param",
                                        "legacy_stage1"), _DROPPED)
    | {"cpu_offload": 'write "offload_optimizer": {"device": "cpu"}',
       "cpu_offload_param": 'write "offload_param": {"device": "cpu"}'}
    | dict.fromkeys(("zenflow", "zero_quantized_weights", "zero_quantized_gradients",
                     "zero_quantized_nontrainable_weights", "zero_hpz_partition_size"), _LATER),
    "bf16": dict.fromkeys(("bf16_master_weights_and_grads", "bf16_optimizer_states"), _LATER),
    "data_types": dict.fromkeys(("buffer_dtype", "keep_in_fp32_modules"), _LATER),
    "fp16": {"fp16_master_weights_and_grads": _LATER},
    "tensor_parallel": dict.fromkeys(("tp_overlap_comm", "vocab_parallel_lm_head", "partition_config", "preset_model",
                                      "injection_policy_tuple", "keep_module_on_host"), _LATER),
    "optimizer": {},
}

SECTIONS = {"zero_optimization", "bf16", "bfloat16", "fp16", "data_types", "tensor_parallel", "optimizer"}


def known(section: str) -> list[str]:
    """All keys that a section ("" for the top level) may hold, sorted."""
    prefix = f"{section}." if section else ""
    read = {key.removeprefix(prefix) for key in READ if key.startswith(prefix)}
    names = {name for name in read if "." not in name} | WITHOUT_EFFECT[section] | set(REFUSED[section])
    names |= NAMES_WITHOUT_PREFIX if section == "zero_optimization" else set()
    extra = SECTIONS if not section else {"type", "params"} if section == "optimizer" else set()
    return sorted(names | extra)


def is_on(key: str, value: Any) -> bool:
    """True if the value of a rejected key turns its feature on."""
    if isinstance(value, Mapping):
        for switch in ("enabled", "device"):
            if switch in value:
                return is_on(switch, value[switch])
        return key == "zenflow" or any(is_on(inner, item) for inner, item in value.items())
    if isinstance(value, str):
        return value.lower() not in ("none", "auto", "false", "")
    if isinstance(value, (list, tuple)):
        return bool(value)
    if value is None or isinstance(value, bool) or key == "number_checkpoints":
        return value is True
    return isinstance(value, (int, float)) and value > 1  # a parallel size: 1 and -1 mean off


def optimizer_name(optimizer_type: object, params: Mapping[str, Any]) -> str:
    """The workload's ``optim`` with the same memory as DeepSpeed's own optimizer section.

    Raises:
        Invalid: the optimizer is neither AdamW nor Adam.
    """
    if not isinstance(optimizer_type, str) or optimizer_type.lower() not in ("adam", "adamw"):
        raise Invalid(f"{quoted(optimizer_type)} is not supported yet: AdamW and Adam are")
    if params.get("torch_adam") is True:
        foreach = params.get("foreach")
        return "adamw_torch" if foreach in (None, True) else "adamw_torch_forloop"
    return "adamw_torch_fused"  # like PyTorch's fused AdamW, DeepSpeed's FusedAdam has no temporaries

"""Table of the keys of axolotl's YAML, with axolotl's defaults (release 0.19, utils/schemas)."""

from __future__ import annotations

from predictor.common.value_types import Number, Whole
from predictor.readers import training_arguments as hf
from predictor.readers.fields import copied_to, for_rules, noted, refused
from predictor.readers.loading import RESUMED
from predictor.readers.value_types import FLAG, TEXT, Any_, ConfigFile, FlagOr, Mapped, Words

_LATER = "it is not predicted: leave it out"
_PLACED = "a model split over several devices is not predicted: leave it out"
LOSS = "its loss keeps different logits from those that are predicted: leave it out"
_GROUPS = "further optimizer groups"
_ROWS = "rows of the embedding and the head"
_OWN = "its own kernels"
KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
ATTENTION = {"flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager"}
LIGER = ("liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_fused_linear_cross_entropy")
ARGUMENTS = {
    "base_model": for_rules(TEXT, option="model"),
    "sequence_len": copied_to("sequence_length", hf.LENGTH, 512),
    "micro_batch_size": for_rules(hf.BATCH, 1, "per_device_train_batch_size"),
    "gradient_accumulation_steps": for_rules(hf.STEPS, 1, "gradient_accumulation_steps"),
    "batch_size": for_rules(Whole(1, 1 << 30)),
    "eval_batch_size": for_rules(hf.BATCH),
    "optimizer": copied_to("optim", TEXT, "adamw_torch_fused"),
    "optim_args": copied_to("optim_args", Any_()),
    "weight_decay": copied_to("weight_decay", Number(), 0.0),
    "max_grad_norm": for_rules(Number(), 1.0, "max_grad_norm"),
    "bf16": for_rules(FlagOr(words=("auto", "full")), "auto"),
    "fp16": for_rules(FLAG, False),
    "bfloat16": for_rules(FLAG, False),
    "float16": for_rules(FLAG, False),
    "gradient_checkpointing": for_rules(FlagOr(words=("offload", "offload_disk")), False),
    "gradient_checkpointing_kwargs": for_rules(Mapped(), option="gradient_checkpointing_kwargs"),
    "activation_offloading": refused("activations in host memory are predicted for gradient_checkpointing_kwargs "
                                     "offload alone: leave it out", (None, False)),
    "selective_checkpointing": refused(_LATER, (None, False)),
    "attn_implementation": for_rules(TEXT, option="attn_implementation"),
    **dict.fromkeys(ATTENTION, for_rules(FLAG)),
    **dict.fromkeys(("xformers_attention", "flex_attention", "sage_attention"),
                    refused("use flash_attention_2 or sdpa")),
    "sample_packing": for_rules(FLAG, False),
    "pad_to_sequence_len": for_rules(FLAG),
    "pad_to_multiple_of": for_rules(Whole(1, 1 << 22)),
    "batch_flattening": noted("samples without padding, in one row", FlagOr(words=("auto",))),
    "adapter": for_rules(TEXT),
    "lora_r": for_rules(Whole(1, 65_536), option="lora.r"),
    "lora_alpha": for_rules(Number(), option="lora.lora_alpha"),
    "lora_dropout": for_rules(Number(), 0.0, "lora.lora_dropout"),
    "lora_target_linear": for_rules(FLAG),
    "lora_target_modules": for_rules(Any_()),
    "lora_modules_to_save": for_rules(Words()), "lora_target_parameters": for_rules(Words()),
    "peft_use_dora": for_rules(FLAG, False),
    "peft_use_rslora": for_rules(FLAG, False),
    "peft_autocast_adapter_dtype": for_rules(FLAG),
    "load_in_4bit": for_rules(FLAG, False),
    "load_in_8bit": refused("weights of 8 bits are not predicted: use load_in_4bit with adapter qlora", (None, False)),
    "freeze_mm_modules": for_rules(FLAG, False),
    "unfrozen_parameters": refused("give trainable and frozen of the workload"),
    "deepspeed": for_rules(ConfigFile(), option="deepspeed"),
    "fsdp": for_rules(Any_()),
    "fsdp_config": for_rules(ConfigFile()),
    "fsdp_version": for_rules(Whole(1, 2)),
    "ddp_bucket_cap_mb": for_rules(Number()),
    "ddp_find_unused_parameters": for_rules(FLAG, False),
    "torch_compile": copied_to("torch_compile", FlagOr(words=("auto",))),
    "val_set_size": for_rules(Number(), 0.0),
    "test_datasets": for_rules(Any_()),
    "eval_strategy": for_rules(TEXT),
    "eval_steps": for_rules(Number()),
    "evals_per_epoch": for_rules(Number()),
    "eval_sequence_len": for_rules(hf.LENGTH),
    "eval_sample_packing": for_rules(FLAG),
    "plugins": for_rules(Words(), ()),
    "type_of_model": for_rules(TEXT),
    "base_model_config": for_rules(TEXT),
    "bnb_config_kwargs": for_rules(Mapped()),
    "embeddings_skip_upcast": for_rules(FLAG),
    "processor_kwargs": for_rules(Mapped()),
    "accelerator_config": for_rules(Mapped()),
    "sdpa_varlen": for_rules(FLAG),
    **dict.fromkeys(LIGER, for_rules(FLAG, False)),
    **dict.fromkeys(("liger_layer_norm", "liger_rms_norm_gated", "liger_use_token_scaling", *KERNELS,
                     "flash_attn_fuse_mlp", "fused_attn_kernel", "flash_attn_d512", "use_kernels"), noted(_OWN, FLAG)),
    "large_head_attention": noted(_OWN, off=(None, "sdpa")),
    "experts_implementation": noted(_OWN),
    **dict.fromkeys(("cut_cross_entropy", "chunked_cross_entropy", "liger_cross_entropy", "flash_attn_cross_entropy",
                     "use_eaft"), refused(LOSS, value_type=FLAG)),
    "tiled_mlp": refused(_LATER, value_type=FLAG),
    "liger_kernel_impl": noted(_OWN),
    "neftune_noise_alpha": hf.ARGUMENTS["neftune_noise_alpha"],
    **dict.fromkeys(("torch_empty_cache_steps", "gc_steps", "gc_collect_steps"), refused(
        hf.NOT_PREDICTED["torch_empty_cache_steps"].refusal)),
    "auto_find_batch_size": noted("the batch is halved when memory runs out; this is the first try", FLAG),
    "lr_groups": noted(_GROUPS),
    **dict.fromkeys(("loraplus_lr_ratio", "embedding_lr", "embedding_lr_scale"), noted(_GROUPS, Number())),
    "fp32_norms": noted("norms in fp32", FLAG),
    "tokens": noted(f"further {_ROWS}"),
    "resize_token_embeddings_to_32x": noted(f"further {_ROWS}", FLAG),
    "shrink_embeddings": noted(f"fewer {_ROWS}", FLAG),
    "lora_model_dir": noted(RESUMED),
    "wandb_watch": noted("histograms of gradients"),
    "eval_table_size": noted("samples that are generated in an evaluation"),
    **dict.fromkeys(("do_bench_eval", "do_causal_lm_eval", "generate_samples"), noted(
        "samples that are generated in an evaluation", FLAG)),
    "image_size": for_rules(Any_()),
    **dict.fromkeys(("rl", "reward_model", "process_reward_model"), refused(
        "supervised training with next-token loss is predicted")),
    **dict.fromkeys(("relora", "gptq", "qat", "fp8", "layer_offloading", "lisa_n_layers",
                     "peft_layers_to_transform", "lora_rank_pattern", "deepcompile", "quantize_moe_experts",
                     "peft_layer_replication", "lora_on_cpu", "use_onebitllms", "use_pose", "lora_exclude_modules",
                     "peft_trainable_token_indices", "peft_ensure_weight_tying", "peft", "flash_optimum", "use_ray",
                     "llama4_linearized_experts", "gemma4_hybrid_attn_impl", "scaling_softmax", "ple_cpu_offload",
                     "model_quantization_config", "multipack_real_batches", "reinit_weights"), refused(_LATER)),
    **dict.fromkeys(("rope_scaling", "s2_attention", "flash_attn_rms_norm", "max_packed_sequence_len"), refused(
        "axolotl no longer has this key and stops there: leave it out")),
    "peft_init_lora_weights": refused(_LATER, (None, "", True, False, "gaussian", "orthogonal")),
    **dict.fromkeys(("overrides_of_model_config", "overrides_of_model_kwargs", "cls_model_config"), refused(
        "the model of its own config.json is predicted: change it there, in a folder that base_model names")),
    "num_labels": refused("next-token loss is predicted: leave it out"),
    "trainer_cls": refused("a trainer of your own is not predicted: leave it out, or use peakcast learn"),
    "device_map": refused(_PLACED, (None, "", "auto")),
    **dict.fromkeys(("gpu_memory_limit", "max_memory"), refused(_PLACED)),
    **dict.fromkeys(("context_parallel_size", "tensor_parallel_size", "sequence_parallel_degree", "dp_shard_size",
                     "dp_replicate_size"), refused("only data parallelism is predicted: leave it out",
                                                   (None, 1))),
    "ddp_static_graph": for_rules(FLAG),
}

"""Hugging Face's ``TrainingArguments``, and what scripts of its Trainer usually have beside them."""

from __future__ import annotations

from predictor.common.suggestions import show
from predictor.common.value_types import Number, Whole
from predictor.model import hub
from predictor.readers import trainer, weight_dtype
from predictor.readers.configuration import Reading
from predictor.readers.fields import OFF, Format, noted, part, refused, to
from predictor.readers.value_types import FLAG, TEXT, Any_, ConfigFile, Mapped, Words
from predictor.workload.keys import PINNED
from predictor.workload.limits import MOST_SAMPLES, MOST_STEPS

RELEASE = PINNED["transformers"]
BATCH, STEPS, LENGTH = Whole(1, MOST_SAMPLES), Whole(1, MOST_STEPS), Whole(1, 1 << 22)

_LEARN, _COMPILED = "leave it out, or use peakcast learn", "compiled models allocate differently: leave it out"
NOT_PREDICTED = {
    "torch_compile": refused(_COMPILED, kind=FLAG),
    **dict.fromkeys(("torch_compile_backend", "torch_compile_mode"),
                    refused(f"it turns torch_compile on: {_COMPILED}")),
    "full_determinism": refused(f"other workspaces of cuBLAS, and deterministic kernels: {_LEARN}", kind=FLAG),
    "ddp_backend": refused("the buffers of NCCL are predicted: leave it out", (None, "", "nccl")),
    "label_smoothing_factor": refused(f"the Trainer's own loss keeps copies of all logits: {_LEARN}", kind=Number()),
    "neftune_noise_alpha": refused(f"its noise on the embeddings is not predicted: {_LEARN}", (None,), Number()),
    "torch_empty_cache_steps": refused(f"emptying the cache changes what is reserved: {_LEARN}",
                                       kind=Whole(0, 1 << 40)),
    "use_cache": refused("keys and values of all layers would stay in training: leave it out", kind=FLAG),
    "liger_kernel_config": refused(f"all of Liger's kernels together are predicted: {_LEARN}", kind=Mapped()),
    "parallelism_config": refused("tensor and context parallelism are not predicted: leave it out"),
}
"""``TrainingArguments`` that change what a step allocates in a way that no key of a workload says, wherever they are
read."""
ARGUMENTS = {
    "per_device_train_batch_size": to("per_device_train_batch_size", BATCH, 8),
    "gradient_accumulation_steps": to("gradient_accumulation_steps", STEPS, 1),
    "optim": to("optim", TEXT, "adamw_torch_fused"),
    "optim_args": to("optim_args", Any_()),
    "weight_decay": to("weight_decay", Number(), 0.0),
    "max_grad_norm": part(Number(), 1.0, "max_grad_norm"),
    "gradient_checkpointing": to("gradient_checkpointing", FLAG, False),
    "gradient_checkpointing_kwargs": part(Mapped(), option="gradient_checkpointing_kwargs"),
    "bf16": part(FLAG, False),
    "fp16": part(FLAG, False),
    "use_liger_kernel": to("use_liger_kernel", FLAG, False),
    "deepspeed": part(ConfigFile(), option="deepspeed"),
    "fsdp": part(Any_()),
    "fsdp_config": part(ConfigFile()),
    "ddp_bucket_cap_mb": part(Number(), option="ddp.bucket_cap_mb"),
    "ddp_find_unused_parameters": part(FLAG),
    "ddp_static_graph": part(FLAG),
    "eval_strategy": part(TEXT, "no"),
    "do_eval": part(FLAG, False),
    "per_device_eval_batch_size": part(BATCH, 8, "per_device_eval_batch_size"),
    "auto_find_batch_size": noted("the batch is halved when memory runs out; this is the first try", FLAG),
    "use_cpu": refused("a training on the CPU takes no GPU memory"),
    "eval_on_start": part(FLAG, False),
    "accelerator_config": part(ConfigFile()),
    "debug": noted("its hooks look at every output, and copy it", off=(None, "", (), "tpu_metrics_debug")),
    "skip_memory_metrics": noted("the cache is emptied before an evaluation and before training", FLAG, True,
                                 (None, True)),
    **dict.fromkeys(("bf16_full_eval", "fp16_full_eval"), part(FLAG, False)),
    "include_for_metrics": noted("an evaluation keeps them on the GPU until its end", Words()),
    "predict_with_generate": noted("an evaluation writes text, with keys and values of all layers", FLAG),
} | NOT_PREDICTED
"""transformers 5.17, training_args.py."""
SCRIPT = {
    "model_name_or_path": part(TEXT, option="model"),
    "torch_dtype": part(weight_dtype.DTYPE_OR_AUTO, option="dtype"),
    "attn_implementation": part(TEXT, option="attn_implementation"),
    "sequence_length": to("sequence_length", LENGTH),
    "config_name": part(TEXT),
    "config_overrides": refused("the model is predicted as its own configuration has it: save the changed one with "
                                "save_pretrained, and give its directory as the model"),
}
"""What scripts have beside them: those of transformers' examples and of TRL."""
PEFT = {
    "use_peft": part(FLAG, False), "lora_r": part(Whole(1, 65_536), 16, "lora.r"),
    "lora_alpha": part(Number(), 32, "lora.lora_alpha"), "lora_dropout": part(Number(), 0.05, "lora.lora_dropout"),
    "lora_target_modules": part(Words(), option="lora.target_modules"), "lora_modules_to_save": part(Words()),
    "use_rslora": part(FLAG, False), "use_dora": part(FLAG, False),
    "load_in_4bit": refused("of a script nobody knows how its model is prepared: give quantization"),
    "load_in_8bit": refused("weights of 8 bits are not predicted"),
}
"""TRL 0.24, ``ModelConfig``."""
ADAPTED = {"gpt2": ("c_attn",), "bloom": ("query_key_value",), "t5": ("q", "v"), **dict.fromkeys(
    ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "opt", "gpt_neo"), ("q_proj", "v_proj"))}
"""``model_type`` -> layers that peft adapts where none are named (0.21, utils/constants.py)."""
RENAMED = {"evaluation_strategy": "eval_strategy", "no_cuda": "use_cpu", "per_gpu_train_batch_size":
           "per_device_train_batch_size", "per_gpu_eval_batch_size": "per_device_eval_batch_size"}
WRAPPED = ("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")
"""What FSDP wraps, as training arguments said it before ``fsdp_config`` did."""
OLDER = dict.fromkeys(WRAPPED, refused("give transformer_layer_cls_to_wrap of fsdp_config")) | {
    "split_batches": refused(trainer.ACCELERATOR["split_batches"], kind=FLAG),
    "dispatch_batches": noted("the first GPU holds the batches of all", FLAG),
    "tp_size": refused("tensor parallelism is not predicted: leave it out", (*OFF, 1), Whole(0, 65_536)),
    "past_index": refused("hidden states of the last batch would stay: leave it out", (None, -1), Whole(-1, 1 << 31)),
    "sharded_ddp": refused("use fsdp, or deepspeed"),
    "mp_parameters": refused("SageMaker's model parallelism is not predicted: leave it out"),
    "jit_mode_eval": refused("a traced model allocates differently: leave it out", kind=FLAG),
    **dict.fromkeys(("fp16_backend", "half_precision_backend"), refused(
        "PyTorch's autocast is predicted: leave it out", (None, "auto", "amp", "cuda_amp"))),
    "include_inputs_for_metrics": noted("an evaluation keeps them on the GPU until its end", FLAG),
}
"""Of releases before 5, as transformers 4.37 to 4.57 had them."""
SCRIPT_RENAMED = {"dtype": "torch_dtype", "attn_impl": "attn_implementation", "model_id": "model_name_or_path"} | \
    dict.fromkeys(("model_max_length", "max_seq_length", "max_seq_len", "max_length", "block_size", "cutoff_len",
                   "seq_length"), "sequence_length")


def rules(reading: Reading) -> None:
    """A script of the Trainer: all parameters train, weights are of the checkpoint's dtype, unless it says more."""
    name = trainer.model(reading, "model_name_or_path")
    if reading["config_name"] not in (None, reading["model_name_or_path"]):
        raise reading.wrong("config_name", f"is {show(reading['config_name'])}, another than the model: give it as the "
                                           "model if weights are made from it, or leave it out")
    if reading["use_peft"]:
        reading.note("use_peft, of TRL's ModelConfig: a script that trains with TRL's SFTConfig has "
                     "gradient_checkpointing and bf16 on where they are not given, and keeps no logits of all tokens: "
                     "it needs less")
        trainer.lora(reading, trainer.LoraKeys("lora_r", "lora_alpha", "lora_dropout", "lora_modules_to_save"),
                     targets=_targets(reading, name), by=("use_peft", "lora_target_modules"))
        if hub.parts(name):
            trainer.freeze_projector(reading, name, "use_peft")
    else:
        reading.put("recipe", "full", because="every parameter trains")
    trainer.attention(reading, reading["attn_implementation"], "attn_implementation")
    trainer.checkpointing(reading)
    trainer.engine(reading, name)
    if "dtype" not in reading.workload:
        weight_dtype.precision(reading, reading["torch_dtype"], "torch_dtype")
    trainer.together(reading)
    trainer.evaluation(reading, "eval_strategy", trainer.asks_for_evaluation(
        reading["eval_strategy"], reading["do_eval"], reading["eval_on_start"]))


def _targets(reading: Reading, name: str) -> tuple[str, ...]:
    config = hub.config(name)
    found = reading["lora_target_modules"] or (config and ADAPTED.get(config.document["model_type"]))
    if not found:
        raise reading.wrong("lora_target_modules", "is not given, and peft has no default for this model: name layers, "
                                                   "or all-linear")
    return found


FORMAT = Format(
    "transformers", f"transformers {RELEASE}", ARGUMENTS | SCRIPT | PEFT,
    frozenset(("per_device_train_batch_size", "gradient_checkpointing", "output_dir", "num_train_epochs",
               "learning_rate", "logging_steps", "bf16", "optim", "max_steps")),
    rules, RENAMED | SCRIPT_RENAMED, shares=("script",), open=True)

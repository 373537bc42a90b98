"""Reads Hugging Face's ``TrainingArguments`` (transformers 5.17) and the usual other arguments of Trainer scripts."""

from __future__ import annotations

import re
from collections.abc import Mapping

from predictor.common.errors import NotPredicted
from predictor.common.suggestions import quoted
from predictor.common.value_types import Number, Whole
from predictor.model import hub
from predictor.readers import own_keys, trainer, weight_dtype
from predictor.readers.fields import OFF, copied_to, for_rules, noted, refused
from predictor.readers.reading import Format, Own, Reading
from predictor.readers.value_types import FLAG, TEXT, Any_, ConfigFile, Mapped, Words
from predictor.workload.keys import PINNED
from predictor.workload.limits import MOST_SAMPLES, MOST_STEPS

RELEASE = PINNED["transformers"]
BATCH, STEPS, LENGTH = Whole(1, MOST_SAMPLES), Whole(1, MOST_STEPS), Whole(1, 1 << 22)

_LEARN, _COMPILED = "leave it out, or use peakcast learn", "compiled models allocate differently: leave it out"
NOT_PREDICTED = {
    "torch_compile": refused(_COMPILED, value_type=FLAG),
    **dict.fromkeys(("torch_compile_backend", "torch_compile_mode"),
                    refused(f"it turns torch_compile on: {_COMPILED}")),
    "full_determinism": refused(f"other workspaces of cuBLAS, and deterministic kernels: {_LEARN}", value_type=FLAG),
    "ddp_backend": refused("the buffers of NCCL are predicted: leave it out", (None, "", "nccl")),
    "torch_empty_cache_steps": refused(f"emptying the cache changes what is reserved: {_LEARN}",
                                       value_type=Whole(0, 1 << 40)),
    "use_cache": refused("keys and values of all layers would stay in training: leave it out", value_type=FLAG),
    "liger_kernel_config": refused(f"all of Liger's kernels together are predicted: {_LEARN}", value_type=Mapped()),
    "parallelism_config": refused("tensor and context parallelism are not predicted: leave it out"),
}
"""``TrainingArguments`` with an effect on a step's allocations that no key of a workload describes; every format
rejects them."""
ARGUMENTS = {
    "per_device_train_batch_size": copied_to("per_device_train_batch_size", BATCH, 8),
    "gradient_accumulation_steps": copied_to("gradient_accumulation_steps", STEPS, 1),
    "optim": copied_to("optim", TEXT, "adamw_torch_fused"),
    "optim_args": copied_to("optim_args", Any_()),
    "weight_decay": copied_to("weight_decay", Number(), 0.0),
    "max_grad_norm": for_rules(Number(), 1.0, "max_grad_norm"),
    "gradient_checkpointing": copied_to("gradient_checkpointing", FLAG, False),
    "gradient_checkpointing_kwargs": for_rules(Mapped(), option="gradient_checkpointing_kwargs"),
    "bf16": for_rules(FLAG, False),
    "fp16": for_rules(FLAG, False),
    "use_liger_kernel": copied_to("use_liger_kernel", FLAG, False),
    "neftune_noise_alpha": copied_to("neftune_noise_alpha", Number()),
    "deepspeed": for_rules(ConfigFile(), option="deepspeed"),
    "fsdp": for_rules(Any_()),
    "fsdp_config": for_rules(ConfigFile()),
    "ddp_bucket_cap_mb": for_rules(Number(), option="ddp.bucket_cap_mb"),
    "ddp_find_unused_parameters": for_rules(FLAG),
    "ddp_static_graph": for_rules(FLAG),
    "eval_strategy": for_rules(TEXT, "no"),
    "do_eval": for_rules(FLAG, False),
    "per_device_eval_batch_size": for_rules(BATCH, 8, "per_device_eval_batch_size"),
    "auto_find_batch_size": noted("the batch is halved when memory runs out; this is the first try", FLAG),
    "use_cpu": refused("a training on the CPU takes no GPU memory"),
    "eval_on_start": for_rules(FLAG, False),
    "accelerator_config": for_rules(ConfigFile()),
    "debug": noted("its hooks inspect and copy every output", off=(None, "", (), "tpu_metrics_debug")),
    "skip_memory_metrics": noted("the cache is emptied before an evaluation and before training", FLAG, True,
                                 (None, True)),
    **dict.fromkeys(("bf16_full_eval", "fp16_full_eval"), for_rules(FLAG, False)),
    "include_for_metrics": noted("an evaluation keeps them on the GPU until its end", Words()),
    "predict_with_generate": noted("an evaluation generates text, with a cache of keys and values of all layers", FLAG),
    "label_smoothing_factor": refused(f"with this trainer its copies of all logits are not predicted: {_LEARN}",
                                      value_type=Number()),
} | NOT_PREDICTED
"""transformers 5.17, training_args.py."""
SCRIPT = {
    "model_name_or_path": for_rules(TEXT, option="model"),
    "torch_dtype": for_rules(weight_dtype.DTYPE_OR_AUTO, option="dtype"),
    "attn_implementation": for_rules(TEXT, option="attn_implementation"),
    "sequence_length": copied_to("sequence_length", LENGTH),
    "config_name": for_rules(TEXT),
    "config_overrides": refused("the model is predicted as its own configuration has it: save the changed one with "
                                "save_pretrained, and give its directory as the model"),
}
"""Arguments of scripts beside ``TrainingArguments``, from transformers' examples and from TRL."""
PEFT = {
    "use_peft": for_rules(FLAG, False), "lora_r": for_rules(Whole(1, 65_536), 16, "lora.r"),
    "lora_alpha": for_rules(Number(), 32, "lora.lora_alpha"),
    "lora_dropout": for_rules(Number(), 0.05, "lora.lora_dropout"),
    "lora_target_modules": for_rules(Words(), option="lora.target_modules"), "lora_modules_to_save": for_rules(Words()),
    "use_rslora": for_rules(FLAG, False), "use_dora": for_rules(FLAG, False),
    "load_in_4bit": refused("the script's own preparation of the model is not known: give quantization"),
    "load_in_8bit": refused("weights of 8 bits are not predicted"),
}
"""Arguments of TRL 0.24's ``ModelConfig``."""
ADAPTED = {"gpt2": ("c_attn",), "bloom": ("query_key_value",), "t5": ("q", "v"), **dict.fromkeys(
    ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "opt", "gpt_neo"), ("q_proj", "v_proj"))}
"""``model_type`` -> layers that get adapters by peft's default (0.21, utils/constants.py)."""
RENAMED = {"evaluation_strategy": "eval_strategy", "no_cuda": "use_cpu", "per_gpu_train_batch_size":
           "per_device_train_batch_size", "per_gpu_eval_batch_size": "per_device_eval_batch_size"}
WRAPPED = ("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")
"""Arguments for the layers that FSDP wraps, from before ``fsdp_config``."""
OLDER = dict.fromkeys(WRAPPED, refused("give transformer_layer_cls_to_wrap of fsdp_config")) | {
    "split_batches": refused(trainer.ACCELERATOR["split_batches"], value_type=FLAG),
    "dispatch_batches": noted("the first GPU holds the batches of all", FLAG),
    "tp_size": refused("tensor parallelism is not predicted: leave it out", (*OFF, 1), Whole(0, 65_536)),
    "past_index": refused("hidden states of the last batch would stay: leave it out", (None, -1), Whole(-1, 1 << 31)),
    "sharded_ddp": refused("use fsdp, or deepspeed"),
    "mp_parameters": refused("SageMaker's model parallelism is not predicted: leave it out"),
    "jit_mode_eval": refused("a traced model allocates differently: leave it out", value_type=FLAG),
    **dict.fromkeys(("fp16_backend", "half_precision_backend"), refused(
        "PyTorch's autocast is predicted: leave it out", (None, "auto", "amp", "cuda_amp"))),
    "include_inputs_for_metrics": noted("an evaluation keeps them on the GPU until its end", FLAG),
}
"""Arguments of transformers 4.37 to 4.57 that release 5 removed."""
SCRIPT_RENAMED = {"dtype": "torch_dtype", "attn_impl": "attn_implementation", "model_id": "model_name_or_path"} | \
    dict.fromkeys(("model_max_length", "max_seq_length", "max_seq_len", "max_length", "block_size", "cutoff_len",
                   "seq_length"), "sequence_length")


def rules(reading: Reading) -> None:
    """Sets the workload of a Trainer script. By default all parameters train, in the checkpoint's dtype."""
    name = trainer.model(reading, "model_name_or_path")
    if reading["config_name"] not in (None, reading["model_name_or_path"]):
        raise reading.wrong("config_name", f"is {quoted(reading['config_name'])}, not the model: give it as the model "
                                           "if the weights are initialised from it, or leave it out")
    _own_switches(reading)
    if reading["use_peft"]:
        reading.note("use_peft, of TRL's ModelConfig: a script that trains with TRL's SFTConfig has "
                     "gradient_checkpointing and bf16 on where they are not given, and keeps no logits of all tokens: "
                     "it needs less")
        trainer.lora(reading, trainer.LoraKeys("lora_r", "lora_alpha", "lora_dropout", "lora_modules_to_save"),
                     targets=targets(reading, name), by=("use_peft", "lora_target_modules"))
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
    if reading["label_smoothing_factor"]:
        reading.put("loss", "label_smoothing", "label_smoothing_factor")
    trainer.evaluation(reading, "eval_strategy", trainer.asks_for_evaluation(
        reading["eval_strategy"], reading["do_eval"], reading["eval_on_start"]))


OWN_SWITCHES = re.compile(r"lora|adapter|peft|freez|quant|tune_|tunable|train_vision|train_mm|\bbits$|_bits$|4bit|8bit")
"""Parts of names by which scripts of their own call switches for what trains, and in how many bits."""


OFF_WORDS = ("false", "0", "no", "none", "16")


def _own_switches(reading: Reading) -> None:
    """Refuses flags of a script of its own that say what trains: a prediction without them is another job's.

    Raises:
        NotPredicted: there is such a flag, and no option says what trains.
    """
    if reading.input.options.keys() & {"recipe", "trainable", "frozen", "lora", "quantization"}:
        return
    given = {f"--{name.replace('-', '_')}": str(item).lower() for name, item in reading.input.values.items()}
    own = [flag for flag in reading.foreign if OWN_SWITCHES.search(flag) and given.get(flag) not in OFF_WORDS]
    if not reading["use_peft"]:
        own += [reading.called(name) for name in PEFT if name.startswith(("lora", "use_")) and name in reading.values
                and reading.values[name] and name != "use_peft"]
    if own:
        raise NotPredicted(f"{reading.input.name}: {', '.join(own)}: what they make of the model is the script's own "
                           "choice: say what trains with --recipe, --lora, --frozen or --quantization")


def targets(reading: Reading, name: str) -> tuple[str, ...]:
    """The layers that get adapters: those that are named, or peft's default for the model.

    Raises:
        InputError: none are named, and peft has no default.
    """
    config = hub.config(name)
    named = reading["lora_target_modules"] or (config and ADAPTED.get(config.document["model_type"]))
    if not named:
        raise reading.wrong("lora_target_modules", "is not given, and peft has no default for this model: name layers, "
                                                   "or all-linear")
    return named


OWN: Mapping[str, Own] = {
    "recipe": own_keys.fixed({"lora": {"use_peft": True}, "full": {"use_peft": False}}),
    "mixed_precision": own_keys.half,
}
FORMAT = Format(
    "transformers", f"transformers {RELEASE}", ARGUMENTS | SCRIPT | PEFT | {
        "label_smoothing_factor": for_rules(Number(), 0.0)},
    frozenset(("per_device_train_batch_size", "gradient_checkpointing", "output_dir", "num_train_epochs",
               "learning_rate", "logging_steps", "bf16", "optim", "max_steps")),
    rules, RENAMED | SCRIPT_RENAMED, shares=("script",), open=True, own=OWN,
    optional=frozenset((*SCRIPT, *PEFT)))

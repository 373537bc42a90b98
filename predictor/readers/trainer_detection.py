"""Recognises and rejects scripts of other trainers. Any other script is read as one of transformers' Trainer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from predictor.common.errors import NotPredicted
from predictor.common.suggestions import quoted
from predictor.readers.reading import BY_OPTIONS
from predictor.readers.user_input import UserInput


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True)
class Trainer:
    """A trainer other than transformers' own, and the signs of its scripts.

    Attributes:
        packages: Python packages or directories that contain its scripts.
        scripts: patterns for a script's name.
        words: words, between underscores, in a script's name.
        flags: options that neither transformers nor its examples have. ``a+b`` means both together, as each of the two
            is common.
        keys: as ``flags``, of a file that names no script: scripts of other trainers have such options too.
        form: the format that reads its flags, if there is one.
    """

    packages: frozenset[str] = frozenset()
    scripts: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    form: str = ""

    def is_named(self, stem: str) -> bool:
        """True if a script's name, ignoring case and hyphens, is typical for this trainer."""
        stem = stem.lower().replace("-", "_")
        return any(fnmatchcase(stem, pattern) for pattern in self.scripts) or bool(
            self.words.intersection(stem.split("_")))


TRL = re.compile(r"(^|[/.\s])trl([/.\s]|$)")
"""TRL's own package in a module, a path or a command."""
SFT = re.compile(r"trl sft|trl\.scripts\.sft|(.*/)?(trl|examples)/scripts/sft\.py|"
                 r"((.*/)?examples/scripts/)?sft_vlm\.py", re.DOTALL)
"""Programs that train with TRL's SFTTrainer as its own scripts do, which a format reads."""
TRL_SFT = ("TRL's SFTConfig, which has defaults of its own (gradient_checkpointing, bf16, max_length 1024) and a loss "
           "of its own")
TRL_OTHERS = ("another of TRL's trainers than SFTTrainer: its loss, and the models and samples beside it, are not "
              "predicted")
"""Names of TRL's trainers in messages. TRL 1.16, trainer/sft_config.py and sft_trainer.py (``compute_loss``)."""
LLAVA_NEXT = "a trainer of LLaVA-NeXT's own repository, which trains LLaVA-OneVision"
TRAINERS: Mapping[str, Trainer] = {
    LLAVA_NEXT: Trainer(flags=_names("""mm_tunable_parts mm_vision_tower_lr mm_spatial_pool_mode mm_spatial_pool_stride
        mm_resampler_type image_grid_pinpoints image_crop_resolution image_split_resolution unfreeze_mm_vision_tower
        unfreeze_language_model model_class_name tune_mm_vision_resampler vision_tower_pretrained mm_newline_position
        frames_upbound group_by_varlen group_by_modality_length_auto rope_scaling_factor""")),
    TRL_OTHERS: Trainer(
        _names("open_r1"),
        _names("nash_md reward_modeling reward_trainer gold distillation async_distillation"),
        _names("dpo grpo gspo rloo ppo kto orpo cpo simpo xpo bco prm gkd mpo rlhf reward"),
        _names("""max_prompt_length max_completion_length num_generations precompute_ref_log_probs sync_ref_model
               ref_model_mixup_alpha generate_during_eval disable_dropout desirable_weight undesirable_weight
               reward_weights reward_model_path teacher_model_name_or_path center_rewards_coefficient
               missing_eos_penalty cpo_alpha simpo_gamma use_vllm vllm_mode vllm_gpu_memory_utilization
               log_completions""")),
    TRL_SFT: Trainer(
        _names("trl"),
        _names("""sft sft_vlm* sft_gemma* sft_gpt_oss* sft_video_llm sft_nemotron* sft_tiny_aya* run_sft"""),
        _names("trl vsft"),
        _names("""packing packing_strategy eval_packing padding_free completion_only_loss assistant_only_loss
               dataset_text_field dataset_kwargs dataset_train_split dataset_test_split dataset_streaming
               chat_template_path truncation_mode activation_offloading model_init_kwargs use_bnb_nested_quant
               bnb_4bit_quant_storage lora_target_parameters ignore_bias_buffers"""),
        _names("use_peft+dataset_name use_peft+dataset_config use_peft+datasets"), form="trl"),
    "LLaMA-Factory": Trainer(_names("llamafactory llmtuner"), flags=_names("stage+template"), form="llamafactory"),
    "ms-swift": Trainer(_names("swift"), flags=_names("tuner_backend"), form="swift"),
    "axolotl": Trainer(_names("axolotl"), form="axolotl"),
    "Unsloth": Trainer(_names("unsloth unsloth_cli"), _names("unsloth_*")),
    "a trainer of Qwen-VL's own repository": Trainer(
        _names("qwenvl"), _names("train_qwen"), flags=_names(
            "tune_mm_vision tune_mm_llm tune_mm_mlp dataset_use data_flatten data_packing")),
    "a trainer of InternVL's own repository": Trainer(
        _names("internvl"), _names("internvl_*"), flags=_names(
            "force_image_size use_llm_lora use_backbone_lora down_sample_ratio conv_style unfreeze_vit_layers")),
    "torchtune's recipes": Trainer(_names("torchtune"), _names("full_finetune_* lora_finetune_* qat_distributed")),
    "NeMo": Trainer(_names("nemo nemo_automodel nemo_run"), _names("megatron_gpt_*")),
    "Megatron-LM": Trainer(_names("megatron"), _names("pretrain_gpt pretrain_vlm"), flags=_names(
        "tensor_model_parallel_size pipeline_model_parallel_size")),
    "another framework": Trainer(_names("verl openrlhf litgpt xtuner colossalai fairseq2")),
    "a loop of its own, not the Trainer's": Trainer(scripts=_names("*_no_trainer"), flags=_names(
        "checkpointing_steps with_tracking")),
}
"""Name of a trainer in messages -> its signs.

Sources: TRL 1.16 (scripts, examples, and fields of its configurations that ``TrainingArguments`` does not have, except
``max_length`` and those of LoRA, which other scripts have too), LLaMA-Factory 0.9.5, ms-swift 4.6, axolotl 0.19, the
repositories of Qwen2.5-VL and InternVL, and transformers' examples without the Trainer."""
INSTEAD = "name the values by options instead, or use peakcast learn"
ALL_THE_SAME = "; or --from-format transformers, if its Trainer trains this all the same"


def is_sft(user_input: UserInput) -> bool:
    """True for TRL's own scripts of supervised fine-tuning, and for ``trl sft``."""
    return bool(SFT.fullmatch(user_input.program))


REFUSED_BY_FORMAT = {"trl": TRL_OTHERS, "llava": LLAVA_NEXT}
"""Format -> a trainer whose scripts have its marks, and are not read by it."""


def check_of_format(name: str, user_input: UserInput) -> None:
    """Rejects a script of a trainer that a format does not read, though it has its marks.

    Raises:
        InputError: names the sign that the trainer was recognised by.
    """
    what, who = _recognised(user_input) or ("", "")
    if who and who == REFUSED_BY_FORMAT.get(name):
        raise NotPredicted(f"{user_input.name}: {what} trains with {who}: {INSTEAD}")


def check(user_input: UserInput, *, by_user: bool, unknown_of: Callable[[str], Sequence[str]]) -> None:
    """Rejects a script, or options, of another trainer.

    Args:
        by_user: true if the user chose the format. TRL's own files are rejected even then.
        unknown_of: finds the flags that a format of that name does not know, so that one message names all of them.

    Raises:
        InputError: names the sign that the trainer was recognised by, and what to do.
    """
    of_trl = bool(TRL.search(user_input.program))
    recognised = _recognised(user_input) if of_trl or not by_user else None
    if recognised is None:
        return
    what, who = recognised
    form = TRAINERS[who].form
    to_do = INSTEAD
    if form:
        unknown = ", ".join(unknown_of(form)) if user_input.flags else ""
        to_do = f"add --from-format {form}, which reads it"
        if unknown:
            to_do += f" without the script's own {unknown} (leave them out, and say what they do {BY_OPTIONS})"
    raise NotPredicted(f"{user_input.name}: {what} trains with {who}: {to_do}{'' if of_trl else ALL_THE_SAME}")


def _recognised(user_input: UserInput) -> tuple[str, str] | None:
    """The sign of another trainer and the trainer's name: from the script's package, else its name, else an option."""
    *folders, stem = re.sub(r"\.py$", "", user_input.program).replace(".", "/").replace(" ", "/").split("/")
    flags = {name.replace("-", "_"): f"--{name}" if user_input.flags else name for name in user_input.values}
    script, tests = quoted(user_input.program, 200)[1:-1], TRAINERS.items()
    signs = {who: sorted(trainer.flags if script else trainer.flags | trainer.keys) for who, trainer in tests}
    matches = [*((script, who) for who, trainer in tests if trainer.packages.intersection(folders)),
               *((script, who) for who, trainer in tests if trainer.is_named(stem)),
               *(("what has " + " and ".join(flags[part] for part in name.split("+")), who) for who in TRAINERS
                 for name in signs[who] if flags.keys() >= set(name.split("+")))]
    if matches and matches[0][1] == TRL_SFT and TRAINERS[TRL_OTHERS].is_named(stem):
        return matches[0][0], TRL_OTHERS
    return matches[0] if matches else None

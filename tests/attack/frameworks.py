"""Random jobs in the words of each training framework, and the plain workloads that they are.

The names of a framework's keys are those of its own documentation, written here once more, so that a reader is not
compared with itself. Where a framework's defaults differ from a workload's, the plain workload has them as keys.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from predictor import readers
from predictor.common.errors import InputError
from predictor.common.value_types import thaw
from predictor.workload.workload import Workload
from tests.attack.jobs import answered
from tests.attack.rounds import Round, name_of

TEXT, TEXT_IN_HUB = "llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"
QWEN, QWEN_IN_HUB = "qwen2.5-vl-7b", "Qwen/Qwen2.5-VL-7B-Instruct"
LLAVA, VICUNA = "llava-1.5-7b", "lmsys/vicuna-7b-v1.5"
SIDE = 768
"""Height and width of the largest pictures, in pixels."""
GPUS = 4
CONFIG = "ds.json"
LAUNCHED = "a.yaml"
COMPARED = ("model", "recipe", "per_device_train_batch_size", "gradient_accumulation_steps", "sequence_length", "optim", "gradient_checkpointing", "lora", "engine",
            "data_parallel_size", "max_grad_norm")
"""Keys of a workload that are compared, besides the stage of ZeRO."""


@dataclass(frozen=True)
class Job:
    """What a framework is told.

    Attributes:
        stage: of ZeRO, on :data:`GPUS` GPUs; None: one GPU without DeepSpeed.
        rank: of the adapters; None: without adapters.
    """

    batch: int
    steps: int
    length: int
    optim: str
    checkpoints: bool
    norm: float
    stage: int | None
    rank: int | None

    @property
    def zero(self) -> dict[str, Any]:
        """Its DeepSpeed config, of which Hugging Face fills in the rest."""
        return {"bf16": {"enabled": True}, "zero_optimization": {"stage": self.stage}, "gradient_clipping": "auto",
                "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}


@dataclass(frozen=True)
class Framework:
    """A framework's words for a job.

    Attributes:
        command: what starts a training, and its settings that stay; ``{gpus}`` stands for the launcher's part.
        launched: the launcher's part with :data:`GPUS` GPUs, and that for one.
        names: part of a job -> the framework's key; a part without one is not said.
        on: the word for true.
        adapted, whole: words with and without adapters; None: it has no such jobs here.
        unchecked: words that turn activation checkpoints off; empty: those of :attr:`names`.
        plain: keys of the plain workload of every job, and those with adapters.
        stages: stages of ZeRO that are said; None among them for none.
        by_launcher: whether accelerate's file says the stage, and not a DeepSpeed config.
    """

    command: str
    names: Mapping[str, str]
    plain: Mapping[str, Any]
    launched: tuple[str, str] = ("", "")
    adapted: str | None = None
    whole: str | None = ""
    with_adapters: Mapping[str, Any] | None = None
    stages: tuple[int | None, ...] = (None, 0, 1, 2, 3)
    checkpoints: tuple[str, str] = ("--gradient_checkpointing True", "--gradient_checkpointing False")
    by_launcher: bool = False
    optimizers: tuple[str, ...] = ("adamw_torch_fused", "adamw_torch", "sgd", "adafactor", "adamw_torch_fused")


HUGGING_FACE = {"batch": "per_device_train_batch_size", "steps": "gradient_accumulation_steps", "optim": "optim", "norm": "max_grad_norm"}
"""https://huggingface.co/docs/transformers/main_classes/trainer, ``TrainingArguments``."""
TRAINER = {"attn_implementation": "sdpa", "keep_outputs": "none", "zero_grad": "after_step", "weight_decay": 0.0}
"""Of every job that Hugging Face's Trainer trains: decoupled decay of 0, and its loop."""
TORCHRUN = (f"torchrun --nproc_per_node {GPUS}", "python")
DEEPSPEED = (f"deepspeed --num_gpus {GPUS}", "deepspeed --num_gpus 1")
ACCELERATE = (f"accelerate launch --config_file {LAUNCHED}",) * 2
LORA = {"recipe": "lora"}
FRAMEWORKS: dict[str, Framework] = {
    # https://huggingface.co/docs/transformers/main_classes/deepspeed: --deepspeed FILE; max_length is the scripts' own
    "transformers": Framework(f"{{gpus}} train.py --model_name_or_path {TEXT_IN_HUB} --output_dir o --bf16 True --torch_dtype bfloat16", HUGGING_FACE | {"length": "max_length"},
                              TRAINER | {"model": TEXT, "recipe": "full"}, TORCHRUN),
    # https://huggingface.co/docs/accelerate/usage_guides/deepspeed: zero_stage of deepspeed_config
    "accelerate": Framework(f"{{gpus}} train.py --model_name_or_path {TEXT_IN_HUB} --output_dir o --bf16 True", HUGGING_FACE | {"length": "max_length"},
                            TRAINER | {"model": TEXT, "recipe": "full"}, ACCELERATE, stages=(0, 1, 2, 3), by_launcher=True),
    # https://huggingface.co/docs/trl/sft_trainer and https://huggingface.co/docs/trl/clis; layers of adapters are peft's default for Llama
    "trl": Framework(f"{{gpus}} trl/scripts/sft.py --model_name_or_path {TEXT_IN_HUB} --dataset_name d --output_dir o --bf16 True --dtype bfloat16",
                     HUGGING_FACE | {"length": "max_length", "rank": "lora_r"}, TRAINER | {"model": TEXT, "loss": "trl_sft"}, ("accelerate launch --num_processes 4", "python"),
                     "--use_peft", "", LORA | {"lora": {"lora_alpha": 32, "lora_dropout": 0.05, "target_modules": ["q_proj", "v_proj"]}}),
    # https://llamafactory.readthedocs.io/en/latest/advanced/arguments.html: alpha is twice the rank, all linear layers
    "llamafactory": Framework(
        f"{{gpus}} train --stage sft --do_train --template t --dataset d --output_dir o --bf16 --pure_bf16 --model_name_or_path {TEXT_IN_HUB}",
        HUGGING_FACE | {"length": "cutoff_len", "rank": "lora_rank"}, TRAINER | {"model": TEXT, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        (f"NPROC_PER_NODE={GPUS} llamafactory-cli", "NPROC_PER_NODE=1 llamafactory-cli"), "--finetuning_type lora --lora_target all", "--finetuning_type full", LORA | {"lora": {}},
        checkpoints=("", "--disable_gradient_checkpointing")),
    # https://swift.readthedocs.io/en/latest/Instruction/Command-line-parameters.html; weight_decay is 0.1, lora_alpha 32, lora_dropout 0.05
    "swift": Framework(
        f"{{gpus}} sft --model {TEXT_IN_HUB} --torch_dtype bfloat16 --dataset d", HUGGING_FACE | {"length": "max_length", "rank": "lora_rank"},
        TRAINER | {"model": TEXT, "weight_decay": 0.1, "gradient_checkpointing_kwargs": {"use_reentrant": True}}, (f"NPROC_PER_NODE={GPUS} swift", "NPROC_PER_NODE=1 swift"),
        "--tuner_type lora --target_modules all-linear", "--tuner_type full", LORA | {"lora": {"lora_alpha": 32, "lora_dropout": 0.05}}),
    # https://github.com/haotian-liu/LLaVA, scripts/v1_5/finetune.sh and finetune_lora.sh
    "llava": Framework(
        f"{{gpus}} llava/train/train_mem.py --model_name_or_path {VICUNA} --version v1 --data_path d --image_folder i --vision_tower openai/clip-vit-large-patch14-336 "
        "--mm_projector_type mlp2x_gelu --bf16 True --output_dir o", HUGGING_FACE | {"length": "model_max_length", "rank": "lora_r"},
        TRAINER | {"model": LLAVA, "attn_implementation": "flash_attention_2", "no_grad": ["*vision_tower*"], "gradient_checkpointing_kwargs": {"use_reentrant": True}}, DEEPSPEED,
        "--lora_enable True", "", LORA | {"lora": {"lora_alpha": 16, "lora_dropout": 0.05, "autocast_adapter_dtype": False}}, (0, 1, 2, 3)),
    # https://github.com/QwenLM/Qwen2.5-VL, qwen-vl-finetune/README.md
    "qwenvl": Framework(
        f"{{gpus}} qwenvl/train/train_qwen.py --model_name_or_path {QWEN_IN_HUB} --dataset_use d --tune_mm_llm True --tune_mm_mlp True --tune_mm_vision True --bf16 True "
        f"--max_pixels {SIDE * SIDE} --output_dir o", HUGGING_FACE | {"length": "model_max_length"},
        TRAINER | {"model": QWEN, "recipe": "full", "image_size": SIDE, "attn_implementation": "flash_attention_2"}, TORCHRUN, stages=(0, 1, 2, 3)),
    # https://github.com/2U1/Qwen-VL-Series-Finetune, README.md
    "qwen_series": Framework(
        f"{{gpus}} src/train/train_sft.py --model_id {QWEN_IN_HUB} --data_path d --image_folder i --freeze_vision_tower False --freeze_llm False --freeze_merger False --bf16 True "
        f"--use_liger False --disable_flash_attn2 True --image_max_pixels {SIDE * SIDE} --output_dir o", HUGGING_FACE | {"length": "max_seq_length"},
        TRAINER | {"model": QWEN, "recipe": "full", "image_size": SIDE}, DEEPSPEED, stages=(0, 1, 2, 3)),
}
AXOLOTL = {"batch": "micro_batch_size", "steps": "gradient_accumulation_steps", "length": "sequence_len", "rank": "lora_r", "optim": "optimizer", "norm": "max_grad_norm",
           "checkpoints": "gradient_checkpointing"}
"""https://docs.axolotl.ai/docs/config-reference.html."""
OF_AXOLOTL = TRAINER | {"model": TEXT, "lora": {"lora_alpha": 16, "target_modules": "all-linear"}} | LORA


def drawn(draw: random.Random, framework: Framework) -> Job:
    """A random job that a framework has."""
    stage = draw.choice(framework.stages)
    ranks = [rank for rank, has in ((None, framework.whole is not None), (8, framework.adapted), (16, framework.adapted)) if has or rank is None and has]
    return Job(draw.choice((1, 2, 3)), draw.choice((1, 2, 4)), draw.choice((2048, 4096)) if QWEN not in framework.plain.values() else 8192, draw.choice(framework.optimizers),
               draw.random() < 0.7, draw.choice((1.0, 0.5)), stage, draw.choice(ranks))


def said(framework: Framework, job: Job) -> list[str]:
    """A job in a framework's words."""
    parts = {name: getattr(job, name) for name in framework.names}
    flags = [f"--{framework.names[name]} {item}" for name, item in parts.items() if item is not None]
    settings = framework.adapted if job.rank is not None else framework.whole
    config = f"--deepspeed {CONFIG}" if job.stage is not None and not framework.by_launcher else ""
    command = framework.command.replace("{gpus}", framework.launched[job.stage is None])
    return " ".join((command, *flags, settings or "", framework.checkpoints[not job.checkpoints], config)).split()


def plain(framework: Framework, job: Job) -> Workload | None:
    """The workload of a job, without the framework."""
    keys: dict[str, Any] = dict(framework.plain) | ({"recipe": "full"} if "recipe" not in framework.plain else {})
    if framework.plain["model"] == LLAVA:
        keys["recipe"] = "finetune"
    if job.rank is not None:
        keys |= framework.with_adapters or {}
        keys["lora"] = {"lora_alpha": 2 * job.rank, "lora_dropout": 0.0} | keys["lora"] | {"r": job.rank}
    return _workload(keys | _numbers(job))


def _workload(keys: Mapping[str, Any]) -> Workload | None:
    """The workload of these keys; None if they contradict each other. Arguments of checkpoints that are off are left out."""
    left_out = () if keys["gradient_checkpointing"] else ("gradient_checkpointing_kwargs",)
    try:
        return Workload(**{name: item for name, item in keys.items() if item is not None and name not in left_out})
    except InputError:
        return None


def _numbers(job: Job) -> dict[str, Any]:
    keys: dict[str, Any] = {"per_device_train_batch_size": job.batch, "gradient_accumulation_steps": job.steps, "sequence_length": job.length, "optim": job.optim,
                            "gradient_checkpointing": job.checkpoints, "max_grad_norm": job.norm, "dtype": "bf16", "gpu": "h100-80gb"}
    return keys | ({"mixed_precision": "bf16"} if job.stage is None else {"deepspeed": job.zero, "data_parallel_size": GPUS})


def play(number: int) -> Round:
    """A round: one job of each framework, and one of axolotl, whose words are a file."""
    found, draw = Round(), random.Random(number)
    with tempfile.TemporaryDirectory() as directory:
        before = os.getcwd()
        os.chdir(directory)
        try:
            for name, framework in FRAMEWORKS.items():
                job = drawn(draw, framework)
                Path(CONFIG).write_text(json.dumps(job.zero))
                section = {"zero_stage": job.stage, "gradient_accumulation_steps": job.steps, "gradient_clipping": job.norm}
                Path(LAUNCHED).write_text(json.dumps({"distributed_type": "DEEPSPEED", "num_processes": GPUS, "mixed_precision": "bf16", "deepspeed_config": section}))
                _compare(found, name, partial(readers.read, words=said(framework, job)), plain(framework, job))
            job = drawn(draw, FRAMEWORKS["trl"])
            Path(CONFIG).write_text(json.dumps(job.zero))
            _compare(found, "axolotl", partial(readers.read, path=_axolotl(job)), _of_axolotl(job))
        finally:
            os.chdir(before)
    return found


def _axolotl(job: Job) -> str:
    """Writes axolotl's file for a job with adapters."""
    numbers = {key: getattr(job, name) for name, key in AXOLOTL.items()} | {"lora_r": job.rank or 8}
    document = {"base_model": TEXT_IN_HUB, "adapter": "lora", "lora_alpha": 16, "lora_target_linear": True, "bf16": True, "attn_implementation": "sdpa",
                "datasets": [{"path": "d", "type": "chat_template"}], **numbers, **({} if job.stage is None else {"deepspeed": CONFIG})}
    Path("c.json").write_text(json.dumps(document))
    return "c.json"


def _of_axolotl(job: Job) -> Workload | None:
    keys = OF_AXOLOTL | _numbers(job) | {"data_parallel_size": 1, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    keys["lora"] = {**keys["lora"], "r": job.rank or 8}
    return _workload(keys)


def _compare(found: Round, name: str, read: Callable[[], tuple[dict[str, Any], Any]], expected: Workload | None) -> None:
    """Compares a reader's workload and its prediction with those of the plain workload."""
    if expected is None:
        return
    try:
        keys, source = read()
        job = Workload.from_mapping(keys).read_from(source).replace(gpu=expected.gpu)
    except InputError as error:
        found.check(f"a job in the words of {name} is read", False, expected, error=str(error))
        return
    mine, theirs = job.resolved(), expected.resolved()
    different = {key: (thaw(mine[key]), thaw(theirs[key])) for key in COMPARED if mine[key] != theirs[key]}
    if job.zero_stage != expected.zero_stage:
        different["zero_stage"] = (job.zero_stage, expected.zero_stage)
    found.check(f"a job in the words of {name} is the plain workload", not different, job, expected, different=different)
    found.asked.add(name_of(expected))
    prediction, other = answered(job), answered(expected)
    if prediction and other:
        found.models.add(name_of(expected))
        peaks = {counter: (getattr(prediction, counter), getattr(other, counter)) for counter in ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes")}
        found.check(f"a job in the words of {name} has the prediction of the plain workload", all(one == two for one, two in peaks.values()), job, expected, peaks=peaks)

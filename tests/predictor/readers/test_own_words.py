"""A change of a workload in the words of the user's own file is that change, when the changed file is read again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from predictor import readers
from predictor.common.errors import InputError
from predictor.common.files import parse_json, parse_yaml
from predictor.readers import own_files
from predictor.workload import deepspeed_settings
from predictor.workload.workload import Workload
from tests.predictor.readers.test_readers import EXAMPLES, LLAVA

QLORA = {"quantization": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}}
SMALLER = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 16}
EXPANDABLE = {"allocator_conf": "expandable_segments:True"}
BASES = {
    "llamafactory": {"model_name_or_path": "Qwen/Qwen2.5-VL-7B-Instruct", "finetuning_type": "full", "bf16": True,
                     "disable_gradient_checkpointing": True, "per_device_train_batch_size": 4, "cutoff_len": 4096},
    "axolotl": {"base_model": "NousResearch/Llama-3.2-1B", "sequence_len": 512, "bf16": True, "flash_attention": True, "micro_batch_size": 4},
    "swift": {"model": "Qwen/Qwen2.5-VL-7B-Instruct", "tuner_type": "full", "max_length": 4096, "deepspeed": "zero2", "max_pixels": 1003520},
    "transformers": {"model_name_or_path": "gpt2", "output_dir": "out", "per_device_train_batch_size": 4, "block_size": 512,
                     "attn_implementation": "eager"},
    "llava": {"model_name_or_path": "lmsys/vicuna-7b-v1.5", "vision_tower": "openai/clip-vit-large-patch14-336", "mm_projector_type": "mlp2x_gelu",
              "bf16": True, "model_max_length": 2048, "per_device_train_batch_size": 16},
}
ZERO2 = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto",
         "gradient_accumulation_steps": "auto", "zero_optimization": {"stage": 2, "reduce_bucket_size": 500_000_000}}
STARTS = {"llamafactory": "torchrun --nproc_per_node 2 -m llamafactory.launcher", "swift": "NPROC_PER_NODE=2 swift sft",
          "transformers": "torchrun --nproc_per_node 2 train.py", "llava": "deepspeed --num_gpus 2 llava/train/train_mem.py"}


def read(**more):
    return readers.read(**more)


def of(form: str, directory: Path, **changes):
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump(BASES[form] | changes, sort_keys=False))
    return read(path=str(path), form=form)


def test_checkpointing_is_switched_off_together_with_what_says_how(tmp_path):
    """A plan that proposes another engine leaves out keys that say nothing without checkpointing."""
    _, source = of("llamafactory", tmp_path, disable_gradient_checkpointing=False)
    changes = {"gradient_checkpointing": False, "gradient_checkpointing_kwargs": None, "gradient_checkpointing_modules": None,
               "zero_stage": 3, "offload": "all", "mixed_precision": None}
    change = source.in_own_words(changes)
    assert change is not None and change.text.startswith("disable_gradient_checkpointing: true")
    assert change.workload["deepspeed"]["zero_optimization"]["stage"] == 3


@pytest.mark.parametrize("form, change, text", [
    ("llamafactory", QLORA, "finetuning_type: lora, quantization_bit: 4"),
    ("llamafactory", {"gradient_checkpointing": True}, "disable_gradient_checkpointing: false"),
    ("llamafactory", {"recipe": "lora"}, "finetuning_type: lora"),
    ("llamafactory", {"recipe": "full"}, "freeze_vision_tower: false"),
    ("llamafactory", {"sequence_length": 1024}, "cutoff_len: 1024"),
    ("llamafactory", {"use_liger_kernel": True}, "enable_liger_kernel: true"),
    ("llamafactory", {"image_size": 336}, "image_max_pixels: 112896"),
    ("llamafactory", {"attn_implementation": "eager"}, "flash_attn: disabled"),
    ("swift", {"recipe": "lora"}, "tuner_type: lora"),
    ("swift", QLORA, "tuner_type: lora, quant_method: bnb, quant_bits: 4"),
    ("swift", {"zero_stage": 3}, "deepspeed: zero3"),
    ("swift", {"zero_stage": 3, "offload": "all"}, "deepspeed: zero3_offload"),
    ("swift", {"offload": "optimizer"}, "deepspeed: zero2_offload"),
    ("swift", {"image_size": 336}, "max_pixels: 112896"),
    ("axolotl", SMALLER, "micro_batch_size: 2, gradient_accumulation_steps: 16"),
    ("axolotl", {"optim": "adamw_bnb_8bit"}, "optimizer: adamw_bnb_8bit"),
    ("axolotl", {"gradient_checkpointing": True}, "gradient_checkpointing: true"),
    ("axolotl", QLORA, "adapter: qlora, lora_r: 8, lora_alpha: 8, lora_target_linear: true, load_in_4bit: true"),
    ("axolotl", QLORA | {"recipe": "lora"},
     "adapter: qlora, lora_r: 8, lora_alpha: 8, lora_target_linear: true, load_in_4bit: true"),
    ("axolotl", {"attn_implementation": "sdpa", "recipe": "lora"},
     "flash_attention: false, sdp_attention: true, adapter: lora, lora_r: 8, lora_alpha: 8, lora_target_linear: true"),
    ("transformers", {"attn_implementation": "sdpa"}, "attn_implementation: sdpa"),
    ("transformers", {"sequence_length": 256}, "block_size: 256"),
    ("transformers", {"use_liger_kernel": True}, "use_liger_kernel: true"),
    ("transformers", EXPANDABLE, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in front of the command"),
    ("transformers", {"mixed_precision": "bf16"}, "bf16: true"),
    ("llava", QLORA, "lora_enable: true, bits: 4"),
    ("llava", {"recipe": "lora"}, "lora_enable: true"),
    ("llava", {"sequence_length": 1024}, "model_max_length: 1024"),
])
def test_a_change_is_said_in_the_words_of_the_users_file(form, change, text, tmp_path):
    own = of(form, tmp_path)[1].in_own_words(change)
    assert own is not None and own.text == text


@pytest.mark.parametrize("form, kwargs, text", [
    ("llamafactory", {}, "disable_gradient_checkpointing: true"),
    ("swift", {}, "gradient_checkpointing: false"), ("llava", {}, "gradient_checkpointing: false"),
    ("axolotl", {"gradient_checkpointing_kwargs": {"use_reentrant": False}}, "gradient_checkpointing: false"),
    ("transformers", {"gradient_checkpointing_kwargs": {"use_reentrant": False}}, "gradient_checkpointing: false")])
def test_how_checkpoints_are_made_goes_with_them(form, kwargs, text, tmp_path):
    keys = {"disable_gradient_checkpointing": False} if form == "llamafactory" else {"gradient_checkpointing": True}
    source = of(form, tmp_path, **keys, **kwargs)[1]
    own = source.in_own_words({"gradient_checkpointing": False, "gradient_checkpointing_kwargs": None})
    assert own is not None and text in own.text.split(", ")
    assert own.workload["gradient_checkpointing_kwargs"] is None


@pytest.mark.parametrize("form, change", [
    ("transformers", QLORA), ("transformers", {"recipe": "lora"}), ("transformers", {"image_size": 336}), ("llava", {"image_size": 336}),
    ("llava", {"use_liger_kernel": True}),  # transformers 4.37 has no such argument
    ("llamafactory", {"image_size": "336x672"}),  # without pictures of that shape it is a square
    ("llamafactory", {"image_size": 336, "sdpa_backend": "math"}),
    ("axolotl", {"recipe": "full"}),  # it is already
    ("axolotl", {"recipe": "pretrain"}), ("swift", {"deepspeed.zero_optimization.reduce_bucket_size": 5}),
    ("swift", {"offload": "parameters"}), ("llamafactory", {"offload": "optimizer"})])
def test_a_change_that_the_format_cannot_say_is_none(form, change, tmp_path):
    assert of(form, tmp_path)[1].in_own_words(change) is None


QWEN = BASES["axolotl"] | {"base_model": "Qwen/Qwen2-VL-2B-Instruct"}


@pytest.mark.parametrize("form, keys, given, asked, text", [
    ("llamafactory", BASES["llamafactory"], "1024x768", "768x576", "image_max_pixels: 442368"),
    ("llamafactory", BASES["llamafactory"], "1024x768", "512x384", "image_max_pixels: 196608"),
    ("llamafactory", BASES["llamafactory"], None, ("576x576", 576), "image_max_pixels: 331776"),
    ("swift", BASES["swift"], "1024x768", "768x576", "max_pixels: 442368"),
    ("axolotl", QWEN, "1024x768", ("768x576", "756x560"), 'processor_kwargs: {"max_pixels": 442368}'),
    ("axolotl", QWEN | {"image_size": 512}, None, ("384x384", 384), "image_size: 384"),
], ids=str)
def test_smaller_pictures_are_said_as_the_frameworks_limit(form, keys, given, asked, text, tmp_path):
    item, made = asked if isinstance(asked, tuple) else (asked, asked)
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(keys))
    source = read(path=str(path), form=form, options={"image_size": given} if given else {})[1]
    own = source.in_own_words({"image_size": item})
    assert (own.text, own.workload) == (text, {"image_size": made})
    path.write_text(readers.files(source, {"image_size": item})[str(path)])
    assert read(path=str(path), form=form, options={"image_size": given} if given else {})[0]["image_size"] == made


def test_smaller_pictures_are_said_by_the_environment_variable_that_limits_them():
    words = shlex.split("MAX_PIXELS=1003520 NPROC_PER_NODE=2 swift sft --model Qwen/Qwen2.5-VL-7B-Instruct --max_length 4096")
    own = read(words=words, options={"image_size": "1024x768"})[1].in_own_words({"image_size": "768x576"})
    assert (own.text, own.workload) == ("MAX_PIXELS=442368 in front of the command", {"image_size": "756x560"})


@pytest.mark.parametrize("form, change, framework", [
    ("llava", {"gradient_checkpointing_kwargs": {"use_reentrant": True, "offload": True}}, "LLaVA 1.2"),
    ("llava", {"use_liger_kernel": True}, "LLaVA 1.2"), ("llava", {"sequence_length": 1024}, ""),
    ("llamafactory", {"sequence_length": 1024, "sdpa_backend": "math"}, "LLaMA-Factory 0.9.5"),
    ("llamafactory", {"zero_stage": 3}, ""), ("llamafactory", EXPANDABLE, ""), ("llamafactory", QLORA, "")])
def test_a_framework_without_a_setting_for_a_change_is_named(form, change, framework, tmp_path):
    assert of(form, tmp_path)[1].without_setting(change) == framework


def test_a_key_that_an_option_sets_is_not_the_files(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(BASES["llamafactory"]))
    source = read(path=str(path), options={"per_device_train_batch_size": 8, "zero_stage": 2})[1]
    assert source.in_own_words(SMALLER) is None and source.in_own_words({"zero_stage": 3}) is None
    assert source.in_own_words({"sequence_length": 512}).text == "cutoff_len: 512"


def test_a_script_is_changed_by_flags_and_its_deepspeed_config_in_its_own_file():
    source = read(path=str(LLAVA / "pretrain.sh"))[1]
    assert source.in_own_words(SMALLER).text == "--per_device_train_batch_size 2 --gradient_accumulation_steps 16"
    stage = source.in_own_words({"zero_stage": 3})
    assert (stage.text, stage.where) == ("zero_optimization.stage: 3 in ./scripts/zero2.json", "./scripts/zero2.json")
    assert stage.values == {"zero_optimization.stage": 3}
    both = source.in_own_words({"sequence_length": 512, "offload": "optimizer"} | EXPANDABLE)
    assert both.text == ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in front of the command; --model_max_length 512; "
                         "zero_optimization.offload_optimizer.device: cpu in ./scripts/zero2.json")


def test_what_the_framework_decides_by_a_change_is_part_of_the_workload(tmp_path):
    own = of("llamafactory", tmp_path)[1].in_own_words({"recipe": "lora"})
    assert own.workload == {"recipe": "lora", "lora": {"r": 8, "lora_alpha": 16, "lora_dropout": 0.0}, "dtype": "bf16"}


def test_accumulation_that_ms_swift_derives_from_the_batch_is_written_out_where_it_shall_stay(tmp_path):
    own = of("swift", tmp_path, per_device_train_batch_size=4)[1].in_own_words({"per_device_train_batch_size": 2})
    assert own.text == "per_device_train_batch_size: 2, gradient_accumulation_steps: 4"


def test_accelerates_file_has_the_stage(tmp_path):
    path = tmp_path / "accelerate.yaml"
    path.write_text(yaml.safe_dump({"distributed_type": "DEEPSPEED", "num_processes": 8, "mixed_precision": "bf16",
                                    "deepspeed_config": {"zero_stage": 2}}))
    source = read(words=["accelerate", "launch", "--config_file", str(path), *shlex.split("train.py --output_dir x --model_name_or_path gpt2")])[1]
    own = source.in_own_words({"zero_stage": 3})
    assert own.text == f"deepspeed_config.zero_stage: 3 in {path}"
    path.write_text(readers.files(source, {"zero_stage": 3})[str(path)])
    assert yaml.safe_load(path.read_text())["deepspeed_config"] == {"zero_stage": 3}


def test_numbers_of_a_config_that_transformers_compares_change_too(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(ZERO2 | {"train_micro_batch_size_per_gpu": 4, "train_batch_size": 32}))
    source = read(words=shlex.split(f"torchrun --nproc_per_node 8 train.py --output_dir x --model_name_or_path gpt2 --bf16 True "
                                    f"--per_device_train_batch_size 4 --deepspeed {path}"))[1]
    own = source.in_own_words({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2})
    assert own is not None and "train_micro_batch_size_per_gpu: 2" in own.text and "train_batch_size" not in own.values
    assert source.in_own_words({"per_device_train_batch_size": 2}).values["train_batch_size"] == 16


def test_a_key_given_beside_the_file_is_changed_there(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(BASES["llamafactory"] | {"finetuning_type": "lora"}))
    source = read(words=["llamafactory-cli", "train", str(path), "lora_rank=32"])[1]
    change = {"lora": {"r": 16}, "sequence_length": 512}
    assert source.in_own_words(change).text == "lora_rank=16; cutoff_len: 512"
    assert readers.files(source, change)["the command"].endswith("job.yaml lora_rank=16")


CHANGES = st.fixed_dictionaries({}, optional={
    "per_device_train_batch_size": st.integers(1, 8), "gradient_accumulation_steps": st.integers(1, 8),
    "gradient_checkpointing": st.booleans(), "optim": st.sampled_from(["adamw_bnb_8bit", "adafactor", "adamw_torch"]),
    "zero_stage": st.integers(1, 3), "offload": st.sampled_from(["optimizer", "all"]),
    "recipe": st.sampled_from(["lora", "full", "finetune", "pretrain"]),
    "quantization": st.fixed_dictionaries({"load_in_4bit": st.just(True)}, optional={
        "bnb_4bit_quant_type": st.sampled_from(["nf4", "fp4"]), "bnb_4bit_use_double_quant": st.booleans()}),
    "attn_implementation": st.sampled_from(["sdpa", "eager", "flash_attention_2"]), "use_liger_kernel": st.just(True),
    "sequence_length": st.sampled_from([256, 1024]), "image_size": st.sampled_from([112, 336]), "lora": st.fixed_dictionaries(
        {"r": st.integers(1, 64)}), "data_parallel_size": st.sampled_from([4, 8]), "allocator_conf": st.just("expandable_segments:True"),
    "deepspeed.zero_optimization.reduce_bucket_size": st.just(50_000_000), "padding": st.sampled_from(["none", "packed"]),
    "gradient_checkpointing_kwargs": st.fixed_dictionaries({"use_reentrant": st.booleans()})})
NAMES = [(form, how) for form in BASES for how in ("yaml", "json", "script", "command") if how in ("yaml", "json") or form in STARTS]


def flags(values) -> str:
    return " ".join(f"--{key} {shlex.quote(str(item))}" for key, item in values.items())


def configured(form: str, how: str, directory: Path, config: bool):
    """A configuration of a format on disk: a function that reads what is there."""
    values = dict(BASES[form])
    if config and form != "swift":
        (directory / "zero2.json").write_text(json.dumps(ZERO2, indent=2))
        values |= {"deepspeed": str(directory / "zero2.json"), "bf16": True}
    if how in ("yaml", "json"):
        path = directory / f"job.{how}"
        path.write_text("# ours\n" * (how == "yaml") + (yaml.safe_dump if how == "yaml" else json.dumps)(values))
        return path, lambda: read(path=str(path), form=form)
    line = f"{STARTS[form]} {flags(values)}"
    path = directory / "job.sh"
    path.write_text("#!/bin/bash\n# --bf16 False\n" + line.replace(" --", " \\\n    --") + "\n" if how == "script" else line)
    return path, lambda: read(path=str(path), form=form) if how == "script" else read(words=shlex.split(path.read_text()), form=form)


def plain(keys):
    """Keys of a workload with the content of the DeepSpeed config."""
    config = keys.get("deepspeed")
    return dict(keys) | ({"deepspeed": json.loads(Path(config).read_text())} if isinstance(config, str) else {})


def has(after, key, item) -> bool:
    config = deepspeed_settings.settled(deepspeed_settings.written(after.get("deepspeed") or {}, "x"))
    if key in ("zero_stage", "offload"):
        return config.get("zero_optimization.stage" if key == "zero_stage" else key) == item
    if key.startswith("deepspeed."):
        return config[key.partition(".")[2]] == item
    found = after.get(key, Workload(model="gpt2").resolved()[key])
    return all(found.get(part) == value for part, value in item.items()) if isinstance(item, dict) else found == item


@pytest.mark.parametrize("form, how", NAMES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])
@given(change=CHANGES, config=st.booleans(), whole=st.booleans())
def test_a_changed_file_is_read_as_the_changed_workload(form, how, tmp_path, change, config, whole):
    path, again = configured(form, how, tmp_path, config)
    before, source = again()
    before = plain(before)
    if not whole:  # most changes of many keys have one that the format cannot say
        change = {key: item for key, item in change.items() if source.in_own_words({key: item})}
    own = source.in_own_words(change)
    assume(own is not None)
    changed = readers.files(source, change)
    assert changed is not None
    for name, text in changed.items():
        Path(path if name == "the command" else name).write_text(text)
    after = plain(again()[0])
    if how in ("yaml", "json"):  # such a file has no environment
        after |= {key: change[key] for key in ("allocator_conf",) if key in change}
    wanted = {key: item for key, item in {**before, **own.workload}.items() if item is not None}
    assert after == wanted
    assert {key: item for key, item in change.items() if not has(after, key, item)} == {}
    assert own.text and own.where and "\n" not in own.text


@settings(max_examples=60, deadline=None)
@given(change=CHANGES)
def test_no_change_of_any_kind_is_a_crash(change):
    for path in (EXAMPLES / "swift.sh", EXAMPLES / "llava/scripts/zero2.json", EXAMPLES / "axolotl.yml"):
        source = read(path=str(path))[1]
        own = source.in_own_words(change)
        assert (own is None) == (readers.files(source, change) is None)


@pytest.mark.parametrize("text, values, changed", [
    ("a: 1  # one\n# two\nb:\n  - x\n  - y\nc: 3\n", {"a": 2, "b": None}, "a: 2  # one\n# two\nc: 3\n"),
    ("s:\n  t: 1\nu: 2\n", {"s.t": 5, "v": True}, "s:\n  t: 5\nu: 2\nv: true\n"),
    ("{a: 1, b: 2}\n", {"a": 3}, "a: 3\nb: 2\n")])
def test_yaml_keeps_its_comments_and_order_where_it_can(text, values, changed):
    assert own_files.with_values(text, "job.yaml", values) == changed


KEYS = st.text("abc_", min_size=1, max_size=4)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
DOCUMENTS = st.dictionaries(KEYS, SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(KEYS, SCALARS, max_size=3), min_size=1)


@pytest.mark.parametrize("suffix", ["yaml", "json"])
@settings(max_examples=200, deadline=None)
@given(document=DOCUMENTS, values=st.dictionaries(KEYS, st.booleans() | st.integers() | st.text("xy.:# '\"", max_size=5), max_size=3))
@example(document={"__": {"_": "0E0"}}, values={"_": False})
def test_a_written_document_has_the_new_values_and_the_others(suffix, document, values):
    """PyYAML writes the text 0E0 without quotes, and ``parse_yaml`` reads a number there, as in JSON."""
    text = (yaml.safe_dump if suffix == "yaml" else json.dumps)(document)
    try:
        changed = own_files.with_values(text, f"job.{suffix}", values)
    except InputError:
        assume(False)
    parse = parse_yaml if suffix == "yaml" else parse_json
    assert parse(changed, "changed") == parse(text, "text") | values
    if parse(text, "text") == document:
        assert (yaml.safe_load if suffix == "yaml" else json.loads)(changed) == document | values


TRAIN = "train.py --output_dir o --model_name_or_path gpt2 --max_length 64 --bf16 True"


@pytest.mark.parametrize("line, change, text, changed", [
    (f"torchrun --nproc_per_node 4 {TRAIN}", {"data_parallel_size": 8}, "--nproc_per_node 8", f"torchrun --nproc_per_node 8 {TRAIN}"),
    (f"accelerate launch --num_processes=4 {TRAIN}", {"data_parallel_size": 8}, "--num_processes 8", f"accelerate launch --num_processes 8 {TRAIN}"),
    (f"deepspeed --num_gpus 4 {TRAIN}", {"data_parallel_size": 8}, "--num_gpus 8", f"deepspeed --num_gpus 8 {TRAIN}"),
    ("swift sft --model gpt2 --max_length 64 --gradient_accumulation_steps 1", {"data_parallel_size": 4}, "NPROC_PER_NODE=4 in front of the command",
     "NPROC_PER_NODE=4 swift sft --model gpt2 --max_length 64 --gradient_accumulation_steps 1"),
    (f"accelerate launch --num_processes 4 --use_deepspeed --zero_stage 2 {TRAIN}", {"zero_stage": 3}, "--zero_stage 3",
     f"accelerate launch --num_processes 4 --use_deepspeed --zero_stage 3 {TRAIN}"),
    (f"accelerate launch --num_processes 4 --use_deepspeed --zero_stage 2 {TRAIN}", {"offload": "optimizer"}, "--offload_optimizer_device cpu",
     f"accelerate launch --offload_optimizer_device cpu --num_processes 4 --use_deepspeed --zero_stage 2 {TRAIN}"),
    (f"python {TRAIN} --no_gradient_checkpointing", {"gradient_checkpointing": True}, "--gradient_checkpointing True",
     f"python {TRAIN} --gradient_checkpointing True"),
    (f"python {TRAIN} --per-device-train-batch-size=8", {"per_device_train_batch_size": 2}, "--per-device-train-batch-size 2",
     f"python {TRAIN} --per-device-train-batch-size 2"),
    (f"A=1 PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64 python {TRAIN}", EXPANDABLE,
     "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in front of the command",
     f"A=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python {TRAIN}")])
def test_a_command_is_the_same_with_other_flags(line, change, text, changed):
    source = read(words=shlex.split(line))[1]
    assert source.in_own_words(change).text == text
    assert readers.written(source, change) == changed


def test_a_plain_command_without_a_launcher_has_no_deepspeed():
    assert read(words=shlex.split(f"python {TRAIN}"))[1].in_own_words({"zero_stage": 2}) is None


def test_a_flag_whose_value_is_a_variable_is_changed_in_its_place(tmp_path):
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/bash\nBATCH=8  # a GPU\nexport PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64\n# --optim adafactor\n"
                    "python train.py --output_dir o \\\n  --model_name_or_path gpt2 --max_length 64 \\\n"
                    "  --per_device_train_batch_size $BATCH \"$@\"\n")
    source = read(path=str(path))[1]
    text = readers.written(source, {"per_device_train_batch_size": 2, "optim": "adamw_bnb_8bit"} | EXPANDABLE)
    assert text == (
        "#!/bin/bash\nBATCH=8  # a GPU\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n# --optim adafactor\n"
        "python train.py --optim adamw_bnb_8bit --output_dir o \\\n  --model_name_or_path gpt2 --max_length 64 \\\n"
        "  --per_device_train_batch_size 2 \"$@\"\n")


@pytest.mark.parametrize("change, made", [
    (SMALLER, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 16}), ({"gradient_checkpointing": True}, {"gradient_checkpointing": True}),
    ({"gradient_checkpointing_kwargs": {"use_reentrant": True}, "gradient_checkpointing": True}, {"gradient_checkpointing_kwargs": {"use_reentrant": True}}),
    ({"optim": "adamw_bnb_8bit"}, {"optim": "adamw_bnb_8bit"}), ({"use_liger_kernel": True}, {"use_liger_kernel": True}),
    ({"max_grad_norm": 0.5, "weight_decay": 0.25}, {"max_grad_norm": 0.5, "weight_decay": 0.25})])
def test_transformers_own_parser_takes_the_flags(tmp_path, change, made):
    transformers = pytest.importorskip("transformers")
    source = read(words=["python", "train.py", "--output_dir", str(tmp_path), "--model_name_or_path", "gpt2", "--max_length", "64"])[1]
    words = ["--output_dir", str(tmp_path), "--use_cpu", "True", "--report_to", "none", *shlex.split(source.in_own_words(change).text)]
    arguments, = transformers.HfArgumentParser(transformers.TrainingArguments).parse_args_into_dataclasses(words)
    assert {key: getattr(arguments, key) for key in made} == made

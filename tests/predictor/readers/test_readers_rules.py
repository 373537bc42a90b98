"""Rules of frameworks and of their Trainer that derive a value from several keys of a configuration."""

from __future__ import annotations

import json
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from predictor import readers
from predictor.cli import main
from predictor.common.errors import InputError
from predictor.jobs import dispatch
from predictor.readers.reading import Reading
from predictor.readers.user_input import UserInput
from predictor.workload import compared
from predictor.workload.value_sources import DEFAULT, READ
from predictor.workload.workload import Workload

EXAMPLES = Path(__file__).parents[1] / "configurations"
LLAVA = ("torchrun --nproc-per-node=8 llava/train/train_mem.py --model_name_or_path lmsys/vicuna-7b-v1.5 --vision_tower "
         "openai/clip-vit-large-patch14-336 --mm_projector_type mlp2x_gelu --bf16 True --output_dir x "
         "--model_max_length 2048 ")
GPT2 = {"output_dir": "x", "model_name_or_path": "gpt2", "max_length": 512}
QWEN = {"model_name_or_path": "Qwen/Qwen2.5-VL-7B-Instruct"}
SWIFT = {"model": "Qwen/Qwen2.5-VL-7B-Instruct", "tuner_type": "lora", "max_length": 512}
AXOLOTL = {"base_model": "NousResearch/Llama-3.2-1B", "adapter": "lora", "lora_r": 8, "lora_alpha": 16,
           "lora_target_linear": True, "gradient_checkpointing": True}


def of_file(directory: Path, keys: dict, gpus: int | None = None):
    path = directory / "job.yaml"
    path.write_text("".join(f"{key}: {str(item).lower() if isinstance(item, bool) else item}\n"
                            for key, item in keys.items()))
    return readers.read(path=str(path), options=gpus and {"data_parallel_size": gpus})


def of_llava(flags: str):
    return readers.read(words=shlex.split(LLAVA + flags))


@pytest.mark.parametrize("keys", [GPT2, QWEN | {"finetuning_type": "lora"}, SWIFT, AXOLOTL])
def test_bf16_and_fp16_together_are_refused_as_hugging_face_does(tmp_path, keys):
    with pytest.raises(InputError) as caught:
        of_file(tmp_path, keys | {"bf16": True, "fp16": True})
    assert str(caught.value).endswith("job.yaml: fp16 is true, and so is bf16: keep one")


def test_bf16_and_fp16_of_llavas_flags_are_refused_with_exit_code_2(capsys):
    assert main(["predict", "--", *shlex.split(LLAVA + "--fp16 True")]) == 2
    assert "--fp16 is true, and so is --bf16: keep one" in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def evil(tmp_path, monkeypatch) -> Path:
    """A file that must not run; it is in the current directory. The path is that of what it would write."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("open('ran', 'w')\ndef f(batch): ...\n")
    return tmp_path / "ran"


@pytest.mark.parametrize("words", [["--from", "job.yaml"], ["--", "python", "train.py", "--model_name_or_path", "evil.py:f",
                                                            "--output_dir", "x"]])
def test_code_that_a_framework_names_as_its_model_is_refused_in_one_line(words, evil, capsys):
    Path("job.yaml").write_text("model_name_or_path: evil.py:f\nper_device_train_batch_size: 1\noutput_dir: x\n")
    assert main(["predict", "--sequence-length", "128", *words]) == 2
    assert re.fullmatch(r'.*model_name_or_path is "evil.py:f", a function of Python code, .*\n', capsys.readouterr().err)


def test_code_that_a_framework_names_as_its_model_does_not_run(evil):
    main(["predict", "--sequence-length", "128", "--", "python", "train.py", "--model_name_or_path", "evil.py:f",
          "--output_dir", "x"])
    assert not evil.exists()


@pytest.mark.parametrize("name", [name for name in readers.FORMATS if name != "deepspeed"])
def test_every_framework_has_a_key_of_the_model_that_takes_no_code(name, evil):
    form = import_module(readers.FORMATS[name]).FORMAT
    [key] = [key for key, known in form.fields.items() if known.option == "model"]
    with pytest.raises(InputError, match="a function of Python code"):
        Reading(form, UserInput("job.yaml", {key: "evil.py:f"}, "job.yaml"))


def test_code_that_the_user_names_takes_the_place_of_a_frameworks_model(tmp_path):
    values, _ = readers.read(words=["python", "train.py", "--output_dir", "x", "--bf16", "True"], options={"model": "mine.py:f"})
    assert values.get("model", "mine.py:f") == "mine.py:f"


def trains(flags: str) -> set[str]:
    """Parts of LLaVA-1.5 of which something trains."""
    workload = Workload.from_mapping(of_llava(flags)[0])
    names = [one.name for one in dispatch.prepare(workload.replace(rank=0)).setup.facts.parameters if one.trainable]
    return {part for part in ("vision_tower", "projector", "language_model", "lm_head")
            if any(part in name for name in names)}


@pytest.mark.parametrize(("flags", "parts"), [
    ("", {"projector", "language_model", "lm_head"}),
    ("--freeze_backbone True", {"projector", "lm_head"}),
    ("--freeze_backbone True --freeze_mm_mlp_adapter True", {"lm_head"}),
    ("--freeze_backbone True --tune_mm_mlp_adapter True", {"projector"}),
])
def test_llavas_frozen_backbone_is_its_language_model_without_the_head(flags, parts):
    assert trains(flags) == parts


def test_llavas_frozen_backbone_says_nothing_beside_adapters_which_are_added_later():
    without, _ = of_llava("--lora_enable True")
    assert of_llava("--lora_enable True --freeze_backbone True")[0] == without


@pytest.mark.parametrize("flag", ['--fsdp "full_shard auto_wrap"',
                                  "--fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer"])
def test_llavas_fsdp_is_fsdp1_which_is_refused(flag):
    with pytest.raises(InputError, match=rf"the command: {flag.split()[0]} .*FSDP1, which is not predicted"):
        of_llava(flag)


@pytest.mark.parametrize("keys", [QWEN | {"finetuning_type": "lora"}, SWIFT])
def test_what_fsdp_wraps_is_never_without_effect(tmp_path, keys):
    with pytest.raises(InputError, match="fsdp_transformer_layer_cls_to_wrap .*give transformer_layer_cls_to_wrap"):
        of_file(tmp_path, keys | {"fsdp": "full_shard", "fsdp_transformer_layer_cls_to_wrap": "Qwen2DecoderLayer"})


UNUSED = "ddp_find_unused_parameters"
LORA = {"use_peft": True, "lora_target_modules": "c_attn"}


@pytest.mark.parametrize(("keys", "origin", "unused"), [
    (GPT2, DEFAULT, True),
    (GPT2 | {"gradient_checkpointing": True}, DEFAULT, False),
    (GPT2 | {"gradient_checkpointing": True} | LORA, DEFAULT, True),
    (GPT2 | {UNUSED: False}, READ, False),
    (GPT2 | {"gradient_checkpointing": True, UNUSED: True}, READ, True),
    (QWEN | {"finetuning_type": "lora"}, DEFAULT, False),
    (QWEN | {"finetuning_type": "full"}, DEFAULT, False),
    (SWIFT, DEFAULT, True),
    (AXOLOTL, DEFAULT, False),
])
def test_unused_parameters_are_looked_for_as_the_trainer_decides(tmp_path, keys, origin, unused):
    values, source = of_file(tmp_path, keys, gpus=2)
    row = next(row for row in source.values if row.key == "ddp.find_unused_parameters")
    assert (values["engine"], row.origin, row.value) == ("ddp", origin, unused)
    asked = Workload.from_mapping(values | {"frozen": "*vision_tower*"} if "qwen" in values["model"] else values)
    assert asked.ddp.get("find_unused_parameters", False) == unused


EVALUATES = {"eval_strategy": "steps", "per_device_eval_batch_size": 4}


@pytest.mark.parametrize(("keys", "predicted"), [
    ({"bf16": True}, True), ({"fp16": True}, True), ({"torch_dtype": "float32"}, True),
    ({"use_liger_kernel": True}, False), ({"attn_implementation": "flash_attention_2", "bf16": True}, True),
    ({"fsdp": "full_shard", "bf16": True}, False),
])
def test_an_evaluation_is_predicted_with_what_it_was_compared_with(tmp_path, keys, predicted):
    values, source = of_file(tmp_path, GPT2 | EVALUATES | keys, gpus=2)
    assert values.get("per_device_eval_batch_size") == (4 if predicted else None)
    assert any("eval_strategy" in note for note in source.not_modelled) != predicted
    compared.check(Workload.from_mapping(values))


FILES = [path for path in EXAMPLES.rglob("*") if path.suffix in (".sh", ".yaml", ".yml")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_key_that_is_given_is_listed(path):
    _, source = readers.read(path=str(path))
    said = {name.lstrip("-") for row in source.values if row.origin == READ for name in row.names}
    notes = " ".join(source.not_modelled)
    given = readers._named_by_command(readers._file(str(path)))[0].values
    assert [key for key, item in given.items() if item is not None and key not in {*said, *source.without_effect} and
            key not in notes] == []


@pytest.mark.parametrize("keys", [
    QWEN | {"finetuning_type": "full", "freeze_vision_tower": True, "val_size": 0.1, "eval_strategy": "steps"},
    QWEN | {"finetuning_type": "lora", "freeze_vision_tower": False, "quantization_bit": 4, "bf16": True},
    SWIFT | {"freeze_llm": True, "freeze_vit": False, "use_dora": True, "lora_rank": 4},
    AXOLOTL | {"lora_r": 4, "peft_use_rslora": True, "eval_batch_size": 2, "bf16": "auto", "fp16": False},
    GPT2 | {"fsdp": "full_shard", "bf16": True, "ddp_bucket_cap_mb": 5},
    GPT2 | LORA | {"lora_r": 4, "bf16": True, "use_liger_kernel": True},
], ids=lambda keys: next(reversed(keys)))
def test_without_a_key_that_is_without_effect_the_same_is_read(tmp_path, keys):
    values, source = of_file(tmp_path, keys, gpus=2)
    said = {name for row in source.values if row.origin == READ for name in row.names}
    for key in keys:
        assert (key in source.without_effect) != (key in said or any(key in note for note in source.not_modelled))
    for key in set(keys) & set(source.without_effect) - {"output_dir"}:
        again, rest = of_file(tmp_path, {name: item for name, item in keys.items() if name != key}, gpus=2)
        assert (again, rest.not_modelled) == (values, source.not_modelled)


def test_keys_of_llava_that_change_nothing_are_listed_so():
    _, source = readers.read(path=str(EXAMPLES / "llava/scripts/v1_5/finetune.sh"))
    assert {"image_aspect_ratio", "evaluation_strategy", "per_device_eval_batch_size", "mm_use_im_start_end"} <= \
        set(source.without_effect)
    assert "--mm_projector_type" in next(row.names for row in source.values if row.key == "model")


def test_keys_that_axolotl_s_files_often_have_are_read(tmp_path):
    """The class under its other name, and a key that is left empty."""
    _, source = of_file(tmp_path, AXOLOTL | {"model_type": "AutoModelForCausalLM", "debug": ""})
    assert {"model_type", "debug"} <= set(source.without_effect)


def test_the_optimizer_of_a_deepspeed_config_goes_before_the_default(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps({
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}, "zero_optimization": {"stage": 2},
        "bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto"}))
    keys, source = of_llava(f"--deepspeed {tmp_path / 'ds.json'}")
    assert "optim" not in keys and Workload.from_mapping(keys).optim == "adamw_torch_fused"
    assert [row.names for row in source.values if row.key == "optim"] == [("optimizer",)]


def test_several_visible_gpus_without_a_launcher_are_named():
    _, source = readers.read(words=shlex.split("env CUDA_VISIBLE_DEVICES=0,1 python run_clm.py --model_name_or_path gpt2 "
                                               "--output_dir x"))
    assert any("nn.DataParallel" in note for note in source.not_modelled)


@pytest.mark.parametrize("base", ["NousResearch/Llama-3.2-1B", "Qwen/Qwen2-VL-7B"])
def test_axolotls_packed_qlora_is_predicted(tmp_path, base):
    values, _ = of_file(tmp_path, AXOLOTL | {"base_model": base, "adapter": "qlora", "load_in_4bit": True, "sample_packing": True,
                                                  "sequence_len": 512, "flash_attention": True})
    asked = Workload.from_mapping(values)
    compared.check(asked)
    assert asked.quantization and asked.padding == "packed" and asked.attn_implementation == "flash_attention_2"


UNCAST = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}


@pytest.mark.parametrize("keys", [
    GPT2, QWEN | {"finetuning_type": "full", "pure_bf16": True}, QWEN | {"finetuning_type": "lora"}])
def test_weights_that_deepspeed_does_not_cast_are_not_taken_for_fp32(tmp_path, keys):
    (tmp_path / "ds.json").write_text(json.dumps(UNCAST))
    with pytest.raises(InputError, match="job.yaml: deepspeed is given, but neither bf16 nor fp16 is on, so weights stay bf16"):
        of_file(tmp_path, keys | {"deepspeed": "ds.json"})


def test_weights_of_fp32_that_deepspeed_does_not_cast_are_predicted(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(UNCAST))
    assert of_file(tmp_path, GPT2 | {"deepspeed": "ds.json", "torch_dtype": "float32"})[0]["dtype"] == "fp32"
    assert of_file(tmp_path, QWEN | {"finetuning_type": "full", "deepspeed": "ds.json"})[0]["dtype"] == "fp32"


FLAGS = "--model_name_or_path gpt2 --max_length 512 --use_peft --lora_r 8 --output_dir x"


TRL_FLAGS = "--model_name_or_path gpt2 --output_dir x"


@pytest.mark.parametrize(("flags", "keys"), [
    ("", {"sequence_length": 1024, "gradient_checkpointing": True, "mixed_precision": "bf16", "dtype": "fp32", "recipe": "full", "engine": None}),
    ("--fp16 --max_length 512", {"sequence_length": 512, "mixed_precision": "fp16"}),
    ("--bf16 false --dtype bfloat16", {"mixed_precision": None, "dtype": "bf16"}),
    ("--torch_dtype bfloat16 --attn_implementation eager", {"dtype": "bf16", "attn_implementation": "eager"}),
    ("--packing", {"padding": "packed"}), ("--packing --packing_strategy wrapped", {"padding": None}),
    ("--max_length none", {"sequence_length": None}), ("--loss_type chunked_nll", {"loss": "trl_sft"}),
    ("--use_peft --lora_r 8", {"recipe": "lora", "lora": {"r": 8, "lora_alpha": 32, "lora_dropout": 0.05, "target_modules": ["c_attn"]}}),
    ("--model_init_kwargs {\"dtype\":\"bfloat16\"}", {"dtype": "bf16"}),
    ("--accelerate_config zero2 --num_processes 4", {"data_parallel_size": 4, "engine": None, "mixed_precision": None, "dtype": "bf16"}),
], ids=lambda value: value if isinstance(value, str) else "")
def test_trl_sft_is_read_with_its_own_defaults(flags, keys):
    found, _ = readers.read(words=["trl", "sft", *TRL_FLAGS.split(), *flags.split()])
    assert {name: found.get(name) for name in keys} == keys


@pytest.mark.parametrize(("flags", "said"), [
    ("--loss_type dft", "weights of tokens"), ("--activation_offloading", "offloaded activations"), ("--load_in_4bit", "over quantized weights"),
    ("--use_liger_kernel", "without its loss"), ("--model_init_kwargs {\"use_kernels\":true}", "has \"use_kernels\""),
    ("--router_aux_loss_coef 0.1", "losses of routers")], ids=lambda value: value.split()[0])
def test_what_is_not_predicted_of_trl_is_refused_by_its_flag(flags, said):
    with pytest.raises(InputError, match=re.escape(said)):
        readers.read(words=["trl", "sft", *TRL_FLAGS.split(), *flags.split()])


def test_a_yaml_of_trl_is_read_with_the_flags_of_its_command(tmp_path):
    (tmp_path / "sft.yaml").write_text("model_name_or_path: gpt2\nmax_length: 256\npacking: true\nenv:\n  A: b\n")
    found, source = readers.read(words=shlex.split(f"trl sft --config {tmp_path}/sft.yaml --max_length 128"))
    assert (found["sequence_length"], found["padding"], source.format) == (128, "packed", "trl")


def test_what_trls_flags_of_another_script_may_mean_is_said():
    assert any("SFTConfig" in note for note in readers.read(words=shlex.split(f"python train.py {FLAGS}"))[1].not_modelled)


@pytest.mark.parametrize("keys", [AXOLOTL | {"cut_cross_entropy": True}, QWEN | {"finetuning_type": "lora", "upcast_lmhead_output": True}])
def test_a_loss_of_other_logits_is_refused(tmp_path, keys):
    with pytest.raises(InputError, match=f"job.yaml: {list(keys)[-1]} True is not supported: .* logits"):
        of_file(tmp_path, keys)


def local(directory: Path, **keys) -> str:
    (directory / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]} | keys))
    return str(directory)


@pytest.mark.parametrize(("keys", "dtype"), [({"torch_dtype": "float32"}, "fp32"), ({"dtype": "float16"}, "fp16"),
                                             ({"dtype": "bfloat16"}, "bf16")])
@pytest.mark.parametrize("asked", [{}, {"torch_dtype": "auto"}])
def test_weights_are_of_the_dtype_in_the_models_own_configuration(tmp_path, keys, dtype, asked):
    path = local(tmp_path, **keys)
    values, source = of_file(tmp_path, GPT2 | {"model_name_or_path": path} | asked)
    assert values["dtype"] == dtype and source.place("dtype") == f"{path}: {next(iter(keys))}"
    assert not any("dtype of the checkpoint" in note for note in source.not_modelled)


@pytest.mark.parametrize("keys", [{}, {"fsdp": "full_shard"}])
def test_where_the_model_does_not_say_its_dtype_the_assumed_one_is_named(tmp_path, keys):
    values, source = of_file(tmp_path, GPT2 | keys)
    assert values["dtype"] == "bf16"
    assert "the dtype of the checkpoint, which decides that of the weights: bf16 is assumed (give dtype)" in source.not_modelled


def test_an_option_s_model_is_the_one_that_is_read_for(tmp_path):
    found, _ = readers.read(words=["python", "train.py", "--output_dir", "x", "--max_length", "8", "--use_peft", "True"],
                            options={"model": local(tmp_path, dtype="float32")})
    assert found["lora"]["target_modules"] == ["c_attn"] and found["dtype"] == "fp32"


def test_ms_swift_trains_in_the_half_of_the_models_own_dtype(tmp_path):
    values, _ = of_file(tmp_path, SWIFT | {"model": local(tmp_path, torch_dtype="float32")})
    assert (values["dtype"], values["mixed_precision"]) == ("fp32", "fp16")


def test_a_dtype_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(InputError, match="job.yaml: torch_dtype must be one of auto, bf16, fp16, fp32, not \"bfloat61\""):
        of_file(tmp_path, GPT2 | {"torch_dtype": "bfloat61"})


QWEN_OWN = "torchrun --nproc_per_node=8 qwenvl/train/train_qwen.py --model_name_or_path Qwen/Qwen2.5-VL-7B-Instruct --output_dir o --bf16"


@pytest.mark.parametrize(("flags", "keys"), [
    ("", {"sequence_length": 512, "optim": "adamw_torch", "image_size": 672, "attn_implementation": "sdpa", "sdpa_backend": "flash", "dtype": "bf16",
          "frozen": ["*visual.patch_embed*", "*visual.blocks*", "*visual.merger*", "*language_model*"]}),
    ("--tune_mm_llm True --tune_mm_mlp True --max_pixels 1003520", {"image_size": 1001, "frozen": ["*visual.patch_embed*", "*visual.blocks*"]}),
    ("--tune_mm_llm True --tune_mm_mlp True --tune_mm_vision True", {"recipe": "full", "frozen": None}),
    ("--lora_enable True", {"recipe": "lora", "frozen": ["*visual.merger*"],
                            "lora": {"r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}}),
], ids=lambda value: value if isinstance(value, str) else "")
def test_qwen_vls_own_script_is_read_as_it_uses_its_flags(flags, keys):
    found, source = readers.read(words=shlex.split(f"{QWEN_OWN} {flags}"))
    assert {name: found.get(name) for name in keys} == keys and source.format == "qwenvl"


def test_the_head_of_a_model_with_tied_weights_is_frozen_with_its_language_model():
    found, _ = readers.read(words=shlex.split(QWEN_OWN.replace("7B", "3B")))
    assert not [pattern for pattern in found["frozen"] if "lm_head" in pattern]


SERIES = "deepspeed --num_gpus 8 src/train/train_sft.py --model_id Qwen/Qwen2.5-VL-3B-Instruct --bf16 True --output_dir o --max_seq_length 4096"


@pytest.mark.parametrize(("flags", "keys"), [
    ("--use_liger False", {"recipe": "full", "sdpa_backend": "flash", "use_liger_kernel": False, "image_size": 3584}),
    ("--disable_flash_attn2 True --freeze_vision_tower True", {"recipe": "finetune", "attn_implementation": "sdpa", "use_liger_kernel": True}),
    ("--lora_enable True --freeze_llm True --lora_namespan_exclude ['lm_head','embed_tokens']", {
        "recipe": "lora", "trainable": ["*visual.patch_embed*", "*visual.blocks*"], "frozen": None}),
], ids=lambda value: value if isinstance(value, str) else "")
def test_the_script_of_the_qwen_vl_series_is_read_as_it_uses_its_flags(flags, keys):
    found, source = readers.read(words=[*shlex.split(SERIES), *flags.split()])
    assert {name: found.get(name) for name in keys} == keys and source.format == "qwen_series"


@pytest.mark.parametrize(("flags", "said"), [
    ("--lora_enable True", "freeze_llm is off beside lora_enable"), ("--lora_enable True --freeze_llm True", "lacks lm_head and embed_tokens"),
    ("--lora_enable True --freeze_llm True --vision_lora True", "adapters of all layers of the tower"), ("--bits 4", "quantized weights of this script")])
def test_what_is_not_predicted_of_the_series_is_refused_by_its_flag(flags, said):
    with pytest.raises(InputError, match=said):
        readers.read(words=shlex.split(f"{SERIES} {flags}"))


PASTED = json.loads((EXAMPLES / "pasted_commands.json").read_text())


@pytest.fixture
def pasted_files(tmp_path, monkeypatch):
    for name, text in PASTED["files"].items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", PASTED["commands"], ids=lambda case: case["from"])
def test_a_command_as_people_paste_it_is_read_as_it_trains_or_refused_with_the_command_that_runs_it(pasted_files, case, capfd):
    words = shlex.split(case["command"])
    if case["answer"] == "run":
        assert main(["predict", *shlex.split(case["options"]), "--", *words]) == 2
        assert "would run it on an emulated GPU" in capfd.readouterr().err
    else:
        found, source = readers.read(words=words)
        assert {"format": source.format, **{name: found.get(name) for name in case["keys"]}} == {"format": case["format"], **case["keys"]}


def test_of_25_pasted_commands_at_most_8_are_left_to_a_run():
    assert len(PASTED["commands"]) == 25 and sum(case["answer"] == "run" for case in PASTED["commands"]) <= 8

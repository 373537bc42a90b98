"""Keys of axolotl and ms-swift that change memory have the meaning of the framework's own code."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from predictor import readers
from predictor.common.errors import InputError

FULL = {"base_model": "NousResearch/Llama-3.2-1B", "sequence_len": 512, "bf16": True}
LORA = FULL | {"adapter": "lora", "lora_r": 8, "lora_alpha": 16, "lora_target_linear": True, "lora_mlp_kernel": False}
QLORA = LORA | {"adapter": "qlora", "load_in_4bit": True}
SWIFT = {"model": "Qwen/Qwen2.5-7B-Instruct", "tuner_type": "lora", "max_length": 512}
LIGER = dict.fromkeys(("liger_rope", "liger_rms_norm", "liger_glu_activation", "liger_fused_linear_cross_entropy"), True)
INTEGRATIONS = "axolotl.integrations"


def refusal(read, keys: dict) -> str:
    with pytest.raises(InputError) as caught:
        read(keys)
    return str(caught.value).partition("job.json: ")[2]


@pytest.mark.parametrize(("keys", "start"), [
    *((FULL | attention, f"{said}: axolotl then keeps embeddings, head and norms in fp32 beside layers of bf16") for attention, said in (
        ({}, "attn_implementation is not given"), ({"attn_implementation": "eager"}, 'attn_implementation is "eager"'),
        ({"sdp_attention": True}, "sdp_attention is on"), ({"freeze_mm_modules": True}, "attn_implementation is not given"))),
    (LORA | {"load_in_4bit": True}, "load_in_4bit is on, but adapter is lora"),
    *((LORA | {"plugins": [f"{INTEGRATIONS}.{plugin}"]}, f"plugins names {named}") for plugin, named in (
        ("cut_cross_entropy.CutCrossEntropyPlugin", "CutCrossEntropyPlugin, which is on unless cut_cross_entropy is false"),
        ("spectrum.SpectrumPlugin", '"SpectrumPlugin"'), ("grokfast.GrokfastPlugin", '"GrokfastPlugin"'))),
    *((LORA | {key: value}, f"{named} ") for key, value, named in (
        ("model_config", {"num_hidden_layers": 4}, "model_config"), ("overrides_of_model_config", {"a": 1}, "overrides_of_model_config"),
        ("model_kwargs", {"use_cache": True}, "model_kwargs"), ("gc_steps", 5, "gc_steps"), ("gc_collect_steps", 1, "gc_collect_steps"),
        ("lora_exclude_modules", ["q_proj"], "lora_exclude_modules"), ("num_labels", 2, "num_labels"), ("trainer_cls", "my.Trainer", "trainer_cls"),
        ("type_of_model", "AutoModelForSequenceClassification", "type_of_model"), ("gpu_memory_limit", 20, "gpu_memory_limit"),
        ("max_memory", {"0": "20GiB"}, "max_memory"), ("device_map", "balanced", "device_map"), ("use_eaft", True, "use_eaft"),
        ("base_model_config", "gpt2", "base_model_config"), ("peft", {"loftq_config": {"loftq_bits": 4}}, "peft"),
        ("peft_init_lora_weights", "pissa", "peft_init_lora_weights"), ("peft_trainable_token_indices", [1], "peft_trainable_token_indices"),
        ("model_quantization_config", "Mxfp4Config", "model_quantization_config"), ("liger_cross_entropy", True, "liger_cross_entropy"),
        ("bnb_config_kwargs", "x", "bnb_config_kwargs"), ("reinit_weights", True, "reinit_weights"), ("s2_attention", True, "s2_attention"),
        ("accelerator_config", {"split_batches": True}, "accelerator_config"))),
    *((SWIFT | {"use_liger_kernel": True, key: value}, f"{key} is {'on' if value is True else json.dumps(value)}, and use_liger_kernel is on") for key, value in (
        ("enable_dft_loss", True), ("enable_channel_loss", True), ("loss_scale", "hermes"), ("loss_scale", "last_round+react"))),
    *((SWIFT | {key: value}, f"{key} ") for key, value in (
        ("device_map", "auto"), ("max_memory", "{0: '20GB'}"), ("num_labels", 2), ("callbacks", ["activation_cpu_offload"]),
        ("bnb_4bit_quant_storage", "bfloat16"), ("init_weights", "lora-ga"), ("load_args", True), ("use_ray", True))),
    (SWIFT | {"fsdp": "fsdp3"}, 'fsdp names "fsdp3", and there is no such file'),
    *((SWIFT | {"save_only_model": True, "fsdp": said}, "save_only_model is on, and fsdp has state_dict_type SHARDED_STATE_DICT: ms-swift stops there")
      for said in ("fsdp2", {"fsdp_config": {}})),
    (SWIFT | {"fsdp": {"fsdp_config": {"activation_cpu_offload": True}}}, "fsdp_config has activation_cpu_offload True: activations in host memory"),
    (SWIFT | {"fsdp": {"fsdp_config": "x.json"}}, 'fsdp has fsdp_config "x.json": a section of keys is needed'),
    (SWIFT | {"quant_method": "bnb"}, "quant_method is given, but quant_bits is not"),
    (SWIFT | {"quant_method": "bnb", "quant_bits": 4, "tuner_type": "full"}, "quant_method is given, but tuner_type is full"),
])
def test_what_is_not_predicted_is_refused_by_name(read, keys, start):
    assert refusal(read, keys).startswith(start)


@pytest.mark.parametrize("keys", [{"attn_implementation": "flash_attention_2"}, {"adapter": "lora", **LORA}, {"bf16": False}])
def test_axolotl_leaves_one_dtype_where_its_attention_or_adapters_ask_for_it(read, keys):
    values, _ = read(FULL | keys)
    assert values["dtype"] == ("bf16" if (FULL | keys)["bf16"] else "fp32")


@pytest.mark.parametrize(("said", "autocast"), [(True, "bf16"), ("full", None)])
def test_axolotls_full_bf16_is_without_autocast(read, said, autocast):
    assert read(LORA | {"bf16": said})[0].get("mixed_precision") == autocast


@pytest.mark.parametrize("engine", [{"fsdp_version": 2, "fsdp_config": {"transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}},
                                    {"deepspeed": {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}}])
def test_engines_spare_axolotls_models_the_fp32_embeddings(read, engine):
    values, _ = read(FULL | engine, data_parallel_size=2)
    assert values.get("dtype", "bf16") == "bf16"


@pytest.mark.parametrize(("keys", "names"), [
    (FULL | {"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True}}, {
        "engine": ("fsdp_config",), "fsdp": ("fsdp_config", "fsdp_version", "bf16"), "dtype": ("bf16",)}),
    (LORA | {"sample_packing": True, "flash_attention": True, "lora_target_linear": False, "lora_target_modules": ["foo_proj"]}, {
        "lora": ("lora_r", "lora_alpha", "adapter", "lora_target_linear", "lora_target_modules")}),
    (SWIFT | {"tuner_type": "full"}, {"recipe": ("tuner_type",)}),
])
def test_values_are_said_by_the_keys_that_were_given(read, keys, names):
    _, source = read(keys, data_parallel_size=2)
    found = {row.key: row.names for row in source.values if row.key in names}
    assert found == names and not set(source.without_effect) - {"lora_mlp_kernel"}
    assert not any("tuner_type" in row.names for row in source.values if row.key != "recipe")


@pytest.mark.parametrize("said", [{}, {"embeddings_skip_upcast": True}])
def test_head_and_embeddings_are_narrow_again_in_axolotls_qlora(read, said):
    values, source = read(QLORA | said)
    assert values["quantization"]["prepare"] == "trl"
    assert any("adapters" in note and "fp32 in axolotl" in note for note in source.not_modelled)


def test_axolotls_own_settings_of_4_bits_go_before_its_defaults(read):
    values, _ = read(QLORA | {"bnb_config_kwargs": {"bnb_4bit_use_double_quant": False}})
    assert values["quantization"]["bnb_4bit_use_double_quant"] is False


@pytest.mark.parametrize(("plugins", "used"), [([], None), ([f"{INTEGRATIONS}.liger.LigerPlugin"], True)])
def test_ligers_keys_are_its_plugins(read, plugins, used):
    values, source = read(LORA | LIGER | {"plugins": plugins})
    assert values.get("use_liger_kernel") == used
    assert any("plugins does not name" in note for note in source.not_modelled) == (not used)


@pytest.mark.parametrize("keys", [
    *(LORA | {"val_set_size": 0.1, "eval_batch_size": 4} | when for when in ({"eval_strategy": "no"}, {})),
    SWIFT | {"split_dataset_ratio": 0.1, "eval_strategy": "no"}, SWIFT | {"split_dataset_ratio": 0.1, "save_strategy": "no"}])
def test_no_evaluation_is_predicted_where_the_framework_makes_none(read, keys):
    values, source = read(keys)
    assert "per_device_eval_batch_size" not in values and not any("evaluation" in note for note in source.not_modelled)


@pytest.mark.parametrize("keys", [
    *(LORA | {"val_set_size": 0.1, "eval_batch_size": 1} | when for when in ({"eval_strategy": "epoch"}, {"evals_per_epoch": 4},
                                                                             {"eval_steps": 0.1}, {"evaluation_strategy": "steps"})),
    SWIFT | {"split_dataset_ratio": 0.1}, SWIFT | {"cached_val_dataset": ["x"], "eval_strategy": "epoch", "save_strategy": "no"}])
def test_an_evaluation_is_predicted_or_named_where_there_is_one(read, keys):
    values, source = read(keys)
    assert "per_device_eval_batch_size" in values or any("evaluation" in note for note in source.not_modelled)


def test_longer_samples_of_an_evaluation_are_refused(read):
    keys = LORA | {"val_set_size": 0.1, "eval_steps": 10}
    assert refusal(read, keys | {"eval_sequence_len": 1024}).startswith("eval_sequence_len is above sequence_len")


@pytest.mark.parametrize(("keys", "length"), [
    ({}, 1024), ({"pad_to_sequence_len": True}, 1024), ({"pad_to_sequence_len": False}, 1000), ({"pad_to_multiple_of": 8}, 1000),
    ({"pad_to_multiple_of": 768}, 1536)])
def test_axolotls_rows_of_text_are_padded_to_a_multiple(read, keys, length):
    assert read(LORA | {"sequence_len": 1000} | keys)[0]["sequence_length"] == length


@pytest.mark.parametrize(("keys", "length"), [({"packing": True, "attn_impl": "flash_attn"}, 8192), ({}, 512)])
def test_ms_swift_packs_rows_of_packing_length(read, keys, length):
    assert read(SWIFT | keys | {"packing_length": 8192})[0]["sequence_length"] == length


@pytest.mark.parametrize("keys", [{"loss_scale": "last_round+ignore_empty_think"}, {"loss_scale": "hermes", "is_binary_loss_scale": True}])
def test_weights_of_0_and_1_leave_ligers_loss(read, keys):
    assert read(SWIFT | keys | {"use_liger_kernel": True})[0]["use_liger_kernel"]


@pytest.mark.parametrize(("said", "side"), [("--model_kwargs {\"max_pixels\":250000}", 500), ("--max_pixels 90000", 300), ("", 1000)])
def test_pictures_have_the_least_of_ms_swifts_limits(said, side):
    values, _ = readers.read(words=["env", "MAX_PIXELS=1000000", "swift", "sft", "--model", "Qwen/Qwen2.5-VL-7B-Instruct", *said.split()])
    assert values["image_size"] == side


@pytest.mark.parametrize(("model", "side"), [("Qwen/Qwen3-VL-8B-Instruct", 320), ("Qwen/Qwen2.5-VL-7B-Instruct", 280), ("OpenGVLab/InternVL3-8B-hf", None)])
def test_variables_of_pictures_are_qwen_vls_where_tokens_go_before_pixels(model, side):
    values, _ = readers.read(words=["env", "MAX_PIXELS=1000000", "IMAGE_MAX_TOKEN_NUM=100", "swift", "sft", "--model", model])
    assert values.get("image_size") == side


def test_ms_swift_quantizes_the_language_model_alone(read):
    values, _ = read(SWIFT | {"model": "Qwen/Qwen2.5-VL-7B-Instruct", "quant_method": "bnb", "quant_bits": 4})
    assert values["quantization"]["llm_int8_skip_modules"] == ["model.visual", "lm_head"]


def test_ms_swift_quantizes_nothing_without_quant_method(read):
    values, source = read(SWIFT | {"quant_bits": 4})
    assert "quantization" not in values
    assert "quant_bits: ms-swift quantizes nothing, as quant_method is not given" in source.not_modelled


@pytest.mark.parametrize(("environment", "split"), [("", True), ("NPROC_PER_NODE=2", False), ("SWIFT_SINGLE_DEVICE_MODE=1", False)])
def test_ms_swift_splits_the_model_over_gpus_that_one_process_sees(environment, split):
    words = ["env", "CUDA_VISIBLE_DEVICES=0,1", *environment.split(), "swift", "sft", "--model", "gpt2", "--max_length", "64"]
    if split:
        with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES=0,1 with 1 process: ms-swift 4.6 then splits the model"):
            readers.read(words=words)
    else:
        readers.read(words=words)


@pytest.mark.parametrize(("keys", "key"), [
    (LORA, "lora_model_dir"), (SWIFT, "adapters"),
    ({"model_name_or_path": "gpt2", "finetuning_type": "lora", "cutoff_len": 64}, "adapter_name_or_path")])
def test_adapters_of_a_checkpoint_are_named(read, keys, key):
    _, source = read(keys | {key: "out/checkpoint-10"})
    assert any(key in note and "adapter_config.json" in note for note in source.not_modelled)


@pytest.mark.parametrize(("keys", "key"), [(LORA, "lora_target_parameters"), (SWIFT, "target_parameters")])
def test_adapters_of_experts_are_read(read, keys, key):
    values, _ = read(keys | {key: ["mlp.experts.down_proj"]})
    assert values["lora"]["target_parameters"] == ["mlp.experts.down_proj"]


@pytest.mark.parametrize("name", ["axolotl", "swift"])
def test_a_key_that_is_read_is_in_no_list_of_those_without_effect(name):
    names = json.loads((Path(readers.__file__).parent / "names.json").read_text())[name]
    form = import_module(readers.FORMATS[name]).FORMAT
    assert not set(" ".join(names).split()) & (form.fields.keys() | form.renamed.keys())


def test_ms_swifts_configuration_with_a_word_behind_it_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("model: gpt2\n")
    with pytest.raises(InputError, match='"b" is not expected there'):
        readers.read(words=["swift", "sft", "--config", str(tmp_path / "a.yaml"), "b"])


@pytest.mark.parametrize(("keys", "recomputed", "without_gradients"), [
    ({"finetuning_type": "lora"}, True, False), ({"finetuning_type": "lora", "quantization_bit": 4}, False, True),
    ({"finetuning_type": "lora", "disable_gradient_checkpointing": True}, False, True), ({"finetuning_type": "full"}, False, True),
    ({"finetuning_type": "lora", "freeze_vision_tower": False}, False, False)])
def test_gradients_reach_llama_factorys_frozen_tower_where_peft_lets_them_in(read, keys, recomputed, without_gradients):
    values, _ = read({"model_name_or_path": "Qwen/Qwen2.5-VL-7B-Instruct", "cutoff_len": 64, "bf16": True} | keys)
    assert ("gradient_checkpointing_modules" in values, "no_grad" in values) == (recomputed, without_gradients)


@pytest.mark.parametrize(("keys", "without_gradients"), [
    ({}, True), ({"vit_gradient_checkpointing": False}, True), ({"freeze_aligner": False}, False), ({"freeze_vit": False}, False)])
def test_ms_swift_runs_a_tower_in_which_nothing_trains_without_gradients(read, keys, without_gradients):
    values, _ = read(SWIFT | {"model": "Qwen/Qwen2.5-VL-7B-Instruct"} | keys)
    assert ("no_grad" in values) == without_gradients

"""Reads the workload of a training from its objects. No test here runs on a GPU."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, TrainingArguments

from calibrate.training import batch_keys, loop_keys, model_keys, reading
from calibrate.training.batch_keys import Extent
from predictor import Workload
from predictor.common.errors import InputError
from predictor.model import models, parser
from predictor.workload.optimizers import OPTIMIZERS
from tests.calibrate.small_jobs import sample
from tests.predictor.small import small_llava


@pytest.fixture(scope="module")
def llava():
    return small_llava()


# --- the model ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["finetune", "pretrain", "full"])
def test_a_recipe_is_recognised_by_what_trains(recipe):
    assert model_keys.model_keys(small_llava(recipe=recipe))["recipe"] == recipe


MODULES = ("model.vision_tower", "model.multi_modal_projector", "model.language_model.embed_tokens",
           "model.language_model.layers.0", "model.language_model.layers.1.mlp", "lm_head")


@settings(max_examples=40, deadline=None)
@given(st.sets(st.sampled_from(MODULES), min_size=1))
def test_whatever_trains_the_keys_select_exactly_that(llava, modules):
    names = [name for name, _ in llava.named_parameters()]
    trains = {name: name.startswith(tuple(module + "." for module in modules)) for name in names}
    keys = {"trainable": (), "frozen": ()} | model_keys.recipe_keys(trains, adapted=False)
    for parameter in llava.parameters():
        parameter.requires_grad_(True)
    parser.select_trainable(llava, keys.pop("recipe"), parser.Patterns(**keys))
    assert {name: parameter.requires_grad for name, parameter in llava.named_parameters()} == trains


def test_adapters_are_read_off_peft_with_the_projector_that_it_froze():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(small_llava(), LoraConfig(r=4, lora_dropout=0.1, use_dora=True, target_modules=["q_proj"]))
    keys = model_keys.model_keys(model)
    assert (keys["recipe"], keys["frozen"]) == ("lora", ("model.multi_modal_projector",))
    assert keys["lora"] | {"r": 4, "lora_dropout": 0.1, "use_dora": True, "target_modules": ["q_proj"]} == keys["lora"]


@pytest.mark.parametrize(("asked", "expected"), [
    (None, {"gradient_checkpointing": False}),
    ({"use_reentrant": True}, {"gradient_checkpointing_kwargs": {"use_reentrant": True}}),
    ({"use_reentrant": False, "every_n_layers": 2}, {"gradient_checkpointing_kwargs": {"use_reentrant": False, "every_n_layers": 2}}),
    ({"use_reentrant": False, "offload": True}, {"gradient_checkpointing_kwargs": {"use_reentrant": False, "offload": True}}),
    ({"use_reentrant": False, "modules": ("*language_model*",)}, {"gradient_checkpointing_modules": ("model.language_model",)}),
])
def test_checkpointing_is_read_off_the_layers(asked, expected):
    model = small_llava()
    if asked is not None:
        parser.checkpoint(model, **asked)
    keys = model_keys.model_keys(model)
    assert keys | {"gradient_checkpointing": asked is not None, **expected} == keys


def test_a_known_model_is_named_and_a_changed_one_is_not():
    document = dict(models.find("llava-1.5-7b").document)
    config = AutoConfig.for_model(document.pop("model_type"), **document)
    config.use_cache, config.pad_token_id = False, 0  # as the Trainer leaves it
    model = SimpleNamespace(config=config)
    assert model_keys.known_name(model) == "llava-1.5-7b"
    config.text_config.vocab_size += 1
    assert model_keys.known_name(model) is None


def test_the_configuration_that_is_kept_is_that_of_the_model(llava, tmp_path):
    found = models.find(model_keys.save(llava, None, tmp_path / "run.model"))
    assert found.document["architectures"] == ["LlavaForConditionalGeneration"]
    built = AutoConfig.for_model(found.document["model_type"], **{k: v for k, v in found.document.items() if k != "model_type"})
    assert built.text_config.hidden_size == llava.config.text_config.hidden_size


def test_a_model_outside_transformers_needs_a_workload():
    with pytest.raises(InputError, match="Linear outside transformers: give a Workload"):
        model_keys.model_keys(torch.nn.Linear(2, 2))


# --- the loop -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optim", [name for name in OPTIMIZERS if name not in ("adamw_bnb_8bit", "rmsprop_bnb_32bit")])
def test_every_optimizer_is_recognised(optim):
    entry = OPTIMIZERS[optim]
    parameters = [torch.nn.Parameter(torch.zeros(4)) for _ in range(2)]
    made = entry.load()([{"params": parameters[:1], "weight_decay": 0.1}, {"params": parameters[1:], "weight_decay": 0.0}],
                        lr=1e-3, **entry.arguments)
    keys = loop_keys.optimizer_keys(SimpleNamespace(optimizer=made, param_groups=made.param_groups))
    found = OPTIMIZERS[keys["optim"]]
    assert (found.implementation, found.arguments) == (entry.implementation, entry.arguments)
    assert (keys["param_groups"], keys["weight_decay"]) == ("huggingface", 0.1)
    Workload(model="llava-1.5-7b", **keys | ({} if "RMSprop" not in entry.implementation else {"zero_stage": 2}))


def test_an_optimizer_that_is_not_predicted_is_refused_by_name():
    with pytest.raises(InputError, match="torch.optim.adadelta.Adadelta"):
        loop_keys.optimizer_keys(torch.optim.Adadelta([torch.nn.Parameter(torch.zeros(1))]))


def arguments(tmp_path, **changes) -> TrainingArguments:
    return TrainingArguments(**{"output_dir": str(tmp_path), "report_to": [], "use_cpu": True} | changes)


ADAMW = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], fused=True)


def test_the_trainers_arguments_say_the_rest(tmp_path):
    args = arguments(tmp_path, gradient_accumulation_steps=4, max_grad_norm=0.5)
    keys = loop_keys.trainer_keys(args, ADAMW, samples=3)
    assert keys == {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4, "use_liger_kernel": False, "max_grad_norm": 0.5,
                    "optim": "adamw_torch_fused", "optim_args": {}, "param_groups": "single", "weight_decay": 0.01,
                    "keep_outputs": "none", "zero_grad": "after_step"}


@pytest.mark.parametrize("changes", [{"torch_empty_cache_steps": 4}, {"use_cache": True}, {"liger_kernel_config": {"swiglu": False}}])
def test_arguments_that_are_not_predicted_are_refused_by_name_here_and_in_a_configuration(tmp_path, changes):
    from predictor import readers

    name, = changes
    with pytest.raises(InputError, match=f"^{name} .* is not supported: ") as refusal:
        loop_keys.trainer_keys(arguments(tmp_path, **changes), ADAMW, samples=1)
    (tmp_path / "args.json").write_text(json.dumps({"output_dir": "out"} | changes))
    with pytest.raises(InputError, match=f": {name} .* is not supported: ") as said:
        readers.read(path=str(tmp_path / "args.json"))
    assert str(said.value).endswith(str(refusal.value).partition("supported: ")[2])


def test_smoothed_labels_are_read(tmp_path):
    assert loop_keys.trainer_keys(arguments(tmp_path, label_smoothing_factor=0.1), ADAMW, samples=1)["loss"] == "label_smoothing"


def test_noise_on_the_embeddings_is_read(tmp_path):
    assert loop_keys.trainer_keys(arguments(tmp_path, neftune_noise_alpha=5.0), ADAMW, samples=1)["neftune_noise_alpha"] == 5


def test_arguments_of_trl_are_refused(tmp_path):
    own = type("SFTConfig", (TrainingArguments,), {"__module__": "trl.trainer.sft_config"})
    with pytest.raises(InputError, match="the training arguments are TRL's, whose loss is not read"):
        loop_keys.trainer_keys(own(output_dir=str(tmp_path), report_to=[], use_cpu=True), ADAMW, samples=1)


@pytest.mark.parametrize(("dtype", "enabled", "expected"), [("bf16", True, None), ("fp32", True, None), ("fp32", False, "fp32")])
def test_deepspeed_casts_weights_where_bf16_is_on_and_nowhere_else(dtype, enabled, expected):
    mine = {"dtype": dtype}
    reading._cast(mine, {"bf16": {"enabled": enabled}, "fp16": {"enabled": False}})
    assert mine.get("dtype") == expected


def test_weights_of_bf16_that_deepspeed_does_not_cast_are_not_predicted():
    with pytest.raises(InputError, match="neither bf16 nor fp16 is on, so weights stay bf16"):
        reading._cast({"dtype": "bf16"}, {"bf16": {"enabled": False}})


def test_deepspeeds_own_optimizer_comes_with_its_config():
    config = {"optimizer": {"type": "AdamW", "params": {}}, "zero_optimization": {"stage": 2}, "steps_per_print": float("inf")}
    assert loop_keys.deepspeed_keys(config, None) == {"deepspeed": {key: config[key] for key in ("optimizer", "zero_optimization")}}


def test_a_workload_of_another_number_of_gpus_is_refused():
    with pytest.raises(InputError, match="data_parallel_size 8, and this training has 1"):
        reading.from_workload(Workload(model="llava-1.5-7b", zero_stage=2, data_parallel_size=8), None)


# --- the batch ------------------------------------------------------------------------------------------


def test_a_batch_says_samples_tokens_images_and_padding():
    keys = {"per_device_train_batch_size": 2, "sequence_length": 64, "images_per_sample": 2}
    batch = sample(images=4)
    assert batch_keys.batch_keys(batch, {}) == keys
    mask = torch.ones(2, 64, dtype=torch.int64)
    assert batch_keys.batch_keys(batch | {"attention_mask": mask}, {}) == keys | {"padding": "none"}
    mask[1, 60:] = 0
    assert batch_keys.batch_keys(batch | {"attention_mask": mask}, {}) == keys | {"padding": "right"}


def test_packed_samples_are_told_by_their_positions():
    batch = {"input_ids": torch.ones(1, 96, dtype=torch.int64), "position_ids": torch.arange(32).repeat(3)[None]}
    assert batch_keys.batch_keys(batch, {}) == {"per_device_train_batch_size": 3, "sequence_length": 32, "padding": "packed"}


def test_sizes_of_pictures_come_from_their_patches():
    batch = {"input_ids": torch.ones(1, 96, dtype=torch.int64), "pixel_values": torch.zeros(4 * 6 + 4 * 4, 1176),
             "image_grid_thw": torch.tensor([[1, 4, 6], [1, 4, 4]])}
    keys = batch_keys.batch_keys(batch, {"vision_config": {"patch_size": 14}})
    assert (keys["images_per_sample"], keys["image_size"]) == (2, "56x84,56")


@pytest.mark.parametrize(("batch", "message"), [
    ({"x": torch.zeros(1)}, "neither input_ids nor pixel_values"),
    (sample(images=3), "3 images of 2 samples"),
    (sample() | {"labels": torch.ones(2, 7)}, "labels are"),
    (sample() | {"pixel_values_videos": torch.ones(1)}, "pixel_values_videos"),
    ({"input_ids": torch.ones(1, 8), "pixel_values": torch.zeros(1, 5, 3, 28, 28)}, "image_size"),
])
def test_a_batch_that_no_key_describes_says_why(batch, message):
    with pytest.raises(InputError, match=message):
        batch_keys.batch_keys(batch, {})


def test_the_first_batch_takes_no_random_numbers_and_survives_a_dataset_that_fails():
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return {"pixel_values": torch.rand(3, 4, 4)}

    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(Noisy(), batch_size=2)
    assert batch_keys.first_batch(loader, 2)["pixel_values"].shape == (2, 3, 4, 4)
    assert torch.rand(1) == expected
    assert batch_keys.first_batch(SimpleNamespace(dataset=[1], collate_fn=lambda _: 1 / 0), 2) is None


@given(*[st.tuples(*[st.integers(0, 9)] * 3)] * 2)
def test_a_batch_is_within_another_if_no_side_is_larger(one, other):
    assert Extent(*one).within(Extent(*other)) == all(a <= b for a, b in zip(one, other))


@pytest.mark.parametrize(("asked", "checkpoints", "adapters", "finds"), [
    (None, False, False, True), (None, True, False, False), (None, True, True, True), (False, False, False, False),
    (True, True, False, True)])
def test_unused_parameters_are_looked_for_as_the_readers_say(tmp_path, asked, checkpoints, adapters, finds):
    keys = loop_keys.trainer_ddp_keys(arguments(tmp_path, ddp_find_unused_parameters=asked), checkpoints, adapters)
    made = Workload(model="gpt2", data_parallel_size=2, **keys)
    assert made.ddp.get("find_unused_parameters", False) is finds


# --- the Trainer's evaluation ------------------------------------------------------------------------


def of_trainer_with_evaluation(tmp_path, **changes) -> reading.Reading:
    given = arguments(tmp_path, per_device_eval_batch_size=6, **{"eval_strategy": "steps"} | changes)
    model = small_llava()
    return reading.from_trainer(given, model, torch.optim.AdamW(model.parameters()), None, 2, None, tmp_path / "model")


def test_an_evaluation_is_read_as_a_configuration_with_the_same_arguments_is(tmp_path):
    from predictor import readers

    (tmp_path / "args.json").write_text(json.dumps({"output_dir": "out", "eval_strategy": "steps", "per_device_eval_batch_size": 6}))
    said, _ = readers.read(path=str(tmp_path / "args.json"))
    assert of_trainer_with_evaluation(tmp_path).keys["per_device_eval_batch_size"] == said["per_device_eval_batch_size"] == 6
    assert "per_device_eval_batch_size" not in of_trainer_with_evaluation(tmp_path, eval_strategy="no").keys
    assert of_trainer_with_evaluation(tmp_path, eval_strategy="no", eval_on_start=True).keys["per_device_eval_batch_size"] == 6


def test_an_evaluation_that_is_not_predicted_is_said(tmp_path):
    made = of_trainer_with_evaluation(tmp_path, use_liger_kernel=True)
    assert "per_device_eval_batch_size" not in made.keys
    assert made.notes == ("the evaluation of batches of 6 (where it can be predicted: per_device_eval_batch_size)",)


# --- what a plain loop shows -------------------------------------------------------------------------


@pytest.mark.parametrize(("config", "called_with", "checkpoints", "keeps"), [
    ({"use_cache": True}, {}, False, True), ({"use_cache": False}, {}, False, False),
    ({"use_cache": True}, {"use_cache": False}, False, False), ({"use_cache": True}, {}, True, False),
])
def test_whether_keys_and_values_are_kept_is_read_off_the_configuration(config, called_with, checkpoints, keeps):
    model = SimpleNamespace(config=SimpleNamespace(**config), is_gradient_checkpointing=checkpoints)
    assert model_keys.keeps_keys_and_values(model, called_with) is keeps


def test_autocast_is_read_where_it_is_on(monkeypatch):
    assert loop_keys.autocast() == "none"
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")  # which it is not without a GPU
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
    assert loop_keys.autocast() == "bf16"

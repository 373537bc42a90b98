"""The recipe ``lora``: its key, the adapters in the model, and their effect on a prediction."""

from __future__ import annotations

import json

import pytest

from predictor.answer.predict import predict
from predictor.cli import main
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.events.events import Factor
from predictor.formula.formula_key import formula_key
from predictor.model import lora, parser, pattern_time
from predictor.model.model_config import ModelConfig
from predictor.model.request import Request
from predictor.workload import lora_keys
from predictor.workload.workload import Workload
from tests.predictor.small import TEXT, VISION, facts_of, small_config, small_llava

HIDDEN, INTERMEDIATE, LAYERS = TEXT["hidden_size"], TEXT["intermediate_size"], TEXT["num_hidden_layers"]
WIDTHS = LAYERS * (4 * 2 * HIDDEN + 3 * (HIDDEN + INTERMEDIATE))
"""Input and output widths of the language model's linear layers, summed: parameters of an adapter of rank 1."""
PROJECTOR = (VISION["hidden_size"] + 1 + HIDDEN + 1) * HIDDEN


def ask(**keys) -> Workload:
    return Workload(**{"model": "llava-1.5-7b", "sequence_length": 1024} | keys)


def facts(**keys):
    """Parameters of a small model with adapters, by name."""
    asked = ask(**{"lora": {}} | keys)
    model = parser.build(ModelConfig("small", small_config()), attn_implementation="sdpa", recipe="lora",
                         patterns=parser.Patterns(asked.trainable, asked.frozen), lora=lora.adapters(asked))
    return {p.name: p for p in facts_of(model).parameters}


def error_of(**keys) -> str:
    with pytest.raises(InputError) as caught:
        facts(**keys)
    return str(caught.value)


# --- the key --------------------------------------------------------------------------------------------


def test_the_recipe_and_the_key_imply_each_other():
    assert ask(recipe="lora") == ask(lora={"r": 8}) == ask(lora={})
    assert ask(lora={}).recipe == "lora"
    assert Workload.from_mapping(ask(lora={"target_modules": ["q_proj"]}).resolved()) == ask(lora={"target_modules": ["q_proj"]})


def test_absent_values_are_those_of_peft():
    from peft import LoraConfig

    theirs = LoraConfig()
    assert {name: getattr(theirs, name) for name in lora_keys.DEFAULTS if name != "autocast_adapter_dtype"} == {
        name: value for name, value in lora_keys.DEFAULTS.items() if name != "autocast_adapter_dtype"}


@pytest.mark.parametrize("keys, message", [
    ({"lora": {"rank": 8}}, 'lora has no key "rank"'),
    ({"lora": {"lora_dropuot": 0.1}}, 'lora has no key "lora_dropuot" (did you mean "lora_dropout"?)'),
    ({"lora": {"r": 0}}, "lora r must be at least 1, not 0"),
    ({"lora": {"lora_dropout": 1.0}}, "lora lora_dropout must be below 1, not 1.0"),
    ({"lora": {"bias": "some"}}, "lora bias must be one of none, all, lora_only"),
    ({"lora": {"target_modules": "*_proj"}}, "lora target_modules is no regular expression"),
    ({"lora": {"target_modules": "(" * 5_000}}, "lora target_modules is no regular expression that can be read"),
    ({"lora": {"target_modules": []}}, "lora target_modules must be a list of names of layers"),
    ({"lora": 16}, "lora must be a mapping such as r: 16, not 16"),
    ({"lora": {}, "recipe": "full"}, "lora is given, but recipe is full: leave one of them out"),
    ({"lora": False, "recipe": "lora"}, "lora is switched off, but recipe is lora"),
])
def test_a_wrong_key_is_one_clear_line(keys, message):
    with pytest.raises(InputError) as caught:
        ask(**keys)
    assert str(caught.value).startswith(message)


def key_of(**keys):
    asked = ask(images_per_sample=1, **keys)
    return formula_key(Request.of(asked).on(gpus.find("h100-80gb")))


def test_scalings_share_a_formula_and_ranks_do_not():
    plain = key_of(lora={})
    assert key_of(lora={"use_rslora": True, "lora_alpha": 256}).filename() == plain.filename()
    assert key_of(lora={"r": 16}).filename() != plain.filename()


def test_a_workload_without_adapters_has_the_key_it_always_had():
    assert "lora" not in key_of().document() and key_of(lora={}).document()["lora"]["r"] == 8


# --- the model ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("r", [4, 64])
def test_adapters_of_the_language_model_and_the_projector_train(r):
    trainable = {name: p for name, p in facts(lora={"r": r}).items() if p.trainable}
    assert sum(p.numel for p in trainable.values()) == r * WIDTHS + PROJECTOR
    assert all("lora_" in name or "multi_modal_projector" in name for name in trainable)
    assert "model.language_model.layers.0.self_attn.q_proj.lora_A.default.weight" in trainable


@pytest.mark.parametrize("keys, itemsize", [
    ({}, 4), ({"lora": {"autocast_adapter_dtype": False}}, 2), ({"zero_stage": 2, "data_parallel_size": 2}, 2)])
def test_adapters_are_fp32_unless_deepspeed_or_the_user_casts_them(keys, itemsize):
    assert {p.itemsize for name, p in facts(**keys).items() if "lora_" in name} == {itemsize}


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("more", [{}, {"use_dora": True}, {"bias": "lora_only", "modules_to_save": ["lm_head"]}])
def test_the_model_is_the_one_that_peft_makes_of_real_weights(autocast, more):
    from peft import LoraConfig, get_peft_model

    targets = ["k_proj", "fc1"]
    real = get_peft_model(small_llava(device="cpu", recipe="full"), LoraConfig(target_modules=targets, task_type="CAUSAL_LM", **more),
                          autocast_adapter_dtype=autocast)
    true = {name.removeprefix("base_model.model."): (tuple(p.shape), p.element_size(), p.requires_grad)
            for name, p in real.named_parameters()}
    ours = facts(lora={"target_modules": targets, "autocast_adapter_dtype": autocast} | more, frozen=["*multi_modal_projector*"])
    assert {name: (p.shape, p.itemsize, p.trainable) for name, p in ours.items() if not p.buffer} == true


def test_a_projector_that_is_adapted_or_copied_trains_there_only():
    for more in ({"target_modules": "all-linear"}, {"modules_to_save": ["multi_modal_projector"]}):
        trained = [name for name, p in facts(lora=more).items() if p.trainable and "multi_modal_projector" in name]
        assert trained and all("lora_" in name or "modules_to_save" in name for name in trained)


@pytest.mark.parametrize("keys, message", [
    ({"lora": {"target_modules": ["qq_proj"]}}, "lora: peft cannot adapt the model: Target modules"),
    ({"lora": {"target_modules": ["norm"]}}, "lora: peft cannot adapt the model: Target module LlamaRMSNorm("),
    ({"lora": {"target_modules": ["patch_embedding"]}}, "lora: target_modules names model.vision_tower.embeddings.patch_"),
    ({"lora": {"modules_to_save": ["heads"]}}, "lora: "),
])
def test_what_cannot_be_adapted_is_named(keys, message):
    assert error_of(**keys).startswith(message)


# --- what it comes to -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow(tmp_path_factory) -> dict:
    """A language model that outweighs what a short sequence needs."""
    directory = tmp_path_factory.mktemp("narrow")
    (directory / "config.json").write_text(json.dumps(small_config(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=12)))
    patch = pytest.MonkeyPatch()
    patch.setenv("PEAKCAST_CACHE", str(directory))
    yield {"model": str(directory), "sequence_length": 256, "profile": "none", "rank": 0}
    patch.undo()


def test_more_gpus_do_not_help_lora_because_every_one_holds_the_frozen_weights(narrow):
    alone, eight = (predict(Workload(**narrow, lora={"r": 16}, zero_stage=2, data_parallel_size=n)) for n in (1, 8))
    saved = alone.peak_requested_bytes - eight.peak_requested_bytes
    assert alone.frozen_bytes == eight.frozen_bytes > 0.6 * eight.peak_requested_bytes
    assert 0 < saved < 0.15 * alone.peak_requested_bytes
    fewer = {factor: alone.factors[factor] - eight.factors[factor] for factor in Factor}
    assert fewer[Factor.OPTIMIZER_STATES] / alone.factors[Factor.OPTIMIZER_STATES] == pytest.approx(7 / 8, abs=0.001)
    assert abs(fewer[Factor.PARAMETERS]) < 64  # padding of the flat buffers


def test_a_frozen_language_model_below_which_a_projector_trains_keeps_its_activations(narrow):
    plain = {"gradient_checkpointing": False}
    projector = predict(Workload(**narrow, **plain, recipe="pretrain"))
    head = predict(Workload(**narrow, **plain, recipe="pretrain", trainable=["lm_head"], frozen=["*multi_modal_projector*"]))
    inputs = 12 * 256 * (2 * 1024 + 2 * 2816) * 2  # bf16, at least: what two norms and the gate's product are made of
    assert projector.modules["language_model"][Factor.ACTIVATIONS] > inputs
    assert projector.modules["language_model"][Factor.ACTIVATIONS] > 10 * head.factors[Factor.ACTIVATIONS]


def test_a_frozen_language_model_has_no_gradients_and_states(narrow):
    found = predict(Workload(**narrow, recipe="pretrain"))
    trained = (VISION["hidden_size"] + 1 + 1024 + 1) * 1024
    assert found.modules["projector"][Factor.OPTIMIZER_STATES] == 2 * 2 * trained + 4 * 4  # two moments, four counters
    assert Factor.OPTIMIZER_STATES not in found.modules["language_model"]
    assert Factor.GRADIENTS not in found.modules["language_model"]


def test_the_report_says_what_more_gpus_do_not_lower(narrow, capsys):
    assert main(["predict", narrow["model"], "--lora", "r=16", "--sequence-length", "256", "--zero-stage", "2", "--details"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "of the parameters are frozen: every GPU holds them whole, so more GPUs do not lower that" in text


def test_a_pattern_that_never_ends_is_refused(monkeypatch):
    monkeypatch.setattr(pattern_time, "SECONDS", 0.5)
    with pytest.raises(InputError, match="takes more than 0.5 s to match the names of the model's modules"):
        facts(lora={"target_modules": "([a-z_.0-9]+)+!"})

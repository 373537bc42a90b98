"""Models of every type: their inputs, the shapes that share events, and rejected settings."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from predictor.answer.predict import predict
from predictor.cli import main
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.events import regimes
from predictor.events.regimes import NotOneRegime, Regime
from predictor.events.sizes import Shape
from predictor.formula.formula_key import formula_key
from predictor.jobs import dispatch, training_job
from predictor.model import models, parser
from predictor.model.model_config import ModelConfig
from predictor.model.request import Request
from predictor.trace import image_inputs
from predictor.trace.inputs import Inputs
from predictor.workload.workload import Workload
from tests.predictor.small_models import ALL, IMAGE, IMAGE_TEXT, TEXT


def inputs_of(name: str, *image_sizes: tuple[int, int]) -> Inputs:
    config = ModelConfig(name, ALL[name])
    return Inputs(config, parser.build_plain(config, "sdpa"), image_sizes)


def asked(tmp_path, name: str, **keys) -> Workload:
    (tmp_path / "config.json").write_text(json.dumps(ALL[name]))
    return Workload(**{"model": str(tmp_path), "sequence_length": 64, "profile": "none"} | keys)


@pytest.mark.parametrize("name", TEXT)
def test_text_has_ids_and_labels(name):
    batch = inputs_of(name).batch(Shape(2, 16, 0), "none")
    assert {key: tuple(values.shape) for key, values in batch.items()} == {"input_ids": (2, 16), "labels": (2, 16)}


@pytest.mark.parametrize("name", IMAGE)
def test_a_classifier_has_one_picture_and_label_a_sample(name):
    batch = inputs_of(name, (65, 48)).batch(Shape(3, 0, 3), "none")
    assert batch["pixel_values"].shape == (3, 3, 65, 48) and batch["labels"].shape == (3,)


def test_qwen_s_picture_is_a_token_for_four_patches():
    inputs = inputs_of("qwen2_5_vl", (140, 84))
    assert inputs.tokens_per_image == (140 // 28) * (84 // 28)
    batch = inputs.batch(Shape(2, 64, 2), "none")
    assert batch["image_grid_thw"].tolist() == [[1, 10, 6]] * 2
    assert batch["pixel_values"].shape == (2 * 10 * 6, 3 * 2 * 14 * 14)


def test_llava_next_s_picture_is_a_base_and_tiles_with_a_newline_each_row():
    """56 x 56 in tiles of 28, each 2 x 2 patches."""
    assert inputs_of("llava_next", (56, 56)).tokens_per_image == 4 + 4 * (4 + 1)


def test_every_image_token_has_its_feature():
    inputs = inputs_of("qwen2_5_vl", (56, 56))
    ids = inputs.batch(Shape(2, 40, 3), "none")["input_ids"]
    assert (ids == 319).sum(dim=1).tolist() == [2 * 4, 1 * 4]


def test_pictures_of_several_sizes_take_turns():
    """Two samples of three images: 84, 56, 84 and 56, 84, 56; a token is 28 x 28 pixels."""
    inputs, shape = inputs_of("qwen2_5_vl", (84, 84), (56, 56)), Shape(2, 40, 6)
    batch = inputs.batch(shape, "none")
    assert (batch["input_ids"] == 319).sum(dim=1).tolist() == [9 + 4 + 9, 4 + 9 + 4] == list(inputs.image_tokens(shape))
    assert batch["image_grid_thw"].tolist() == [[1, 6, 6], [1, 4, 4]] * 3


def test_room_is_of_the_sample_with_most_image_tokens(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "cache"))
    keys = {"image_size": [84, 56], "images_per_sample": 3, "per_device_train_batch_size": 2}
    with pytest.raises(InputError, match="no room for 3 image.s., which fill 22 tokens: give at least 23"):
        predict(asked(tmp_path, "qwen2_5_vl", sequence_length=22, **keys))
    assert predict(asked(tmp_path, "qwen2_5_vl", sequence_length=26, **keys)).peak_requested_bytes


def test_images_lie_apart_where_there_is_room():
    ids = inputs_of("qwen2_5_vl", (56, 56)).batch(Shape(1, 12, 2), "none")["input_ids"]
    assert (ids[0] == 319).int().tolist() == [0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("name", IMAGE_TEXT)
def test_modality_modules_are_found(name):
    model = parser.build_plain(ModelConfig(name, ALL[name]), "sdpa")
    found = {parser.modality(path) for path, _ in model.named_parameters()}
    assert {"vision_tower", "projector", "language_model"} <= found


@pytest.mark.parametrize("name", IMAGE_TEXT)
def test_pretrain_trains_the_projector_alone(name):
    model = parser.build(ModelConfig(name, ALL[name]), attn_implementation="sdpa", recipe="pretrain")
    assert {parser.modality(path) for path, p in model.named_parameters() if p.requires_grad} == {"projector"}


def test_regimes_narrow_to_the_shape_alone():
    shape = Shape(3, 100, 6)
    assert [regime.names() for regime in regimes.regimes_from_widest(Regime.parse(("many", "many", "whole")), shape)] == [
        ("many", "many", "whole"), ("many", "x2", "whole"), ("=3", "=6", "whole"), ("=3", "=6", "=100")]
    assert regimes.traced_shapes(Regime.parse(("=3", "=6", "=100"))) == [shape]


@pytest.mark.parametrize("regime", [("=3", "=6", "whole"), ("=3", "=6", "padded"), ("=2", "=0", "whole>128")])
def test_a_narrow_regime_is_traced_at_its_own_counts(regime):
    shapes = regimes.traced_shapes(Regime.parse(regime), lambda images: 5 * images)
    assert {(f"={shape.batch}", f"={shape.images}") for shape in shapes} == {regime[:2]}
    assert len({shape.sequence for shape in shapes}) == 4  # a square of the sequence, and one more to check


def test_a_model_that_loops_over_pictures_gets_a_formula_of_their_number(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "cache"))
    job = dispatch.prepare(asked(tmp_path, "qwen2_5_vl", image_size=56, per_device_train_batch_size=2))
    assert job.formula.provenance["key"]["regime"] == ["=2", "=2", "whole"]


def test_pictures_side_by_side_are_not_as_those_apart(tmp_path, monkeypatch):
    """Two pictures of 14 tokens, each with one of text after it, and one before them, are 31."""
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "cache"))
    keys = {"image_size": "40x70", "images_per_sample": 2, "sequence_length": 30}
    job = dispatch.prepare(asked(tmp_path, "llava_next", **keys))
    assert job.formula.provenance["key"]["regime"] == ["=1", "=2", "=30"]


def test_qwen_s_pictures_need_text_between_them(tmp_path, monkeypatch):
    """Three pictures of 9 tokens, each with one of text after it, and one before them, are 31."""
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "cache"))
    keys = {"image_size": 84, "images_per_sample": 3}
    with pytest.raises(InputError, match="no text comes between images.*give at least 31"):
        dispatch.prepare(asked(tmp_path, "qwen2_5_vl", sequence_length=30, **keys))
    assert dispatch.prepare(asked(tmp_path, "qwen2_5_vl", sequence_length=31, **keys))


def test_the_widest_regime_that_is_one_is_kept(tmp_path, monkeypatch):
    from predictor.formula import store

    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path))
    request = Request.of(asked(tmp_path, "llama"), Shape(1, 64, 0)).on(gpus.find("h100-80gb"))
    key = formula_key(request)
    tried = []

    def trace(key):
        tried.append(key.regime)
        raise NotOneRegime if len(tried) == 1 else KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.get([key, key, key], trace)
    assert len(tried) == 2


@pytest.mark.parametrize("cause, again", [(None, False), (ValueError("the model failed"), True)])
def test_another_process_knows_of_a_key_that_spans_several_regimes(tmp_path, monkeypatch, cause, again):
    """A model that failed at the traced shapes is tried again: the reason may be gone."""
    from predictor.formula import store

    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path))
    request = Request.of(asked(tmp_path, "llama"), Shape(1, 64, 0)).on(gpus.find("h100-80gb"))
    wide = formula_key(request)
    keys = [replace(wide, regime=regime) for regime in regimes.regimes_from_widest(wide.regime, request.shape)]
    tried = []

    def trace(key):
        tried.append(key.regime)
        if key.regime == wide.regime:
            raise NotOneRegime from cause
        raise KeyboardInterrupt

    for _process in range(2):
        monkeypatch.setattr(store, "_SPLIT", set())
        with pytest.raises(KeyboardInterrupt):
            store.get(keys, trace)
    assert tried == [wide.regime, keys[1].regime] + [wide.regime] * again + [keys[1].regime]


@pytest.mark.parametrize("name, images", [("resnet", 1), ("llama", 0), ("gemma3", 0), ("gemma3", 3)])
def test_a_model_takes_its_number_of_images(tmp_path, name, images):
    (tmp_path / "config.json").write_text(json.dumps(ALL[name]))
    tokens = {"resnet": None, "llama": 64}.get(name, 2048)
    asked = training_job.resolve(Workload(model=str(tmp_path), sequence_length=tokens, images_per_sample=images))
    assert asked.shape.images == images


@pytest.mark.parametrize("name, keys, message", [
    ("llama", {"images_per_sample": 1}, "takes no images"),
    ("llama", {"image_size": 336}, "takes no images"),
    ("llama", {"recipe": "pretrain"}, "nothing is left to train"),
    ("qwen2_5_vl", {"images_per_sample": 0, "recipe": "pretrain"}, "nothing that trains gets a gradient, such as a projector from samples of text alone"),
    ("qwen2_5_vl", {}, "takes images of any size: give one with --image-size"),
    ("qwen2_5_vl", {"sequence_length": None, "image_size": 56}, "sequence_length is not given"),
    ("gemma3", {"image_size": 100}, "takes 28 only"),
    ("gemma3", {"image_size": "28,56"}, "takes 28 only"),
    ("qwen2_5_vl", {"image_size": "28,56"}, "2 sizes, but a micro-batch has 1 image"),
    ("resnet", {"sequence_length": None, "image_size": "28,56", "per_device_train_batch_size": 2}, "have one size"),
    ("resnet", {}, "takes no tokens"),
    ("resnet", {"sequence_length": None, "images_per_sample": 2}, "one image a sample"),
    ("resnet", {"sequence_length": None}, "gradient_checkpointing: ResNetForImageClassification does not support it"),
])
def test_what_a_model_does_not_take_is_refused_by_name(tmp_path, name, keys, message):
    with pytest.raises(InputError, match=message):
        predict(asked(tmp_path, name, **keys))


@pytest.mark.parametrize("document, message", [
    ({"model_type": "nonsense", "vocab_size": 5}, "transformers cannot build it"),
    ({"model_type": "vits", "vocab_size": 5}, "vits is not a class that is predicted"),
    ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"], "vocab_size": 5},
     "LlamaForSequenceClassification is not a class that is predicted .of this model_type: LlamaForCausalLM"),
    ({"model_type": "llama", "architectures": ["MyOwnForCausalLM"], "vocab_size": 5}, "has no class MyOwnForCausalLM"),
])
def test_a_model_that_cannot_be_built_is_one_line(tmp_path, document, message):
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=message) as found:
        predict(Workload(model=str(tmp_path), sequence_length=64, profile="none"))
    assert "\n" not in str(found.value)


def test_building_leaves_the_configuration_as_it_was():
    config = models.find("qwen2.5-vl-3b")
    before = config.fingerprint
    parser.build_plain(config, "sdpa")
    assert config.fingerprint == before


def test_a_processor_s_settings_lie_beside_the_configuration(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(ALL["qwen2_5_vl"]))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"max_pixels": 56 * 56, "processor_class": "X"}))
    config = models.find(str(tmp_path))
    assert config.preprocessor == {"max_pixels": 56 * 56}
    assert Inputs(config, parser.build_plain(config, "sdpa"), ((560, 560),)).tokens_per_image == 4


def test_a_model_without_tokens_is_told_without_them(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text(json.dumps(ALL["resnet"]))
    for command in ("predict", "explain"):
        assert main([command, str(tmp_path), "--no-gradient-checkpointing"]) == 0
        assert " · batch 1 · " in capsys.readouterr().out.replace("\n", " ")


def test_settings_of_a_whole_processor_come_first(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(ALL["qwen2_5_vl"]))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"max_pixels": 56 * 56}))
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": {"max_pixels": 28 * 28}}))
    assert models.find(str(tmp_path)).preprocessor == {"max_pixels": 28 * 28}


def test_settings_that_no_configuration_has_are_asked_for():
    config = ModelConfig("other", ALL["qwen2_5_vl"] | {"model_type": "ovis2"})
    hf_config = parser.build_plain(ModelConfig("qwen", ALL["qwen2_5_vl"]), "sdpa").config
    with pytest.raises(InputError, match="put the model's preprocessor_config.json beside it"):
        image_inputs.processor(config, hf_config)


def test_pictures_are_cut_as_the_model_s_processor_asks_whatever_the_file_says(tmp_path):
    """Files of InternVL say that it does not cut pictures, and its processor calls the image processor so that it does."""
    known = models.find("internvl3-1b")
    (tmp_path / "config.json").write_text(json.dumps(known.document))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"crop_to_patches": False}))
    config = models.find(str(tmp_path))
    tiles = 2 * 3 + 1  # and a small one of the whole picture
    assert Inputs(config, parser.build_plain(config, "sdpa"), ((896, 1344),)).tokens_per_image == tiles * 256


@pytest.mark.parametrize(("changes", "tied"), [
    ({}, False), ({"text_config": {"model_type": "mistral", "tie_word_embeddings": True}}, True),
    ({"text_config": {"model_type": "gemma"}}, True), ({"tie_word_embeddings": True}, True)])
def test_a_head_is_tied_as_the_language_model_s_configuration_says(tmp_path, changes, tied):
    document = {"model_type": "mistral3", "text_config": {"model_type": "mistral"}, "vision_config": {}} | changes
    (tmp_path / "config.json").write_text(json.dumps(document))
    assert models.find(str(tmp_path)).document["tie_word_embeddings"] is tied


def test_of_a_model_that_also_speaks_the_part_that_reads_trains(tmp_path):
    thinker = {"model_type": "qwen2_5_omni_thinker", "text_config": {"hidden_size": 8}}
    document = {"model_type": "qwen2_5_omni", "thinker_config": thinker | {"architectures": ["Older"]}, "talker_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(document))
    assert models.find(str(tmp_path)).document == thinker


def test_a_processor_s_settings_are_its_own():
    before = inputs_of("qwen2_5_vl", (560, 560)).tokens_per_image
    limited = ModelConfig("limited", ALL["qwen2_5_vl"], {"max_pixels": 56 * 56})
    assert Inputs(limited, parser.build_plain(limited, "sdpa"), ((560, 560),)).tokens_per_image == 4
    assert inputs_of("qwen2_5_vl", (560, 560)).tokens_per_image == before == (560 // 28) ** 2


def test_the_worst_batch_of_a_text_dataset_is_its_longest(tmp_path, monkeypatch):
    from predictor.workload import samples

    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "cache"))
    (tmp_path / "lengths.json").write_text("[40, 60, 50, 60]")
    workload = asked(tmp_path, "llama", per_device_train_batch_size=2)
    found = predict(workload, samples=samples.read(str(tmp_path / "lengths.json")))
    alone = predict(workload.replace(sequence_length=60, padding="right"))
    assert (found.samples.tokens, found.samples.images) == (60, 0)
    assert found.requested == alone.requested


def test_samples_of_a_model_that_loops_over_pictures_are_refused(tmp_path, monkeypatch):
    from predictor.workload import samples

    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "cache"))
    (tmp_path / "lengths.json").write_text("[40, 60, 50, 60]")
    with pytest.raises(InputError, match="predict the largest batches without samples"):
        predict(asked(tmp_path, "qwen2_5_vl", image_size=56, per_device_train_batch_size=2),
                         samples=samples.read(str(tmp_path / "lengths.json")))


@pytest.mark.parametrize("changes, message", [
    ({"text_config": {"model_type": {}}}, "text_config.model_type must be text, not {}"), ({"architectures": 5}, "architectures must be a list, not 5"),
    ({"vision_config": {"image_size": "x"}}, 'vision_config.image_size must be a number, not "x"')])
def test_a_configuration_with_a_value_of_another_type_is_refused(tmp_path, changes, message):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llava"} | changes))
    with pytest.raises(InputError, match=re.escape(message)):
        models.find(str(path))

"""``peakcast models``: the list, which needs no torch, and a model's page."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from predictor.answer import model_list
from predictor.cli import main
from predictor.model import models
from tests.predictor.model.test_known_models import PUBLISHED
from tests.predictor.small import TEXT, small_config

TOKENS = (28 // 14) ** 2
STEP = -(-(TOKENS + 256) // 512) * 512
DECODER_LAYER = 4 * TEXT["hidden_size"] ** 2 + 3 * TEXT["hidden_size"] * TEXT["intermediate_size"] \
    + 2 * TEXT["hidden_size"]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "config.json"
    path.write_text(json.dumps(small_config()))
    return str(path)


@pytest.fixture(scope="module")
def page(config, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.json"
    assert main(["models", config, "--json", "-o", str(path)]) == 0
    return json.loads(path.read_text())


def without_torch(*words: str) -> subprocess.CompletedProcess:
    code = "import sys; sys.modules.update(torch=None, transformers=None); from predictor.cli import main; " \
           f"sys.exit(main({list(words)!r}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def error_of(capsys, *words: str) -> str:
    assert main(list(words)) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    return error


def test_the_shipped_figures_are_the_published_ones():
    shipped = {name: one.parameters for name, one in model_list.shipped().items()}
    assert {name: size for name, size in shipped.items() if name in PUBLISHED and abs(size / PUBLISHED[name] - 1) > 0.001} == {}


def test_every_known_name_that_can_be_built_has_shipped_figures():
    assert {*models.known_names()} == {*model_list.shipped()}  # else run scripts/list_models.py


def test_the_shipped_modules_add_up_to_the_model():
    assert all(sum(one.modules.values()) == one.parameters for one in model_list.shipped().values())


@pytest.mark.parametrize("name", ["llava-1.5-7b", "smolvlm-256m", "qwen2.5-vl-3b", "llama-3.2-11b-vision", "resnet-50"])
def test_the_shipped_figures_are_those_of_the_built_model(name):
    from predictor.model import parser

    found = models.find(name)
    with model_list.building(found):
        assert model_list.built(found, parser.build_plain(found, "sdpa")) == model_list.shipped()[name]


def test_the_list_needs_no_torch():
    done = without_torch("models", "--json")
    assert (done.returncode, [*json.loads(done.stdout)]) == (0, [*models.known_names()])


def test_the_list_names_what_a_picture_becomes(capsys):
    assert main(["models", "--details"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("qwen2.5-vl-7b"))
    assert line.split()[-1] == str((672 // 28) ** 2)


def test_the_short_list_has_every_name_on_one_screen(capsys):
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {*models.known_names()} <= {*" ".join(lines).split()}
    assert len(lines) <= 56 and max(map(len, lines)) <= 100


def test_the_list_refuses_options_of_a_workload(capsys):
    assert "--recipe" in error_of(capsys, "models", "--recipe", "lora")


def test_a_page_without_torch_says_what_it_needs():
    done = without_torch("models", "llava-1.5-7b")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "pip install 'peakcast[trace]'" in done.stderr


def test_layers_alike_are_one_row(page):
    rows = {layer["path"]: layer for layer in page["layers"]}
    decoder = rows["model.language_model.layers.{0..1}"]
    assert (decoder["count"], decoder["kind"], decoder["parameters"]) == (2, "LlamaDecoderLayer", DECODER_LAYER)


def test_the_layers_add_up_to_the_model(page):
    assert sum(layer["count"] * layer["parameters"] for layer in page["layers"]) == page["parameters"]


def test_the_modules_say_what_trains(page):
    trains = {module["name"]: module["trainable"] / module["parameters"] for module in page["modules"]}
    assert trains == {"vision_tower": 0, "projector": 1, "language_model": 1, "head": 1}


def test_the_page_has_the_tokens_of_the_one_size_that_the_model_takes(page):
    assert page["tokens_per_image"] == {"28x28": TOKENS}


def test_a_model_of_any_size_has_the_tokens_of_several(capsys):
    assert main(["models", "qwen2-vl-2b", "--no-step", "--image-size", "560", "--json"]) == 0
    tokens = json.loads(capsys.readouterr().out)["tokens_per_image"]
    assert {size: tokens[size] for size in ("336x336", "560x560")} == {"336x336": 12 ** 2, "560x560": 20 ** 2}


def test_the_largest_weights_come_first(page):
    assert [weight["bytes"] for weight in page["largest_weights"]][:2] == [2 * TEXT["vocab_size"] * TEXT["hidden_size"]] * 2


def test_the_page_predicts_a_step_with_room_for_an_image(page):
    step = page["training_step"]
    assert (page["chosen"], step["workload"]["sequence_length"]) == ({"sequence_length": STEP}, STEP)
    assert sum(step["factors"].values()) == step["peak_allocated_bytes"]


def test_the_page_shows_where_the_memory_goes(capsys, config):
    assert main(["models", config, "--recipe", "pretrain", "--details"]) == 0
    out = capsys.readouterr().out
    assert "2 x LlamaDecoderLayer" in out and "An image becomes 4 tokens" in out and "optimizer_states" in out


def test_a_page_fits_on_one_screen_and_details_have_the_rest(capsys):
    assert main(["models", "llama-3.2-11b-vision", "--no-step"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 56 and max(len(line.rstrip()) for line in lines) <= 100
    assert any(line.startswith("6 more (--details)") for line in lines)
    assert main(["models", "llama-3.2-11b-vision", "--no-step", "--details"]) == 0
    assert "MllamaPrecomputedAspectRatioEmbedding" in capsys.readouterr().out


def test_a_step_that_cannot_be_predicted_leaves_the_rest_of_the_page(capsys, config):
    assert main(["models", config, "--sequence-length", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["training_step"] is None and "has no room for" in document["not_predicted"]


@pytest.mark.parametrize("change, said", [
    ({"model_type": "no_such_model"}, "cannot build it"),
    ({"text_config": {"model_type": "llama", "hidden_act": "no_such_function"}}, "cannot build it"),
], ids=["missing-class", "wrong-config"])
def test_a_model_that_cannot_be_built_is_one_line(tmp_path, capsys, change, said):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small_config() | change))
    assert said in error_of(capsys, "models", str(path))

"""A model is found by its id on the Hugging Face hub: as a known name, or in the local cache; nothing is downloaded."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.common.errors import InputError
from predictor.model import hub, hub_ids, models


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put(cache, model: str, document, *, main: bool = True) -> None:
    folder = cache / f"models--{model.replace('/', '--')}"
    snapshot = folder / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(document))
    if main:
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("0123abcd")


@pytest.mark.parametrize("model, name", [
    ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl-7b"), ("llava-hf/llava-1.5-7b-hf", "llava-1.5-7b"), ("liuhaotian/llava-v1.5-13b", "llava-1.5-13b"),
    ("google/gemma-3-4b-it", "gemma-3-4b"), ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"), ("openai/whisper-large-v3", "whisper-large-v3"),
    ("openai-community/gpt2", "gpt2"), ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"), ("llava-v1.5-7b", "llava-1.5-7b")])
def test_an_id_of_a_known_model_is_that_model(model, name):
    assert models.find(model) == models.find(name)
    assert hub.known(model) == name


@pytest.mark.parametrize("main", [True, False])
def test_an_id_in_the_local_cache_is_the_model_there(cache, main):
    put(cache, "someone/mine", {"model_type": "gpt2", "n_layer": 3}, main=main)
    found = models.find("someone/mine")
    assert (found.name, found.document) == ("someone/mine", {"model_type": "gpt2", "n_layer": 3})


def test_a_cached_model_of_other_sizes_only_resembles_the_known_one(cache):
    document = dict(models.find("qwen2.5-7b").document)
    put(cache, "a/qwen2.5-7b", document | {"num_hidden_layers": 3, "transformers_version": "9"})
    put(cache, "b/qwen2.5-7b", document | {"transformers_version": "9", "bos_token_id": 1})
    assert models.find("a/qwen2.5-7b").document["num_hidden_layers"] == 3
    assert models.find("b/qwen2.5-7b") == models.find("qwen2.5-7b")


@pytest.mark.parametrize("model, said", [
    ("Qwen/Qwen2.5-VL-7B-Instrct", 'not a known name (did you mean "qwen2.5-vl-7b"?), no such directory or config.json, and not in the local'),
    ("meta-llama/Llama-3.1-9B-Instruct", 'did you mean "llama-3.1-8b"?'), ("a/b", "not a known name, no such directory"),
    ("./checkpoints/llava-v1.5-7b", "and no such directory or config.json"), ("/nowhere/gpt2", "no such directory or config.json")])
def test_a_wrong_id_is_an_error_with_the_nearest_name(model, said):
    with pytest.raises(InputError) as caught:
        models.find(model)
    assert said in str(caught.value)


def test_a_path_in_a_folder_that_is_there_is_no_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InputError, match="no such directory or config.json"):
        models.find("checkpoints/llava-v1.5-7b")


@given(st.text(max_size=40))
def test_any_text_is_a_model_or_one_error(model):
    hub_ids.cached(model)
    try:
        models.find(model)
    except InputError as error:
        assert "\n" not in str(error)

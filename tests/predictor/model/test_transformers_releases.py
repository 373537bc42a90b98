"""What releases of transformers do differently, by models that stand for theirs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from predictor.model import transformers_releases

torch = pytest.importorskip("torch")


def test_features_are_the_same_alone_and_as_an_output():
    alone = SimpleNamespace(config=None, get_image_features=lambda pixel_values: pixel_values)
    wrapped = SimpleNamespace(config=None, get_image_features=lambda pixel_values: SimpleNamespace(
        pooler_output=pixel_values))
    assert [transformers_releases.image_features(model, video=False)(pixel_values=3) for model in (alone, wrapped)] == [3, 3]


def test_values_that_features_need_come_from_the_configuration():
    model = SimpleNamespace(config=SimpleNamespace(layer=-2),
                            get_image_features=lambda pixel_values, layer: (pixel_values, layer))
    assert transformers_releases.image_features(model, video=False)(pixel_values=3) == (3, -2)


def test_a_model_without_the_function_has_features_by_its_tower():
    tower = lambda pixel_values: SimpleNamespace(last_hidden_state=torch.empty(1, 577, 8))  # noqa: E731
    model = SimpleNamespace(config=SimpleNamespace(vision_feature_select_strategy="default"), vision_tower=tower,
                            multi_modal_projector=None)
    assert transformers_releases.image_features(model, video=False)(pixel_values=3).shape == (1, 576, 8)


def test_a_text_model_has_no_features():
    assert transformers_releases.image_features(SimpleNamespace(config=None), video=False) is None


class Merging:
    _merge_input_ids_with_image_features = None

    def forward(self):
        return self


class MergingIfNeeded(Merging):
    def forward(self):
        legacy_processing = False
        return legacy_processing


@pytest.mark.parametrize(("model", "merges"), [(Merging(), True), (MergingIfNeeded(), False)])
def test_only_a_model_without_another_way_merges_images(model, merges):
    assert transformers_releases.merges_images(model) is merges


class Attention(torch.nn.Module):
    """Attention that copies its query on CUDA only, as LlamaSdpaAttention of 4.43 does."""

    def forward(self, query, *, scale: float = 1.0):
        if query.device.type == "cuda" or query.device.type in ["cuda", "xpu"]:
            query = query.contiguous()
        if scale == 1.0:
            return query
        return torch.nn.functional.scaled_dot_product_attention(query, query, query, scale=scale)


class Slow(torch.nn.Module):
    """A module that calls another kernel on CUDA, as Mamba does, and no attention."""

    def forward(self, query):
        return query.contiguous() if "cuda" in query.device.type else query


@pytest.mark.parametrize(("kind", "release", "copied"), [
    (Attention, (4, 43, 4), True), (Attention, (4, 57, 1), True), (Attention, (5, 17, 0), False), (Slow, (4, 43, 4), False),
], ids=str)
def test_attention_of_older_releases_treats_meta_tensors_as_those_on_cuda(kind, release, copied, monkeypatch):
    monkeypatch.setattr(transformers_releases, "_release", lambda: release)
    model, query = kind(), torch.empty(1, 2, 3, device="meta").transpose(1, 2)
    with transformers_releases.cuda_branches(model):
        assert (model(query) is not query) is copied
    assert model(query) is query


NESTED = {"model_type": "qwen2_5_vl", "tie_word_embeddings": True, "text_config": {"model_type": "qwen2_5_vl_text", "hidden_size": 8}, "vision_config": {"depth": 2}}
FLAT = {"model_type": "qwen2_5_vl", "tie_word_embeddings": True, "hidden_size": 8, "vision_config": {"depth": 2}}


@pytest.mark.parametrize(("release", "read"), [((4, 49, 0), FLAT), ((4, 52, 0), NESTED), ((5, 17, 0), NESTED)], ids=str)
def test_the_text_model_of_qwen_has_its_own_configuration_since_4_52(release, read, monkeypatch):
    monkeypatch.setattr(transformers_releases, "_release", lambda: release)
    assert transformers_releases.configuration(NESTED) == read


@pytest.mark.parametrize(("release", "device"), [((4, 43, 4), "cpu"), ((4, 45, 0), "meta")], ids=str)
def test_rotary_frequencies_of_llama_are_compared_on_the_cpu_until_4_44(release, device, monkeypatch):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    made: list[str] = []

    def compute(config, where):
        made.append(torch.empty(3).device.type)
        return torch.empty(3), 1.0

    monkeypatch.setattr(transformers_releases, "_release", lambda: release)
    monkeypatch.setitem(ROPE_INIT_FUNCTIONS, "llama3", compute)
    with torch.device("meta"), transformers_releases.built_on_meta():
        frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](None, None)
    assert (made, frequencies.device.type) == ([device], "meta")

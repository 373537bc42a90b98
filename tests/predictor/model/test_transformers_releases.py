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

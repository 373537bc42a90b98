"""Audio and video: inputs of the models, numbers of tokens, and rejected settings."""

from __future__ import annotations

import json

import pytest
import torch

from predictor.common.errors import InputError
from predictor.events.sizes import Shape
from predictor.jobs import dispatch
from predictor.model import parser
from predictor.model.model_config import ModelConfig
from predictor.trace.inputs import Inputs
from predictor.workload.workload import Workload
from tests.predictor.small_models import IMAGE_TEXT, LLAMA, MEDIA

QWEN3_VL = {"model_type": "qwen3_vl", "image_token_id": 319, "video_token_id": 318, "vision_start_token_id": 317,
            "vision_config": {"depth": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2, "patch_size": 16,
                              "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64,
                              "deepstack_visual_indexes": [0], "num_position_embeddings": 64},
            "text_config": {"model_type": "qwen3_vl_text", "head_dim": 16, "rope_parameters": {
                "rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e6}} | LLAMA}


def inputs(document, *settings) -> Inputs:
    config = ModelConfig("model", document)
    return Inputs(config, parser.build_plain(config, "sdpa"), *settings)


def prepared(tmp_path, document, **keys):
    (tmp_path / "config.json").write_text(json.dumps(document))
    return dispatch.prepare(Workload(model=str(tmp_path), profile="none", **keys))


def test_a_clip_of_sound_fills_half_of_the_positions_of_its_tower():
    assert inputs(MEDIA["qwen2_audio"]).tokens_per_image == 24 // 2


def test_a_model_of_speech_hears_one_clip_for_each_sample():
    batch = inputs(MEDIA["whisper"]).batch(Shape(3, 20, 0), "none")
    assert {name: tuple(values.shape) for name, values in batch.items()} == {
        "input_features": (3, 8, 2 * 24), "labels": (3, 20)}


def test_positions_that_a_model_is_built_with_fixed_do_not_train():
    model = parser.build(ModelConfig("model", MEDIA["whisper"]), attn_implementation="sdpa", recipe="full")
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == [
        "model.encoder.embed_positions.weight"]


def test_every_frame_of_a_video_is_pooled_to_its_tokens():
    assert inputs(MEDIA["llava_next_video"], (), 6).tokens_per_image == 6  # 2 x 2 patches become one token


def test_two_frames_of_a_video_share_their_patches():
    assert inputs(IMAGE_TEXT["qwen2_5_vl"], ((392, 448),), 6).tokens_per_image == (6 // 2) * (392 // 28) * (448 // 28)


def test_the_time_stands_between_the_frames_of_a_video():
    made = inputs(QWEN3_VL, ((384, 352),), 4)
    tokens = (384 // 32) * (352 // 32)
    ids = made.batch(Shape(1, 400, 1), "none")["input_ids"][0]
    assert ids.eq(318).nonzero().flatten().tolist() == [*range(1, 1 + tokens), *range(2 + tokens, 2 + 2 * tokens)]


def test_video_tokens_are_told_from_those_of_pictures():
    batch = inputs(IMAGE_TEXT["qwen2_5_vl"], ((280, 364),), 4).batch(Shape(1, 400, 1), "none")
    assert torch.equal(batch["mm_token_type_ids"], 2 * (batch["input_ids"] == 318))


@pytest.mark.parametrize("name, keys, line", [
    ("whisper", {"sequence_length": 321}, "the model knows 320 positions only"),
    ("whisper", {"sequence_length": 20, "padding": "packed"}, "takes one audio clip for each sample, and clips cannot be packed"),
    ("whisper", {"sequence_length": 20, "images_per_sample": 1}, "takes one audio clip a sample"),
    ("whisper", {"sequence_length": 20, "image_size": 28}, "takes no images"),
    ("whisper", {"sequence_length": 20, "video_frames": 4}, "takes no videos"),
    ("qwen2_audio", {"sequence_length": 12}, "no room for 1 audio clip.s., which fill 12 tokens: give at least 13"),
    ("qwen2_5_vl", {"sequence_length": 99, "video_frames": 4}, "takes videos of any size: give one with --image-size"),
])
def test_what_a_model_does_not_take_is_refused(tmp_path, monkeypatch, name, keys, line):
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=line):
        prepared(tmp_path, MEDIA[name], **keys)


@pytest.mark.parametrize(("mode", "command"), [("training", "learn"), ("inference", "measure")])
def test_experts_that_run_one_after_another_are_refused(tmp_path, mode, command):
    with pytest.raises(InputError, match=f"depend on the tokens that each gets: use peakcast {command}"):
        prepared(tmp_path, {"model_type": "dbrx", "vocab_size": 320}, sequence_length=20, mode=mode)

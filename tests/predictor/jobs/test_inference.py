"""Inference: checks of its workload, and runs composed from a few traced tokens."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from predictor.answer.predict import predict
from predictor.cli import main
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.engine import generation
from predictor.engine.generation import Piece, extended_call
from predictor.events import regimes
from predictor.events.events import Moment
from predictor.formula.formula_key import formula_key
from predictor.jobs import dispatch, inference_job
from predictor.model import models
from predictor.model.request import Request
from predictor.report.inference import sentences
from predictor.report.verdict import verdict
from predictor.workload.generation import TRACED_TOKENS, Turn, turns
from predictor.workload.workload import Workload
from tests.predictor.generating import LLAVA, TALK, asked
from tests.predictor.small_models import LLAMA

pytestmark = pytest.mark.usefixtures("formula_cache")
TOKEN_BYTES = 2 * LLAMA["num_hidden_layers"] * LLAMA["num_key_value_heads"] * 16 * 2
"""Keys and values of a token of the small Llama: heads of 16 numbers of bf16."""
TURNS = [{"tokens": 40, "images": 1, "new_tokens": 9}, {"tokens": 10, "new_tokens": 5},
         {"role": "tool", "tokens": 30, "new_tokens": 1}, {"tokens": 20, "images": 2, "new_tokens": 8}]
GPU = gpus.find("h100-80gb")


def error_of(model: str, **keys) -> str:
    with pytest.raises(InputError) as caught:
        predict(asked(model, **keys))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def traced(workload: Workload, tokens: int, turn: Turn | None = None):
    """The call as a trace of so many tokens at its own shape gives it."""
    from predictor.formula.tracing import trace_formula

    turn = turn or turns(inference_job.resolve(workload).workload)[0]
    shape = inference_job.shape_of(workload, turn)
    request = Request.of(workload, shape).on(GPU)
    config, key = request.config, formula_key(request)
    key = replace(key, recipe="full", checkpointing="off", checkpointing_kwargs=(),
                  regime=regimes.regimes_from_widest(key.regime, shape)[-1],
                  generation=inference_job.generation_of(workload, turn, tokens))
    return extended_call(Piece(trace_formula(config, key).micro, shape, turn.new_tokens), GPU)


@pytest.mark.parametrize(("name", "keys"), [
    ("llama", {"sequence_length": 90, "per_device_eval_batch_size": 5}),
    ("llava", {"sequence_length": 75, "images_per_sample": 2, "per_device_eval_batch_size": 3}),
    ("llama", {"sequence_length": 96, "cache_implementation": "static", "max_cache_len": 128}),
])
def test_a_reply_is_composed_from_traces_of_other_shapes_and_fewer_tokens(model, name, keys):
    """Every event and size, as if all tokens had been traced at this shape."""
    workload = inference_job.resolve(asked(model[name], max_new_tokens=20, **keys)).workload
    assert traced_tokens(workload) == TRACED_TOKENS
    composed = extended_call(dispatch.prepare(workload).pieces[0], GPU)
    whole = traced(workload, 20)
    for column in ("kind", "buffer", "moment", "size_bytes", "cache"):
        assert np.array_equal(getattr(composed, column), getattr(whole, column)), column


def test_replies_that_are_too_long_to_simulate_are_refused_with_the_tokens_that_are_not(model, monkeypatch):
    piece = dispatch.prepare(asked(model["llama"], sequence_length=90, max_new_tokens=TRACED_TOKENS)).pieces[0]
    of_step = int(piece.micro.cuts[-1] - piece.micro.cuts[-2])
    most = 30
    events = len(piece.micro.events) + (most - TRACED_TOKENS) * of_step
    monkeypatch.setattr(generation, "MOST_EVENTS", events)
    predict(asked(model["llama"], sequence_length=90, max_new_tokens=most))
    more = most + 1
    assert error_of(model["llama"], sequence_length=90, max_new_tokens=more) == (
        f"{more} new tokens of this model take {events + of_step:,} allocations and frees, and at most {events:,} are simulated: "
        f"give at most about {more * events // (events + of_step)} new tokens")


def test_formulas_of_replies_that_one_process_traces_describe_the_same_parameters(model):
    facts = [dispatch.prepare(asked(model["llama"], sequence_length=90, max_new_tokens=9, per_device_eval_batch_size=batch)).formula.facts
             for batch in (1, 2)]
    assert facts[0].parameters == facts[1].parameters and any(parameter.trainable for parameter in facts[0].parameters)


def traced_tokens(workload: Workload) -> int:
    return inference_job.traced_tokens(turns(workload)[0], models.find(workload.model).windows)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_dynamic_cache_holds_every_token_but_the_last(model, batch):
    found = predict(asked(model["llama"], sequence_length=50, max_new_tokens=30,
                                   per_device_eval_batch_size=batch)).inference
    assert found.cache_bytes == batch * (50 + 30 - 1) * TOKEN_BYTES
    assert found.cache_bytes_per_token == TOKEN_BYTES


@pytest.mark.parametrize(("length", "tokens"), [(None, 50 + 30 - 1), (70, 79), (200, 200)])
def test_a_static_cache_is_as_long_as_asked_or_as_needed(model, length, tokens):
    found = predict(asked(model["llama"], sequence_length=50, max_new_tokens=30, max_cache_len=length,
                                   cache_implementation="static")).inference
    assert found.cache_bytes == tokens * TOKEN_BYTES
    assert found.cache_bytes_per_token == TOKEN_BYTES


def test_a_sliding_window_bounds_the_cache(model):
    """DynamicSlidingWindowLayer keeps window - 1 tokens as a view of those and the newest."""
    found = predict(asked(model["mistral"], sequence_length=100, max_new_tokens=30)).inference
    assert found.cache_bytes == 64 * TOKEN_BYTES


def test_further_tokens_in_a_full_window_take_nothing(model):
    found = predict(asked(model["mistral"], sequence_length=2000, max_new_tokens=29))
    assert found.inference.cache_bytes_per_token == 0
    assert "and no more after further tokens" in sentences(found)[0]


def test_a_window_that_is_reached_in_the_reply_is_traced_until_then(model):
    assert traced_tokens(asked(model["mistral"], sequence_length=50, max_new_tokens=64)) == TRACED_TOKENS + 14
    found = predict(asked(model["mistral"], sequence_length=50, max_new_tokens=64)).inference
    assert found.cache_bytes == 64 * TOKEN_BYTES


def test_the_turns_of_a_conversation_share_a_cache(model):
    found = predict(asked(model["llava"], conversation=TURNS)).inference
    each = 2 * LLAVA["text_config"]["num_hidden_layers"] * 64 * 2
    assert [turn.cached_tokens for turn in found.turns] == [48, 63, 94, 122]
    assert [turn.cache_bytes for turn in found.turns] == [each * tokens for tokens in (48, 63, 94, 122)]
    assert [turn.tokens for turn in found.turns] == [40, 11, 31, 21]
    assert found.turns[2].role == "tool" and found.turns[2].decode_peak_requested_bytes is None


def test_a_conversation_from_a_file_is_that_of_a_list(model, tmp_path):
    path = tmp_path / "turns.yaml"
    path.write_text(json.dumps({"turns": TURNS}))
    assert asked(model["llava"], conversation=str(path)) == asked(model["llava"], conversation=TURNS)


def test_the_peaks_of_the_moments_are_those_of_the_turns(model):
    found = predict(asked(model["llava"], conversation=TURNS))
    for moment, name in ((Moment.PREFILL, "prefill"), (Moment.DECODE, "decode")):
        peaks = [getattr(turn, f"{name}_peak_requested_bytes") or 0 for turn in found.inference.turns]
        assert max(peaks) == found.moments[moment]["requested_bytes"]
    assert found.peak_requested_bytes == max(found.moments[moment]["requested_bytes"] for moment in found.moments)


def test_blocks_of_paged_serving_fill_what_the_utilization_leaves(model):
    """vLLM: requested memory less weights, the peak of a forward beside them, and the runtime."""
    found = predict(asked(model["llama"], sequence_length=100, max_new_tokens=29, gpu_memory_utilization=0.5,
                                   capacity_bytes=4 << 30))
    paged, weights = found.inference.paged, found.inference.weights_bytes
    assert paged.block_bytes == 16 * TOKEN_BYTES
    assert paged.reserved_bytes == (2 << 30) - weights - paged.activations_bytes - paged.runtime_bytes
    assert paged.blocks == paged.reserved_bytes // paged.block_bytes
    assert paged.sequences == paged.blocks // 8  # 128 tokens in the cache are eight blocks
    assert any("assumed, never measured" in note for note in found.not_modelled)


def test_the_factors_of_the_peak_name_the_cache(model):
    found = predict(asked(model["llama"], sequence_length=500, max_new_tokens=8))
    assert sum(found.factors.values()) == found.peak_allocated_bytes
    assert found.to_json()["factors"]["kv_cache"] >= found.inference.cache_bytes - 8 * TOKEN_BYTES


@pytest.mark.parametrize(("name", "keys", "says"), [
    ("llama", {"sequence_length": 4090}, "a cache of 4,153 tokens is longer than the 4,096 positions that"),
    ("llama", {"sequence_length": 10, "cache_implementation": "static", "max_cache_len": 5000},
     "max_cache_len 5,000 is longer than the 4,096 positions that"),
    ("gpt2", {"sequence_length": 100}, "a cache of 163 tokens is longer than the 128 positions that"),
    ("llama", {}, "sequence_length is not given"),
    ("llama", {"sequence_length": 10, "images_per_sample": 1}, "takes no images; leave it out"),
    ("llava", {"sequence_length": 4}, "sequence_length 4: no room for 1 image(s), which fill 4 tokens"),
    ("llava", {"conversation": [{"tokens": 3, "images": 1, "new_tokens": 2}]},
     "conversation: tokens 3: no room for 1 image(s)"),
    ("bert", {"sequence_length": 10}, "BertForMaskedLM is not predicted"),
    ("t5", {"sequence_length": 10}, "T5ForConditionalGeneration is not predicted"),
    ("llama", {"sequence_length": 10, "gpu_memory_utilization": 0.9}, "gpu_memory_utilization: of which GPU?"),
    ("mistral", {"sequence_length": 90, "gpu_memory_utilization": 0.9, "gpu": "h100-80gb"}, "sliding windows"),
    ("llama", {"sequence_length": 10, "quantization": {"load_in_4bit": True}, "dtype": "fp32"},
     'dtype "fp32": not predicted with mode inference and quantization yet'),
    ("llama", {"sequence_length": 10, "quantization": {"load_in_8bit": True}, "gpu_memory_utilization": 0.9},
     "gpu_memory_utilization 0.9: not predicted with mode inference and quantization yet"),
    ("llava", {"sequence_length": 40, "quantization": {"load_in_4bit": True}},
     "model.vision_tower.encoder.layers.0.mlp.fc2, a 4-bit layer, would get 4 tokens"),
    ("odd", {"sequence_length": 40, "quantization": {"load_in_8bit": True}},
     "model.layers.0.mlp.down_proj takes 90 numbers, for which bitsandbytes has no product of 8 bits"),
])
def test_what_cannot_be_predicted_is_one_clear_line(model, name, keys, says):
    assert says in error_of(model[name], **keys)


@pytest.mark.parametrize(("keys", "says"), [
    ({"optim": "sgd"}, "optim belongs to training, but mode is inference: leave it out"),
    ({"per_device_train_batch_size": 8}, "belongs to training, but mode is inference: give per_device_eval_batch_size"),
    ({"mode": "training", "max_new_tokens": 5}, "max_new_tokens belongs to inference, but mode is training"),
    ({"conversation": TURNS}, "sequence_length is given, but so is conversation"),
    ({"max_cache_len": 50}, "max_cache_len is given, but only a static cache has a fixed length"),
    ({"block_size": 32}, "block_size is a setting of paged serving"),
    ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5: it must be above 0 and at most 1"),
    ({"cache_implementation": "offloaded"}, "cache_implementation"),
    ({"attn_implementation": "flash_attention_2"}, "attn_implementation is flash_attention_2"),
    ({"sequence_length": None, "conversation": [{"tokens": 5, "new_token": 4}]}, "turn 1 has an unknown key"),
    ({"sequence_length": None, "conversation": [{"tokens": 5}]}, "turn 1 has no new_tokens"),
    ({"sequence_length": None, "conversation": []}, "must be a list of turns"),
    ({"sequence_length": None, "conversation": TURNS, "cache_implementation": "static"}, "use dynamic"),
    ({"quantization": {"load_in_4bit": True, "prepare": "trl"}}, "quantization has prepare, which belongs to training"),
    ({"quantization": {"load_in_4bit": True, "load_in_8bit": True}}, "has load_in_4bit and load_in_8bit: leave one"),
    ({"quantization": {"load_in_8bit": True, "bnb_4bit_quant_type": "nf4"}}, "has bnb_4bit_quant_type, which layers of 8"),
    ({"quantization": {"load_in_4bit": True, "llm_int8_threshold": 3}}, "has llm_int8_threshold, which layers of 4"),
    ({"quantization": {"load_in_8bit": True, "llm_int8_has_fp16_weight": True}}, "llm_int8_has_fp16_weight is not"),
])
def test_keys_that_contradict_each_other_are_refused_by_name(keys, says):
    with pytest.raises(InputError) as caught:
        asked("llama-3.1-8b", **{"sequence_length": 10} | keys)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_resolved_workload_of_inference_is_a_valid_workload_again(model):
    for keys in ({"sequence_length": 10, "gpu_memory_utilization": 0.9}, {"conversation": TURNS},
                 {"sequence_length": 10, "quantization": {"load_in_8bit": True}}):
        workload = asked(model["llava"], **keys)
        assert Workload.from_mapping(workload.resolved()) == workload
        assert "optim" not in workload.resolved()


def test_the_command_tells_weights_cache_and_turns(model, tmp_path, capsys):
    path = tmp_path / "turns.json"
    path.write_text(json.dumps({"turns": TURNS}))
    words = ["predict", model["llava"], "--mode", "inference", "--conversation", str(path), "--profile", "none", "--details"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "inference · batch 1 x 4 turns" in text and "Weights" in text and "tool" in text
    head = next(line for line in text.splitlines() if line.startswith("turn"))
    assert head.split()[-2:] == ["prefill", "decode"] and len(head.rstrip()) <= 80
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [turn["cached_tokens"] for turn in document["inference"]["turns"]] == [48, 63, 94, 122]
    assert document["workload"]["mode"] == "inference"


def test_later_turns_are_composed_from_traces_of_other_batches(model):
    """Every event and size, as if each turn had been traced at this batch."""
    workload = inference_job.resolve(asked(model["llava"], conversation=TURNS, per_device_eval_batch_size=7)).workload
    job = dispatch.prepare(workload)
    for turn, piece in zip(job.turns[1:], job.pieces[1:]):
        composed = extended_call(piece, GPU)
        whole = traced(workload, inference_job.traced_tokens(turn, []), turn)
        for column in ("kind", "buffer", "moment", "size_bytes", "cache"):
            assert np.array_equal(getattr(composed, column), getattr(whole, column)), column


def test_the_prompts_that_are_not_predicted_are_those_that_are_refused():
    for window, new_tokens in ((256, 128), (256, 66), (256, 67), (100, 500)):
        refused = []
        for tokens in range(1, 2 * window):
            try:
                inference_job.traced_tokens(Turn("user", tokens, 0, new_tokens), [window])
            except InputError:
                refused.append(tokens)
        assert refused == [tokens for first, last in inference_job.unpredicted_prompts([window], new_tokens)
                           for tokens in range(first, last + 1)]


def test_a_utilization_that_leaves_nothing_for_the_cache_does_not_fit(model):
    keys = {"sequence_length": 100, "max_new_tokens": 29, "capacity_bytes": 4 << 30}
    found = predict(asked(model["llama"], gpu_memory_utilization=0.01, **keys))
    paged = found.inference.paged
    assert found.verdict == "does_not_fit" and (paged.reserved_bytes, paged.blocks) == (0, 0)
    least = paged.least_gpu_memory_utilization
    assert f"raise it to {least:g}" in verdict(found)
    assert predict(asked(model["llama"], gpu_memory_utilization=least, **keys)).verdict == "fits"


def test_turns_that_differ_in_their_context_alone_share_a_formula(model, seen):
    """Every event and size, as if each had been traced at its context."""
    talk = [TALK[0]] + [{"tokens": 10, "images": 1, "new_tokens": 7}] * 30
    workload = inference_job.resolve(asked(model["llava"], conversation=talk, per_device_eval_batch_size=2)).workload
    job = dispatch.prepare(workload)
    assert {key.regime.names().rows for key in seen if key.generation.brings} == {"whole", "padded"}
    for turn, piece in list(zip(job.turns, job.pieces))[-8:]:
        composed = extended_call(piece, GPU)
        whole = traced(workload, inference_job.traced_tokens(turn, []), turn)
        for column in ("kind", "buffer", "moment", "size_bytes", "cache"):
            assert np.array_equal(getattr(composed, column), getattr(whole, column)), column


def test_a_conversation_without_turns_names_the_key():
    with pytest.raises(InputError, match='no key "turns"'):
        asked("llama-3.1-8b", conversation={"talk": []})


def test_inference_on_one_gpu_may_be_said():
    asked("llama-3.1-8b", sequence_length=10, tensor_parallel_size=1, data_parallel_size=1)
    with pytest.raises(InputError, match="tensor_parallel_size"):
        asked("llama-3.1-8b", sequence_length=10, tensor_parallel_size=2)

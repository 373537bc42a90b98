"""Tensor parallelism: memory of each rank, collectives, and rejected settings."""

from __future__ import annotations

import json

import pytest
import torch
import transformers.distributed.tensor_parallel
from torch import distributed
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.testing._internal.distributed.fake_pg import FakeStore

from predictor.common.errors import InputError
from predictor.events.events import FACTORS, Factor, Moment
from predictor.events.sizes import Shape
from predictor.jobs import dispatch
from predictor.model import parser, tensor_parallel
from predictor.model.model_config import ModelConfig
from predictor.workload.workload import Workload
from tests.predictor.small import TEXT, facts_of, small_config, small_llama, small_llava, traced_at

BATCH, SEQUENCE, ITEMSIZE = 2, 64, 2
HIDDEN, INNER, LAYERS, VOCABULARY = (TEXT[key] for key in (
    "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"))
LAYER_WEIGHTS = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER
NORMS = (2 * LAYERS + 1) * HIDDEN
TIED = small_config(tie_word_embeddings=True) | {"tie_word_embeddings": True}


def built(document):
    return parser.build_plain(ModelConfig("small", document), "sdpa").train()


def asked(directory, document=None, **changes) -> Workload:
    path = directory / "config.json"
    path.write_text(json.dumps(document or small_config()))
    return Workload(**{"model": str(path), "sequence_length": SEQUENCE, "per_device_train_batch_size": BATCH,
                       "tensor_parallel_size": 2} | changes)


def test_a_transformers_that_shards_in_another_way_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(transformers.distributed.tensor_parallel, "apply_tensor_parallelism", lambda model, tp_mesh, tp_plan: model)
    with pytest.raises(InputError, match="shards in another way than 5.17, which is predicted: install transformers==5.17.0"), \
            tensor_parallel.on_meta(built(small_llama()), 2):
        pass


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(("tied", "head", "whole"), [
    (False, VOCABULARY * HIDDEN, VOCABULARY * HIDDEN), (True, VOCABULARY * HIDDEN, 0)])
def test_a_rank_holds_its_part_of_what_the_plan_names_and_all_of_the_rest(size, tied, head, whole):
    model = built(small_llama(tie_word_embeddings=tied))
    with tensor_parallel.on_meta(model, size):
        held = sum(parameter.bytes for parameter in facts_of(model).parameters if not parameter.buffer)
    assert held == ITEMSIZE * ((LAYERS * LAYER_WEIGHTS + head) // size + whole + NORMS)


def test_states_are_as_large_as_the_parts(tmp_path):
    job = dispatch.prepare(asked(tmp_path, small_llama()))
    run = job.run(None)
    states = run.events.buffers.factor[run.events.buffer] == FACTORS.index(Factor.OPTIMIZER_STATES)
    parts = LAYERS * LAYER_WEIGHTS // 2 + VOCABULARY * HIDDEN // 2 + VOCABULARY * HIDDEN + NORMS
    made = run.row_bytes[run.events.buffers.size[run.events.buffer[states & (run.events.kind == 1)]]]
    assert made.sum() == 2 * ITEMSIZE * parts


def test_each_reduction_of_activations_is_a_copy_of_them():
    model = small_llava()
    with tensor_parallel.on_meta(model, 2):
        recording = traced_at(model, Shape(BATCH, SEQUENCE, BATCH))
    reduced = [buffer for buffer in recording.buffers if buffer.operator == "_c10d_functional::all_reduce"]
    assert {buffer.size for buffer in reduced} == {ITEMSIZE * BATCH * SEQUENCE * HIDDEN}
    in_forward = sum(buffer.moment is Moment.FORWARD for buffer in reduced)
    assert in_forward == 2 * LAYERS  # after o_proj and down_proj
    assert len(reduced) - in_forward == 5 * LAYERS  # before q_proj, k_proj, v_proj, gate_proj and up_proj


def test_what_dtensor_asks_on_the_side_is_not_recorded():
    model = small_llava()
    with tensor_parallel.on_meta(model, 4):
        first, second = (traced_at(model, Shape(BATCH, SEQUENCE, BATCH)) for _ in range(2))  # the second is cached
    assert first.events == second.events
    assert [buffer.size for buffer in first.buffers] == [buffer.size for buffer in second.buffers]


def test_a_process_of_another_group_traces_too():
    distributed.init_process_group("fake", store=FakeStore(), rank=2, world_size=3)
    try:
        model = built(small_llama())
        with tensor_parallel.on_meta(model, 2):
            assert tensor_parallel.local_part(model.lm_head.weight).shape == (VOCABULARY // 2, HIDDEN)
        assert distributed.get_world_size() == 3
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(("document", "size", "message"), [
    (small_llama(num_key_value_heads=2), 4, "is invalid for input of size"),
    (TIED, 2, "got mixed torch.Tensor and DTensor"),
], ids=["split heads", "a tied head without a plan"])
def test_transformers_stops_where_it_is_refused(monkeypatch, document, size, message):
    for check in ("_check_head", "check_heads"):
        monkeypatch.setattr(tensor_parallel, check, lambda *_: None)
    model = built(document)
    with tensor_parallel.on_meta(model, size), pytest.raises(RuntimeError, match=message):
        model(torch.zeros(BATCH, SEQUENCE, dtype=torch.int64, device="meta"))


@pytest.mark.parametrize("tied", [False, True])
def test_ddp_leaves_a_shared_weight_sharded_in_its_second_module(tied):
    model = built(small_llama(tie_word_embeddings=tied))
    with tensor_parallel.on_meta(model, 2):
        _pre_dp_module_transform(model)
        assert isinstance(model.lm_head.weight, DTensor) is tied
        assert not isinstance(model.model.embed_tokens.weight, DTensor)


@pytest.mark.parametrize(("document", "changes", "message"), [
    (None, {"tensor_parallel_size": 3}, "tensor_parallel_size 3 does not divide the 4 attention heads of "
     "LlavaForConditionalGeneration, and transformers splits none: give a divisor of 4"),
    (small_llama(num_key_value_heads=2), {"tensor_parallel_size": 4}, "tensor_parallel_size 4 does not divide the 2 "
     "key/value heads of LlamaForCausalLM, and transformers splits none: give a divisor of 2"),
    (small_llama(intermediate_size=110), {"tensor_parallel_size": 4}, "tensor_parallel_size 4 does not divide "
     "model.layers.0.mlp.gate_proj.weight (110 x 64): ranks that hold unlike parts are not predicted"),
    (small_llama(vocab_size=321), {}, "tensor_parallel_size 2 does not divide the vocabulary of LlamaForCausalLM, 321 "
     "tokens, and transformers stops at that: give a divisor"),
    ({"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 320}, {},
     "tensor_parallel_size 2: transformers has no tp_plan for GPT2LMHeadModel: leave it out"),
    (TIED, {}, "tensor_parallel_size 2: the tp_plan of "
     "LlavaForConditionalGeneration shards embeddings, but not the head that is tied to them, and transformers stops "
     "at that: leave it out"),
    (None, {"engine": "ddp", "data_parallel_size": 2, "recipe": "pretrain"}, "engine ddp with tensor_parallel_size: "
     "PyTorch trains every sharded weight, model.language_model.layers.0.self_attn.q_proj.weight too, which is frozen: "
     "use recipe finetune or full, or engine torch"),
    (small_llama(tie_word_embeddings=True), {"engine": "ddp", "data_parallel_size": 2}, "engine ddp with "
     "tensor_parallel_size: model.embed_tokens.weight is tied to the head, and PyTorch stops at sharded weights that two "
     "modules share: use engine torch"),
    (None, {"engine": "ddp", "data_parallel_size": 2, "ddp": {"gradient_as_bucket_view": True}},
     "ddp gradient_as_bucket_view: not predicted with tensor_parallel_size yet: leave one of them out"),
    *((None, changes, f"{said}: not predicted with tensor_parallel_size yet: leave one of them out, or use peakcast "
       "learn") for changes, said in (
        ({"engine": "fsdp2", "data_parallel_size": 2}, 'engine "fsdp2"'),
        ({"recipe": "lora"}, 'recipe "lora"'), ({"optim": "sgd"}, 'optim "sgd"'),
        ({"use_liger_kernel": True}, "use_liger_kernel True"), ({"mixed_precision": "fp16"}, 'mixed_precision "fp16"'),
    )),
])
def test_what_cannot_run_or_was_not_compared_is_refused(tmp_path, document, changes, message):
    with pytest.raises(InputError) as caught:
        dispatch.prepare(asked(tmp_path, document, **changes)).run(None)
    assert str(caught.value) == message


def test_ranks_are_those_of_both_degrees(tmp_path):
    with pytest.raises(InputError, match=r"rank is 8, but data_parallel_size 2 x tensor_parallel_size 4 has the ranks "
                                         r"0 to 7"):
        asked(tmp_path, engine="ddp", data_parallel_size=2, tensor_parallel_size=4, rank=8)

"""DeepSpeed's AutoTP: memory of each rank, collectives, sources of its degree, and rejected settings."""

from __future__ import annotations

import json

import pytest
from torch import nn

from predictor import readers
from predictor.common.errors import InputError
from predictor.events.events import FACTORS, Factor
from predictor.events.sizes import Shape
from predictor.explore import settings
from predictor.jobs import dispatch
from predictor.model import autotp, tensor_parallel
from tests.predictor.model.test_tensor_parallel import (
    BATCH,
    HIDDEN,
    ITEMSIZE,
    LAYER_WEIGHTS,
    LAYERS,
    NORMS,
    SEQUENCE,
    TIED,
    VOCABULARY,
    asked,
    built,
)
from tests.predictor.small import facts_of, small_llama, small_llava, traced_at

FP32 = 4
SECTION = {"tensor_parallel": {"autotp_size": 2}}
CONFIG = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}} | SECTION


def config(**changes) -> dict:
    return {"deepspeed": CONFIG | changes, "tensor_parallel_size": None}


def sharded(model) -> set[str]:
    return {parameter.name for parameter in facts_of(model).parameters if parameter.sharded}


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_holds_its_part_of_the_linear_layers_and_all_of_the_embeddings(size):
    model = built(small_llama())
    autotp.shard(model, size)
    held = sum(parameter.bytes for parameter in facts_of(model).parameters if not parameter.buffer)
    assert held == ITEMSIZE * ((LAYERS * LAYER_WEIGHTS + VOCABULARY * HIDDEN) // size + VOCABULARY * HIDDEN + NORMS)


def test_a_bias_is_cut_with_its_columns_and_whole_beside_rows():
    whole = nn.Linear(8, 4, device="meta")
    assert autotp.Column(whole, 2, "up", gathers=False).bias.shape == (2,)
    assert autotp.Row(whole, 2, "down").bias is whole.bias


def test_it_shards_what_transformers_shards():
    by_autotp, by_transformers = small_llava(), small_llava()
    autotp.shard(by_autotp, 2)
    with tensor_parallel.on_meta(by_transformers, 2):
        assert sharded(by_autotp) == sharded(by_transformers)


def test_activations_are_reduced_in_place_and_a_sharded_head_gathers_once():
    model = built(small_llama())
    autotp.shard(model, 2)
    recording = traced_at(model, Shape(BATCH, SEQUENCE, 0))
    moved = [buffer for buffer in recording.buffers if buffer.operator.startswith("_c10d_functional::")]
    assert [buffer.size for buffer in moved] == [ITEMSIZE * BATCH * SEQUENCE * VOCABULARY]


def test_zero_partitions_over_the_ranks_of_data_parallelism(tmp_path):
    job = dispatch.prepare(asked(tmp_path, small_llama(), zero_stage=1, data_parallel_size=4))
    run = job.run(None, 7)
    states = run.events.buffers.factor[run.events.buffer] == FACTORS.index(Factor.OPTIMIZER_STATES)
    made = run.row_bytes[run.events.buffers.size[run.events.buffer[states & (run.events.kind == 1)]]]
    parts = (LAYERS * LAYER_WEIGHTS + VOCABULARY * HIDDEN) // 2 + VOCABULARY * HIDDEN + NORMS
    norms = 4 * FP32  # of each of three steps, and the first step's, which lives until the next ends
    assert made.sum() == 3 * FP32 * parts // 4 + 2 * FP32 + norms  # master weights, moments, a count for each group


def test_only_the_first_of_those_that_share_layers_takes_the_norm_of_what_all_have(tmp_path):
    job = dispatch.prepare(asked(tmp_path, small_llama(), zero_stage=1, data_parallel_size=2))
    counts = [sum(name == "zero::get_grad_norm" for name in map(run.events.names.__getitem__,
                                                               run.events.buffers.operator)) for run in
              (job.run(None, rank) for rank in range(4))]
    assert counts[0] > counts[1] and counts[2] > counts[3]


def test_a_config_says_the_same_as_our_keys(tmp_path):
    keys = asked(tmp_path, zero_stage=1, data_parallel_size=2)
    file = asked(tmp_path, data_parallel_size=2, **config(zero_optimization={"stage": 1, "reduce_bucket_size": "auto"}))
    assert dispatch.prepare(file).run(None).peak == dispatch.prepare(keys).run(None).peak


@pytest.mark.parametrize("size", [0, 1])
def test_a_config_may_switch_it_off(tmp_path, size):
    assert asked(tmp_path, **config(tensor_parallel={"autotp_size": size})).tensor_parallel_size == 1


def test_train_batch_size_is_of_all_gpus(tmp_path):
    made = asked(tmp_path, data_parallel_size=2, **config(train_batch_size=2 * BATCH * 2 * 3))
    assert made.gradient_accumulation_steps == 3


@pytest.mark.parametrize(("started", "gpus", "degree"), [(8, None, 4), (2, None, 1), (7, 3, 7)])
def test_some_of_the_gpus_that_a_launcher_starts_share_layers(tmp_path, started, gpus, degree):
    keys, _ = readers.read(words=command(tmp_path, started), options={"data_parallel_size": gpus} if gpus else {})
    assert keys["data_parallel_size"] == degree


def test_a_degree_that_does_not_divide_the_launchers_gpus_names_both(tmp_path):
    with pytest.raises(InputError, match=r"ds.json: tensor_parallel.autotp_size 2 does not divide the 3 GPUs of "
                                         r"--nproc_per_node 3$"):
        readers.read(words=command(tmp_path, 3))


def command(directory, started: int) -> list[str]:
    path = directory / "ds.json"
    path.write_text(json.dumps(CONFIG))
    return ["torchrun", "--nproc_per_node", str(started), "train.py", "--model_name_or_path", "llava-1.5-7b", "--bf16",
            "--deepspeed", str(path), "--output_dir", "out"]


def test_a_page_has_none_of_it(tmp_path):
    with pytest.raises(InputError, match=r"explore: tensor_parallel_size with zero_stage is not in a page: DeepSpeed's"):
        settings.find(asked(tmp_path, zero_stage=1), (1,))


@pytest.mark.parametrize(("document", "changes", "message"), [
    (None, {"tensor_parallel_size": 3}, "tensor_parallel_size 3 does not divide the 4 attention heads of "
     "LlavaForConditionalGeneration, and AutoTP gives some ranks more than others, which is not predicted: give a "
     "divisor of 4"),
    (small_llama(intermediate_size=110), {"tensor_parallel_size": 4}, "tensor_parallel_size 4 does not divide "
     "model.layers.0.mlp.gate_proj.weight (110 x 64): ranks that hold unlike parts are not predicted"),
    ({"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 320}, {}, "tensor_parallel_size 2: "
     "transformers has no tp_plan for GPT2LMHeadModel: DeepSpeed would then choose layers by name, which is not "
     "predicted: leave it out, or use peakcast learn"),
    (TIED, {}, "tensor_parallel_size 2: AutoTP shards embeddings and a head that is tied to them by vocabulary, which "
     "is not predicted yet: use engine torch or ddp"),
    (None, {"zero_stage": 3}, "zero_stage 3: not predicted with tensor_parallel_size and engine deepspeed yet: leave "
     "one of them out, or use peakcast learn"),
    (None, {"offload": "optimizer"}, 'offload "optimizer": not predicted with tensor_parallel_size and engine '
     "deepspeed yet: leave one of them out, or use peakcast learn"),
    (None, {"versions": {"deepspeed": "0.18.8"}}, "versions: tensor_parallel_size with DeepSpeed (AutoTP) is predicted "
     "for DeepSpeed 0.19.8 and later"),
    (None, config() | {"tensor_parallel_size": 4}, "tensor_parallel_size is 4, but deepspeed has "
     "tensor_parallel.autotp_size 2: leave one of them out"),
    (None, config(train_batch_size=8, train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=1)
     | {"data_parallel_size": 4}, "deepspeed: train_batch_size is 8, but 2 samples a GPU x 1 accumulation steps x "
     "data_parallel_size x tensor_parallel_size 8 is 16"),
    (None, config(tensor_parallel={"autotp_size": 2, "preset_model": "llama"}), "deepspeed: "
     "tensor_parallel.preset_model is not supported: its effect on memory is not modelled yet"),
    (None, config(tensor_parallel={"autotp_size": 2, "tp": {"tp_size": 4}}), "deepspeed: tensor_parallel.tp.tp_size is "
     "4, but tensor_parallel.autotp_size is 2: leave tp out"),
    (None, config(tensor_parallel={"autotp_siz": 2}), 'deepspeed: DeepSpeed has no key "tensor_parallel.autotp_siz" '
     '(did you mean "autotp_size"?)'),
])
def test_what_is_not_predicted_is_refused_in_one_line(tmp_path, document, changes, message):
    stage = {} if "deepspeed" in changes else {"zero_stage": 1}
    with pytest.raises(InputError) as caught:
        dispatch.prepare(asked(tmp_path, document, **stage | changes))
    assert str(caught.value) == message

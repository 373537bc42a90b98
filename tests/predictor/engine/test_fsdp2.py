"""FSDP2's shards, units and copies as closed forms, and rejected settings."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.engine.fsdp2_copies import chunk_cat_bytes, split_copy_bytes
from predictor.engine.fsdp2_units import Shard, Unit, Units, rank_changes
from predictor.engine.tape import Tape
from predictor.events.events import EventType
from predictor.events.model_facts import Parameter
from predictor.jobs import dispatch
from predictor.model import fsdp
from predictor.workload import compared, fsdp_keys
from predictor.workload.workload import Workload
from tests.predictor.formula.test_formula import key
from tests.predictor.small import small_config, small_llava

H100 = gpus.find("h100")
LAYERS = ("CLIPEncoderLayer", "LlamaDecoderLayer")
"""accelerate stops at the model's own ``_no_split_modules``: they name CLIPTextEmbeddings, which it does not have."""
DEGREE = 4
ROWS, COLUMNS = 10, 8
PADDED = 12 * COLUMNS * 2  # bytes of a gathered parameter: 3 rows a rank


def test_a_dimension_that_does_not_divide_leaves_the_last_ranks_less():
    shard = Shard(0, Parameter("w", (ROWS, COLUMNS), 2, True), 2, degree=7)
    assert shard.numel == 2 * COLUMNS
    assert [shard.of_rank(rank).numel // COLUMNS for rank in range(7)] == [2, 2, 2, 2, 2, 0, 0]


def test_copies_keep_a_number_for_each_block_and_a_few_for_each_tensor():
    assert chunk_cat_bytes([2048, 2049]) == 8 * (6 * 2 + 2 + 3)
    assert split_copy_bytes([2048, 2049], 2, H100) == 8 * (4 * 2 + 1 + 3)


def test_a_long_copy_has_larger_blocks():
    tiles = 132 * 2048 // 128 * 2  # a rank has as many as the GPU takes at once; four ranks: 2 x 2 to a block
    assert split_copy_bytes([tiles * 2048], 4, H100) == 8 * (4 + 1 + tiles // 2)


def units(*, reshards: bool = True, degree: int = DEGREE, reduce_itemsize: int | None = None, kept: int = 2):
    tape = Tape(first=100)
    parts = [Unit(number, [Shard(number, Parameter(f"{number}.w", (ROWS, COLUMNS), 2, True), kept, degree)], reshards)
             for number in (1, 2)]
    return tape, Units(tape, parts, degree, reduce_itemsize, H100), *parts


def changes(tape: Tape) -> list[int]:
    """The change of live bytes by each event of the tape's own buffers."""
    return [kind * tape.buffers.sizes[buffer - 100] for kind, buffer in zip(tape.event_types, tape.event_buffers)
            if buffer >= 100]


def live(tape: Tape) -> int:
    return sum(changes(tape))


def highest(tape: Tape) -> int:
    return max(np.cumsum(changes(tape)))


def test_a_unit_holds_what_it_gathered_twice_and_the_next_one_a_third_time():
    tape, both, first, second = units()
    both.enter(first)
    assert live(tape) == 2 * PADDED
    both.leave(first)
    assert live(tape) == PADDED
    both.enter(second)
    assert highest(tape) == 3 * PADDED + split_copy_bytes([PADDED // DEGREE], DEGREE, H100)
    assert live(tape) == 2 * PADDED


def test_without_resharding_parameters_stay_until_backward_has_ended():
    tape, both, first, second = units(reshards=False)
    for unit in (first, second):
        both.enter(unit)
        both.leave(unit)
    assert live(tape) == 3 * PADDED
    both.before_backward(second)
    both.after_backward(second, reduce=True)
    both.end_backward(reduce=True)
    both._free_held()
    assert live(tape) == 0


def test_backward_gathers_the_unit_before_ahead():
    tape, both, first, second = units()
    for unit in (first, second):
        both.enter(unit)
        both.leave(unit)
    both._free_held()
    both.before_backward(second)
    assert live(tape) == 2 * PADDED
    both.before_backward(first)
    assert live(tape) == 2 * PADDED


@pytest.mark.parametrize("itemsize, kept", [(2, 2), (4, 2), (4, 4)])
def test_a_reduction_holds_its_input_until_the_next_one_and_keeps_a_part(itemsize, kept):
    tape, both, first, _ = units(reduce_itemsize=itemsize, kept=kept)
    both.ready(1, 7)
    both.after_backward(first, reduce=True)
    part = PADDED // 2 // DEGREE
    assert live(tape) == PADDED // 2 * itemsize + part * kept
    both.end_backward(reduce=True)
    assert live(tape) == part * kept
    assert (-1, 7) in zip(tape.event_types, tape.event_buffers)


def test_gradients_that_are_not_reduced_yet_are_kept_whole_in_the_wider_dtype():
    tape, both, first, _ = units(reduce_itemsize=4)
    both.ready(1, 7)
    both.after_backward(first, reduce=False)
    assert live(tape) == 4 * ROWS * COLUMNS


@pytest.fixture
def job(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(small_config()))

    def job(**keys):
        return dispatch.prepare(Workload(model=str(tmp_path), sequence_length=16, engine="fsdp2", profile="none",
                                         gpu="h100-80gb", **keys))
    return job


@pytest.mark.parametrize("param_dtype, itemsize", [(None, 2), ("bf16", 4)])
def test_every_rank_keeps_padded_shards_and_states_of_its_own_rows(job, param_dtype, itemsize):
    asked = job(data_parallel_size=7, recipe="full", fsdp={"param_dtype": param_dtype})
    tensors, reached = asked.setup.facts.parameters, set(asked.formula.micro.ready[:, 1].tolist())
    shards = [Shard(0, tensor, itemsize, 7) for tensor in tensors if not tensor.buffer]
    runs = [asked.run(None, rank) for rank in (0, 6)]
    ends = [int(np.flatnonzero(runs[0].events.step == step)[-1]) for step in (0, 2)]
    kept = sum(tensor.bytes for tensor in tensors if tensor.buffer) + sum(itemsize * shard.numel for shard in shards)
    assert [run.live[ends[0]] for run in runs] == [kept, kept]
    states = [sum(2 * shards[index].of_rank(rank).bytes for index in reached) for rank in (0, 6)]
    assert runs[0].live[ends[1]] - runs[1].live[ends[1]] == states[0] - states[1] > 0


def test_no_rank_holds_more_than_the_first(job):
    asked = job(data_parallel_size=7)
    assert asked.ranks(None) == [0, 5, 6]  # 1 to 4 have as many rows as the first
    assert asked.run(None, 0).peak == max(asked.run(None, rank).peak for rank in range(7))


def test_nothing_is_freed_that_does_not_live(job):
    events = job(data_parallel_size=3, gradient_accumulation_steps=2, fsdp={"param_dtype": "bf16"}).run(None, 0).events
    alive = np.zeros(len(events.buffers), dtype=int)
    for kind, buffer in zip(events.kind, events.buffer):
        if kind in (EventType.ALLOCATE, EventType.FREE):
            alive[buffer] += kind
            assert alive[buffer] in (0, 1)


def test_a_key_without_fsdp2_has_the_name_it_always_had():
    plain = key()
    assert "wrapped" not in plain.document()
    assert plain.filename() != replace(plain, wrapped=("LlamaDecoderLayer",)).filename()


@pytest.mark.parametrize("wrap", ["layers", "accelerate"])
def test_units_are_what_accelerate_wraps(monkeypatch, wrap):
    pytest.importorskip("accelerate", "1.15")
    import torch.distributed.fsdp
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    calls = []
    monkeypatch.setattr(torch.distributed.fsdp, "fully_shard", lambda module, **keys: calls.append((module, keys)))
    model = small_llava()
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
                                            transformer_cls_names_to_wrap=list(LAYERS), cpu_ram_efficient_loading=False)
    fsdp2_prepare_model(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin), mixed_precision="no"), model)
    paths = {module: path for path, module in model.named_modules()}
    theirs = [(module[0] if isinstance(module, list) else module, keys.get("reshard_after_forward"))
              for module, keys in calls]
    ours = fsdp.units(model, fsdp.unit_names(Workload(model="m", sequence_length=8, engine="fsdp2", fsdp={
        "wrap": wrap, "transformer_layer_cls_to_wrap": LAYERS})))
    if wrap == "layers":
        theirs = [call for call in theirs if "embed_tokens" not in paths[call[0]] and paths[call[0]] != fsdp_keys.HEAD]
    assert [paths[module] for module in ours] == [paths[module] for module, _ in theirs]
    keys = fsdp_keys.DEFAULTS | {"wrap": wrap}
    assert [fsdp_keys.reshards(keys, paths[module]) for module in ours] == [bool(reshard) for _, reshard in theirs]


def refusal(**keys) -> str:
    with pytest.raises(InputError) as error:
        Workload(**{"model": "m", "sequence_length": 8, "engine": "fsdp2"} | keys)
    return str(error.value)


@pytest.mark.parametrize("keys, message", [
    ({"reshard_after_forward": 2}, "reshard_after_forward 2 is not supported yet: resharding to fewer ranks"),
    ({"cpu_offload": True}, "cpu_offload is not supported yet"), ({"mesh": [2, 4]}, "neither HSDP nor tensor"),
    ({"param_dtype": "fp16"}, '"fp16" is not supported yet: use bf16'), ({"wraps": "x"}, 'no key "wraps"'),
    ({"transformer_layer_cls_to_wrap": []}, "must be a list of names"),
])
def test_what_fully_shard_can_do_besides_is_refused_by_name(keys, message):
    assert message in refusal(fsdp=keys)


@pytest.mark.parametrize("keys, message", [
    ({"gradient_checkpointing_kwargs": {"use_reentrant": True}}, "use_reentrant true, which is not modelled yet"),
    ({"optim": "adafactor"}, "adafactor: it stops at FSDP2's sharded parameters"),
    ({"optim": "adamw_8bit"}, "adamw_8bit: it stops at FSDP2's sharded parameters"),
    ({"versions": {"torch": "2.5.1"}}, "FSDP2 is predicted for 2.6 and later"),
])
def test_what_fsdp2_stops_at_or_was_not_checked_is_refused(keys, message):
    assert message in refusal(**keys)


@pytest.mark.parametrize("names, message", [
    (["LlamaLayer"], "a class that no module of the model has: its own are CLIPEncoderLayer,"),
    (["LlamaDecoderLayer", "LlamaMLP"], "a LlamaMLP is inside a LlamaDecoderLayer"),
])
def test_classes_that_make_no_units_are_refused(names, message):
    with pytest.raises(InputError, match=message):
        fsdp.units(small_llava(), tuple(names))


def test_reductions_that_narrow_gradients_are_refused(job):
    with pytest.raises(InputError, match="reduce_dtype bf16 of fp32 gradients is not modelled yet"):
        job(data_parallel_size=2, recipe="lora", fsdp={"reduce_dtype": "bf16"}).run(None, 0)


@pytest.mark.parametrize("keys", [
    {"dtype": "fp16"}, {"mixed_precision": "bf16", "dtype": "bf16"},
    {"attn_implementation": "flash_attention_2"}, {"recipe": "lora", "quantization": {"load_in_4bit": True}}])
def test_what_was_not_measured_with_fsdp2_is_refused(keys):
    with pytest.raises(InputError, match="fsdp2.*not predicted|not predicted.*fsdp2"):
        compared.check(Workload(model="m", sequence_length=8, engine="fsdp2", **keys))


def test_parameters_of_two_dtypes_in_one_unit_are_refused(job):
    asked = job(data_parallel_size=2, recipe="lora", trainable=("model.language_model.layers.0.input_layernorm",))
    with pytest.raises(InputError, match="layernorm.weight train in different dtypes in one unit"):
        asked.run(None, 0)


def test_weights_in_fp32_beside_a_dtype_of_parameters_are_refused():
    keys = {"dtype": "fp32", "fsdp": {"param_dtype": "bf16"}}
    with pytest.raises(InputError, match="dtype is fp32, which is not predicted with fsdp param_dtype yet"):
        Workload(model="m", sequence_length=8, engine="fsdp2", data_parallel_size=2, **keys).check_predicted()


@given(rows=st.lists(st.integers(1, 100), min_size=1, max_size=5), degree=st.integers(2, 40))
def test_ranks_change_where_the_rows_of_a_shard_do(rows, degree):
    shards = [Shard(0, Parameter("weight", (number, COLUMNS), 2, True, False), 2, degree) for number in rows]
    of_ranks = [[shard.rows_of(rank) for shard in shards] for rank in range(degree)]
    assert [rank for rank in rank_changes(shards) if rank < degree] == [
        rank for rank in range(1, degree) if of_ranks[rank] != of_ranks[rank - 1]]

"""ZeRO-3's gathers, reductions and rejected settings: closed forms of small modules."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from predictor import predict
from predictor.common.errors import InputError
from predictor.engine.tape import Tape
from predictor.engine.zero3 import Zero3
from predictor.engine.zero3_gathers import Gathers
from predictor.engine.zero3_reduction import Reduction
from predictor.engine.zero3_waits import Waits
from predictor.events.events import Factor
from predictor.events.micro_step import Mark
from predictor.events.model_facts import Parameter
from predictor.formula import formula
from predictor.formula.store import Key
from predictor.jobs import dispatch
from predictor.workload.deepspeed_config import ZeroConfig, read
from predictor.workload.workload import Workload
from tests.predictor.formula.test_formula import key, made
from tests.predictor.small import TEXT, small_config, small_llava, traced_at

ROOT, FIRST, SECOND = 0, 1, 2
TENSORS = (Parameter("first.weight", (10, 10), 2, True), Parameter("first.bias", (10,), 2, True),
           Parameter("second.weight", (30, 10), 2, True))
DEGREE = 3


def zero(**changes) -> ZeroConfig:
    """Nothing is gathered ahead, nothing stays, buckets of 100 elements."""
    settings = read(Workload(model="m", sequence_length=8, zero_stage=3), hidden_size=10)
    return replace(settings, **{"prefetch_bucket_size": 0, "max_reuse_distance": 0,
                                "param_persistence_threshold": 0} | changes)


def live(tape: Tape) -> list[int]:
    """Bytes after each event."""
    return np.cumsum([0] + [tape.buffers.sizes[buffer] * kind for kind, buffer in
                            zip(tape.event_types, tape.event_buffers) if abs(kind) == 1]).tolist()


def gathers(persistent=(), degree: int = DEGREE, **changes) -> Gathers:
    tape = Tape()
    return Gathers(tape, TENSORS, {FIRST: [0, 1], SECOND: [2]}, frozenset(persistent), zero(**changes), degree, 0,
                   Waits(tape, several=False))


def forward(state: Gathers) -> list[int]:
    """Bytes inside each module, of a forward and backward of both."""
    state.begin()
    inside = []
    for module, is_forward in ((FIRST, True), (SECOND, True), (SECOND, False), (FIRST, False)):
        state.fetch(module, forward=is_forward)
        inside.append(live(state.tape)[-1])
        state.leave(module, forward=is_forward)
    return inside


def test_parameters_live_from_before_their_module_until_after_it():
    assert forward(gathers()) == [2 * 110, 2 * 300, 2 * 300, 2 * 110]


def test_several_parameters_are_held_twice_while_they_are_copied_out_of_the_flat_buffer():
    state = gathers()
    forward(state)
    padded = DEGREE * (34 + 4)  # each parameter is padded to a multiple of the degree
    assert max(live(state.tape)[:4]) == 2 * (padded + 110)


def test_a_single_rank_gathers_nothing():
    state = gathers(degree=1)
    assert forward(state) == forward(state) == [0, 0, 0, 0]


def test_what_is_soon_used_again_stays_once_the_order_is_known():
    state = gathers(max_reuse_distance=1000)
    assert forward(state) == [220, 600, 600, 220]
    assert forward(state) == [220, 820, 820, 220]


def test_small_parameters_stay_from_the_first_step_that_is_known():
    state = gathers(persistent={1})
    forward(state)
    forward(state)
    assert live(state.tape)[-1] == 2 * 10


def test_the_next_module_is_gathered_ahead_once_the_order_is_known():
    state = gathers(prefetch_bucket_size=1)
    forward(state)
    assert forward(state)[0] == 2 * 110 + 2 * 300


def test_live_parameters_bound_what_is_gathered_ahead():
    state = gathers(prefetch_bucket_size=1, max_live_parameters=110)
    forward(state)
    assert forward(state)[0] == 2 * 110


def test_a_saved_tensor_keeps_a_storage_beyond_its_release():
    state = gathers()
    state.begin()
    state.fetch(SECOND, forward=True)
    state.hold(2)
    state.leave(SECOND, forward=True)
    held = live(state.tape)[-1]
    state.let_go(2)
    assert (held, live(state.tape)[-1]) == (600, 0)


def reduced(gradients: list[int], **changes) -> tuple[int, int]:
    """Highest and last bytes of a micro-step's gradients, each of which is made just before it is ready."""
    tape = Tape()
    setup = SimpleNamespace(deepspeed=zero(**changes), data_parallel_size=DEGREE, gpu=None)
    reduction = Reduction(tape, TENSORS, setup, 0, Waits(tape, several=False), last=True)
    for parameter in gradients:
        reduction.add(parameter, tape.allocate(TENSORS[parameter].bytes, Factor.GRADIENTS, "made"))
    reduction.reduce()
    return max(live(tape)), live(tape)[-1]


def test_gradients_in_a_bucket_are_concatenated_with_padding_to_be_reduced():
    pads = 2 * (2 + 2)  # of 100 and of 10 elements, to multiples of 3
    assert reduced([1, 0], reduce_bucket_size=1000) == (2 * (DEGREE * (34 + 4)) + pads, 0)


def test_a_gradient_larger_than_the_bucket_is_reduced_in_place_where_it_divides_evenly():
    assert reduced([2], reduce_bucket_size=100) == (600, 0)


@pytest.mark.parametrize("zero_optimization", [
    {}, {"overlap_comm": True}, {"stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0},
    {"offload_optimizer": {"device": "cpu"}}, {"offload_param": {"device": "cpu"}, "overlap_comm": True}])
@pytest.mark.parametrize("accumulation, degree", [(1, 4), (2, 4), (3, 1)])
def test_the_third_step_is_the_second_with_other_buffers(monkeypatch, zero_optimization, accumulation, degree):
    """Its events are repeated where the same is left to both; simulated step by step, they are the same."""
    config = {"zero_optimization": {"stage": 3, **zero_optimization}, "bf16": {"enabled": True}}
    job = dispatch.prepare(Workload(model="llava-1.5-7b", per_device_train_batch_size=2, sequence_length=1024,
                                    deepspeed=config, data_parallel_size=degree,
                                    gradient_accumulation_steps=accumulation))
    repeats = []
    monkeypatch.setattr(Tape, "repeat", lambda *given, repeat=Tape.repeat, **more: repeats.append(repeat(*given, **more)))
    repeated = Zero3(job.micro, job.setup).events
    assert len(repeats) == 1
    monkeypatch.setattr(Gathers, "left", lambda self: object())
    simulated = Zero3(job.micro, job.setup).events
    assert len(repeats) == 1 and repeated.names == simulated.names
    for one, other in ((repeated, simulated), (repeated.buffers, simulated.buffers)):
        assert all(np.array_equal(column, getattr(other, name)) for name, column in vars(one).items()
                   if isinstance(column, np.ndarray))


def test_autos_follow_the_width_as_hugging_face_fills_them():
    document = {"bf16": {"enabled": "auto"}, "zero_optimization": {
        "stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto"}}
    found = read(Workload(model="m", sequence_length=8, deepspeed=document), hidden_size=11)
    assert (found.reduce_bucket_size, found.prefetch_bucket_size, found.param_persistence_threshold) == (121, 108, 110)


def test_communication_overlaps_in_stage_3_unless_a_config_says_otherwise():
    document = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3, "prefetch_bucket_size": 7}}
    found = read(Workload(model="m", sequence_length=8, deepspeed=document), hidden_size=11)
    assert found.overlap_comm and found.prefetch_bucket_size == 7
    assert not read(Workload(model="m", sequence_length=8, zero_stage=3), hidden_size=11).overlap_comm


def test_a_key_that_is_not_sharded_has_the_name_it_always_had():
    plain = key()
    assert "sharded" not in plain.document()
    assert plain.filename() != replace(plain, sharded=True).filename()
    assert Key(**{**plain.document(), "regime": plain.regime}).filename() == plain.filename()


def test_marks_survive_the_file(tmp_path):
    plain = made(key())
    marks = np.array([[0, Mark.ENTER, 0], [1, Mark.HOLD, 0]], dtype=np.int32)
    micro = replace(plain.micro, marks=marks, owners=np.array([[0, 0]], dtype=np.int32))
    path = tmp_path / "sharded.npz"
    path.write_bytes(formula.to_bytes(replace(plain, micro=micro)))
    found = formula.load(path).micro
    assert found.marks.tolist() == marks.tolist() and found.owners.tolist() == [[0, 0]]


def test_a_mark_of_a_row_that_is_not_there_is_no_formula(tmp_path):
    plain = made(key())
    micro = replace(plain.micro, marks=np.array([[0, Mark.READY, 10_000]], dtype=np.int32),
                    owners=np.array([[0, 0]], dtype=np.int32))
    path = tmp_path / "broken.npz"
    path.write_bytes(formula.to_bytes(replace(plain, micro=micro)))
    with pytest.raises(InputError, match="not a formula file"):
        formula.load(path)


def test_a_sharded_trace_marks_each_gradient_and_leaves_the_model_as_it_was():
    from predictor.events.sizes import Shape
    from predictor.trace.trace import Loop

    model = small_llava()
    shapes = [parameter.shape for parameter in model.parameters()]
    recording = traced_at(model, Shape(1, 12, 1), padding="none", sdpa_backend="cudnn", loop=Loop(sharded=True))
    ready = [index for _, kind, index in recording.marks if kind == Mark.READY]
    assert ready == list(range(len(recording.gradients)))
    assert {parameter for _, parameter in recording.owners} == set(range(len(shapes)))
    assert [parameter.shape for parameter in model.parameters()] == shapes


REFUSED = [
    ({"zero_optimization": {"stage": 3, "memory_efficient_linear": False}}, "memory_efficient_linear False"),
    ({"zero_optimization": {"stage": 3, "stage3_module_granularity_threshold": 5}}, "module_granularity_threshold 5"),
    ({"zero_optimization": {"stage": 3, "use_all_reduce_for_fetch_params": True}}, "use_all_reduce_for_fetch_params"),
    ({"zero_optimization": {"stage": 3}, "data_types": {"grad_accum_dtype": "fp32"}}, "grad_accum_dtype fp32"),
    ({"zero_optimization": {"stage": 3}, "communication_data_type": "fp32"}, "communication_data_type"),
    ({"zero_optimization": {"stage": 3, "reduce_scatter": False}}, "reduce_scatter false is not modelled"),
]


@pytest.mark.parametrize("document, message", REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_not_modelled_is_named(tmp_path, document, message):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small_config(intermediate_size=TEXT["intermediate_size"])))
    with pytest.raises(InputError, match=message):
        predict(Workload(model=str(path), sequence_length=40, data_parallel_size=3, profile="none",
                         deepspeed={"bf16": {"enabled": True}} | document))


def test_earlier_releases_are_named(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(small_config()))
    with pytest.raises(InputError, match="predicted for DeepSpeed 0.14.4 and later, not 0.14.3"):
        predict(Workload(model=str(path), sequence_length=40, zero_stage=3, profile="none",
                         versions={"deepspeed": "0.14.3"}))

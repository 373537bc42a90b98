"""DeepSpeed configs are read as DeepSpeed and Hugging Face read them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.common.errors import InputError
from predictor.workload.deepspeed_config import read
from predictor.workload.deepspeed_keys import known
from predictor.workload.workload import Workload

HIDDEN = 4096
BF16 = {"bf16": {"enabled": True}}
LLAVA_ZERO2 = {  # haotian-liu/LLaVA scripts/zero2.json
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
             "min_loss_scale": 1},
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 2, "overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 1e9,
                          "reduce_bucket_size": "auto"},
}


def config(zero=(), **rest):
    return BF16 | {"zero_optimization": {"stage": 2} | dict(zero)} | rest


def make(document, **keys) -> Workload:
    return Workload(**({"model": "m", "sequence_length": 1024, "deepspeed": document} | keys))


def zero(document, **keys):
    return read(make(document, **keys), HIDDEN)


def error_of(document, **keys) -> str:
    with pytest.raises(InputError) as caught:
        make(document, **keys)
    return str(caught.value)


def test_the_short_form_is_hugging_faces_auto():
    short = read(Workload(model="m", sequence_length=9, zero_stage=2, max_grad_norm=0.3), HIDDEN)
    assert (short.stage, short.contiguous_gradients, short.overlap_comm) == (2, True, False)
    assert (short.reduce_bucket_size, short.gradient_clipping) == (HIDDEN**2, 0.3)
    assert (short.check_grad_overflow, short.compute_grad_norm, short.dtype) == (True, True, "bf16")
    assert (short.version, short.notes) == ((0, 19, 8), ())


def test_llavas_zero2_json():
    settings = zero(LLAVA_ZERO2, per_device_train_batch_size=16, gradient_accumulation_steps=2)
    assert (settings.overlap_comm, settings.reduce_bucket_size, settings.allgather_bucket_size) == (
        True, HIDDEN**2, 500_000_000)
    assert (settings.train_micro_batch_size_per_gpu, settings.gradient_accumulation_steps) == (16, 2)


@pytest.mark.parametrize("sections, keys, dtype", [
    ({"fp16": {"enabled": True, "loss_scale": 0}}, {}, "fp16"),
    ({"bf16": {"enabled": False}, "fp16": {"enabled": False}}, {}, "fp32"),
    ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, {}, "bf16"),
    ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, {"dtype": "fp16"}, "fp16"),
    ({}, {"dtype": "fp32"}, "fp32"),
])
def test_the_sections_settle_the_dtype_or_ours_does(sections, keys, dtype):
    settings = zero({"zero_optimization": {"stage": 2}} | sections, **keys)
    assert (settings.dtype, settings.grad_accum_dtype, settings.communication_data_type) == (dtype, dtype, dtype)
    assert settings.check_grad_overflow == (dtype != "fp32")


def test_a_bucket_that_is_absent_has_deepspeeds_default_and_not_hugging_faces():
    assert zero(config()).reduce_bucket_size == 500_000_000


def test_a_bucket_may_be_written_as_a_float():
    assert zero(config({"reduce_bucket_size": 2e8})).reduce_bucket_size == 200_000_000


def test_auto_is_deepspeeds_default_where_hugging_face_fills_nothing_in():
    settings = zero(config({"overlap_comm": "auto", "allgather_bucket_size": "auto"}))
    assert (settings.overlap_comm, settings.allgather_bucket_size) == (False, 500_000_000)


@pytest.mark.parametrize("release, clipping, overflow", [
    ("0.13.2", 0.0, False), ("0.19.2", 0.0, False), ("0.19.3", 1.0, True), ("0.19.8", 1.0, True), ("0.20.0.dev1", 1.0, True),
])
def test_defaults_follow_the_release(release, clipping, overflow):
    settings = zero(config(), versions={"deepspeed": release})
    assert (settings.gradient_clipping, settings.check_grad_overflow) == (clipping, overflow)


def test_clipping_is_ours_when_the_config_says_auto_or_only_we_say_something():
    assert zero(config(gradient_clipping="auto"), max_grad_norm=0.5).gradient_clipping == 0.5
    assert zero(config(), max_grad_norm=0.5).gradient_clipping == 0.5
    assert zero(config(gradient_clipping=0.7)).gradient_clipping == 0.7


def test_fp32_accumulation_is_real_since_0_19_8():
    document = config(data_types={"grad_accum_dtype": "fp32"})
    assert zero(document).grad_accum_dtype == "fp32"
    older = zero(document, versions={"deepspeed": "0.19.5"})
    assert older.grad_accum_dtype == "bf16" and "no effect" in older.notes[0]


def test_memory_breakdown_is_noted():
    assert "too low" in zero(config(memory_breakdown=True)).notes[0]


def test_what_the_config_says_becomes_the_workloads():
    workload = make(config(train_micro_batch_size_per_gpu=4, gradient_accumulation_steps=3, gradient_clipping=0.5,
                           optimizer={"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}}))
    assert (workload.per_device_train_batch_size, workload.gradient_accumulation_steps) == (4, 3)
    assert (workload.max_grad_norm, workload.optim) == (0.5, "adamw_torch")
    assert not {"per_device_train_batch_size", "optim", "zero_stage"} & set(workload.filled_in)


@pytest.mark.parametrize("params, optim", [
    ({}, "adamw_torch_fused"), ({"torch_adam": True}, "adamw_torch"),
    ({"torch_adam": True, "foreach": False}, "adamw_torch_forloop"),
])
def test_the_optimizer_section_has_the_memory_of_one_of_our_optims(params, optim):
    assert make(config(optimizer={"type": "AdamW", "params": params})).optim == optim


@pytest.mark.parametrize("rest, keys, expected", [
    ({"train_batch_size": 64}, {}, (16, 1)),
    ({"train_batch_size": 64}, {"gradient_accumulation_steps": 2}, (8, 2)),
    ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}, {}, (4, 4)),
    ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto"}, {"per_device_train_batch_size": 8}, (8, 2)),
])
def test_the_batch_is_worked_out_as_deepspeed_does(rest, keys, expected):
    workload = make(config(**rest), data_parallel_size=4, **keys)
    assert (workload.per_device_train_batch_size, workload.gradient_accumulation_steps) == expected


@pytest.mark.parametrize("document, keys, message", [
    (config(train_batch_size=100), {"per_device_train_batch_size": 16, "data_parallel_size": 4},
     "deepspeed: train_batch_size is 100, but 16 samples a GPU x 1 accumulation steps x data_parallel_size 4 is 64"),
    (config(train_micro_batch_size_per_gpu=4), {"per_device_train_batch_size": 8},
     "per_device_train_batch_size is 8, but deepspeed has train_micro_batch_size_per_gpu 4: leave one of them out"),
    (config(gradient_accumulation_steps=4), {"gradient_accumulation_steps": 8}, "gradient_accumulation_steps is 8, but"),
    (config(gradient_clipping=1.0), {"max_grad_norm": 0.5}, "max_grad_norm is 0.5, but deepspeed has gradient_clipping 1.0"),
    (config(optimizer={"type": "AdamW"}), {"optim": "adamw_torch"}, "optim is adamw_torch, but deepspeed has optimizer"),
    (config() | {"fp16": {"enabled": True}}, {}, "deepspeed: bf16.enabled and fp16.enabled are both true: keep one"),
    (config(), {"dtype": "fp16"}, "dtype is fp16, but deepspeed has dtype bf16: leave one of them out"),
    ({"zero_optimization": {"stage": 2}, "bf16": {"enabled": False}}, {"dtype": "bf16"},
     "dtype is bf16, but deepspeed has bf16.enabled false: leave one of them out"),
    (config(data_types={"param_dtype": "fp32"}), {}, "deepspeed: data_types.param_dtype is fp32, but dtype is bf16"),
    (config(torch_autocast={"enabled": True}), {}, "deepspeed: torch_autocast is not supported"),
    (config() | {"fp16": {"fp16_master_weights_and_grads": True}}, {},
     "deepspeed: fp16.fp16_master_weights_and_grads is not supported"),
    ({"zero_optimization": {"stage": 2}}, {}, 'deepspeed: bf16.enabled is not true: add "bf16": {"enabled": true}'),
    (BF16, {}, "deepspeed: zero_optimization.stage is not given"),
    (config({"stage": 4}), {}, "deepspeed: zero_optimization.stage must be one of 0, 1, 2, 3, not 4"),
    (config({"stage": 0}, optimizer={"type": "AdamW"}), {}, "deepspeed: the optimizer section makes DeepSpeed's FusedAdam"),
    (config({"zero_quantized_gradients": True}), {}, "deepspeed: zero_optimization.zero_quantized_gradients is not"),
    (config(activation_checkpointing={"partition_activations": True}), {}, "deepspeed: activation_checkpointing is not"),
    (config(torch_autocast={"enabled": True}), {}, "deepspeed: torch_autocast is not supported"),
    (config(compile={"deepcompile": True}), {}, "deepspeed: compile is not supported"),
    (config(sequence_parallel_size=2), {}, "deepspeed: sequence_parallel_size is not supported"),
    (config(amp={"enabled": True}), {}, "deepspeed: amp is not supported: DeepSpeed has dropped it; remove it"),
    (config() | {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, {},
     "deepspeed: bf16.bf16_master_weights_and_grads is not supported"),
    (config({"reduce_bucket_sise": 1}), {},
     'deepspeed: DeepSpeed has no key "zero_optimization.reduce_bucket_sise" (did you mean "reduce_bucket_size"?)'),
    (config(zero_optimisation={}), {}, 'deepspeed: DeepSpeed has no key "zero_optimisation" (did you mean'),
    (config({"reduce_bucket_size": 0}), {}, "deepspeed: zero_optimization.reduce_bucket_size must be at least 1, not 0"),
    (config({"overlap_comm": "yes"}), {}, 'deepspeed: zero_optimization.overlap_comm must be true or false, not "yes"'),
    (config(communication_data_type="int8"), {}, "deepspeed: communication_data_type must be one of bf16, fp16, fp32"),
    (config(optimizer={"type": "Lamb"}), {}, 'deepspeed: optimizer.type "Lamb" is not supported yet: AdamW and Adam are'),
    (config({"compute_grad_norm": False}), {},
     "deepspeed: zero_optimization.compute_grad_norm false needs gradient_clipping 0, not 1"),
    (config({"parameter_alignment": True}), {"versions": {"deepspeed": "0.18.5"}},
     "deepspeed: zero_optimization.parameter_alignment exists since DeepSpeed 0.19.7, and versions.deepspeed is 0.18.5"),
    (config() | {"bf16": 3}, {}, "deepspeed: bf16 must be a mapping of keys to values, not 3"),
    (config(), {"engine": "torch"}, "engine is torch, but deepspeed is given: leave one of them out"),
])
def test_a_config_that_cannot_be_meant_is_one_line(document, keys, message):
    assert error_of(document, **keys).startswith(message)


def test_the_stage_must_be_the_same_in_both_places():
    assert make(config(), zero_stage=2).zero_stage == 2


@pytest.mark.parametrize("document", [
    config({"offload_optimizer": {"device": "none"}, "cpu_offload": False, "mics_shard_size": -1, "stage3_max_live_parameters": 1e9}),
    config(activation_checkpointing={"partition_activations": False, "number_checkpoints": 4}),
    config(amp={"enabled": False}, sequence_parallel_size=1, wall_clock_breakdown=True, steps_per_print=2000),
    config(scheduler={"type": "WarmupLR"}, zero_allow_untested_optimizer=True, data_types={"keep_in_fp32_modules": "auto"}),
    config({"compute_grad_norm": False}, gradient_clipping=0),
])
def test_options_without_effect_on_memory_pass(document):
    assert zero(document).stage == 2


def test_messages_name_the_file(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config({"stage": 4})))
    assert error_of(str(path)).startswith(f"{path}: zero_optimization.stage must be one of")


def test_the_file_is_read_once(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(LLAVA_ZERO2))
    workload = make(str(path))
    path.unlink()
    assert workload.replace(data_parallel_size=2).resolved()["deepspeed"] == LLAVA_ZERO2


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["auto", "none", "x", "fp32"]) | st.just({})


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(known("")) | st.text(max_size=5),
                       VALUES | st.dictionaries(st.sampled_from(known("zero_optimization")), VALUES, max_size=3), max_size=4),
       st.dictionaries(st.sampled_from(known("zero_optimization")), VALUES, max_size=3))
def test_any_config_is_settings_or_one_line(rest, zero_keys):
    document = BF16 | {"zero_optimization": {"stage": 2} | zero_keys} | rest
    try:
        zero(document)
    except InputError as error:
        assert str(error).isprintable()

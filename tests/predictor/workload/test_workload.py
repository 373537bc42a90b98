"""A workload checks every key, fills in every default, and lists the defaults."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.common.errors import InputError
from predictor.workload.keys import KEYS
from predictor.workload.modes import INFERENCE_KEYS
from predictor.workload.workload import Workload

ENOUGH = {"model": "llava-1.5-7b", "sequence_length": 1024}


def make(**keys) -> Workload:
    return Workload(**(ENOUGH | keys))


def error_of(**keys) -> str:
    with pytest.raises(InputError) as caught:
        make(**keys)
    return str(caught.value)


def test_the_documented_defaults():
    workload = make()
    assert workload.resolved() == ENOUGH | {
        "mode": "training", "recipe": "finetune", "trainable": [], "frozen": [], "lora": None, "quantization": None,
        "per_device_train_batch_size": 1, "images_per_sample": None, "image_size": None, "video_frames": None, "padding": "none", "per_device_eval_batch_size": None,
        "gradient_accumulation_steps": 1,
        "dtype": "bf16", "mixed_precision": "none", "attn_implementation": "sdpa", "sdpa_backend": "auto",
        "gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}, "no_grad": [], "gradient_checkpointing_modules": [], "use_liger_kernel": False, "neftune_noise_alpha": None, "torch_compile": None,
        "optim": "adamw_torch_fused", "optim_args": {}, "weight_decay": 0.0, "param_groups": "huggingface", "max_grad_norm": 1.0,
        "keep_outputs": "none", "zero_grad": "after_step",
        "engine": "torch", "deepspeed": None, "zero_stage": None, "ddp": None, "fsdp": None, "fsdp1": None, "offload": None, "data_parallel_size": 1,
        "tensor_parallel_size": 1, "rank": "worst",
        "gpu": None, "capacity_bytes": None, "allocator_conf": None, "profile": None,
        "versions": {"torch": "2.11.0", "transformers": "5.17.0", "deepspeed": "0.19.8"},
    }


def test_filled_in_names_exactly_the_keys_that_were_not_given():
    workload = make(recipe="finetune", max_grad_norm=1.0)
    assert set(workload.filled_in) == set(KEYS) - {"model", "sequence_length", "recipe", "max_grad_norm", *INFERENCE_KEYS}


def test_none_means_not_given():
    assert make(recipe=None, gpu=None) == make()
    assert "recipe" in make(recipe=None).filled_in


def test_a_resolved_workload_is_a_valid_workload_again():
    workload = make(zero_stage=2, data_parallel_size=8, gpu="H100", trainable=["*.norm"], rank=7)
    assert Workload.from_mapping(workload.resolved()) == workload


def test_equal_workloads_hash_equal_whatever_was_written_out():
    assert hash(make()) == hash(make(recipe="finetune")) and make() == make(recipe="finetune")
    assert make() != make(recipe="full")


def test_replace_keeps_what_was_given():
    changed = make(recipe="full").replace(per_device_train_batch_size=4)
    assert (changed.recipe, changed.per_device_train_batch_size) == ("full", 4)
    assert "recipe" not in changed.filled_in and "optim" in changed.filled_in


def test_replace_checks_too():
    with pytest.raises(InputError, match="at least 1, not 0"):
        make().replace(per_device_train_batch_size=0)


def test_fill_settles_open_keys_and_leaves_given_ones():
    filled = make(images_per_sample=3).fill(images_per_sample=1, image_size=336)
    assert (filled.images_per_sample, filled.image_size) == (3, 336)
    assert "image_size" in filled.filled_in and "images_per_sample" not in filled.filled_in
    assert filled.replace(recipe="full").image_size is None


@pytest.mark.parametrize("key", ["zero_stage", "deepspeed"])
def test_a_deepspeed_key_makes_deepspeed_the_engine(key):
    config = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    workload = make(**{key: 2 if key == "zero_stage" else config})
    assert workload.engine == "deepspeed" and workload.zero_stage == 2


def test_bytes_are_written_with_a_unit_or_as_a_number():
    assert make(capacity_bytes="80GiB").capacity_bytes == make(capacity_bytes=80 << 30).capacity_bytes == 80 << 30
    assert make(capacity_bytes="79.5 gib").capacity_bytes == 159 << 29
    assert make(capacity_bytes="80GB").capacity_bytes == 80 * 10**9


@pytest.mark.parametrize("given, said, sizes", [
    (336, 336, ((336, 336),)), ("336x336", 336, ((336, 336),)), ("768X1024", "768x1024", ((768, 1024),)),
    ([448, "1344x896"], "448,1344x896", ((448, 448), (1344, 896))), ("448, 448x448", 448, ((448, 448),)),
    ("448,336,448", "448,336,448", ((448, 448), (336, 336), (448, 448))), (None, None, ()),
])
def test_pictures_have_one_size_or_several_in_turn(given, said, sizes):
    workload = make(image_size=given)
    assert (workload.image_size, workload.image_sizes) == (said, sizes)
    assert workload.replace(image_size=said).image_sizes == sizes


@pytest.mark.parametrize("given", [0, "0x5", "1x2x3", [], "", "448,", "448;336", [[448]], 448.5])
def test_a_size_that_is_none_is_refused(given):
    with pytest.raises(InputError, match="image_size must be"):
        make(image_size=given)


def test_capacity_is_the_gpus_unless_it_is_given():
    assert make(gpu="a100-40gb").capacity == 42_298_834_944
    assert make(gpu="a100-40gb", capacity_bytes="10GiB").capacity == 10 << 30
    assert make().capacity is None


def test_other_spellings_become_ours():
    workload = make(dtype="bfloat16", gpu="NVIDIA_H100_80GB", trainable="*.lora")
    assert (workload.dtype, workload.gpu, workload.trainable) == ("bf16", "h100-80gb", ("*.lora",))


@pytest.mark.parametrize("keys, message", [
    ({"model": None}, "model is not given: name one, such as llava-1.5-7b"),
    ({"per_device_train_batch_size": 0}, "per_device_train_batch_size must be at least 1, not 0"),
    ({"per_device_train_batch_size": -3}, "per_device_train_batch_size must be at least 1, not -3"),
    ({"per_device_train_batch_size": True}, "per_device_train_batch_size must be a whole number, not True"),
    ({"per_device_train_batch_size": "16"}, 'per_device_train_batch_size must be a whole number, not "16"'),
    ({"per_device_train_batch_size": 16.0}, "per_device_train_batch_size must be a whole number, not 16.0"),
    ({"sequence_length": 10**9}, "sequence_length must be at most 4,194,304, not 1000000000"),
    ({"max_grad_norm": math.nan}, "max_grad_norm must be a finite number of at least 0, not nan"),
    ({"max_grad_norm": -1}, "max_grad_norm must be a finite number of at least 0, not -1"),
    ({"max_grad_norm": 10**400}, "max_grad_norm must be a finite number of at least 0"),
    ({"gradient_checkpointing": 1}, "gradient_checkpointing must be true or false, not 1"),
    ({"recipe": "finetun"}, 'recipe must be one of finetune, pretrain, lora, full, not "finetun" (did you mean "finetune"?)'),
    ({"model": ""}, 'model must be text that is not empty, not ""'),
    ({"model": "a\nb"}, r'model holds a character that cannot be printed: "a\x0ab"'),
    ({"gradient_checkpointing_kwargs": {"use_reentrent": True}},
     'gradient_checkpointing_kwargs has no key "use_reentrent" (did you mean "use_reentrant"?): known are use_reentrant'),
    ({"versions": {"torch": "new"}}, 'versions torch must be a version such as "0.19.8", not "new"'),
    ({"capacity_bytes": 80}, "capacity_bytes must be at least 1,048,576, not 80: write a unit, such as 80GiB"),
    ({"capacity_bytes": "lots"}, 'capacity_bytes must be a size such as 80GiB, not "lots"'),
    ({"trainable": [3]}, "trainable must be text that is not empty, not 3"),
])
def test_a_senseless_value_is_one_clear_line(keys, message):
    assert error_of(**keys).startswith(message)


@pytest.mark.parametrize("keys, message", [
    ({"optim": "sgd", "optim_args": "momentum"}, 'optim_args must be KEY=VALUE, with commas between several, not "momentum"'),
    ({"optim": "sgd", "optim_args": "momentun=0.9"}, 'optim_args has "momentun", which optim sgd does not read (did you mean "momentum"?): '
                                                     "it reads momentum, dampening, nesterov"),
    ({"optim": "sgd", "optim_args": "momentum=much"}, 'optim_args momentum must be a number, not "much"'),
    ({"optim": "sgd", "optim_args": {"nesterov": True}}, "optim_args nesterov needs a momentum above 0 and no dampening"),
    ({"optim_args": "momentum=0.9"}, 'optim_args has "momentum", which optim adamw_torch_fused does not read: it reads none'),
    ({"optim": "rmsprop_bnb"}, "optim is rmsprop_bnb: bitsandbytes has no 32-bit RMSprop for bf16 gradients"),
    ({"optim": "adagrad", "zero_stage": 2}, "optim is adagrad: DeepSpeed makes Adagrad anew with all partitions in one group"),
])
def test_what_an_optimizer_does_not_take_is_refused(keys, message):
    assert error_of(**keys).startswith(message)


def test_arguments_of_an_optimizer_are_given_as_hugging_face_takes_them():
    given = make(optim="sgd", optim_args="momentum=0.9, nesterov=true")
    assert given.optim_args == {"momentum": 0.9, "nesterov": True} == given.replace(weight_decay=0.1).optim_args


@pytest.mark.parametrize("keys, named", [
    ({"mixed_precision": "autocast"}, "autocast"), ({"attn_implementation": "flash_attention_3"}, "flash_attention_3"),
    ({"torch_compile": True}, "torch_compile"), ({"engine": "fsdp"}, "fsdp"),
    ({"optim": "ademamix"}, "ademamix"), ({"optim": "galore_adamw"}, "galore_adamw"),
])
def test_what_is_not_supported_yet_is_refused_by_name(keys, named):
    message = error_of(**keys)
    assert named in message and "not supported yet: " in message


@pytest.mark.parametrize("keys", [{"torch_compile": False}, {"offload": "none"}, {"lora": False}])
def test_switching_off_what_is_not_supported_is_fine(keys):
    assert make(**keys) == make()


@pytest.mark.parametrize("keys, message", [
    ({"rank": 8, "data_parallel_size": 8, "zero_stage": 2}, "rank is 8, but data_parallel_size 8 has the ranks 0 to 7"),
    ({"rank": -1}, 'rank must be "worst" or the number of a rank: must be at least 0, not -1'),
    ({"data_parallel_size": 0}, "data_parallel_size must be at least 1, not 0"),
    ({"data_parallel_size": 65_537}, "data_parallel_size must be at most 65,536, not 65537"),
    ({"data_parallel_size": 2}, "data_parallel_size above 1 needs an engine: add zero_stage 2 or engine ddp"),
    ({"engine": "torch", "zero_stage": 2}, "engine is torch, but zero_stage is given: leave one of them out"),
    ({"ddp": {"bucket_cap_mb": 50}}, "ddp is given, but engine is not ddp: add engine ddp"),
    ({"engine": "ddp", "ddp": {"bucket_cap_mb": 0}}, "ddp has bucket_cap_mb 0: give the MiB of a bucket"),
    ({"engine": "ddp", "ddp": {"static_graph": True}}, "ddp static_graph is not supported yet"),
    ({"fsdp": {"param_dtype": "bf16"}}, "fsdp is given, but engine is not fsdp2: add engine fsdp2"),
    ({"engine": "deepspeed"},
     "engine is deepspeed, but neither deepspeed nor zero_stage is given: add zero_stage 2"),
    ({"attn_implementation": "eager", "sdpa_backend": "flash"},
     "sdpa_backend is flash, which attn_implementation eager does not use"),
    ({"mixed_precision": "fp16", "dtype": "fp16"},
     "dtype is fp16, but mixed_precision fp16 needs fp32 weights: leave one of them out"),
    ({"mixed_precision": "fp16", "zero_stage": 2},
     "mixed_precision is fp16, but DeepSpeed trains without autocast: leave it out and give dtype fp16"),
    ({"dtype": "fp32", "sdpa_backend": "flash"}, "sdpa_backend is flash, whose kernels do not support fp32: leave it out"),
    ({"optim": "rmsprop_bnb"}, "optim is rmsprop_bnb: bitsandbytes has no 32-bit RMSprop for bf16 gradients"),
    ({"per_device_train_batch_size": 65_536, "sequence_length": 65_536}, "sequence_length x per_device_train_batch_size is"),
    ({"zero_stage": 2, "versions": {"deepspeed": "0.12.6"}}, "versions names DeepSpeed 0.12.6: 0.13.2 or later is predicted"),
])
def test_keys_that_contradict_each_other(keys, message):
    assert error_of(**keys).startswith(message)


@pytest.mark.parametrize("keys, weights, products", [
    ({}, "bf16", "bf16"), ({"dtype": "float16"}, "fp16", "fp16"), ({"mixed_precision": "bf16"}, "fp32", "bf16"),
    ({"mixed_precision": "bf16", "dtype": "bf16"}, "bf16", "bf16"),
    ({"mixed_precision": "float16", "dtype": "fp32"}, "fp32", "fp16"), ({"dtype": "fp32"}, "fp32", "fp32"),
])
def test_mixed_precision_goes_over_fp32_weights_unless_they_are_said_to_be_bf16(keys, weights, products):
    workload = make(**keys)
    assert (workload.dtype, workload.computes_in) == (weights, products)


@pytest.mark.parametrize("wrong, right", [
    ("batch_size", "per_device_train_batch_size"), ("sequence_lenght", "sequence_length"), ("cutoff_len", "sequence_length"),
    ("num_gpus", "data_parallel_size"), ("zero-stage", "zero_stage"),
])
def test_an_unknown_key_names_the_nearest(wrong, right):
    with pytest.raises(InputError) as caught:
        Workload.from_mapping(ENOUGH | {wrong: 1}, source="job.yaml")
    assert str(caught.value) == f'job.yaml: unknown key "{wrong}" (did you mean "{right}"?)'


def test_a_message_says_which_file_is_wrong():
    with pytest.raises(InputError, match="^job.yaml: sequence_length must be at least 1, not 0$"):
        Workload.from_mapping(ENOUGH | {"sequence_length": 0}, source="job.yaml")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["none", "auto", "fp16", "80GiB"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=6)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(KEYS)) | st.text(max_size=10), JSON, max_size=5), st.booleans())
def test_any_mapping_is_a_workload_or_one_line(mapping, enough):
    mapping = (ENOUGH if enough else {}) | mapping
    try:
        workload = Workload.from_mapping(mapping)
    except InputError as error:
        assert str(error).isprintable() and len(str(error)) < 1000
    else:
        assert Workload.from_mapping(workload.resolved()) == workload

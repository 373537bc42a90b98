"""Maximum load of training: the largest batch and the longest sequence that fit."""

from __future__ import annotations

import json

import numpy as np
import pytest

from predictor.answer import training_load
from predictor.answer.predict import predict
from predictor.common.errors import InputError
from predictor.jobs import dispatch
from predictor.plan import plan
from predictor.report.maximum_load import sentences
from predictor.workload.engines import name_of
from predictor.workload.samples import Samples
from predictor.workload.value_sources import Note, Source
from predictor.workload.workload import Workload
from tests.predictor.outside import outside_bytes
from tests.predictor.samples import prediction
from tests.predictor.small import small_config
from tests.predictor.small_models import IMAGE, IMAGE_TEXT, TEXT

pytestmark = pytest.mark.usefixtures("formula_cache")

BATCH, LENGTH = "per_device_train_batch_size", "sequence_length"
EXPANDABLE = "expandable_segments:True"
LLAVA = {"model": "llava-1.5-7b", "sequence_length": 1024, "data_parallel_size": 4, "gpu": "h100-80gb"}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Writes a configuration, and returns a workload of it on a GPU with this much for PyTorch."""
    def made(document: dict, mib: int, **keys) -> Workload:
        path = tmp_path_factory.mktemp("model") / "config.json"
        path.write_text(json.dumps(document))
        return with_memory(Workload(**{"model": str(path), "gpu": "h100-80gb", "profile": "none", LENGTH: 64} | keys), mib)

    return made


def with_memory(workload: Workload, mib: int) -> Workload:
    """The workload on a GPU that surely leaves so much for PyTorch."""
    engine = name_of(workload.engine, workload.zero_stage)
    return workload.replace(capacity_bytes=(mib << 20) + outside_bytes(engine, workload.data_parallel_size))


def fits(workload: Workload, **keys) -> bool:
    return predict(workload.replace(**keys)).verdict == "fits"


def check(workload: Workload) -> training_load.MaximumLoad:
    """What is found fits, and the next larger does not."""
    found = predict(workload, maximum_load=True).maximum_load
    conf = found.per_device_train_batch_size_expandable and workload.replace(allocator_conf=EXPANDABLE)
    for where, key, most in ((workload, BATCH, found.per_device_train_batch_size), (workload, LENGTH, found.sequence_length),
                             (conf, BATCH, found.per_device_train_batch_size_expandable)):
        if most:
            assert fits(where, **{key: most}) and not fits(where, **{key: most + 1})
    assert not [line for line in found.search_limits if "positions" not in line and "not all tried" not in line]
    return found


@pytest.mark.parametrize("keys", [
    {"zero_stage": 2}, {"zero_stage": 1, "per_device_train_batch_size": 64, "gpu": "a100-80gb"},
    {"engine": "ddp", "data_parallel_size": 2},
    {"zero_stage": 2, "rank": 3, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
], ids=["zero2", "zero1-too-large", "ddp", "rank-and-accumulation"])
def test_what_is_found_fits_and_the_next_larger_does_not(keys):
    found = check(Workload(**LLAVA | keys))
    assert found.per_device_train_batch_size > 1 and found.sequence_length > 600


@pytest.mark.parametrize("keys", [
    {"zero_stage": 2, "offload": "none", "optim": "adamw_torch_fused"},
    {"zero_stage": 1, "data_parallel_size": 8, "gpu": "h100-80gb", "offload": "none", "gradient_checkpointing": False},
    {"engine": "ddp", "data_parallel_size": 2, "gpu": "h200-141gb", "optim": "adamw_torch_fused"},
    {"engine": "torch", "data_parallel_size": 1, "gpu": "h200-141gb", "optim": "adamw_bnb_8bit"},
])
def test_a_plan_finds_the_same_largest_batch(keys):
    made = plan(LLAVA | keys, trace=False)
    proposed = made.proposed.setting.workload(made.largest.micro_batch, made.largest.candidate.accumulation, 1024)
    for batch in (1, made.largest.micro_batch, made.largest.micro_batch + 9):
        found = training_load.Search(proposed.replace(**{BATCH: batch}), dispatch.prepare(proposed),
                                     lambda other, one: dispatch.prepare(other))
        assert found._largest_batch(found.workload, "")[0] == made.largest.micro_batch


def test_with_expandable_segments_there_is_no_second_batch(small):
    found = check(small(TEXT["llama"], 110, allocator_conf=EXPANDABLE))
    assert found.per_device_train_batch_size_expandable is None


def test_other_allocator_settings_stay_beside_expandable_segments(small):
    conf = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
    workload = small(TEXT["llama"], 110, allocator_conf=conf)
    found = predict(workload, maximum_load=True).maximum_load
    alone = predict(workload.replace(allocator_conf=f"{conf},{EXPANDABLE}"), maximum_load=True).maximum_load
    assert alone.per_device_train_batch_size == found.per_device_train_batch_size_expandable


@pytest.mark.parametrize(("document", "keys"), [
    (TEXT["llama"], {"engine": "fsdp2", "data_parallel_size": 2}),
    (TEXT["llama"], {"zero_stage": 3, "data_parallel_size": 2}),
    (TEXT["llama"], {"per_device_eval_batch_size": 4}),
    (small_config(max_position_embeddings=4096), {"images_per_sample": 3}),
], ids=["fsdp2", "zero3", "evaluation", "images"])
def test_other_keys_stay_as_given(small, document, keys):
    found = check(small(document, 120, **keys))
    assert found.per_device_train_batch_size > 1 and found.sequence_length > 64


def test_a_model_without_tokens_has_no_longest_sequence(small):
    found = check(small(IMAGE["resnet"], 200, sequence_length=None, gradient_checkpointing=False))
    assert found.sequence_length is None and found.per_device_train_batch_size > 1


def test_models_that_are_traced_at_each_batch_are_traced_few_times(small, seen):
    found = check(small(IMAGE_TEXT["qwen2_5_vl"], 90, image_size=56))
    assert found.per_device_train_batch_size > 4 and len({key.filename() for key in seen}) < 40


def test_the_sequence_ends_with_the_models_positions(small):
    found = predict(small(TEXT["gpt2"], 4000), maximum_load=True).maximum_load
    assert found.sequence_length == 1024
    assert "Longer sequences are not predicted: sequence_length 1025: the model knows 1,024 positions only." in found.search_limits


def test_a_batch_of_one_sample_is_tried_last(small):
    workload, mib = small(TEXT["llama"], 8000, per_device_train_batch_size=4), 1
    while not fits(with_memory(workload, mib), per_device_train_batch_size=1):
        mib += 1
    workload = with_memory(workload, mib)
    assert predict(workload, maximum_load=True).maximum_load.per_device_train_batch_size == max(
        size for size in (1, 2, 3, 4, 5, 6, 7, 8) if fits(workload, per_device_train_batch_size=size))


def test_where_nothing_fits_the_sizes_are_zero(small):
    found = predict(small(TEXT["llama"], 1, per_device_train_batch_size=3), maximum_load=True)
    load = found.maximum_load
    assert (load.per_device_train_batch_size, load.per_device_train_batch_size_expandable, load.sequence_length) == (0, 0, 0)
    assert sentences(found)[0] == "No batch fits. No sequence fits at batch 3."


def test_a_batch_that_the_deepspeed_config_says_is_free_in_the_search(small):
    config = {"bf16": {"enabled": True}, "train_batch_size": 16, "gradient_accumulation_steps": 2,
              "zero_optimization": {"stage": 2, "reduce_bucket_size": 20_000}}
    found = predict(small(TEXT["llama"], 120, deepspeed=config, data_parallel_size=2), maximum_load=True).maximum_load
    plain = {key: value for key, value in config.items() if key != "train_batch_size"}
    same = predict(small(TEXT["llama"], 120, deepspeed=plain, data_parallel_size=2, per_device_train_batch_size=4), maximum_load=True)
    assert found == same.maximum_load and found.per_device_train_batch_size > 4


def test_with_samples_each_batch_is_the_worst_one(small):
    drawn = Samples(np.arange(40, 240, 2), np.zeros(100, dtype=np.int64))
    workload = small(TEXT["llama"], 110, sequence_length=None, per_device_train_batch_size=2)
    found = predict(workload, samples=drawn, maximum_load=True).maximum_load
    most = found.per_device_train_batch_size
    assert [predict(workload.replace(**{BATCH: size}), samples=drawn).verdict == "fits" for size in (most, most + 1)] == [True, False]
    assert found.sequence_length == 238 and found.search_limits == ("No sample has more than 238 tokens.",)


def test_a_search_ends_with_the_samples(small):
    drawn = Samples(np.full(12, 64), np.zeros(12, dtype=np.int64))
    found = predict(small(TEXT["llama"], 8000), samples=drawn, maximum_load=True).maximum_load
    assert found.per_device_train_batch_size == 12
    assert "Larger batches are not predicted: per_device_train_batch_size 13: there are only 12 samples: give at most as many, or --steps." in found.search_limits


@pytest.mark.parametrize("keys", [{}, {"mode": "inference", "max_new_tokens": 8, "sequence_length": 900}])
def test_a_search_without_a_gpu_is_refused_before_anything_is_traced(keys, seen):
    with pytest.raises(InputError, match="maximum_load needs a GPU: add --gpu NAME or --capacity-bytes SIZE"):
        predict(Workload(**{"model": "llava-1.5-7b", "sequence_length": 1024} | keys), maximum_load=True)
    assert not seen


@pytest.mark.parametrize(("load", "said"), [
    ((36, 41, 3072), "The largest batch that fits is 36 (41 with expandable_segments:True). The longest sequence at "
                     "batch 16 is 3,072 tokens."),
    ((36, None, None), "The largest batch that fits is 36."),
    ((0, 2, 0), "No batch fits (2 with expandable_segments:True). No sequence fits at batch 16."),
])
def test_the_maximum_load_is_said_in_words(load, said):
    assert sentences(prediction(maximum_load=training_load.MaximumLoad(*load, ("More.",)))) == [said, "More."]


@pytest.mark.parametrize(("gpu", "says"), [("h100-80gb", True), ("a100-40gb", False)])
def test_a_longest_sequence_beyond_the_configured_positions_is_said_to_be(gpu, says):
    found = predict(Workload(**LLAVA | {"zero_stage": 2, "per_device_train_batch_size": 8, "gpu": gpu}),
                    maximum_load=True).maximum_load
    sentence = "The model's configuration says 4,096 positions: longer sequences train, but are new to it."
    assert (sentence in found.search_limits) == (found.sequence_length > 4096) == says


def test_the_largest_batch_with_expandable_segments_keeps_the_jobs_other_settings():
    workload = Workload(**LLAVA | {"zero_stage": 2, "per_device_train_batch_size": 64}, allocator_conf="max_split_size_mb:512")
    found = predict(workload, maximum_load=True).maximum_load.per_device_train_batch_size_expandable
    both = {"allocator_conf": f"max_split_size_mb:512,{EXPANDABLE}"}
    assert fits(workload, **both, **{BATCH: found}) and not fits(workload, **both, **{BATCH: found + 1})


def test_the_largest_loads_say_what_the_users_framework_may_take_beyond_them():
    note = Note("its loss copies the logits once more",
                more_bytes=lambda workload: workload.per_device_train_batch_size * workload.sequence_length << 18)
    workload = Workload(**LLAVA, zero_stage=2, per_device_train_batch_size=16).read_from(
        Source("none", "Mine 1.0", "train.sh", (), notes=(note,)))
    found = predict(workload, maximum_load=True)
    load = found.maximum_load
    at = workload.replace(per_device_train_batch_size=load.per_device_train_batch_size)
    assert load.cautions["per_device_train_batch_size"] in predict(at).cautions
    assert load.cautions["sequence_length"].more_bytes == 16 * load.sequence_length << 18
    said, = (line for line in sentences(found) if line.startswith("Caution: its loss copies"))
    even_then = load.cautious["per_device_train_batch_size"]
    assert f"Even then batch {even_then}" in said
    for batch, cautions in ((even_then, 0), (even_then + 1, 1)):
        assert len(predict(workload.replace(per_device_train_batch_size=batch)).cautions) == cautions


def test_the_largest_batch_has_the_loop_s_caution_of_its_prediction():
    workload = Workload(model="llava-1.5-7b", recipe="lora", sequence_length=2048, gpu="rtx-4090")
    load = predict(workload, maximum_load=True).maximum_load
    at = workload.replace(per_device_train_batch_size=load.per_device_train_batch_size)
    assert load.cautions["per_device_train_batch_size"] == predict(at).cautions[0]


def test_a_cautious_load_fits_with_each_loop_that_the_caution_names():
    workload = Workload(model="qwen2.5-0.5b", recipe="full", sequence_length=1024, per_device_train_batch_size=4, gpu="rtx-4090")
    load = predict(workload, maximum_load=True).maximum_load
    both = {"keep_outputs": "next_forward", "zero_grad": "before_backward"}
    assert set(load.cautious) >= {BATCH, LENGTH}
    for key in (BATCH, LENGTH):
        assert fits(workload, **both, **{key: load.cautious[key]})

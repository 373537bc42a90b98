"""A plan of a framework's configuration comes as that framework's own files, and with what they were predicted to need."""

from __future__ import annotations

import json

import pytest
import yaml

from predictor import Workload, predict, readers
from predictor.answer import changes
from predictor.common.errors import InputError
from predictor.plan import document
from predictor.plan.knobs import turned
from predictor.plan.own_files import OwnFiles, decisive, own_files
from predictor.plan.space import space

CONFIG = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"},
          "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}}
JOB = {"model_name_or_path": "llava-hf/llava-1.5-7b-hf", "deepspeed": "zero2.json", "bf16": True, "per_device_train_batch_size": 16,
       "output_dir": "out", "gradient_checkpointing": True, "optim": "adamw_torch_fused", "max_grad_norm": 1.0}
EIGHT = {"data_parallel_size": 8, "gpu": "h100-80gb", "sequence_length": 1024, "recipe": "finetune"}
LORA = {"model_name_or_path": "Qwen/Qwen2.5-VL-7B-Instruct", "stage": "sft", "finetuning_type": "lora", "template": "qwen2_vl",
        "cutoff_len": 2048, "image_max_pixels": 262144, "output_dir": "out", "per_device_train_batch_size": 1, "bf16": True}
ONE = {"model": "llava-1.5-7b", "sequence_length": 1024, "gpu": "a100-80gb"}


@pytest.fixture
def present(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zero2.json").write_text(json.dumps(CONFIG))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    values, source = readers.read(path="job.yaml", form="transformers", options=EIGHT)
    return Workload.from_mapping(values | EIGHT).read_from(source)


def test_own_files_read_again_are_the_workload_whose_peaks_stand_beside_them(present, tmp_path):
    proposed = present.replace(per_device_train_batch_size=8, gradient_accumulation_steps=2)
    own = own_files(present, proposed)
    assert own is not None and own.change.text == "per_device_train_batch_size: 8, gradient_accumulation_steps: 2"
    for path, text in own.texts.items():
        (tmp_path / path).write_text(text)
    values, _ = readers.read(path="job.yaml", form="transformers", options=EIGHT)
    prediction = predict(Workload.from_mapping(values | EIGHT))
    assert (prediction.peak_allocated_bytes, prediction.peak_reserved_bytes) == (own.peak_allocated_bytes, own.peak_reserved_bytes)


def test_savings_are_those_of_changes_in_the_words_of_the_users_file(present):
    knobs = {knob.change: knob for knob in turned(present)[1]}
    batch = knobs["micro batch 16 → 8, accumulation 1 → 2"]
    assert (batch.own_words, batch.where) == ("per_device_train_batch_size: 8, gradient_accumulation_steps: 2", "job.yaml")
    bucket = knobs["reduce_bucket_size 5e+08 → 5e+07"]
    assert (bucket.own_words, bucket.where) == (
        "zero_optimization.reduce_bucket_size: 50000000 in zero2.json", "zero2.json")


def test_files_that_start_the_proposed_training_already_have_nothing_to_change(present):
    fitting = present.replace(per_device_train_batch_size=8)
    own = own_files(fitting, fitting)
    assert isinstance(own, OwnFiles) and own.change is None and own.texts == {} and own.workload == fitting


def test_there_are_no_own_files_for_what_does_not_fit(present):
    assert own_files(present, present.replace(per_device_train_batch_size=512)) == (
        "job.yaml is not changed: what it would start does not surely fit")


def test_there_are_no_own_files_for_what_the_framework_cannot_express(present):
    plain = present.replace(deepspeed=None, zero_stage=None, engine="fsdp2", dtype="bf16")
    assert own_files(present, plain) == (
        "job.yaml is not changed: it trains with ZeRO-2, and FSDP2 needs more than other values in it (--keep engine plans what can "
        "be changed)")


def test_files_that_would_go_on_with_deepspeed_are_not_those_of_a_plain_plan(present):
    """Beside another change an engine that is no longer given is no edit of the file."""
    plain = present.replace(deepspeed=None, engine="ddp", dtype="bf16", per_device_train_batch_size=2)
    assert "it trains with ZeRO-2, and DDP needs more" in own_files(present, plain)


def test_what_changes_besides_the_engine_is_in_the_words_of_the_file(present):
    plain = present.replace(deepspeed=None, engine="ddp", dtype="bf16", per_device_train_batch_size=2)
    assert own_files(present, plain).endswith("; what else changes is per_device_train_batch_size: 2")


def test_a_file_of_the_user_is_not_overwritten_unasked(tmp_path):
    (tmp_path / "job.yaml").write_text("mine")
    with pytest.raises(InputError, match="job.yaml: is there already: add --force"):
        document.write(str(tmp_path), {"job.yaml": "other"}, False)
    document.write(str(tmp_path), {"job.yaml": "other"}, True)
    assert (tmp_path / "job.yaml").read_text() == "other"


def test_on_one_gpu_other_trainings_are_tried_and_keep_what_the_user_fixed():
    by_name = {setting.name: setting for setting in space(ONE, firm={"model"}).settings}
    adapted = [setting for setting in by_name.values() if setting.workload(1, 1, 1024).recipe == "lora"]
    shorter = [setting for setting in by_name.values() if setting.keys["sequence_length"] < 1024]
    assert adapted and shorter and all(setting.differs for setting in adapted + shorter)
    assert all(setting.workload(1, 1, 1024).engine == "torch" and not setting.cuts for setting in adapted)
    assert all(setting.cuts for setting in shorter)
    kept = space(ONE, firm=None).settings
    assert {setting.keys["sequence_length"] for setting in kept} == {1024}


def test_on_several_gpus_what_trains_stays():
    settings = space(ONE | {"data_parallel_size": 8}, firm={"model"}).settings
    assert {setting.workload(1, 1, 1024).recipe for setting in settings} == {"finetune"} and not any(setting.cuts for setting in settings)


@pytest.mark.parametrize("optim", ["adamw_torch", "adafactor", "adamw_bnb_8bit"])
def test_the_optimizer_of_the_users_job_is_the_usual_one_of_its_plan(optim):
    whole = ONE | {"data_parallel_size": 8, "engine": "ddp", "optim": optim}
    found = space(ONE | {"data_parallel_size": 8}, present=Workload.from_mapping(whole)).settings
    assert {one.workload(1, 1, 1024).optim for one in found if not one.differs} == {optim}


def test_adapters_over_weights_of_4_bits_are_planned_as_the_framework_trains_them(tmp_path):
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump(LORA))
    values, source = readers.read(path=str(tmp_path / "sft.yaml"), options={"gpu": "rtx-4090"})
    present = Workload.from_mapping(values).read_from(source)
    firm = {"model", "gpu", "sequence_length"}
    found = space({key: values[key] for key in values if key != "per_device_train_batch_size"}, present=present, firm=firm).settings
    quantized = [one.workload(1, 8, 2048) for one in found if one.keys.get("quantization")]
    assert quantized and {one.mixed_precision for one in quantized} == {"bf16"}


def test_the_files_say_only_what_the_framework_does_not_decide_by_it(tmp_path):
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump(LORA))
    values, source = readers.read(path=str(tmp_path / "sft.yaml"), options={"gpu": "rtx-3060"})
    present = Workload.from_mapping(values).read_from(source)
    keys, own = changes.said(present, {"quantization": changes.QLORA})
    changed = decisive(present, Workload.from_mapping({**values, **keys}))
    assert changed.keys() == {"quantization"} and own.values == {"quantization_bit": 4}

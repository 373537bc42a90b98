"""A plan of a job with a DeepSpeed config keeps that config: its settings, its bytes, and the files that it writes."""

from __future__ import annotations

import json

import pytest
import yaml

from predictor import Workload, predict, readers
from predictor.cli import main
from predictor.plan.own_config import on_own_config
from predictor.plan.own_files import own_files
from predictor.plan.space import space

ZERO = {"stage": 2, "overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": "auto", "allgather_bucket_size": 7e8}
CONFIG = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"},
          "zero_optimization": ZERO}
JOB = {"model_name_or_path": "llava-hf/llava-1.5-7b-hf", "deepspeed": "zero2.json", "bf16": True, "per_device_train_batch_size": 16,
       "output_dir": "out", "gradient_checkpointing": True, "optim": "adamw_torch_fused", "max_grad_norm": 1.0}
EIGHT = {"data_parallel_size": 8, "gpu": "h100-80gb", "sequence_length": 1024, "recipe": "finetune"}
GIVEN = {"model": "llava-1.5-7b", **EIGHT}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zero2.json").write_text(json.dumps(CONFIG))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    return tmp_path


def present(**changes) -> Workload:
    return Workload(**GIVEN | {"deepspeed": CONFIG, "dtype": "bf16", "per_device_train_batch_size": 16} | changes)


def on_config(keys, **changes) -> dict:
    return on_own_config({"engine": "deepspeed", **keys}, present(**changes))["deepspeed"]


@pytest.mark.parametrize("gpus", [1, 8])
def test_every_zero_setting_has_the_user_s_config_with_its_stage_and_offloading(gpus):
    whole = {**GIVEN, "deepspeed": CONFIG, "dtype": "bf16", "per_device_train_batch_size": 16}
    given = GIVEN | {"data_parallel_size": gpus}
    found = [setting.workload(2, 3, 1024) for setting in space(given, present=Workload.from_mapping(whole | given), firm=given).settings]
    zero = [workload for workload in found if workload.engine == "deepspeed"]
    assert {workload.zero_stage for workload in zero} >= {1, 2, 3} and {workload.offload for workload in zero} == {
        None, "optimizer", "all"}
    for workload in zero:
        section = workload.deepspeed["zero_optimization"]
        assert {key: section[key] for key in ZERO} == ZERO | {"stage": workload.zero_stage}
    assert all(workload.deepspeed is None for workload in found if workload.engine != "deepspeed")


def test_numbers_of_a_config_that_follow_the_shape_do_not_fix_it():
    document = on_config({"zero_stage": 1}, deepspeed=CONFIG | {"train_batch_size": 128, "train_micro_batch_size_per_gpu": 16})
    assert Workload(**GIVEN, deepspeed=document, dtype="bf16", per_device_train_batch_size=2).zero_stage == 1


def test_a_section_of_a_config_goes_where_the_plan_has_another_value():
    config = {"deepspeed": CONFIG | {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}}
    assert "optimizer" in on_config({"zero_stage": 1, "optim": "adamw_torch_fused"}, **config)
    assert "optimizer" not in on_config({"zero_stage": 1, "optim": "adamw_bnb_8bit"}, **config)


def test_offloading_of_a_config_is_switched_off_and_its_other_settings_stay():
    offloaded = CONFIG | {"zero_optimization": ZERO | {"offload_optimizer": {"device": "cpu", "pin_memory": False}}}
    off, on = (on_config({"zero_stage": 2, "offload": what}, deepspeed=offloaded)["zero_optimization"]["offload_optimizer"]
               for what in (None, "optimizer"))
    assert off == {"device": "none", "pin_memory": False} and on == {"device": "cpu", "pin_memory": False}


@pytest.mark.parametrize("stage, offload", [(1, None), (3, None), (2, "optimizer"), (3, "all")])
def test_changed_files_need_what_the_setting_needs(files, stage, offload):
    values, source = readers.read(path="job.yaml", form="transformers", options=EIGHT)
    job = Workload.from_mapping(values | EIGHT).read_from(source)
    keys = on_own_config({"engine": "deepspeed", "zero_stage": stage, "offload": offload}, job)
    proposed = job.replace(**keys)
    own, planned = own_files(job, proposed), predict(proposed)
    assert (own.peak_allocated_bytes, own.peak_reserved_bytes) == (planned.peak_allocated_bytes, planned.peak_reserved_bytes)


def test_the_proposal_and_what_is_written_are_one_job(files, capsys, monkeypatch):
    words = ["--recipe", "finetune", "--sequence-length", "1024", "--gpu", "h100-80gb"]
    assert main(["plan", "--from", "job.yaml", *words, "--gpus", "8", "--no-trace", "--top", "1", "--write", "out", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)
    peak = best["proposed"]["peak_reserved_bytes"]
    assert best["proposed"]["workload"]["zero_stage"] == 1 and best["own_files"]["peak_reserved_bytes"] == peak
    monkeypatch.chdir("out")
    for file in (["--from", "job.yaml", *words, "--data-parallel-size", "8"], ["--workload", "workload.json"]):
        main(["predict", *file, "--json"])
        assert json.loads(capsys.readouterr().out)["peak_reserved_bytes"] == peak


@pytest.mark.parametrize("kept, key, settled", [
    ("engine", "zero_stage", {2}), ("optim", "optim", {"adamw_torch"}), ("offload", "offload", {None})])
def test_an_axis_that_does_not_vary_keeps_the_present_value(kept, key, settled):
    whole = {**GIVEN, "deepspeed": CONFIG, "dtype": "bf16", "per_device_train_batch_size": 16, "optim": "adamw_torch"}
    found = space(GIVEN, keep=[kept], present=Workload.from_mapping(whole), firm=GIVEN).settings
    assert {getattr(setting.workload(2, 1, 1024), key) for setting in found} == settled

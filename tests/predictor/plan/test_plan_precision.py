"""Plans predict the plain loop in the user's precision: its dtypes, and those of frozen weights under adapters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor import readers
from predictor.cli import main
from predictor.plan import Wanted, plan
from predictor.plan.space import space
from predictor.workload.workload import Workload
from tests.predictor.small import small_config, small_llama

LORA = {"stage": "sft", "finetuning_type": "lora", "lora_rank": 8, "lora_target": "all", "cutoff_len": 64, "output_dir": "x",
        "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "bf16": True}
ALONE = "one GPU"
WIDE, UNDER, NARROW = f"{ALONE}, fp32 weights under bf16 autocast", f"{ALONE}, bf16 weights under autocast", f"{ALONE}, bf16 weights"
FEW = {"optim": "adamw_torch_fused", "offload": "none", "gradient_checkpointing": True}


@pytest.fixture(autouse=True)
def formula_cache(monkeypatch, traced_formulas):
    """One for all."""
    monkeypatch.setenv("PEAKCAST_CACHE", str(traced_formulas))


def written(directory: Path, name: str, document: dict) -> str:
    (directory / name).write_text(json.dumps(document))
    return str(directory / name)


@pytest.fixture
def llama(tmp_path) -> str:
    return written(tmp_path, "config.json", small_llama())


def planned(capsys, *words: str) -> dict:
    assert main(["plan", *words, "--capacity-bytes", "2GiB", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def chosen(row: dict) -> tuple:
    return tuple(row["workload"][key] for key in ("engine", "dtype", "mixed_precision"))


@pytest.mark.parametrize(("keys", "dtypes"), [
    ({}, ("torch", "bf16", "bf16")), ({"quantization_bit": 4}, ("torch", "bf16", "bf16"))])
def test_on_one_gpu_the_loop_of_a_configuration_with_adapters_is_proposed_and_no_engine(tmp_path, capsys, llama, keys, dtypes):
    path = written(tmp_path, "job.json", {"model_name_or_path": llama} | LORA | keys)
    found = planned(capsys, "--from", path, "--keep", "optim,offload,checkpointing,instead")
    assert chosen(found["proposed"]) == dtypes and not found["proposed"]["differs"]
    assert not [row for row in found["does_not_fit"] + found["costs_more"] if row["method"].startswith(ALONE)]


def test_a_loop_with_another_autocast_is_looked_at(tmp_path, capsys, llama):
    path = written(tmp_path, "job.json", {"model_name_or_path": llama} | LORA | {"bf16": False, "fp16": True})
    assert ("torch", "fp32", "fp16") in map(chosen, planned(capsys, "--from", path, "--keep", "optim,offload,checkpointing,instead", "--top", "9")["ranking"])


def test_a_dtype_by_an_option_stays_under_the_autocast_of_the_configuration(tmp_path, capsys, llama):
    path = written(tmp_path, "job.json", {"model_name_or_path": llama} | LORA)
    assert chosen(planned(capsys, "--from", path, "--keep", "optim,offload,instead", "--dtype", "bf16")["proposed"]) == ("torch", "bf16", "bf16")


def test_weights_of_bf16_are_no_other_training_where_the_configuration_has_them(tmp_path, capsys, llama):
    path = written(tmp_path, "job.json", {"model_name_or_path": llama} | LORA | {"finetuning_type": "full", "pure_bf16": True})
    found = planned(capsys, "--from", path, "--keep", "optim,offload,checkpointing,instead", "--top", "9")
    assert {chosen(row): row["differs"] for row in found["ranking"]}["torch", "bf16", "bf16"] == []


@pytest.mark.parametrize("config", [small_llama, small_config])
def test_adapters_train_over_weights_of_the_dtype_that_predict_has_by_default(tmp_path, config):
    """Beside LLaVA's the projector trains, too. Of equal costs what ``predict`` has is proposed: no autocast."""
    model = written(tmp_path, "config.json", config())
    made = plan({"model": model, "recipe": "lora", "sequence_length": 64, "capacity_bytes": 2 << 30} | FEW, Wanted(global_batch_size=8, top=9, keep=["instead"]))
    assert {one.setting.method: one.setting.differs for one in made.found.fitting if one.setting.sharing == ALONE} == {UNDER: (), NARROW: ()}
    assert made.proposed.setting.method == NARROW


@pytest.mark.parametrize("config", [small_llama, small_config])
def test_adapters_in_place_of_the_model_train_over_these_weights_too(tmp_path, config):
    found = space({"model": written(tmp_path, "config.json", config()), "sequence_length": 64, "gpu": "h100-80gb"}, firm=()).settings
    adapted = [one.workload(1, 1, 64) for one in found if one.keys.get("recipe") == "lora"]
    assert adapted and {(one.dtype, one.mixed_precision) for one in adapted} == {("bf16", "none")}


def test_both_dtypes_that_are_given_are_those_of_the_plain_loop(llama):
    given = {"model": llama, "recipe": "full", "sequence_length": 64, "capacity_bytes": 2 << 30, "dtype": "bf16", "mixed_precision": "bf16"}
    found = plan(given | FEW, Wanted(global_batch_size=8, keep=["instead"])).found
    assert [(one.setting.method, one.setting.differs) for one in found.fitting] == [(UNDER, ())]


def test_weights_of_fp32_are_not_called_bf16():
    assert {one.method for one in space({"model": "gpt2", "dtype": "fp32"} | FEW).settings if one.sharing == ALONE} == {f"{ALONE}, fp32 weights"}


def test_on_one_gpu_a_plain_loop_that_fits_is_shown_though_it_costs_more(llama):
    made = plan({"model": llama, "recipe": "full", "sequence_length": 64, "capacity_bytes": 2 << 30} | FEW, Wanted(global_batch_size=8, top=1, keep=["instead"]))
    first, plain = made.found.fitting
    assert (first.setting.sharing, plain.setting.method) == ("", WIDE)
    assert first.estimate.seconds_per_sample < plain.estimate.seconds_per_sample and not first.setting.differs + plain.setting.differs


def test_arguments_of_a_plain_loop_say_which_weights_are_to_be_loaded(capsys, llama):
    job = [llama, "--recipe", "lora", "--sequence-length", "64", "--dtype", "bf16", "--mixed-precision", "bf16"]
    assert main(["plan", *job, "--keep", "optim,offload,instead", "--capacity-bytes", "2GiB", "--top", "1"]) == 0
    assert "do what no argument does: load the weights in bf16; add peft's adapters" in " ".join(capsys.readouterr().out.split())


# notes ------------------------------------------------------------------------------------------------


def test_notes_are_about_the_proposed_workload(tmp_path, capsys, llama):
    """Of a configuration that accumulates, the proposal does not; of one that does not, the next does."""
    path = written(tmp_path, "job.json", {"model_name_or_path": llama} | LORA)
    fetched = "inputs of a step's further micro-batches, which the Trainer fetches in advance"
    for words, steps in ((), 1), (("--per-device-train-batch-size", "1"), 8):
        found = planned(capsys, "--from", path, "--keep", "optim,offload,instead", "--top", "1", *words)
        assert found["proposed"]["gradient_accumulation_steps"] == steps and (fetched in found["not_modelled"]) == (steps > 1)


def test_what_a_note_counts_is_of_the_workload_that_is_predicted():
    words = ["--model_name_or_path", "lmsys/vicuna-7b-v1.5", "--vision_tower", "openai/clip-vit-large-patch14-336", "--mm_projector_type", "mlp2x_gelu",
             "--model_max_length", "1024", "--per_device_train_batch_size", "16", "--output_dir", "x"]
    values, source = readers.read(words=["python", "llava/train/train.py", *words])
    for batch in (16, 36):
        notes = source.left_out(Workload.from_mapping(values | {"per_device_train_batch_size": batch}))
        assert any(note.endswith(f"copies its fp32 logits once more, {batch * 1024 * 32_000 * 4:,} bytes here") for note in notes)


@pytest.mark.parametrize(("keys", "text"), [
    ({"enable_liger_kernel": True}, "autocast over bf16 weights, beside use_liger_kernel"), ({"enable_liger_kernel": True}, "adapters: fp32 in the training"),
    ({"finetuning_type": "full", "freeze_language_model": True, "model_name_or_path": "llava-1.5-7b", "freeze_multi_modal_projector": False},
     "parameters that do not train: bf16 in LLaMA-Factory, fp32 here")])
def test_what_is_said_of_a_plain_loop_is_not_said_of_deepspeed(tmp_path, keys, text):
    path = written(tmp_path, "job.json", {"model_name_or_path": "qwen2.5-0.5b"} | LORA | keys)
    values, source = readers.read(path=path)
    other = {key: item for key, item in values.items() if key not in ("dtype", "mixed_precision")} | {"zero_stage": 2}
    said = [any(text in note for note in source.left_out(Workload.from_mapping(one))) for one in (values, other)]
    assert said == [True, False]

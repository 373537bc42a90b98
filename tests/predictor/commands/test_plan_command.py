"""``peakcast plan``: its answers, files, exit codes and mistakes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from predictor.cli import main
from tests.calibrate.learn.test_learn import on_disk
from tests.calibrate.small_jobs import model_file

ROOT = Path(__file__).parents[3]
NO_TORCH = """
import importlib.metadata, sys
known = importlib.metadata.version
def version(name):
    if name == "torch":
        raise importlib.metadata.PackageNotFoundError(name)
    return known(name)
importlib.metadata.version, sys.modules["torch"] = version, None
from predictor.cli import main
sys.exit(main(sys.argv[1:]))
"""
ASKED = ["plan", "llava-1.5-7b", "--sequence-length", "1024", "--gpus", "8", "--global-batch-size", "128"]


def test_a_plan_is_told_and_its_files_are_written(tmp_path, capsys):
    words = [*ASKED, "--gpu", "h100-80gb", "--write", str(tmp_path / "job"), "--zero-stage", "2"]
    assert main([*words, "--details"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Proposed for 8 × h100-80gb: ZeRO-2") and "Not modelled:" in text and "Cost:" in text
    assert {path.name for path in (tmp_path / "job").iterdir()} == {
        "ds_config.json", "training_arguments.json", "workload.json"}
    assert main(["predict", "--workload", str(tmp_path / "job" / "workload.json")]) == 0
    assert main(words) == 2
    assert "add --force" in capsys.readouterr().err


def test_the_short_plan_fits_on_one_screen_and_can_be_run(capsys):
    assert main([*ASKED, "--gpu", "h100-80gb", "--no-trace"]) == 0
    lines = capsys.readouterr().out.splitlines()
    text = "\n".join(lines)
    assert len(lines) <= 40 and max(len(line.rstrip()) for line in lines) <= 100
    assert "Arguments: --per_device_train_batch_size" in text and "--write DIR writes the files." in text
    command = text[text.index("peakcast predict"):].split("\n\n")[0]
    assert shlex.split(command)[:3] == ["peakcast", "predict", "llava-1.5-7b"] and command.count("\\\n") == command.count("\n") > 0
    assert "one more forward of the layers" in text and "--details shows the best of each method" in text


def test_the_short_plan_keeps_the_bytes_and_costs_of_changes_whose_words_are_long(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "cache"))  # what other tests traced would change the plan
    path = tmp_path / "arguments.json"
    path.write_text(json.dumps({"output_dir": "out", "bf16": True, "per_device_train_batch_size": 16}))
    assert main(["plan", "llava-1.5-7b", "--from", str(path), "--sequence-length", "1024", "--data-parallel-size", "8",
                 "--gpu", "a100-40gb", "--no-trace"]) == 0
    knobs = capsys.readouterr().out.split("saved (GiB)   costs")[1].split("\n\n")[0]
    assert re.search(r"^PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True +\d+\.\d\d   \w", knobs, re.MULTILINE)


def test_the_short_plan_ranks_as_many_as_are_asked_for(capsys):
    assert main([*ASKED, "--gpu", "h100-80gb", "--no-trace", "--top", "9"]) == 0
    table = capsys.readouterr().out.split("configuration ")[1].split("\n\n")[0].splitlines()
    costs = [line.split()[-1] for line in table if re.fullmatch(r"\d+\.\d{3}", line.split()[-1])]
    assert len(costs) == 9


def test_files_of_an_earlier_plan_go_and_others_stay(tmp_path, capsys):
    for name in ("ds_config.json", "training_arguments.json", "workload.json", "train.py"):
        (tmp_path / name).write_text("{}")
    assert main([*ASKED, "--gpu", "h100-80gb", "--engine", "fsdp2", "--top", "1", "--no-trace", "--write", str(tmp_path), "--force"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py", "workload.json"]


def test_beside_adapters_only_what_peft_freezes_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "formulas"))
    assert main(["plan", model_file(tmp_path), "--sequence-length", "64", "--per-device-train-batch-size", "2", "--gpus", "8", "--gpu",
                 "h100-80gb", "--zero-stage", "2", "--recipe", "lora", "--gradient-checkpointing", "--keep", "offload,optim", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["frozen"], found["unfrozen"]) == ([], ["model.multi_modal_projector"])


def test_the_written_script_is_predicted_as_the_plan_says_and_is_the_plan(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "tests/predictor/configurations/llava/scripts", tmp_path / "scripts")
    monkeypatch.chdir(tmp_path)
    asked = ["--gpu", "a100-80gb", "--gpus", "8", "--top", "1", "--keep", "checkpointing"]
    assert main(["plan", "--from", "scripts/v1_5/finetune.sh", *asked, "--write", "job", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert "--optim" not in planned["own_files"]["change"]
    assert main(["predict", "--from", "job/finetune.sh", "--gpu", "a100-80gb", "--data-parallel-size", "8", "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert predicted["peak_reserved_bytes"] == planned["proposed"]["peak_reserved_bytes"]
    assert main(["plan", "--from", "job/finetune.sh", *asked]) == 0
    assert "job/finetune.sh is the plan already, nothing to change" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("words, assumed", [([], True), (["--gpus", "1"], False)], ids=["nothing", "gpus"])
def test_a_launcher_whose_number_of_gpus_nobody_gave_is_said_first(words, assumed, monkeypatch, capsys):
    monkeypatch.chdir(ROOT / "tests/predictor/configurations/llava")
    main(["plan", "--from", "scripts/v1_5/finetune.sh", "--gpu", "a100-80gb", "--no-trace", "--top", "1", *words])
    assert capsys.readouterr().out.startswith("Assumed 1 GPU: deepspeed uses every GPU of the machine") is assumed


def test_the_json_has_units_and_what_is_not_modelled(capsys):
    assert main([*ASKED, "--gpu", "h100-80gb", "--json", "--zero-stage", "2", "--top", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["proposed"] == found["ranking"][0] and len(found["ranking"]) == 2
    assert found["proposed"]["peak_reserved_bytes"] + found["proposed"]["headroom_bytes"] == found["capacity_bytes"]
    assert found["not_modelled"] and found["assumptions"] and found["closest"] is None
    assert found["counts"]["configurations"] == found["counts"]["settings"] * 5
    assert all(knob["gives_allocated_bytes"] is not None or knob["why_not"] for knob in found["knobs"])


@pytest.mark.parametrize(("recipe", "standing"), [("finetune", "given"), ("full", "proposed")])
def test_a_framework_s_configuration_keeps_its_samples_of_a_step(tmp_path, capsys, recipe, standing):
    """Nothing else that can vary; one that DDP would stop at is named, and knobs are the proposal's."""
    (tmp_path / "arguments.json").write_text(json.dumps(
        {"output_dir": "out", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}))
    assert main(["plan", "llava-1.5-7b", "--from", str(tmp_path / "arguments.json"), "--sequence-length", "1024", "--recipe",
                 recipe, "--gpus", "8", "--gpu", "h200", "--top", "1", "--no-trace", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    chosen = found["proposed"]["workload"]
    assert chosen["per_device_train_batch_size"] * chosen["gradient_accumulation_steps"] == 4 * 2
    assert chosen["engine"] == "deepspeed" and found["standing"] == standing
    assert any(row["name"] == "what was given, as it is" for row in found["left_out"]) is (standing == "proposed")


def test_without_torch_everything_shipped_is_planned_and_the_rest_named(tmp_path):
    words = [*ASKED, "--gpu", "a100-40gb", "--zero-stage", "3", "--vary", "liger", "--keep", "optim", "--top", "9", "--json"]
    found = subprocess.run([sys.executable, "-c", NO_TORCH, *words], capture_output=True, text=True,
                           env=os.environ | {"PYTHONPATH": str(ROOT), "PEAKCAST_CACHE": str(tmp_path)})
    document = json.loads(found.stdout)
    assert found.returncode == 0 and document["counts"]["traced"] == 0
    assert {row["method"] for row in document["ranking"]} > {"ZeRO-3", "ZeRO-3 · optimizer on the host"}
    assert all("Liger" in row["name"] for row in document["left_out"])
    assert any("needs torch: " in row["reason"] for row in document["left_out"])


def methods_without_torch(tmp_path, recipe: str) -> dict[str, dict]:
    words = [*ASKED, "--gpu", "h100-80gb", "--engine", "ddp", "--dtype", "bf16", "--optim", "adamw_torch_fused", "--recipe",
             recipe, "--json"]
    found = subprocess.run([sys.executable, "-c", NO_TORCH, *words], capture_output=True, text=True,
                           env=os.environ | {"PYTHONPATH": str(ROOT), "PEAKCAST_CACHE": str(tmp_path)})
    return {one["kind"]: one for one in json.loads(found.stdout)["methods"]}


def test_tensor_parallelism_whose_formulas_are_shipped_needs_no_torch(tmp_path):
    found = methods_without_torch(tmp_path, "finetune")
    assert found["combined"]["cheapest"]["workload"]["tensor_parallel_size"] > 1


def test_without_torch_other_tensor_parallelism_is_left_out_and_the_answer_says_what_to_install(tmp_path):
    found = methods_without_torch(tmp_path, "pretrain")
    assert found["data parallel"]["cheapest"] and found["combined"]["cheapest"] is None
    assert "tracing it needs torch: " in found["combined"]["why_none"]


def test_nothing_fits_is_exit_code_1_and_says_what_would_help(capsys):
    assert main([*ASKED, "--gpu", "l4", "--zero-stage", "2", "--offload", "none"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("Nothing fits 8 × l4") and "The closest: ZeRO-2" in text and "optimizer → host" in text
    assert "Given, and so kept: " in text


def test_a_learned_job_is_planned(tmp_path, capsys):
    path = on_disk(tmp_path)
    assert main(["plan", path, "--sequence-length", "128", "--capacity-bytes", "2GiB", "--profile", "none", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["proposed"]["per_device_train_batch_size"]
    words = ["predict", path, "--sequence-length", "128", "--capacity-bytes", "2GiB", "--profile", "none", "--json"]
    assert main([*words, "--per-device-train-batch-size", str(best)]) == 0
    assert main([*words, "--per-device-train-batch-size", str(best + 1)]) == 1
    capsys.readouterr()
    assert main(["plan", path, "--per-device-train-batch-size", "4", "--capacity-bytes", "2GiB", "--maximize", "sequence"]) == 0
    assert "Proposed for" in capsys.readouterr().out


def test_notes_of_a_framework_s_configuration_are_in_the_plan(tmp_path, capsys):
    path = tmp_path / "arguments.json"
    path.write_text(json.dumps({"output_dir": "out", "bf16": True, "per_device_train_batch_size": 4}))
    words = ["llava-1.5-7b", "--from", str(path), "--sequence-length", "1024", "--gpu", "h200", "--json",
             "--data-parallel-size", "8", "--recipe", "finetune"]
    assert main(["predict", *words]) in (0, 1)
    predicted = json.loads(capsys.readouterr().out)
    assert main(["plan", *words, "--top", "1", "--no-trace"]) == 0
    planned = json.loads(capsys.readouterr().out)
    note = next(note for note in predicted["not_modelled"] if "the dtype of the checkpoint" in note)
    assert note in planned["not_modelled"] and planned["source"]["file"] == predicted["source"]["file"] == str(path)


def test_under_fsdp2_no_arguments_are_written_and_the_answer_says_why_and_what_to_freeze(tmp_path, capsys):
    words = [*ASKED, "--gpu", "h100-80gb", "--engine", "fsdp2", "--top", "1", "--no-trace"]
    assert main([*words, "--write", str(tmp_path / "job")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["workload.json"]
    assert "no arguments for Hugging Face's Trainer" in text and "freeze model.vision_tower." in text
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["files"]) == ["workload.json"] and "fully_shard" in found["no_arguments"]
    assert found["frozen"] == ["model.vision_tower"]


@pytest.mark.parametrize("words, said", [
    (["--mode", "inference", "--gpu", "h200"], "--mode is inference, but a plan is for training"),
    (["--gpu", "h100", "--data-parallel-size", "3"], "8 GPUs: not --data-parallel-size 3: leave one of them out"),
    (["--gpu", "h100", "--data-parallel-size", "4", "--tensor-parallel-size", "4"],
     "8 GPUs: not --data-parallel-size 4 x --tensor-parallel-size 4: leave one of them out"),
    (["--gpu", "h100", "--maximize", "sequence"], "--sequence-length is given, too"),
    (["--global-batch-size", "0"], "must be a whole number from 1 on"), (["--gpu", "h100", "--vary", "zero"], "no axis 'zero'"),
    (["--gpu", "h101"], "--gpu names an unknown GPU"), ([], "--gpu is not given"),
    (["--gpu", "h100", "--optim", "adamwx"], "--optim must be"), (["--gpu", "h100", "-o", "/nowhere/x"], "its directory does not exist"),
    (["--gpu", "h100", "--maximize", "batch", "--per-device-train-batch-size", "2"],
     "--per-device-train-batch-size is given, too"),
])
def test_a_mistake_is_one_line(words, said, capsys):
    assert main([*ASKED, *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and said in err

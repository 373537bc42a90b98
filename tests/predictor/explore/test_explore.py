"""The page of ``peakcast explore``: its content, its limits, and the command."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from predictor.cli import main
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.gpus import AMPERE, TABLE
from predictor.events.composed_run import evaluate, sizes_at
from predictor.events.sizes import Shape
from predictor.explore import content, packing, page, settings
from predictor.explore.candidates import candidates
from predictor.explore.content import Content
from predictor.jobs import dispatch, training_job
from predictor.workload.value_sources import DEFAULT, Source, value
from predictor.workload.workload import Workload
from tests.predictor.explore_scripts import MODEL, Scripts, made
from tests.predictor.small import small_config
from tests.predictor.small_models import IMAGE_TEXT

SMALL = ["explore", MODEL, "--no-gradient-checkpointing", "--capacity-bytes", "60GiB", "--degrees", "1"]


def job(**keys) -> training_job.Job:
    return dispatch.prepare(Workload(**{"model": MODEL, "sequence_length": 1024, "per_device_train_batch_size": 4,
                                        "zero_stage": 2, "data_parallel_size": 8, **keys}))


@pytest.mark.parametrize("keys", [{}, {"zero_stage": 1}, {"zero_stage": None, "engine": "ddp"}], ids=str)
def test_candidates_know_the_worst_rank_and_its_peak_at_every_shape(keys):
    asked = job(**keys)
    engine = training_job.engine_of(asked.formula, asked.setup)
    runs = {rank: engine.rank(rank) for rank in range(8)}
    found = candidates(runs, asked.lowest())
    for shape in (Shape(2, 577, 2), Shape(4, 1024, 4), Shape(64, 700, 64), Shape(3, 8192, 6), Shape(200, 2048, 400)):
        values = np.array([int(term(shape, asked.gpu)) for term in runs[0].sizes.terms])
        sums = found.coefficients @ values
        traced = asked.formula.micro.events
        peaks = engine.peaks(range(8), sizes_at(traced, shape, asked.gpu)[traced.buffers.size])
        assert found.rank[sums == sums.max()].min() == peaks.index(max(peaks))
        assert sums.max() == max(evaluate(run, 0, shape, asked.gpu).live[run.step > 0].max() for run in runs.values())


def test_a_model_without_images_is_put_beside_the_profiles_of_gpus():
    asked = job(model="llama-3.1-8b", recipe="lora", lora={"r": 16}, zero_stage=None, data_parallel_size=1, gpu="h100-80gb",
                profile="emulated")
    own, backend = settings.engine_of(asked.workload), asked.formula.provenance["key"]["sdpa_backend"]
    found = settings.Settings(
        asked.workload, gpus={"h100-80gb": gpus.find("h100-80gb")}, backends={"h100-80gb": backend},
        jobs={settings.Controls(own, 1, True, backend, asked.formula.regime): asked})
    [gpu] = content._gpus(found)
    assert set(gpu["profile"]["versions"]) == {
        f"torch on{more}" for more in ("", " several", " expandable", " several expandable")}


def test_a_run_that_is_not_made_of_traced_micro_steps_is_refused():
    asked = job()
    run = asked.run(None).events
    first, second = np.flatnonzero((run.step == 1) & (run.kind == 1))[100:102]
    kind, buffer = run.kind.copy(), run.buffer.copy()
    buffer[[first, second]] = buffer[[second, first]]
    with pytest.raises(InputError, match="not laid out as traced micro-steps"):
        packing.pack_run(replace(run, kind=kind, buffer=buffer), asked.formula.micro, packing.Tables())


@pytest.mark.parametrize("keys, message", [
    ({"optim": "adafactor"}, "optim adafactor allocates by the GPU's size"),
    ({"zero_stage": 2, "offload": "optimizer"}, "offload: offloading is not in a page yet"),
    ({"per_device_eval_batch_size": 8}, "per_device_eval_batch_size: an evaluation is not in a page yet"),
    ({"padding": "packed"}, "padding packed is not in a page yet"),
    ({"zero_stage": 2, "data_parallel_size": 2, "rank": 1}, "rank: one rank"),
    ({"allocator_conf": "max_split_size_mb:128"}, "allocator_conf: the page simulates"),
    ({"model": "qwen2.5-vl-3b", "image_size": "448,896"}, "image_size 448,896: several sizes"),
    ({"zero_stage": 2, "tensor_parallel_size": 2}, "tensor_parallel_size with zero_stage is not in a page"),
    ({"sequence_length": 100}, "no room for 1 image"),
])
def test_what_a_page_does_not_have_is_refused_by_name(keys, message):
    with pytest.raises(InputError, match=message):
        settings.find(Workload(**{"model": MODEL, **keys}), (1,))


def test_what_is_left_out_is_named_with_its_reason():
    left_out = made().document["left_out"]
    assert any(line.startswith("v100-16gb, v100-32gb: dtype bf16: this GPU has compute capability 7.0, from 8.0 on it is predicted") for line in left_out)
    assert any(line.startswith("FSDP1, FSDP2, ZeRO-3, ") and ": one sample with several images: no formula of it is shipped" in line for line in left_out)


def test_engines_that_contradict_a_deepspeed_config_are_left_out_in_one_sentence():
    found = settings.find(job(capacity_bytes=60 << 30, zero_stage=None, deepspeed={"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}).workload, (8,))
    line, = settings.reasons(found.left_out)
    assert line.startswith("plain PyTorch, DDP, FSDP1, FSDP2, ZeRO-0, ZeRO-1, ZeRO-3, ") and ": the DeepSpeed config says the engine" in line


def test_a_page_says_that_one_gpu_is_assumed_where_the_launcher_uses_all(tmp_path, capsys):
    (tmp_path / "finetune.sh").write_text(
        "deepspeed llava/train/train_mem.py --deepspeed zero2.json --model_name_or_path lmsys/vicuna-7b-v1.5 --version v1 "
        "--vision_tower openai/clip-vit-large-patch14-336 --mm_projector_type mlp2x_gelu --mm_vision_select_layer -2 "
        "--bf16 True --output_dir x --model_max_length 2048")
    (tmp_path / "zero2.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}))
    words = ["--from", str(tmp_path / "finetune.sh"), "--capacity-bytes", "80GiB", "--degrees", "1"]
    assert main(["explore", *words, "-o", str(tmp_path / "page.html")]) == 0
    assert "Assumed 1 GPU: deepspeed uses every GPU of the machine" in capsys.readouterr().out
    assert unpacked((tmp_path / "page.html").read_text())[0]["assumed"].startswith("Assumed 1 GPU")


def test_the_default_sequence_has_room_for_the_picture(tmp_path, formula_cache):
    config = IMAGE_TEXT["llava_next"] | {"image_grid_pinpoints": [[840, 840]]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    first = settings.with_length(Workload(model=str(tmp_path), image_size="840", capacity_bytes=60 << 30))
    assert first.sequence_length > 1024 and dispatch.prepare(first).formula.facts.room(1) > 1024 - 1


def test_engines_that_need_a_trace_of_their_own_are_left_out_where_no_formula_is_shipped(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path))
    found = settings.find(Workload(model=MODEL, recipe="pretrain", capacity_bytes=60 << 30), (1, 2))
    assert {choice.engine.name for choice in found.jobs} == {"torch", "ddp", "zero0", "zero1", "zero2"}
    (what, why), = found.left_out.items()
    assert what.startswith("FSDP1, FSDP2, ZeRO-3, plain PyTorch + tensor parallel 2") and "no formula of it is shipped" in why


def test_what_a_framework_fills_in_about_checkpointing_leaves_out_no_variant_without_it(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    reentrant = value("gradient_checkpointing_kwargs", {"use_reentrant": True}, DEFAULT, "LLaVA")
    base = job(model=str(tmp_path), capacity_bytes=60 << 30, gradient_checkpointing_kwargs={"use_reentrant": True}).workload
    found = settings.find(base.read_from(Source("llava", "LLaVA", "job.sh", (reentrant,))), (1,))
    assert not any("without checkpointing" in what for what in found.left_out) and {key.checkpointing for key in found.jobs} == {True, False}


def test_a_page_has_no_more_gpus_under_tensor_parallelism_than_otherwise():
    found = settings.find(Workload(model=MODEL, gradient_checkpointing=False, capacity_bytes=60 << 30), (1, 4, 8))
    assert {(key.engine.tensor, key.degree) for key in found.jobs if key.engine.tensor > 1} == {
        (2, 1), (4, 1), (8, 1), (2, 4)}


def test_the_page_has_the_usual_engines_and_every_gpu_that_is_modelled():
    document = made().document
    assert {engine["name"]: engine["degrees"] for engine in document["engines"]} == {
        "torch": [1], "ddp": [1, 4], "fsdp2": [1, 4], "zero0": [1, 4], "zero1": [1, 4], "zero2": [1, 4], "zero3": [1, 4],
        "torch-tp2": [1], "torch-tp4": [1], "torch-tp8": [1]}
    assert [gpu["name"] for gpu in document["gpus"]] == [gpu.name for gpu in TABLE if gpu.compute_capability >= AMPERE]


@pytest.mark.parametrize("gpu, asked, used", [
    ("h200", None, "emulated"), ("h200", "h200/profile-device.json", "h200/profile-device.json"), ("a100-80gb", None, None)])
def test_a_shipped_profile_that_changes_sizes_is_left_out_unless_it_is_asked_for(gpu, asked, used):
    assert settings.profile_of(Workload(model=MODEL, gpu=gpu, profile=asked), gpu) == used


def test_the_page_begins_with_the_workload():
    document = made(zero_stage=2, data_parallel_size=4, per_device_train_batch_size=16, sequence_length=2048,
                    capacity_bytes=60 << 30, gpu="a100-80gb").document
    assert document["first"] == {"batch": 16, "sequence": 2048, "images": 1, "checkpointing": False, "engine": "zero2",
                                 "degree": 4, "gpu": "a100-80gb"}


def test_the_page_loads_nothing():
    text = page.page(made())
    assert page.POLICY.startswith("default-src 'none'") and f'content="{page.POLICY}"' in text
    assert re.findall(r"""(?:src|href|url|import|fetch)\s*[=(]\s*["']?([^"'\s>)]+)""", text) == ["data:,"]


def unpacked(text: str) -> tuple[dict, bytes]:
    """The document and the columns of a page."""
    packed = gzip.decompress(base64.b64decode(re.search('id="content">([^<]*)<', text)[1]))
    length = int.from_bytes(packed[:4], "little")
    return json.loads(packed[4:4 + length]), packed[4 + length:]


def test_the_page_holds_its_content_and_is_the_same_again():
    text = page.page(made())
    assert unpacked(text) == (json.loads(json.dumps(made().document)), made().columns)
    assert page.page(made()) == text


@pytest.mark.parametrize("form", ["file", "command"])
def test_a_page_of_a_training_has_its_command_and_what_of_it_is_not_modelled(tmp_path, form):
    job, options = tmp_path / "job.json", ["--recipe", "finetune", "--capacity-bytes", "60GiB"]
    keys = {"output_dir": "x", "model_name_or_path": "llava-hf/llava-1.5-7b-hf", "max_length": "1024"}
    job.write_text(json.dumps(keys))
    training = ["--", "python", "run.py", *(word for key, item in keys.items() for word in (f"--{key}", item))]
    words = ["--from", str(job)] if form == "file" else []
    behind = training if form == "command" else []
    assert main(["explore", *words, *options, "--degrees", "1", "-o", str(tmp_path / "page.html"), *behind]) == 0
    document = unpacked((tmp_path / "page.html").read_text())[0]
    assert (document["command"], document["training"]) == ([*words, *options], behind)
    assert any("the dtype of the checkpoint" in note for note in document["engines"][0]["notes"]["1"])


def test_the_command_of_a_page_has_the_deepspeed_config_that_was_read_which_an_engine_by_an_option_replaces(tmp_path, capsys):
    config = {"zero_optimization": {"stage": 2, "overlap_comm": True}, "bf16": {"enabled": True}}
    job, options = tmp_path / "job.json", ["--recipe", "finetune", "--gpu", "a100-80gb", "--capacity-bytes", "60GiB", "--data-parallel-size", "4"]
    job.write_text(json.dumps({"output_dir": "x", "model_name_or_path": MODEL, "max_length": 1024, "bf16": True, "deepspeed": config}))
    assert main(["explore", "--from", str(job), *options, "--degrees", "4", "-o", str(tmp_path / "page.html")]) == 0
    capsys.readouterr()
    document, columns = unpacked((tmp_path / "page.html").read_text())
    answer = Scripts(Content(document, columns))("setting => predict(data, setting).answer", document["first"] | {"batch": 2})
    shown = [*shlex.split(" ".join(document["command"])), "--per-device-train-batch-size", "2", "--zero-stage", "2", *options[2:4], *options[6:]]
    main(["predict", *shown, "--json"])
    expected = json.loads(capsys.readouterr().out)
    assert answer == {name: expected[name] for name in answer}


def test_every_control_has_a_label():
    text = page.page(made())
    controls = set(re.findall(r'<(?:input|select)[^>]*id="([^"]+)"', text))
    labelled = set(re.findall(r'<label for="([^"]+)"', text)) | set(re.findall(r'id="([^"]+)"[^>]*aria-label=', text))
    assert controls and controls <= labelled


def test_the_command_writes_a_page_and_says_so(tmp_path, capsys):
    path = tmp_path / "page.html"
    assert main([*SMALL, "-o", str(path), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["path"] == str(path) and written["bytes"] == path.stat().st_size
    assert written["gpus"] == ["h100-80gb"] and written["engines"]["zero3"] == [1]


def test_the_page_is_made_without_torch(tmp_path):
    script = f"import sys; sys.modules['torch'] = None; from predictor.cli import main; sys.exit(main({SMALL!r} + ['-o', 'page.html']))"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").is_file()


@pytest.mark.parametrize("words, message", [
    (["explore", MODEL], "give -o FILE.html"),
    (["explore", MODEL, "-o", "exists.html"], "exists already"),
    (["explore", MODEL, "-o", "page.html", "--degrees", "0"], "--degrees must be whole numbers"),
    (["explore", MODEL, "--mode", "inference", "-o", "page.html"], "mode is inference, but a page is for training only"),
    (["explore", "nothing", "-o", "page.html"], "nothing"),
])
def test_a_mistake_is_one_line_and_nothing_is_written(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exists.html").touch()
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["exists.html"]

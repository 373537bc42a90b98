"""The whole chain, from a workload to an answer, and rejected workloads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from predictor import Workload, predict
from predictor.cli import main
from predictor.common.errors import InputError
from predictor.events.events import Factor
from predictor.jobs import dispatch
from predictor.jobs.survival import PAGE_BYTES
from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES
from predictor.snapshot import read
from predictor.snapshot.replay import replay
from tests.predictor.small import facts_of, small_config

SHAPE = ["--sequence-length", "64", "--per-device-train-batch-size", "2", "--profile", "none"]


@pytest.fixture
def model(formula_cache, tmp_path):
    """A small LLaVA as a local directory."""
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(small_config()))
    return str(directory)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty one."""
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def workload(model, **keys) -> Workload:
    return Workload(model=model, **({"sequence_length": 64, "per_device_train_batch_size": 2, "profile": "none"} | keys))


def test_a_local_directory_is_traced_once_and_kept(model, cache):
    first = predict(workload(model))
    kept = list((cache / "formulas").iterdir())
    assert len(kept) == 1 and kept[0].suffix == ".npz"
    before = kept[0].stat().st_mtime_ns
    assert predict(workload(model)).to_json() == first.to_json()
    assert kept[0].stat().st_mtime_ns == before


def test_a_config_file_answers_as_its_directory_does(model):
    assert predict(workload(model)).requested == predict(workload(model + "/config.json")).requested


@pytest.mark.parametrize("engine", [{}, {"zero_stage": 2, "data_parallel_size": 3}])
def test_factors_modules_and_allocator_add_up_to_the_allocated_peak(model, engine):
    prediction = predict(workload(model, **engine))
    assert sum(prediction.factors.values()) == prediction.peak_allocated_bytes
    assert sum(sum(split.values()) for split in prediction.modules.values()) == prediction.peak_allocated_bytes
    layers = sum(sum(split.values()) for split in prediction.layers.values())
    assert layers + prediction.factors[Factor.ALLOCATOR] == prediction.peak_allocated_bytes


def test_the_highest_candidate_is_the_peak(model):
    prediction = predict(workload(model, zero_stage=2, data_parallel_size=2), timeline=True)
    assert prediction.candidates[0].requested_bytes == prediction.peak_requested_bytes
    assert max(point["requested_bytes"] for point in prediction.moments.values()) == prediction.peak_requested_bytes
    top = max(map(sum, zip(*prediction.timeline().bytes_by_factor.values())))
    assert top == prediction.peak_requested_bytes


@pytest.mark.parametrize("capacity_bytes", [None, 1 << 40, 600 << 20])
def test_the_timeline_rises_to_the_allocated_and_the_reserved_peak(model, capacity_bytes):
    prediction = predict(workload(model, capacity_bytes=capacity_bytes), timeline=True)
    curve = prediction.timeline()
    assert max(curve.allocated_bytes) == prediction.peak_allocated_bytes
    assert max(curve.reserved_bytes) == prediction.peak_reserved_bytes
    requested = map(sum, zip(*curve.bytes_by_factor.values()))
    assert all(least <= blocks <= segments for least, blocks, segments in zip(requested, curve.allocated_bytes, curve.reserved_bytes))


def test_the_worst_rank_is_no_better_than_any_other(model):
    keys = {"zero_stage": 2, "data_parallel_size": 4}
    worst = predict(workload(model, **keys)).peak_requested_bytes
    assert worst == max(predict(workload(model, rank=rank, **keys)).peak_requested_bytes for rank in range(4))


def test_the_result_has_every_key_of_the_contract(model):
    document = predict(workload(model)).to_json()
    assert {"workload", "capacity_bytes", "headroom_bytes", "verdict", "minimum_capacity_bytes", "peak", "factors",
            "modules", "moments", "not_modelled", "provenance"} <= document.keys()
    for name in ("requested", "allocated", "reserved", "device"):
        assert {f"peak_{name}_bytes{end}" for end in ("", "_low", "_high")} <= document.keys()
    assert document["peak"].keys() == {"moment", "module", "operator", "rank", "step", "reserved_rank",
                                       "allocated_rank"}
    assert json.loads(json.dumps(document)) == document


@pytest.mark.parametrize("less, verdict, code", [
    (0, "fits", 0), (PAGE_BYTES, "uncertain", 1), (ASSUMED_RUNTIME_BYTES, "uncertain", 1),
    (ASSUMED_RUNTIME_BYTES + PAGE_BYTES, "does_not_fit", 1)])
def test_the_verdict_leaves_room_for_what_is_not_modelled(model, less, verdict, code, capsys):
    least = predict(workload(model), minimum_capacity=True).minimum_capacity_bytes
    assert main(["predict", model, *SHAPE, "--capacity-bytes", str(least - less), "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == verdict and (document["out_of_memory"] is None) == (verdict == "fits")


def test_each_limit_that_the_search_for_the_smallest_memory_tries_is_told(model):
    limits: list[int] = []
    job = dispatch.prepare(workload(model))
    least = job.minimum_capacity(limits.append)
    assert limits == sorted(set(limits), reverse=True) and least == limits[-1] + PAGE_BYTES + ASSUMED_RUNTIME_BYTES


def test_an_allocator_setting_changes_what_is_reserved_and_not_what_is_requested(model):
    plain, coarse = (predict(workload(model, allocator_conf=conf)) for conf in (None, "roundup_power2_divisions:2"))
    assert coarse.requested == plain.requested
    assert coarse.peak_allocated_bytes > plain.peak_allocated_bytes


def test_the_predicted_snapshot_holds_what_the_prediction_says(model, tmp_path):
    path = tmp_path / "predicted.pickle"
    assert main(["predict", model, *SHAPE, "--snapshot", str(path), "--json"]) == 0
    replayed, prediction = replay(read(str(path))), predict(workload(model))
    assert replayed.divergence is None
    assert replayed.peak_allocated_bytes == prediction.peak_allocated_bytes
    assert replayed.peak_reserved_bytes == prediction.peak_reserved_bytes


@pytest.mark.parametrize("recipe, passed", [("full", ()), ("finetune", ()), ("pretrain", ("head", "language_model"))])
def test_backward_runs_through_frozen_modules_that_lie_behind_what_trains(model, recipe, passed):
    assert tuple(predict(workload(model, recipe=recipe, gradient_checkpointing=False)).passed_bytes) == passed


def test_a_frozen_language_model_keeps_the_inputs_of_its_layers_for_backward():
    answer = predict(Workload(model="llava-1.5-7b", recipe="pretrain", sequence_length=1024, profile="none",
                              per_device_train_batch_size=4))
    states = 4 * 1024 * 4096 * 2
    # of 32 layers, of the last norm and of the head; besides, a few numbers a token
    assert 34 * states <= answer.passed_bytes["language_model"] < 35 * states


def test_a_pattern_can_freeze_what_the_recipe_trains(model):
    whole = predict(workload(model, recipe="full"))
    part = predict(workload(model, recipe="full", frozen=["model.vision_tower"]))
    finetune = predict(workload(model, recipe="finetune"))
    assert part.requested == finetune.requested != whole.requested


BAD = [
    ({"engine": "ddp", "recipe": "full"}, "engine ddp: 18 trainable parameters get no gradient, and DDP stops at that"),
    ({"zero_stage": 1, "versions": {"deepspeed": "0.14.2"}}, "ZeRO stage 1 is predicted for DeepSpeed 0.14.4 and later"),
    ({"deepspeed": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}, "managed_gradient_accumulation": False}},
     "managed_gradient_accumulation false is not supported in stage 1"),
    ({"sequence_length": 4}, "has no room for 1 image"),
    ({"images_per_sample": 3, "sequence_length": 12}, "give at least 13"),
    ({"image_size": 56}, "takes 28 only"),
    ({"frozen": ["no.such.module"]}, "matches no parameter"),
    ({"frozen": ["*"]}, "nothing is left to train"),
    ({"versions": {"torch": "2.0.0"}}, "tracing for torch 2.0.0 needs these releases, and here is torch"),
    ({"deepspeed": {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2},
                    "data_types": {"grad_accum_dtype": "fp32"}}}, "grad_accum_dtype fp32 is not modelled"),
]


@pytest.mark.parametrize("keys, message", BAD, ids=lambda value: str(value)[:40])
def test_what_cannot_be_answered_is_one_line(model, keys, message):
    with pytest.raises(InputError, match=message) as caught:
        predict(workload(model, **keys))
    assert "\n" not in str(caught.value)


def test_a_cached_formula_of_other_settings_is_made_again(model, cache):
    first = predict(workload(model))
    [kept] = (cache / "formulas").glob("*.npz")
    predict(workload(model, gradient_checkpointing=False))
    [other] = {*(cache / "formulas").glob("*.npz")} - {kept}
    kept.write_bytes(other.read_bytes())
    assert predict(workload(model)).to_json() == first.to_json()


def test_a_cache_with_a_name_that_no_file_can_have_is_only_slower(model, monkeypatch):
    monkeypatch.setenv("PEAKCAST_CACHE", "/tmp/" + "a" * 300)
    monkeypatch.setattr("predictor.formula.store._NOT_KEPT", {})
    assert predict(workload(model)).peak_requested_bytes > 0


def test_a_damaged_cached_formula_is_made_again(model, cache):
    first = predict(workload(model))
    kept = next((cache / "formulas").iterdir())
    kept.write_bytes(kept.read_bytes()[:200])
    assert predict(workload(model)).to_json() == first.to_json()


def test_many_micro_batches_cost_no_more_than_two(model):
    few, many = (predict(workload(model, zero_stage=2, data_parallel_size=2, gradient_accumulation_steps=n))
                 for n in (2, 100_000))
    assert few.requested == many.requested


def test_a_size_beyond_64_bits_is_refused(model):
    with pytest.raises(InputError, match="one buffer alone"):
        predict(workload(model, per_device_train_batch_size=256, sequence_length=4_194_304,
                         attn_implementation="eager", gradient_checkpointing=False))


def odd(**changes) -> str:
    """A configuration with some values of its sections changed."""
    document = small_config()
    for section, values in changes.items():
        document[section] = document.get(section, {}) | values if isinstance(values, dict) else values
    return json.dumps(document)


FILES = [
    (odd(vision_config=[1]), "cannot build it"),
    (odd(vision_config={"image_size": -28}), "vision_config.image_size is -28: give a whole number from 1"),
    (odd(vision_config={"patch_size": 64}), "cannot be traced"),
    (odd(vision_config={"patch_size": 0}), "vision_config.patch_size is 0: give a whole number from 1"),
    (odd(vision_feature_layer=99), "cannot be traced"),
    (odd(quantization_config={"load_in_4bit": True}), "quantization_config is not supported"),
    ("1" * 6000, "not valid JSON"),
    ("{", "not valid JSON"),
    ("[]", "model_type"),
    ('{"model_type": "llava", "text_config": {"model_type": "no_such"}}', "transformers cannot build it"),
    (json.dumps(small_config(num_attention_heads=5, num_key_value_heads=5)), "transformers cannot build it"),
]


def test_a_broken_installation_of_transformers_is_one_line_and_exit_code_2(tmp_path):
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers/__init__.py").write_text("raise RuntimeError('a library of it is broken')")
    (tmp_path / "config.json").write_text(json.dumps(small_config()))
    path = os.pathsep.join([str(tmp_path), str(Path(dispatch.__file__).parents[2])])
    done = subprocess.run([sys.executable, "-m", "predictor", "predict", str(tmp_path), *SHAPE], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": path, "PEAKCAST_CACHE": str(tmp_path / "cache")})
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "RuntimeError: a library of it is broken" in done.stderr


@pytest.mark.parametrize("content, message", FILES, ids=[message for _, message in FILES])
def test_a_bad_configuration_is_one_line_and_exit_code_2(tmp_path, cache, capsys, content, message):
    (tmp_path / "config.json").write_text(content)
    assert main(["predict", str(tmp_path), *SHAPE]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err


def test_without_torch_the_message_names_the_extra(model, cache):
    """A new model needs tracing; a process that has no torch says which extra to install."""
    script = textwrap.dedent(f"""
        import importlib.metadata, sys
        real = importlib.metadata.version
        def version(name):
            if name in ("torch", "transformers"):
                raise importlib.metadata.PackageNotFoundError(name)
            return real(name)
        importlib.metadata.version = version
        from predictor.cli import main
        code = main(["predict", {model!r}, "--sequence-length", "64"])
        assert "torch" not in sys.modules
        sys.exit(code)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2 and "pip install 'peakcast[trace]'" in done.stderr


def test_a_shipped_recipe_answers_without_torch():
    script = textwrap.dedent("""
        import sys
        for name in ("torch", "transformers", "deepspeed", "pandas", "scipy"):
            sys.modules[name] = None
        from predictor.cli import main
        sys.exit(main(["predict", "llava-1.5-13b", "--recipe", "pretrain", "--sequence-length", "2048",
                       "--per-device-train-batch-size", "32", "--zero-stage", "2", "--data-parallel-size", "8", "--json"]))
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["peak_requested_bytes"] > 0


@pytest.mark.parametrize("name, parameters", [("llava-1.5-7b", 7_063_427_072), ("llava-1.5-13b", 13_351_494_656)])
def test_parameter_counts_are_those_of_the_published_models(name, parameters):
    from predictor.model import models, parser

    facts = facts_of(parser.build(models.find(name), attn_implementation="sdpa", recipe="full"))
    assert sum(p.numel for p in facts.parameters if not p.buffer) == parameters
    assert facts.tokens_per_image == 576


def test_the_least_capacity_holds_for_every_rank(model):
    """Start-up, the same on all ranks, can be the requested peak while the steps of some need more."""
    job = {"recipe": "full", "zero_stage": 2, "data_parallel_size": 5}
    least = predict(workload(model, **job), minimum_capacity=True).minimum_capacity_bytes
    for rank in range(5):
        assert predict(workload(model, **job, rank=rank), minimum_capacity=True).minimum_capacity_bytes <= least


def test_a_share_of_the_memory_is_asked_for_as_capacity(model):
    with pytest.raises(InputError, match="per_process_memory_fraction is not supported: give that share as capacity_bytes"):
        workload(model, allocator_conf="per_process_memory_fraction:0.5")


def test_two_outputs_cannot_be_one_file(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["predict", model, *SHAPE, "--snapshot", "a", "-o", "./a"]) == 2
    assert "--snapshot and -o name the same file" in capsys.readouterr().err

"""The choice of a profile, extrapolation, and the wider intervals that follow from it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.campaign import rows
from predictor.answer.predict import predict
from predictor.common.errors import InputError
from predictor.common.json_dataclasses import to_plain
from predictor.events.sizes import Shape
from predictor.jobs import dispatch
from predictor.model.request import Request
from predictor.profile import profile
from predictor.profile.calibration import Interval
from predictor.profile.job_traits import KEYS_WITHOUT_TRAIT, LEARNED_TRAITS, TRAITS, traits_of
from predictor.profile.profile import EXTRAPOLATION, Choice, widened
from predictor.profile.reach import EMULATED_ONLY, OTHER_VERSION
from predictor.workload.keys import KEYS, PINNED
from predictor.workload.workload import Workload
from tests.predictor.profile.test_profile import calibration, written
from tests.predictor.small import small_config


def asked(workload: Workload) -> Request:
    """Of any shape: what kind of job it is does not depend on it."""
    return Request.of(workload, Shape(1, 1, 1))


@dataclass(frozen=True)
class Traced:
    """Of a formula, what tells the kind of a job."""

    provenance: dict[str, Any]



OLD = PINNED | {"torch": "2.9.1"}


def test_a_profile_of_another_gpu_is_refused(tmp_path):
    path = written(tmp_path, to_plain(calibration()))
    with pytest.raises(InputError, match="is a profile of h100-80gb, and the GPU is l40s"):
        profile.choose(path, "l40s", PINNED, {})


def test_no_profile_on_request():
    assert profile.choose("none", "h100-80gb", PINNED, {}) is None


def test_other_versions_and_far_shapes_are_extrapolation(tmp_path):
    path = written(tmp_path, to_plain(calibration(calibrated={"tokens": (1000.0, 2000.0)})))
    assert profile.choose(path, "h100-80gb", PINNED, {"tokens": 4000}).extrapolates == ()
    chosen = profile.choose(path, "h100-80gb", PINNED | {"torch": "2.9.1"}, {"tokens": 4001})
    assert chosen.extrapolates == ("torch 2.9.1 (calibrated with 2.11.0)", "tokens 4,001 (calibrated from 1,000 to 2,000)")


@pytest.mark.parametrize("times, side", [(0, 0.0), (1, 0.005), (2, 0.01), (3, 0.02)])
def test_an_interval_of_nothing_widens_by_half_a_percent_on_either_side_then_doubles(times, side):
    assert widened(0.0, 0.0, times) == pytest.approx((-side, side))


@pytest.mark.parametrize("low, high, wider", [(-0.01, 0.02, (-0.025, 0.035)), (0.01, 0.02, (-0.01, 0.03)), (-0.2, -0.1, (-0.3, 0.1))])
def test_an_interval_widens_about_its_middle_with_0_in_it(low, high, wider):
    assert widened(low, high, 1) == pytest.approx(wider)


ENDS = st.floats(-0.999, 10)


@given(low=ENDS, high=ENDS, times=st.integers(1, 10))
def test_each_extrapolation_moves_both_ends_outwards_around_0_and_not_below_no_bytes(low, high, times):
    low, high = min(low, high), max(low, high)
    before, after = widened(low, high, times - 1), widened(low, high, times)
    assert -1 <= after[0] <= min(before[0], 0) and after[1] >= max(before[1], 0) + EXTRAPOLATION
    assert after[0] == -1 or after[0] <= before[0] - EXTRAPOLATION
    assert math.isfinite(after[1])


def test_a_counter_that_has_no_residuals_has_no_interval():
    choice = Choice(calibration(residuals={"reserved": Interval(0.0, 0.0, 0.9, 60)}), "p", {"a": OTHER_VERSION})
    assert (choice.interval("reserved"), choice.interval("allocated")) == ((-EXTRAPOLATION, EXTRAPOLATION), None)


@pytest.mark.parametrize("gpu", ["h100-80gb", "a100-80gb"])
def test_a_shipped_profile_widens_every_interval_when_it_extrapolates(gpu):
    chosen = profile.choose(None, gpu, OLD, {})
    assert len(chosen.extrapolates) == 1
    for counter in ("requested", "allocated", "reserved"):
        low, high = chosen.interval(counter)
        assert low <= -EXTRAPOLATION and high >= EXTRAPOLATION, counter


def workload(**changes) -> Workload:
    return Workload(**{"model": "llava-1.5-7b", "sequence_length": 1024, "gpu": "h100-80gb"} | changes)


def test_a_sequence_far_longer_than_those_that_were_calibrated_is_extrapolation():
    long = workload(sequence_length=9216)  # 9,216 tokens are within the calibrated 16,384
    assert dispatch.prepare(long).profile.extrapolates == ("sequence length 9,216 (calibrated from 768 to 4,096)",)


@pytest.mark.parametrize("changes, what", [
    ({"engine": "fsdp2", "data_parallel_size": 8, "fsdp": {"reshard_after_forward": True}},
     "engine fsdp2 reshard_after_forward wrap=layers (calibrated with fsdp2 "),
    ({"tensor_parallel_size": 2}, "engine torch tensor parallel (calibrated with torch, ZeRO-0, "),
    ({"recipe": "lora", "lora": {"use_dora": True}}, "recipe lora use_dora "),
    ({"trainable": ("*lm_head*",)}, "recipe finetune trainable "),
    ({"recipe": "lora", "quantization": {"load_in_4bit": True}}, "quantization load_in_4bit bnb_4bit_quant_type=fp4 "),
    ({"optim": "rmsprop"}, "optimizer rmsprop"),
    ({"optim": "adamw_torch", "max_grad_norm": 0}, "optimizer adamw_torch max_grad_norm 0"),
    ({"attn_implementation": "flash_attention_2"}, "attention flash_attention_2 (calibrated with eager, sdpa "),
    ({"gradient_checkpointing_kwargs": {"offload": True}}, "checkpointing on offload (calibrated with on, on modules, "),
    ({"allocator_conf": "max_split_size_mb:128"}, "allocator_conf max_split_size_mb:128 (calibrated with default, "),
])
@pytest.mark.parametrize("gpu", ["h100-80gb", "a100-80gb"])
def test_a_kind_of_job_that_the_campaign_did_not_measure_is_extrapolation(gpu, changes, what):
    one, = extrapolated(workload(gpu=gpu, **changes))
    assert one.startswith(what)


@pytest.mark.parametrize("changes", [
    {"engine": "fsdp2", "data_parallel_size": 8}, {"engine": "fsdp1", "data_parallel_size": 8},
    {"zero_stage": 3, "data_parallel_size": 8}, {"zero_stage": 1}, {"zero_stage": 2, "offload": "optimizer"},
    {"zero_stage": 3, "offload": "all"}, {"recipe": "lora"}, {"frozen": ("*lm_head*",)},
    {"recipe": "lora", "lora": {"r": 8, "target_modules": "all-linear"}},
    {"recipe": "lora", "quantization": {"load_in_8bit": True}}, {"optim": "adafactor"}, {"optim": "paged_adamw_8bit"},
    {"max_grad_norm": 0}, {"dtype": "fp16"}, {"mixed_precision": "bf16"}, {"use_liger_kernel": True},
    {"padding": "packed"}, {"per_device_eval_batch_size": 1}, {"gradient_checkpointing_kwargs": {"use_reentrant": True}},
    {"allocator_conf": "expandable_segments:True"}, {"keep_outputs": "next_forward"},
    *({"model": name, "image_size": 448} for name in ("qwen2-vl-7b", "qwen2.5-vl-7b", "qwen3-vl-8b", "internvl3-8b")),
    *({"model": name} for name in ("gemma-3-12b", "paligemma-3b", "smolvlm2-2.2b")),
    *({"model": name, "images_per_sample": 0} for name in ("llama-3.1-8b", "qwen2.5-7b", "qwen3-8b", "mistral-7b")),
], ids=str)
@pytest.mark.parametrize("gpu", ["h100-80gb", "a100-80gb"])
def test_the_usual_kinds_of_jobs_are_covered_by_the_shipped_profiles(gpu, changes):
    assert extrapolated(workload(gpu=gpu, **changes)) == ()


def extrapolated(job: Workload) -> tuple[str, ...]:
    """The ways in which a job is outside of its GPU's shipped profile, with the kernel that ``auto`` takes there."""
    backend = {"h100-80gb": "cudnn", "a100-80gb": "flash"}[job.gpu] if job.attn_implementation == "sdpa" else ""
    known = Traced({"key": {"sdpa_backend": backend}})
    return nowhere_covered(profile.choose(None, job.gpu, PINNED, {}, traits_of(asked(job), known)))


def nowhere_covered(chosen: Choice) -> tuple[str, ...]:
    """The ways in which a job is outside of all that was measured of its GPU, also of the emulated one."""
    return tuple(way for way, reach in chosen.outside.items() if reach is not EMULATED_ONLY)


def test_what_only_an_emulated_gpu_measured_widens_reserved_and_device_bytes_once():
    job = workload(gpu="h100-80gb", padding="packed", dtype="fp16")
    chosen = dispatch.prepare(job).profile
    assert [chosen.times(counter) for counter in ("requested", "allocated", "reserved", "device")] == [0, 0, 1, 1]


def test_the_profile_of_a_real_gpu_covers_no_more_than_it_measured_if_it_is_named():
    job = workload(gpu="h100-80gb", optim="adafactor", profile="device")
    assert dispatch.prepare(job).profile.ways("requested")


@pytest.mark.parametrize("gpu", ["h100-80gb", "a100-80gb"])
def test_allocator_settings_that_were_not_covered_widen_all_intervals_but_that_of_requested_bytes(gpu):
    sure, unsure = (predict(workload(gpu=gpu, allocator_conf=conf)) for conf in
                    (None, "max_split_size_mb:4096"))
    assert unsure.requested == sure.requested
    assert unsure.peak_allocated_bytes_low < sure.peak_allocated_bytes_low
    assert unsure.peak_reserved_bytes_high - unsure.peak_reserved_bytes > sure.peak_reserved_bytes_high - sure.peak_reserved_bytes
    level = unsure.provenance["profile"]["level"]
    assert level["requested"] and level["allocated"] is level["reserved"] is None
    said, = (note for note in unsure.not_modelled if "did not cover" in note)
    assert said.endswith("allocator_conf max_split_size_mb:4096 (calibrated with default, expandable_segments:True), on "
                         "which requested bytes do not depend")


def test_a_kind_that_moves_requested_bytes_too_widens_every_interval():
    chosen = dispatch.prepare(workload(optim="rmsprop", allocator_conf="max_split_size_mb:64")).profile
    assert [chosen.times(counter) for counter in ("requested", "allocated", "reserved")] == [1, 2, 2]


def test_the_order_of_a_configuration_makes_no_other_kind(tmp_path):
    found = []
    for turn in (1, -1):
        path = tmp_path / f"{turn}.json"
        path.write_text(json.dumps(dict(list(small_config().items())[::turn])))
        found.append(TRAITS["model"].text(asked(workload(model=str(path))), Traced({})))
    assert found == ["llava of llama and clip_vision_model"] * 2


@pytest.mark.parametrize("gpu", ["h100-80gb", "a100-80gb"])
def test_the_measured_jobs_of_a_shipped_profile_extrapolate_nothing(gpu):
    for row in rows.read(profile.SHIPPED / gpu / "campaign.jsonl"):
        job = row.workload().replace(gpu=gpu)
        backend = job.sdpa_backend.replace("auto", {"h100-80gb": "cudnn", "a100-80gb": "flash"}[gpu])
        known = {"key": {"sdpa_backend": backend if job.attn_implementation == "sdpa" else ""}}
        assert nowhere_covered(profile.choose(None, gpu, PINNED, {}, traits_of(asked(job), Traced(known)))) == (), row.id


def test_a_model_of_other_parts_is_extrapolation(tmp_path):
    other = tmp_path / "config.json"
    other.write_text(json.dumps(small_config() | {"text_config": {"model_type": "mistral"}}))
    said = traits_of(asked(workload(model=str(other))), Traced({"key": {"sdpa_backend": "cudnn"}}))
    assert nowhere_covered(profile.choose(None, "h100-80gb", PINNED, {}, said)) == (
        "model llava of mistral and clip_vision_model (calibrated with llava of llama and clip_vision_model, llava of "
        "mistral and pixtral, llava of qwen2 and siglip_vision_model, gemma3 of gemma3_text and siglip_vision_model, gpt2 "
        "and 17 others)",)


@pytest.mark.parametrize(("keys", "loop"), [
    ({"keep_outputs": "backward"}, "keep_outputs backward"),
    ({"keep_outputs": "next_forward", "zero_grad": "before_backward"}, "keep_outputs next_forward zero_grad before_backward"),
])
def test_a_loop_that_is_not_the_reference_loop_is_outside_of_a_profile_without_one(tmp_path, keys, loop):
    said = traits_of(asked(workload(**keys)), Traced({"key": {"sdpa_backend": "cudnn"}}))
    document = json.loads((profile.SHIPPED / "h100-80gb" / "profile-emulated.json").read_text())
    del document["covered"]["loop"]
    older = tmp_path / "older.json"
    older.write_text(json.dumps(document))
    assert profile.choose(str(older), "h100-80gb", PINNED, {}, said).extrapolates == (f"loop {loop} (calibrated with reference)",)


def test_a_profile_from_before_kinds_were_kept_claims_none(tmp_path):
    document = to_plain(calibration())
    del document["covered"]
    chosen = profile.choose(written(tmp_path, document), "h100-80gb", PINNED, {}, LEARNED_TRAITS)
    assert chosen.extrapolates == ("job traits (the profile is older than their record)",)


def test_every_key_of_a_workload_is_of_a_kind_or_of_none():
    assert sorted([*KEYS_WITHOUT_TRAIT, *(key for kind in TRAITS.values() for key in kind.keys)]) == sorted(KEYS)


def test_an_extrapolation_so_strong_that_nothing_is_known_is_uncertain_and_not_a_refusal(tmp_path):
    narrow = {quantity: (1e6, 1e6) for quantity in ("tokens", "sequence_length", "images", "data_parallel_size")}
    path = written(tmp_path, to_plain(calibration(residuals={"reserved": Interval(-0.5, 0.5, 0.9, 60)},
                                                  calibrated=narrow)))
    found = predict(workload(profile=path, capacity_bytes=8 << 30))
    assert predict(workload(profile="none", capacity_bytes=8 << 30)).verdict == "does_not_fit"
    assert (found.verdict, found.peak_reserved_bytes_low) == ("uncertain", 0)


# --- shipped ones ------------------------------------------------------------------------------------


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Puts profiles among the shipped ones of the H100, by name."""
    folder = tmp_path / "shipped" / "h100-80gb"
    folder.mkdir(parents=True)
    monkeypatch.setattr(profile, "SHIPPED", folder.parent)

    def put(**profiles) -> None:
        for name, one in profiles.items():
            profile.write(str(folder / f"profile-{name}.json"), one)

    return put


def chosen() -> str:
    return profile.choose(None, "h100-80gb", PINNED, {}).name


def test_a_real_gpu_wins_over_an_emulated_one_of_the_same_versions(shipped):
    shipped(a=calibration(measured_on="emulated"), b=calibration(measured_on="device", software=OLD))
    assert chosen() == "h100-80gb/profile-b.json"


def test_of_two_real_gpus_the_one_of_fewer_other_versions_wins(shipped):
    shipped(a=calibration(software=OLD), b=calibration())
    assert chosen() == "h100-80gb/profile-b.json"


def test_of_equals_the_first_by_name_wins(shipped):
    shipped(b=calibration(), a=calibration())
    assert chosen() == "h100-80gb/profile-a.json"


@pytest.mark.parametrize("requested, name", [("device", "a"), ("emulated", "b")])
def test_a_shipped_profile_is_asked_for_by_where_it_was_measured(shipped, requested, name):
    shipped(a=calibration(measured_on="device"), b=calibration(measured_on="emulated"))
    assert profile.choose(requested, "h100-80gb", PINNED, {}).name == f"h100-80gb/profile-{name}.json"


def test_a_bad_file_among_those_shipped_does_not_matter_to_one_that_is_named(shipped, tmp_path):
    shipped(good=calibration())
    (profile.SHIPPED / "h100-80gb" / "profile-bad.json").write_text("{")
    file = written(tmp_path, to_plain(calibration()))
    assert profile.find(file) == profile.find("h100-80gb/profile-good.json") == calibration()


def test_a_file_wins_over_a_shipped_profile_of_the_same_name(shipped, tmp_path, monkeypatch):
    shipped(one=calibration(peakcast_version="shipped"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h100-80gb").mkdir()
    profile.write("h100-80gb/profile-one.json", calibration(peakcast_version="mine"))
    assert profile.find("h100-80gb/profile-one.json").peakcast_version == "mine"

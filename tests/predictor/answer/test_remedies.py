"""Remedies: every change that is said to fit does, those that keep training the same come first, nothing is traced."""

from __future__ import annotations

import json
import shlex

import pytest

from predictor import Workload, predict, readers
from predictor.answer import changes
from predictor.answer.remedies import ENOUGH, remedies, with_remedies
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.formula import store
from predictor.jobs import dispatch
from predictor.profile.corrections import ASSUMED_RUNTIME_BYTES
from predictor.report.remedies import short
from predictor.workload.command_line import change_words
from predictor.workload.value_sources import Note, Source
from tests.predictor.small import small_llama

BATCH = "per_device_train_batch_size"
LLAVA = {"model": "llava-1.5-7b", "sequence_length": 2048, "per_device_train_batch_size": 16}
JOBS = [
    LLAVA | {"zero_stage": 2, "data_parallel_size": 8, "gpu": "a100-40gb"},
    LLAVA | {"zero_stage": 3, "data_parallel_size": 4, "gpu": "l40s", "optim": "adamw_torch"},
    LLAVA | {"zero_stage": 2, "data_parallel_size": 8, "gpu": "h100-80gb", "per_device_train_batch_size": 32},
    LLAVA | {"engine": "ddp", "data_parallel_size": 2, "gpu": "h100-80gb", "gradient_accumulation_steps": 2},
    LLAVA | {"gpu": "rtx-4090"},
]


@pytest.fixture(autouse=True)
def _only_shipped_formulas(tmp_path, monkeypatch):
    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path))


@pytest.mark.parametrize("keys", JOBS, ids=str)
def test_what_is_said_to_fit_is_predicted_to_fit_with_the_same_bytes(keys):
    workload = Workload(**keys)
    fitting = [remedy for remedy in remedies(workload) if remedy.fits]
    assert fitting
    for remedy in fitting:
        prediction = predict(workload.replace(**remedy.keys))
        assert prediction.verdict == "fits"
        assert (prediction.peak_allocated_bytes, prediction.peak_reserved_bytes, prediction.peak_reserved_bytes_high) == (
            remedy.peak_allocated_bytes, remedy.peak_reserved_bytes, remedy.peak_reserved_bytes_high)


@pytest.mark.parametrize("keys", JOBS, ids=str)
def test_changes_that_keep_training_the_same_come_before_others(keys):
    families = changes.of(Workload(**keys))
    ranks = [(bool(family[0].differs), family[0].is_hardware, family[0].is_other_engine) for family in families]
    assert ranks == sorted(ranks) and (False, False, False) in ranks


def test_of_smaller_batches_the_largest_that_fits_is_chosen():
    workload = Workload(**JOBS[0])
    family = next(family for family in changes.of(workload) if "per_device_train_batch_size" in family[0].keys)
    chosen = next(remedy for remedy in remedies(workload) if "micro batch" in remedy.changes[0])
    texts = [change.text for change in family]
    before = family[texts.index(chosen.changes[0]) - 1]
    assert predict(workload.replace(**before.keys)).verdict != "fits"


def test_smaller_batches_keep_the_global_batch_size_or_are_said_to_change_it():
    workload = Workload(**JOBS[3])
    for family in changes.of(workload):
        for change in family:
            if "per_device_train_batch_size" in change.keys:
                other = workload.replace(**change.keys)
                same = other.per_device_train_batch_size * other.gradient_accumulation_steps == 32
                assert same == (not change.differs)


def test_batch_sizes_in_the_users_deepspeed_config_change_with_the_batch():
    config = {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 1,
              "train_batch_size": 128, "zero_optimization": {"stage": 2}}
    workload = Workload(model="llava-1.5-7b", sequence_length=2048, deepspeed=config, data_parallel_size=8,
                        gpu="a100-40gb")
    chosen = next(remedy for remedy in remedies(workload) if remedy.fits and "accumulation" in remedy.changes[0])
    assert chosen.keys["deepspeed"]["train_micro_batch_size_per_gpu"] * chosen.keys["deepspeed"][
        "gradient_accumulation_steps"] == 16


def test_changes_are_made_together_where_no_single_one_fits():
    workload = Workload(**JOBS[0], capacity_bytes=24 << 30).replace(gpu=None)
    together = [remedy for remedy in remedies(workload) if remedy.fits]
    assert together and all(len(remedy.changes) > 1 for remedy in together)
    assert all(predict(workload.replace(**remedy.keys)).verdict == "fits" for remedy in together)


def test_a_size_is_chosen_after_the_other_change():
    workload = Workload(**LLAVA, zero_stage=2, data_parallel_size=4, gpu="a100-40gb")
    both = {"zero_stage": 3, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4}
    assert both in [remedy.keys for remedy in remedies(workload) if remedy.fits]


def test_a_change_without_a_formula_is_not_traced_but_named(monkeypatch):
    monkeypatch.setattr("predictor.formula.tracing.trace_formula", None)
    named = [remedy for remedy in remedies(Workload(**JOBS[0])) if remedy.needs_trace]
    assert any("use_liger_kernel" in remedy.changes[0] for remedy in named)
    assert {remedy.fits for remedy in named} == {None}


def test_the_smallest_larger_gpu_that_may_do_is_named_where_each_needs_a_trace(monkeypatch):
    prepare = dispatch.prepare

    def traced_here(workload, progress=None):
        if workload.gpu != "a100-40gb":
            raise store.NotTraced("no formula")
        return prepare(workload, progress)

    monkeypatch.setattr(dispatch, "prepare", traced_here)
    job = Workload(**LLAVA, zero_stage=2, data_parallel_size=4, gpu="a100-40gb")
    larger = [remedy.keys["gpu"] for remedy in remedies(job, every=True) if remedy.needs_trace and "gpu" in remedy.keys]
    assert larger == ["h100-pcie-80gb"]  # the smallest in which 53.4 GiB of tensors have room


def test_the_search_ends_after_enough_that_fit():
    assert sum(bool(remedy.fits) for remedy in remedies(Workload(**JOBS[2]))) == ENOUGH


def test_changes_that_would_take_longer_are_named_but_not_simulated(monkeypatch):
    monkeypatch.setattr("predictor.answer.remedies.MOST_SECONDS", 0)
    judged = remedies(Workload(**JOBS[2]))
    (fitting,) = (remedy for remedy in judged if remedy.fits)
    left = [remedy for remedy in judged if remedy.needs_time]
    assert left and {remedy.fits for remedy in left} == {None}
    assert judged.index(fitting) < min(map(judged.index, left))
    assert "Not checked, to answer soon (add --remedies): " in short(judged)[-1]


def test_none_is_left_for_want_of_time_if_all_are_asked_for(monkeypatch):
    monkeypatch.setattr("predictor.answer.remedies.MOST_SECONDS", 0)
    assert not any(remedy.needs_time for remedy in remedies(Workload(**JOBS[2]), every=True))


def test_only_a_job_that_does_not_surely_fit_gets_remedies():
    fitting = Workload(**JOBS[2], allocator_conf="expandable_segments:True")
    assert with_remedies(predict(fitting), fitting).remedies is None
    dying = Workload(**JOBS[2])
    assert with_remedies(predict(dying), dying).remedies


def test_remedies_need_a_gpu():
    with pytest.raises(InputError, match="remedies need a GPU"):
        remedies(Workload(**LLAVA))


def test_the_price_of_a_larger_gpu_says_where_its_capacity_is_assumed():
    def larger(than):
        return next(family for family in changes.of(Workload(**LLAVA | {"gpu": than})) if "gpu" in family[0].keys)

    found = larger("a100-40gb")
    assert all(("assumed" in change.costs) == (not gpus.find(change.keys["gpu"]).measured) for change in found)
    assert {"assumed" in change.costs for change in found} == {True, False}


def test_a_change_whose_tensors_have_room_is_told_from_one_whose_tensors_alone_do_not_fit():
    workload = Workload(model="llava-1.5-7b", sequence_length=1024, per_device_train_batch_size=4, profile="none",
                        capacity_bytes=int(52.55 * (1 << 30)))
    failing = [remedy for remedy in remedies(workload) if remedy.fits is False]
    assert {remedy.room_bytes >= 0 for remedy in failing} == {True, False}
    for remedy in failing:
        other = workload.replace(**remedy.keys)
        alone = predict(other.replace(capacity_bytes=None))
        surely = workload.capacity_bytes - ASSUMED_RUNTIME_BYTES
        assert surely - remedy.peak_requested_bytes == remedy.room_bytes
        assert alone.peak_requested_bytes == remedy.peak_requested_bytes
        assert alone.peak_reserved_bytes > surely


@pytest.mark.parametrize(("precision", "differs", "words"), [
    ({"dtype": "fp32"}, "", "--zero-stage 2, without --engine"),
    ({"dtype": "bf16"}, "bf16 weights with fp32 master weights", "--zero-stage 2, without --engine"),
    ({"dtype": "bf16", "mixed_precision": "bf16"}, "bf16 weights with fp32 master weights, without autocast",
     "--zero-stage 2, without --engine and --mixed-precision"),
    ({"dtype": "fp32", "mixed_precision": "bf16"}, "bf16 weights with fp32 master weights, without autocast",
     "--zero-stage 2 --dtype bf16, without --engine and --mixed-precision"),
], ids=str)
def test_deepspeed_in_place_of_ddp_says_how_the_precision_changes_and_all_that_is_to_type(precision, differs, words):
    workload = Workload(**LLAVA | {"engine": "ddp", "data_parallel_size": 2, "gpu": "h100-80gb"} | precision)
    change = _to_deepspeed(workload)
    assert (change.text, change.differs) == ("DDP → DeepSpeed ZeRO-2", differs)
    given = {key: value for key, value in change.keys.items() if value is not None}
    assert workload.replace(**change.keys) == Workload(**LLAVA | {"data_parallel_size": 2, "gpu": "h100-80gb"} | given)
    own = changes.said(workload, change.keys)[1]
    assert own is not None and own.text == words


def _to_deepspeed(workload: Workload) -> changes.Change:
    (change,) = (family[0] for family in changes.of(workload) if family[0].is_other_engine)
    return change


@pytest.mark.parametrize(("launcher", "sections"), [
    ("torchrun --nproc_per_node 8", {"stage": 2}), ("torchrun --nproc_per_node 1", {"stage": 2, "offload_optimizer": {"device": "cpu"}}),
], ids=["ddp", "one GPU"])
def test_a_trainer_command_gets_deepspeed_in_its_own_words(tmp_path, launcher, sections):
    (tmp_path / "job.sh").write_text(
        f"{launcher} llava/train/train_mem.py --model_name_or_path lmsys/vicuna-7b-v1.5 --bf16 True --mm_projector_type "
        "mlp2x_gelu --vision_tower openai/clip-vit-large-patch14-336 --model_max_length 2048 --output_dir out\n")
    keys, source = readers.read(path=str(tmp_path / "job.sh"))
    workload = Workload.from_mapping({"gpu": "a100-40gb", **keys}).read_from(source)
    own = source.in_own_words(_to_deepspeed(workload).keys)
    words = shlex.split(own.text)
    assert words[0] == "--deepspeed" and sections.items() <= json.loads(words[1])["zero_optimization"].items()
    assert own.workload["mixed_precision"] is None and "without autocast" in _to_deepspeed(workload).differs


def test_a_plain_command_that_cannot_say_deepspeed_is_told_that_it_needs_a_config(tmp_path):
    (tmp_path / "job.sh").write_text("python llava/train/train_mem.py --model_name_or_path lmsys/vicuna-7b-v1.5 --bf16 True "
                                     "--mm_projector_type mlp2x_gelu --vision_tower openai/clip-vit-large-patch14-336 "
                                     "--model_max_length 2048 --output_dir out\n")
    keys, source = readers.read(path=str(tmp_path / "job.sh"))
    change = _to_deepspeed(Workload.from_mapping({"gpu": "a100-40gb", **keys}).read_from(source))
    assert source.in_own_words(change.keys) is None
    assert change.text.endswith(", which needs a DeepSpeed config")


def test_a_job_that_becomes_deepspeeds_in_the_users_words_is_that_of_the_changed_file(tmp_path, monkeypatch):
    document = small_llama()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(document))
    command = (f"torchrun --nproc_per_node 2 train.py --model_name_or_path {tmp_path / 'model'} --bf16 True "
               "--max_length 64 --output_dir out --per_device_train_batch_size 2")
    (tmp_path / "job.sh").write_text(command + "\n")
    keys, source = readers.read(path=str(tmp_path / "job.sh"))
    workload = Workload.from_mapping({"capacity_bytes": 1 << 21, **keys}).read_from(source)
    change = _to_deepspeed(workload)
    monkeypatch.setattr(changes, "of", lambda _: [(change,)])
    (chosen,) = remedies(workload, every=True, trace=True)
    (tmp_path / "changed.sh").write_text(f"{command} {chosen.own_words}\n")
    changed, _ = readers.read(path=str(tmp_path / "changed.sh"))
    prediction = predict(Workload.from_mapping({"capacity_bytes": 1 << 21, **changed}))
    assert (prediction.verdict, prediction.peak_requested_bytes) == ("does_not_fit", chosen.peak_requested_bytes)


def test_sequences_are_cut_below_half_where_longer_ones_do_not_fit(monkeypatch):
    long = Workload(**LLAVA | {"sequence_length": 4096, "zero_stage": 2, "data_parallel_size": 8, "profile": "none"})
    shorter = predict(long.replace(sequence_length=1024)).peak_reserved_bytes
    workload = long.replace(capacity_bytes=shorter + ASSUMED_RUNTIME_BYTES)
    family = next(family for family in changes.of(workload) if "sequence_length" in family[0].keys)
    lengths = [change.keys["sequence_length"] for change in family]
    assert lengths == sorted(set(lengths), reverse=True) and lengths[-1] == 512
    assert all(change.differs for change in family)
    monkeypatch.setattr(changes, "of", lambda _: [family])
    (chosen,) = remedies(workload)
    assert chosen.fits and 1024 <= chosen.keys["sequence_length"] < 2048
    before = lengths[lengths.index(chosen.keys["sequence_length"]) - 1]
    assert predict(workload.replace(sequence_length=before)).verdict != "fits"


@pytest.mark.parametrize("length", [600, 1024, 4096, 8192, 131072])
def test_a_family_of_lengths_stays_short_below_half(length):
    family = next(family for family in changes.of(Workload(**LLAVA | {"sequence_length": length, "gpu": "l40s"}))
                  if "sequence_length" in family[0].keys)
    below = [change.keys["sequence_length"] for change in family if change.keys["sequence_length"] < length // 2]
    assert len(below) <= 6 and all(size >= length // 8 for size in below)


def test_one_gpu_gets_the_optimizer_on_the_host_by_deepspeed():
    workload = Workload(**LLAVA | {"sequence_length": 1024, "per_device_train_batch_size": 4, "gpu": "a100-40gb"})
    chosen = next(remedy for remedy in remedies(workload) if "optimizer on the host" in remedy.changes[0])
    assert chosen.fits and "DeepSpeed" in chosen.costs[0] and chosen.differs
    other = workload.replace(**chosen.keys)
    assert (other.engine, other.zero_stage, other.offload) == ("deepspeed", 2, "optimizer")


@pytest.mark.parametrize(("conf", "said"), [
    (None, "expandable_segments:True"), ("max_split_size_mb:512", "max_split_size_mb:512,expandable_segments:True"),
    ("roundup_power2_divisions:[256:1,>:8]", None)])
def test_expandable_segments_are_said_with_the_allocators_other_settings(conf, said):
    workload = Workload(**JOBS[0] | {"allocator_conf": conf})
    change = changes.of(workload)[0][0]
    word, = shlex.split(change.text)
    assert word == f"PYTORCH_CUDA_ALLOC_CONF={change.keys['allocator_conf']}"
    assert said is None or change.text == f"PYTORCH_CUDA_ALLOC_CONF={said}"


def test_a_stage_in_the_users_own_config_is_said_there_alone(tmp_path):
    (tmp_path / "zero2.json").write_text(json.dumps({"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}))
    (tmp_path / "job.sh").write_text(
        "torchrun --nproc_per_node 8 llava/train/train_mem.py --model_name_or_path lmsys/vicuna-7b-v1.5 --bf16 True "
        "--mm_projector_type mlp2x_gelu --vision_tower openai/clip-vit-large-patch14-336 --model_max_length 2048 "
        f"--output_dir out --deepspeed {tmp_path / 'zero2.json'}\n")
    keys, source = readers.read(path=str(tmp_path / "job.sh"))
    workload = Workload.from_mapping({"gpu": "a100-40gb", **keys}).read_from(source)
    assert workload.zero_stage == 2
    said, own = changes.said(workload, {"zero_stage": 3, "offload": "optimizer"})
    assert said.keys() >= own.workload.keys() and said["zero_stage"] is said["offload"] is None
    changed = workload.replace(**said)
    assert (changed.zero_stage, changed.offload) == (3, "optimizer")


def test_a_change_for_which_the_framework_has_no_setting_says_so(tmp_path):
    (tmp_path / "job.sh").write_text(
        "torchrun --nproc_per_node 8 llava/train/train_mem.py --model_name_or_path lmsys/vicuna-7b-v1.5 --bf16 True "
        "--mm_projector_type mlp2x_gelu --vision_tower openai/clip-vit-large-patch14-336 --model_max_length 2048 "
        "--gradient_checkpointing True --output_dir out\n")
    keys, source = readers.read(path=str(tmp_path / "job.sh"))
    workload = Workload.from_mapping({"gpu": "a100-40gb", **keys}).read_from(source)
    named = {family[0].text: changes.named(workload, family[0]).text for family in changes.of(workload)
             if changes.said(workload, family[0].keys)[1] is None}
    said = "inputs of checkpoints → host"
    assert named[said] == f"{said}, for which LLaVA 1.2 has no known setting: change the code"
    assert all(after == before for before, after in named.items() if "GPU" in before or "a100" in before)


def trl_job(tmp_path, **keys) -> Workload:
    """Adapters by TRL on an RTX 4090, over fp32 weights, as its defaults are."""
    (tmp_path / "sft.yaml").write_text(json.dumps({
        "model_name_or_path": "Qwen/Qwen2.5-7B", "per_device_train_batch_size": 1, "max_length": 1024, "use_peft": True, "output_dir": "x"}))
    read, source = readers.read(path=str(tmp_path / "sft.yaml"), form="trl")
    return Workload.from_mapping({"gpu": "rtx-4090", **read, **keys}).read_from(source)


def test_a_setting_of_the_framework_that_is_not_predicted_is_not_said_to_be_missing(tmp_path):
    source = trl_job(tmp_path).source
    for keys, name in (({"quantization": changes.QLORA}, "load_in_4bit"), ({"use_liger_kernel": True}, "use_liger_kernel")):
        assert f"sft.yaml: {name} True is not supported: " in source.refusal(keys) and not source.without_setting(keys)
    assert not source.refusal({"sequence_length": 512})


def test_frozen_weights_may_have_the_dtype_that_autocast_computes_in(tmp_path):
    (of_adapters,) = (family[0] for family in changes.of(trl_job(tmp_path)) if family[0].keys.keys() == {"dtype"})
    assert of_adapters.differs == "frozen weights in bf16, in which autocast computes"
    keys, own = changes.said(trl_job(tmp_path), of_adapters.keys)
    assert own is not None and (keys, own.text, own.where.rpartition("/")[2]) == ({"dtype": "bf16"}, "dtype: bfloat16", "sft.yaml")
    assert not any(family[0].keys.keys() == {"dtype"} for family in changes.of(trl_job(tmp_path, recipe="full", lora=None)))


def test_a_larger_gpu_beside_another_change_leaves_that_in_the_users_own_words(tmp_path):
    keys, own = changes.said(trl_job(tmp_path), {"gpu": "l40s", "sequence_length": 512})
    assert own is not None and own.text == "--gpu l40s and max_length: 512"
    assert keys == {"gpu": "l40s", "sequence_length": 512}


def test_changes_that_keep_training_are_made_together_though_a_single_other_change_fits():
    judged = remedies(Workload(**LLAVA, capacity_bytes=48 << 30))
    single, together = sorted((remedy for remedy in judged if remedy.fits), key=lambda remedy: len(remedy.changes))
    assert single.differs and together.changes[0].startswith("micro batch 16 → 1")


@pytest.mark.parametrize("keys", [*JOBS, LLAVA | {"zero_stage": 2, "gpu": "h100-80gb"}], ids=str)
def test_what_fits_alone_is_not_combined_with_more(keys):
    judged = [remedy for remedy in remedies(Workload(**keys)) if remedy.fits]
    assert not any(alone.keys.items() < more.keys.items() for alone in judged for more in judged)
    assert not any("host" in alone.changes[0] and any("host" in change for change in more.changes)
                   for alone in judged for more in judged if len(alone.changes) == 1 < len(more.changes))


def test_changes_that_there_was_no_time_to_make_together_are_named(monkeypatch):
    monkeypatch.setattr("predictor.answer.remedies.MOST_SECONDS", 0)
    judged = remedies(Workload(**LLAVA, capacity_bytes=48 << 30))
    together = [remedy for remedy in judged if remedy.changes == ("several changes together",)]
    assert [(remedy.fits, remedy.needs_time) for remedy in together] == [(None, True)]
    assert not any(len(remedy.changes) > 1 for remedy in judged)


def test_changes_with_more_buffers_than_are_simulated_take_their_part_of_the_time():
    """With the optimizer on the host each of 65,536 GPUs has its part of a gradient, which is composed for half a
    second before that is known. Without that time the search went on for six."""
    job = Workload(model="llava-1.5-7b", recipe="pretrain", per_device_train_batch_size=16, sequence_length=1024, zero_stage=1,
                   data_parallel_size=65_536, gpu="rtx-4070-ti")
    assert [remedy.changes for remedy in remedies(job) if remedy.needs_time] == [("several changes together",)]


def test_of_unequal_gpus_the_remedies_are_those_of_the_one_where_the_job_fits_worst():
    workload = Workload(**LLAVA | {"zero_stage": 2, "data_parallel_size": 8, "gpu": "a100-80gb"})
    found = with_remedies(predict(workload, also_gpus=["l40s"]), workload).remedies
    assert found and not any("gpu" in remedy.keys for remedy in found)
    alone = remedies(workload.replace(gpu="l40s"))
    assert [remedy.keys for remedy in found] == [remedy.keys for remedy in alone if "gpu" not in remedy.keys]


def test_adapters_on_one_gpu_may_leave_the_models_weights_on_the_host():
    families = changes.of(Workload(**LLAVA, recipe="lora", gpu="rtx-4090"))
    texts = [change.text for family in families for change in family if change.is_other_engine]
    assert texts == ["plain PyTorch → DeepSpeed ZeRO-3 with the optimizer and parameters on the host"]


@pytest.mark.parametrize(("conf", "listed"), [(None, True), ("expandable_segments:True", False)])
def test_of_a_job_that_fits_only_what_lowers_its_reserved_memory_is_listed(conf, listed):
    workload = Workload(**JOBS[2] | {"gpu": "h200"}, allocator_conf=conf)
    reserved = predict(workload).peak_reserved_bytes
    judged = remedies(workload, every=True)
    assert all(remedy.fits and remedy.peak_reserved_bytes < reserved for remedy in judged if remedy.fits is not None)
    assert any("expandable" in remedy.own_words for remedy in judged) == listed


@pytest.mark.parametrize(("given", "keys", "words"), [
    ({}, {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}, "--per-device-train-batch-size 8"),
    ({"gradient_checkpointing": False}, {"gradient_checkpointing": True}, "--gradient-checkpointing"),
    ({"engine": "ddp"}, {"engine": None, "zero_stage": 2}, "--zero-stage 2, without --engine"),
    ({}, {"allocator_conf": "expandable_segments:True"}, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    ({}, {"quantization": {"load_in_4bit": True}}, "--quantization load_in_4bit=true"),
    ({}, {"deepspeed": {"zero_optimization": {"stage": 2}}}, "")])
def test_changes_are_said_in_words_that_can_be_typed(given, keys, words):
    assert change_words(Workload(**{"model": "llava-1.5-7b"} | given), keys) == words


def test_a_remedy_has_the_cautions_of_its_prediction():
    note = Note("its loss copies the logits once more", more_bytes=lambda workload: workload.sequence_length << 20)
    workload = Workload(**JOBS[0]).read_from(Source("none", "Mine 1.0", "train.sh", (), notes=(note,)))
    fitting = [remedy for remedy in remedies(workload, every=True) if remedy.fits]
    for remedy in fitting:
        found = predict(workload.replace(**remedy.keys))
        assert remedy.cautions == found.cautions
    assert {any(note.text in row.text for row in remedy.cautions) for remedy in fitting} == {True, False}


def test_of_smaller_global_batches_only_larger_micro_batches_are_listed():
    found = [remedy.keys[BATCH] for remedy in remedies(Workload(**JOBS[0]), every=True)
             if remedy.fits and len(remedy.changes) == 1 and BATCH in remedy.keys]
    assert found == [4, 8]  # 4 x 4 keeps the global batch of 16; 8 x 2 would need more than 8 alone


@pytest.mark.parametrize("gpu", ["a100-40gb", "rtx-4090", "l40s"])
def test_a_larger_gpu_does_not_end_the_search_for_changes_on_the_same_gpu(monkeypatch, gpu):
    """Where time is over as soon as something fits, a larger GPU is not enough: others are still simulated."""
    monkeypatch.setattr("predictor.answer.remedies.MOST_SECONDS", 0)
    found = [remedy for remedy in remedies(Workload(**LLAVA, gpu=gpu)) if remedy.fits]
    assert ["gpu" in remedy.keys for remedy in found] == [True, False]


def test_changes_that_train_less_come_last():
    found = remedies(Workload(model="llava-1.5-7b", sequence_length=2048, gpu="rtx-4090"), every=True)
    differing = [remedy for remedy in found if remedy.differs and "gpu" not in remedy.keys]
    less = ["recipe" in remedy.keys or "quantization" in remedy.keys for remedy in differing]
    assert less == sorted(less) and True in less and False in less


def test_a_larger_gpu_is_the_smallest_that_fits():
    found = next(remedy for remedy in remedies(Workload(**LLAVA, gpu="a100-40gb", zero_stage=2, data_parallel_size=8), every=True)
                 if remedy.fits and "gpu" in remedy.keys)
    assert gpus.find(found.keys["gpu"]).capacity_bytes < gpus.find("a100-80gb").capacity_bytes

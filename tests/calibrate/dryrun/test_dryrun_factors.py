"""The factors of a dry run's peak: those of the prediction, whole to the byte, and without an effect on the script."""

import functools
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from calibrate.dryrun.dryrun import DryRun, Streams, dryrun
from calibrate.emulator import environment
from calibrate.report.dryrun import report
from predictor import Workload, predict
from predictor.engine.setup import FP32
from tests.calibrate.small_jobs import ROOT, needs_emulator
from tests.calibrate.trainer import script as trainer_script
from tests.predictor.small import small_llama

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]

MIB = 1 << 20
SEQUENCE, BATCH = 128, 2
TRAIN = """
    import json, sys, torch
    from transformers import AutoConfig, AutoModelForCausalLM
    settings = json.loads(sys.argv[1])
    document = settings["config"]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(document.pop("model_type"), **document),
                                             dtype=torch.bfloat16)
    engine = settings["engine"]
    if settings["checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": settings["checkpointing"] == "reentrant"})
        model.enable_input_require_grads()
    if engine in ("ddp", "fsdp2"):
        torch.distributed.init_process_group("nccl")
    if engine == "fsdp2":
        from torch.distributed.fsdp import fully_shard
        for layer in (*model.model.layers, model):
            fully_shard(layer)
    else:
        model = model.cuda()
    if engine == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    def forward(ids, labels):
        return model(input_ids=ids, labels=labels).loss
    def backward(loss):
        loss.backward()
    def step():
        optimizer.step()
        optimizer.zero_grad()
    if engine == "deepspeed":
        import deepspeed
        deepspeed.init_distributed()
        model, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={
            "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "reduce_bucket_size": 65536}})
        backward, step = model.backward, model.step
    for number in range(3):
        for micro_step in range(settings["accumulation"]):
            if (number, micro_step) == (0, 0):
                batch = [torch.ones(2, 128, dtype=torch.int64).to("cuda") for _ in range(2)]
            loss = forward(*batch)
            backward(loss)
            del loss
        step()
        if engine != "torch":  # the process group drops the tensors of its collectives
            for group in torch.distributed.distributed_c10d._world.pg_map:
                getattr(group, "_wait_for_pending_works", lambda: None)()
"""
COUNTED = """
    import gc, weakref
    gone = weakref.ref(next(model.parameters()))
    del model, optimizer, batch, forward, backward, step
    gc.collect()
    assert gone() is None
    json.dump(torch.cuda.memory_stats(), open(sys.argv[2], "w"))
"""


def script(directory: Path, text: str, *words: str) -> list[str]:
    (directory / "train.py").write_text(textwrap.dedent(text))
    return [sys.executable, str(directory / "train.py"), *words]


@pytest.fixture(scope="module")
def loop(tmp_path_factory) -> Callable[..., DryRun]:
    """:func:`_loop`, run once for each job."""
    run = functools.cache(lambda *job: _loop(tmp_path_factory.mktemp("loop"), *job))
    return lambda engine="torch", checkpointing="", accumulation=1: run(engine, checkpointing, accumulation)


def _loop(directory: Path, engine: str = "torch", checkpointing: str = "", accumulation: int = 1, **settings) -> DryRun:
    """Three steps of a small Llama, as one of four ranks where the engine has ranks."""
    ranks = {} if engine == "torch" else {"world_size": 4, "rank": 1}
    config = {**small_llama(), "hidden_size": 256}
    words = json.dumps({"engine": engine, "checkpointing": checkpointing, "accumulation": accumulation, "config": config})
    found = dryrun(script(directory, TRAIN, words), streams=Streams(subprocess.DEVNULL), **ranks, **settings)
    assert found.exit_code == 0
    return found


def predicted(directory: Path, engine: str = "torch", checkpointing: str = "", accumulation: int = 1):
    (directory / "config.json").write_text(json.dumps({**small_llama(), "hidden_size": 256}))
    ranks = {} if engine == "torch" else {"data_parallel_size": 4, "rank": 1}
    keys = {"zero_stage": 2} if engine == "deepspeed" else {}
    return predict(Workload(
        model=str(directory / "config.json"), recipe="full", sequence_length=SEQUENCE, optim="adamw_torch",
        per_device_train_batch_size=BATCH, param_groups="single", max_grad_norm=0, engine=engine, **ranks, **keys,
        gradient_accumulation_steps=accumulation, gradient_checkpointing=bool(checkpointing),
        gradient_checkpointing_kwargs={"use_reentrant": checkpointing == "reentrant"}, gpu="h100-80gb"))


def merged(split) -> dict[str, int]:
    """Factors by name, with activations and temporaries together."""
    names = {getattr(factor, "value", factor): size for factor, size in split.items()}
    names["computed"] = names.pop("activations", 0) + names.pop("temporaries", 0)
    return {name: size for name, size in names.items() if size}


# --- truth --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [
    {}, {"accumulation": 2}, {"checkpointing": "reentrant"}, {"checkpointing": "non_reentrant"}], ids=str)
def test_the_factors_of_a_plain_loop_are_those_of_its_prediction_to_the_byte(loop, tmp_path, job):
    found, expected = loop(**job), predicted(tmp_path, **job)
    assert found.peak_allocated_bytes == expected.peak_allocated_bytes
    assert merged(found.factors) == merged(expected.factors)
    assert (found.peak.moment, found.peak.step) == (expected.peak.moment.value, expected.peak.step)
    assert {name: merged(split).get("parameters") for name, split in found.modules.items()} == \
        {name: merged(split).get("parameters") for name, split in expected.modules.items()}


def test_the_operator_and_module_of_the_peak_are_those_of_the_prediction(loop, tmp_path):
    found, expected = loop(), predicted(tmp_path)
    assert (found.peak.moment, found.peak.module, found.peak.operator) == \
        (expected.peak.moment.value, expected.peak.module, expected.peak.operator)


@pytest.mark.parametrize("engine", ["ddp", "fsdp2", "deepspeed"])
def test_the_factors_of_a_rank_are_those_of_its_prediction(loop, tmp_path, engine):
    found, expected = loop(engine), predicted(tmp_path, engine)
    ours, theirs = merged(found.factors), merged(expected.factors)
    ours["computed"] += ours.pop("unattributed", 0)
    if engine == "deepspeed":  # no optimizer holds the norm that DeepSpeed keeps
        theirs["optimizer_states"], theirs["computed"] = theirs["optimizer_states"] - FP32, theirs["computed"] + FP32
    assert ours == theirs


@pytest.mark.parametrize("engine", ["torch", "ddp", "fsdp2", "deepspeed"])
def test_the_factors_and_the_modules_add_up_to_the_allocated_peak(loop, engine):
    found = loop(engine)
    assert sum(found.factors.values()) == found.peak_allocated_bytes
    assert sum(sum(split.values()) for split in found.modules.values()) == found.peak_allocated_bytes


# --- the script runs as without ---------------------------------------------------------------------------


def stats(command: list[str], path: Path, **variables: str) -> dict:
    subprocess.run(command, env={**os.environ, **variables}, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return json.loads(path.read_text())


@pytest.mark.parametrize("kind", ["loop", "reentrant", "trainer"])
def test_the_script_allocates_the_same_bytes_as_on_the_bare_emulated_gpu_and_nothing_is_kept_alive(tmp_path, kind):
    counted = tmp_path / "stats.json"
    if kind == "trainer":
        path = trainer_script(tmp_path)
        path.write_text(path.read_text() + f"import json\njson.dump(torch.cuda.memory_stats(), open({str(counted)!r}, 'w'))\n")
        command = [sys.executable, str(path)]
    else:
        words = json.dumps({"engine": "torch", "checkpointing": kind if kind == "reentrant" else "", "accumulation": 1,
                            "config": small_llama()})
        command = script(tmp_path, textwrap.dedent(TRAIN) + textwrap.dedent(COUNTED), words, str(counted))
    bare = stats(command, counted, **environment(shadow_real_gpu=True))
    assert dryrun(command, streams=Streams(subprocess.DEVNULL)).exit_code == 0
    assert json.loads(counted.read_text()) == bare


@pytest.mark.parametrize("engine", ["ddp", "fsdp2", "deepspeed"])
def test_a_rank_has_the_same_peaks_without_its_factors(loop, tmp_path, engine):
    found, plain = loop(engine), _loop(tmp_path, engine, snapshot=str(tmp_path / "history.pickle"))
    assert not plain.factors and not plain.modules
    for counter in ("requested", "allocated", "reserved"):
        assert getattr(found, f"peak_{counter}_bytes") == getattr(plain, f"peak_{counter}_bytes")


def test_the_metadata_text_of_the_allocators_history_stays_the_scripts(tmp_path):
    found = dryrun(script(tmp_path, """
        import torch
        memory = torch.cuda.memory
        memory._record_memory_history()
        memory._set_memory_metadata("mine")
        torch.nn.Linear(8, 8, device="cuda")(torch.ones(4, 8, device="cuda")).sum().backward()
        assert memory._get_memory_metadata() == "mine"
        texts = {entry["user_metadata"] for entry in memory._snapshot()["device_traces"][0]}
        assert texts <= {"", "mine"} and "mine" in texts
    """), streams=Streams(subprocess.DEVNULL))
    assert found.exit_code == 0


# --- what is unknown, and which rank --------------------------------------------------------------------


def test_tensors_of_the_scripts_own_are_unattributed(tmp_path):
    found = dryrun(script(tmp_path, """
        import torch
        kept = torch.empty(12 << 20, dtype=torch.uint8, device="cuda")
    """))
    assert {name: size for name, size in found.factors.items() if size} == {"unattributed": 12 * MIB}
    console = Console(record=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115
    report(console, found)
    text = console.export_text()
    assert "unattributed" in text and "Unattributed: tensors of the script" in " ".join(text.split())


def test_a_model_that_only_moved_to_the_gpu_is_parameters(tmp_path):
    found = dryrun(script(tmp_path, """
        import torch
        model = torch.nn.Linear(1024, 1024, bias=False).cuda()
    """))
    assert found.factors["parameters"] == found.peak_requested_bytes == 4 * MIB


def test_the_modules_of_a_model_of_ones_own_are_the_starts_of_their_paths(tmp_path):
    found = dryrun(script(tmp_path, """
        import torch
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder = torch.nn.ModuleList([torch.nn.Linear(512, 512, bias=False) for _ in range(2)])
                self.head = torch.nn.Linear(512, 1024, bias=False)
            def forward(self, x):
                for layer in self.encoder:
                    x = layer(x)
                return self.head(x).sum()
        model = Model().cuda()
        model(torch.ones(8, 512).to("cuda")).backward()
    """), streams=Streams(subprocess.DEVNULL))
    assert {name: split["parameters"] for name, split in found.modules.items() if "parameters" in split} == \
        {"encoder": 2 * MIB, "head": 2 * MIB}


def test_of_several_processes_the_report_names_the_rank_with_the_highest_peak(tmp_path):
    command = script(tmp_path, """
        import os, torch
        torch.empty((1 + int(os.environ["RANK"])) << 20, dtype=torch.uint8, device="cuda")
    """)
    each = [f"RANK={rank} WORLD_SIZE=2 {' '.join(command)}" for rank in (0, 1)]
    found = dryrun(["sh", "-c", f"{each[0]} & {each[1]}; wait"])
    assert (found.processes, found.rank, found.world_size, found.peak_requested_bytes) == (2, 1, 2, 2 * MIB)

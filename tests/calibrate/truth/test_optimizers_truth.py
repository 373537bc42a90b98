"""Every optimizer of the table: predicted states and temporaries against the library on emulated GPUs."""

from __future__ import annotations

import json
from functools import cache
from types import SimpleNamespace

import pytest

from calibrate.measure.measure import measure
from predictor.answer.predict import predict
from predictor.common import gpus
from predictor.engine.optimizer import Steps, partition
from predictor.engine.tape import Tape
from predictor.events.model_facts import Parameter
from predictor.workload.optimizers import OPTIMIZERS
from tests.calibrate.emulator.test_emulator import run_job
from tests.calibrate.small_jobs import needs_emulator, workload
from tests.predictor.small import facts_of, small_llava

TENSORS = {
    "embed_tokens.weight": (3000, 64), "a.weight": (700, 333), "b.weight": (64, 63), "a.bias": (5000,),
    "norm.weight": (64,), "patch.weight": (96, 3, 14, 14), "c.weight": (2, 300, 65),
}
"""Around 4,096 elements 8-bit states begin, around 100,000 paged ones."""
ARGUMENTS = [
    (name, {}, decay) for name in OPTIMIZERS for decay in ((0.0, 0.1) if OPTIMIZERS[name].reads else (0.1,))
] + [("sgd", {"momentum": 0.9}, 0.0), ("sgd", {"momentum": 0.9}, 0.1), ("sgd", {"momentum": 0.9, "nesterov": True}, 0.1),
     ("rmsprop", {"momentum": 0.9, "centered": True}, 0.1)]
CASES = [json.dumps(case) for case in ARGUMENTS]
MODEL_CASES = [json.dumps(case) for case in ARGUMENTS if "torch bf16" not in OPTIMIZERS[case[0]].refused_by]

JOB = '''
import sys
from predictor.workload.optimizers import OPTIMIZERS
history = torch.cuda.memory


def play(name, arguments, decay, tensors, dtype):
    """Sizes of allocations, and of frees with a minus, in the constructor and in each of three steps."""
    modules = {path: torch.nn.Embedding(*shape, device="cuda", dtype=dtype) for path, shape in tensors.items() if "embed" in path}
    parameters = [modules[path].weight if path in modules else
                  torch.nn.Parameter(torch.empty(*shape, device="cuda", dtype=dtype)) for path, shape in tensors.items()]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    entry, parts = OPTIMIZERS[name], []

    def note(call):
        history._record_memory_history("all", context=None)
        result = call()
        parts.append([(1 if event["action"] == "alloc" else -1) * event["size"]
                      for event in history._snapshot()["device_traces"][0] if event["action"] in ("alloc", "free_requested")])
        history._record_memory_history(None)
        return result

    optimizer = note(lambda: entry.load()([{"params": parameters, "weight_decay": decay}], lr=1e-5,
                                          **entry.arguments, **arguments))
    if entry.arguments.get("optim_bits") == 8:
        from bitsandbytes.optim import GlobalOptimManager
        GlobalOptimManager.get_instance().initialize()  # it knows parameters by id, which come again
        for module in modules.values():
            GlobalOptimManager.get_instance().register_module_override(module, "weight", {"optim_bits": 32})
    for _ in range(3):
        note(optimizer.step)
    return parts


answer({case: play(*json.loads(case), json.loads(TENSORS), torch.bfloat16) for case in MODEL_CASES}
       | {"flat " + case: play(*json.loads(case), {"flat": [1234567]}, torch.float32) for case in CASES})
'''


@cache
def on_device(gpu: str) -> dict:
    """Of every case, in one process."""
    return run_job(f"TENSORS = {json.dumps(TENSORS)!r}\nCASES = {CASES!r}\nMODEL_CASES = {MODEL_CASES!r}\n{JOB}", gpu=gpu)


def predicted(case: str, tensors: list[Parameter], gpu: str) -> tuple[list[int], list[int], list[int]]:
    """The same of the constructor, the first step and a later one."""
    name, arguments, decay = json.loads(case)
    steps, parts = Steps.of(name, arguments, decay, gpus.find(gpu)), []
    for play in (lambda tape: steps.construct(tape, tensors), lambda tape: steps.step(tape, tensors, decay=True)):
        tape = Tape()
        play(tape)
        sizes = [tape.buffers.sizes[buffer] * kind if abs(kind) == 1 else 0
                 for kind, buffer in zip(tape.event_types, tape.event_buffers)]
        parts.append(sizes)
    later = [size for row, size in enumerate(parts[1]) if row not in tape.once]
    return tuple([size for size in part if size] for part in (*parts, later))


def tensors() -> list[Parameter]:
    return [Parameter(name, shape, 2, True) for name, shape in TENSORS.items()]


@needs_emulator
@pytest.mark.parametrize("gpu", ["h100-80gb", "a100-80gb"])
@pytest.mark.parametrize("case, flat", [(case, False) for case in MODEL_CASES] + [(case, True) for case in CASES])
def test_an_optimizer_allocates_and_frees_what_is_predicted_in_that_order(case, flat, gpu):
    constructed, first, later = predicted(case, [partition(1234567, 4)] if flat else tensors(), gpu)
    truth = on_device(gpu)["flat " * flat + case]
    assert [constructed, later, later] == [truth[0], truth[2], truth[3]]
    if json.loads(case)[0] == "adafactor":  # its scalar RMS also comes and goes, which only later steps do
        assert sum(first) == sum(truth[1])
    else:
        assert first == truth[1]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_an_optimizer_is_built_as_hugging_face_builds_it(name):
    from transformers.trainer_optimizer import _OPTIMIZER_HANDLERS, OptimizerContext

    entry = OPTIMIZERS[name]
    handler = _OPTIMIZER_HANDLERS.get(name)
    if handler is None:
        assert name == "adamw_torch_forloop"  # ours: Hugging Face has no name for foreach=False
        return
    text = {key: "0.5" for key in entry.reads}
    arguments = SimpleNamespace(optim=name, adam_beta1=0.9, adam_beta2=0.999)
    made, keywords = handler(OptimizerContext(arguments, None, {"lr": 1.0}, {"betas": (0.9, 0.999), "eps": 1e-8}, text))
    assert made is entry.load()
    assert {key: value for key, value in keywords.items() if key not in ("lr", "betas", "eps")} == \
        {key: value for key, value in entry.arguments.items()} | {key: False if key in ("nesterov", "centered") else 0.5
                                                                  for key in entry.reads if key != "eps"}


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "mistral"])
def test_an_embedding_is_known_by_its_name_where_an_older_formula_did_not_look(model_type):
    facts = facts_of(small_llava(recipe="full", model_type=model_type))
    looked = {p.name: p.is_embedding for p in facts.parameters}
    by_name = {p.name: Parameter(p.name, p.shape, 2, True).is_embedding for p in facts.parameters}
    assert looked == by_name and sum(looked.values()) == 2  # of tokens, and of the vision tower's positions


@needs_emulator
@pytest.mark.parametrize("keys", [
    {"optim": "adafactor", "recipe": "full"},
    {"optim": "adamw_8bit", "recipe": "full", "max_grad_norm": 0, "gradient_accumulation_steps": 2},
    {"optim": "sgd", "optim_args": "momentum=0.9", "weight_decay": 0.1, "param_groups": "single"},
    {"optim": "adagrad", "weight_decay": 0.1},
    {"optim": "adafactor", "zero_stage": 2, "data_parallel_size": 2, "rank": 1},
    {"optim": "paged_adamw_8bit", "zero_stage": 2, "data_parallel_size": 2, "rank": 0, "param_groups": "single"},
    {"optim": "lion_8bit", "zero_stage": 2, "data_parallel_size": 4, "rank": 3, "gradient_accumulation_steps": 2},
], ids=lambda keys: keys["optim"] + " " * ("zero_stage" in keys))
def test_a_small_job_needs_what_is_predicted(tmp_path, keys):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", sequence_length=50, **keys)
    answer, record = predict(asked), measure(asked)
    assert record.peak("requested_bytes").bytes == answer.peak_requested_bytes
    assert record.peak("reserved_bytes").bytes - answer.peak_reserved_bytes in (0, 2 << 20)


def test_paged_states_are_said_not_to_be_modelled(tmp_path):
    notes = predict(workload(tmp_path, optim="paged_adamw_8bit")).not_modelled
    assert any(note.startswith("paged optimizer states") for note in notes)

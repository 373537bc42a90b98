"""Compares the allocations of the real DeepSpeed on CPU with the engine's prediction from a plain step.

Run as a script: reads a JSON list of cases, prints a JSON list of results. Imports, and the plain step of each model,
are made once; then each case runs in a fork of its own, as process groups are global. Both sides are recorded by the
same dispatch mode: the plain micro-step goes through ``zero2.compose``, the DeepSpeed run is the truth.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from dataclasses import asdict, dataclass, field
from functools import cache


@dataclass(frozen=True)
class Case:
    """One job: ``zero`` is the ``zero_optimization`` section beside the stage, which is 2 if it has none."""

    rank: int
    world: int
    zero: dict = field(default_factory=dict)
    optim: str = "adamw_torch_fused"
    param_groups: str = "huggingface"
    accumulation: int = 1
    recipe: str = "finetune"
    checkpointing: bool = False


MARKS = ("after_init", "peak_forward", "peak_backward", "after_backward", "peak_step", "steady")


def main() -> None:
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "OMP_NUM_THREADS": "1"}
    stdout, sys.stdout = sys.stdout, sys.stderr
    import deepspeed
    import deepspeed.module_inject.auto_ep_layer  # what every case needs is imported once, here
    import deepspeed.runtime.zero.muon.muon_optimizer
    import torch

    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled for Gloo, and no bytes pass here
    deepspeed.utils.logging.logger.setLevel(logging.ERROR)
    cases = [Case(**case) for case in json.load(sys.stdin)]
    for case in cases:
        _plain_step(case.recipe, case.checkpointing)
    gc.freeze()  # collections of a case need not look at what was imported
    json.dump([_in_fork(case) for case in cases], stdout)


def _in_fork(case: Case) -> dict:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            result = run(case)
        except BaseException as error:  # the parent must hear of it
            import traceback

            result = {"error": f"{type(error).__name__}: {error}\n{traceback.format_exc()}"}
        with os.fdopen(write, "w") as stream:
            json.dump(result, stream)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"error": "the case died"}


def run(case: Case) -> dict:
    """Live bytes at each mark of three steps, true and predicted."""
    model, batch, micro, facts = _plain_step(case.recipe, case.checkpointing)
    return {"case": asdict(case), "true": _deepspeed(case, model, batch), "predicted": _predicted(case, micro, facts)}


@cache
def _plain_step(recipe: str, checkpointing: bool) -> tuple:
    """The model, its batch, its micro-step without DeepSpeed, and its facts."""
    import torch

    from predictor.events.sizes import Shape
    from predictor.formula.fit import fit
    from predictor.trace.module_tracker import ModuleTracker
    from predictor.trace.recorder import Recorder
    from predictor.trace.trace import record_micro_step
    from tests.predictor.small import facts_of, small_llava

    torch.manual_seed(0)
    model = small_llava(recipe=recipe, device="cpu")
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ids = torch.full((2, 16), 5)
    ids[:, 1:5] = model.config.image_token_id
    batch = {"input_ids": ids, "labels": ids.clone(), "pixel_values": torch.randn(2, 3, 28, 28, dtype=torch.bfloat16)}
    facts = facts_of(small_llava(recipe=recipe, device="meta"))
    record_micro_step(model, batch, Recorder(device="cpu"), ModuleTracker(model))  # lazily made things first
    places = ModuleTracker(model)
    recording = record_micro_step(model, batch, Recorder(places, device="cpu"), places)
    return model, batch, fit([recording], [Shape(2, 16, 2)], [p.name for p in facts.parameters]), facts


def _predicted(case: Case, micro, facts) -> list[dict]:
    from predictor.common import gpus
    from predictor.engine.setup import Setup
    from predictor.engine.zero2 import Zero2
    from predictor.events.composed_run import evaluate
    from predictor.events.sizes import Shape
    from predictor.workload import deepspeed_config
    from predictor.workload.workload import Workload

    workload = Workload(model="small", sequence_length=16, per_device_train_batch_size=2, deepspeed=_config(case),
                        data_parallel_size=case.world)
    setup = Setup(facts=facts, engine="zero2", optim=case.optim, param_groups=case.param_groups, max_grad_norm=1.0,
                  gradient_accumulation_steps=case.accumulation, data_parallel_size=case.world,
                  zero=deepspeed_config.read(workload, facts.hidden_size), capacity_bytes=None)
    events = Zero2(micro, setup).rank(case.rank)
    run = evaluate(events, case.rank, Shape(2, 16, 2), gpus.find("h100-80gb"))
    return marks(run.live.tolist(), events.step.tolist(), events.moment.tolist())


def marks(live: list[int], step: list[int], moment: list[int]) -> list[dict]:
    """Bytes at :data:`MARKS` for start-up and each of three steps."""
    def of(s: int, m: int) -> list[int]:
        return [value for value, a, b in zip(live, step, moment) if (a, b) == (s, m)]

    result = [{"after_init": of(0, 0)[-1], "peak_init": max(of(0, 0))}]
    for s in (1, 2, 3):
        result.append({"peak_forward": max(of(s, 1)), "peak_backward": max(of(s, 2)), "after_backward": of(s, 2)[-1],
                       "peak_step": max(of(s, 3)), "steady": of(s, 3)[-1]})
    return result


def _config(case: Case) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": case.accumulation,
        "bf16": {"enabled": True}, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 4096} | case.zero,
        "zero_allow_untested_optimizer": True,
    }


def _deepspeed(case: Case, model, batch) -> list[dict]:
    import deepspeed
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from predictor.events.events import MOMENTS, Moment
    from predictor.model.transformers_releases import decayed
    from predictor.trace.recorder import Recorder

    os.environ |= {"RANK": str(case.rank), "WORLD_SIZE": str(case.world)}
    dist.init_process_group("fake", store=FakeStore(), rank=case.rank, world_size=case.world)
    recorder = Recorder(device="cpu")
    steps: list[tuple[int, int]] = []
    current = 0

    def note() -> None:
        steps.extend([(current, MOMENTS.index(recorder.moment))] * (len(recorder.recording.events) - len(steps)))

    def enter(moment: Moment) -> None:
        note()
        recorder.moment = moment

    decay = decayed(model)
    recorder.ignore([*model.parameters(), *model.buffers()])
    with recorder:
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.data = tensor.data.clone()
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        groups = [[p for _, p in named]] if case.param_groups == "single" else \
            [[p for name, p in named if (name in decay) is wanted] for wanted in (True, False)]
        flags = {"adamw_torch_fused": {"fused": True}, "adamw_torch": {"foreach": True},
                 "adamw_torch_forloop": {"foreach": False, "fused": False}}[case.optim]
        optimizer = torch.optim.AdamW([{"params": group} for group in groups if group], lr=1e-4, **flags)
        del named, groups
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=_config(case))
        note()
        recorder.moment, current = Moment.FORWARD, 1
        for tensor in batch.values():
            recorder.watch(tensor, "input")
        for current in (1, 2, 3):  # noqa: B007 - note() reads it
            for _ in range(case.accumulation):
                enter(Moment.FORWARD)
                loss = engine(**batch, use_cache=False).loss
                enter(Moment.BACKWARD)
                engine.backward(loss)
                del loss
                enter(Moment.OPTIMIZER_STEP)
                engine.step()
            note()
    assert engine.skipped_steps == 0, "an overflow skipped an optimizer step: the truth is void"
    live, total = [], 0
    for event in recorder.recording.events:
        total += recorder.recording.buffers[abs(event) - 1].size * (1 if event > 0 else -1)
        live.append(total)
    steps = steps[: len(live)]
    return marks(live, [s for s, _ in steps], [m for _, m in steps])


if __name__ == "__main__":
    main()

"""Measures the GPU memory that saving a checkpoint takes: ``python -m tests.calibrate.saving_job``.

The workload comes on stdin, the result goes to stdout as JSON. The engine's own calls save after three steps.
"""

from __future__ import annotations

import json
import sys
import tempfile

import torch

from calibrate.job import engines, reference_loop
from predictor.workload.workload import Workload


def main() -> None:
    workload, built = Workload.from_mapping(json.load(sys.stdin)), []
    build = engines.ENGINES[workload.engine]

    def keep(job: engines.Job) -> engines.Loop:
        built.append((job, build(job)))
        return built[0][1]

    engines.ENGINES[workload.engine] = keep
    reference_loop.run(workload, workload.rank, lambda moment, step: None)
    training, held = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    (job, (forward, *_)), found = built[0], {"held": held, "training": training}
    engine = forward if workload.engine == "deepspeed" else job.model
    calls = ("save_checkpoint", "save_16bit_model") if workload.engine == "deepspeed" else ("state_dict",)
    for name in calls:
        torch.cuda.reset_peak_memory_stats()
        with tempfile.TemporaryDirectory() as directory:
            if name == "state_dict":
                torch.save(engine.state_dict(), f"{directory}/model.pt")
            else:
                getattr(engine, name)(directory)
        found[name] = torch.cuda.max_memory_allocated() - held
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()

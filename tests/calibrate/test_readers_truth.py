"""What is read from a command line, against the Trainer that runs with the same arguments on the emulated GPU."""

from __future__ import annotations

import json

import pytest

from predictor import pipeline
from predictor.cli import Parser
from predictor.commands import options
from tests.calibrate.small_jobs import SEQUENCE, measured_and_predicted, model_file, needs_emulator, workload
from tests.calibrate.trainer import FROZEN_TOWER as FREEZE
from tests.calibrate.trainer import SCALARS_BYTES, ZERO2_CONFIG, train

pytestmark = [needs_emulator, pytest.mark.usefixtures("formula_cache")]


def read(*words: str):
    """The workload of ``peakcast predict`` with these words."""
    parser = Parser()
    options.add_workload(parser)
    options.add_from(parser)
    return options.workload(parser.parse_known_args(list(words))[0])


@pytest.mark.parametrize("launch, arguments", [
    (("python",), {"per_device_train_batch_size": 3, "bf16": True, "optim": "adamw_torch", "gradient_checkpointing": True}),
    (("torchrun", "--nproc_per_node", "8"), {"per_device_train_batch_size": 2, "bf16": True, "max_grad_norm": 0.5,
                                             "gradient_accumulation_steps": 1, "deepspeed": ZERO2_CONFIG}),
], ids=["autocast", "zero2"])
def test_the_trainer_needs_what_its_command_line_is_read_as(tmp_path, launch, arguments):
    (tmp_path / "ds.json").write_text(json.dumps(arguments.get("deepspeed")))
    given = {key: item if key != "deepspeed" else tmp_path / "ds.json" for key, item in arguments.items()}
    flags = [str(word) for key, item in given.items() for word in (f"--{key}", item)]
    asked = read("--gpu", "h100-80gb", "--profile", "none", "--frozen", "*vision_tower*", "--rank", "0", "--", *launch,
                 "train.py", "--model_name_or_path", model_file(tmp_path), "--torch_dtype", "bfloat16", *flags,
                 "--model_max_length", str(SEQUENCE))
    found = train(tmp_path, world_size=8 if "deepspeed" in arguments else None, prepare=FREEZE,
                  **{"optim": "adamw_torch_fused", "gradient_checkpointing": False, "gradient_checkpointing_kwargs": None} | arguments)
    predicted = pipeline.prepare(asked).run(asked.capacity, 0).peak
    assert 0 < found.peak_requested_bytes - predicted < SCALARS_BYTES


def test_a_tower_without_gradients_is_predicted(tmp_path):
    asked = workload(tmp_path, gpu="h100-80gb", profile="none", no_grad="*vision_tower*",
                     gradient_checkpointing_kwargs={"use_reentrant": True})
    record, run, simulation = measured_and_predicted(asked)
    assert record.peak("requested_bytes").bytes == run.peak
    assert record.peak("reserved_bytes").bytes == simulation.peak_reserved_bytes
    assert run.peak < pipeline.prepare(asked.replace(no_grad=())).run(asked.capacity).peak

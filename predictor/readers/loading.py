"""What frameworks load, and where to, that no key of a workload says."""

from __future__ import annotations

from predictor.common.errors import InputError
from predictor.readers.configuration import Reading

RESUMED = "adapters go on from a checkpoint, with the rank and the layers of its adapter_config.json: give those"


def on_one_gpu(reading: Reading, processes: int, instead: str) -> None:
    """Where a process sees several GPUs, axolotl (0.19, utils/config/__init__.py, ``choose_device``) and ms-swift (4.6,
    model/utils.py, ``get_default_device_map``) split the model among them.

    Raises:
        InputError: so it is, as far as the command says.
    """
    given = reading.given
    visible = given.environment.get("CUDA_VISIBLE_DEVICES", "")
    as_many_as_visible = given.world_size is None and given.launched_by
    several = len([word for word in visible.split(",") if word.strip()]) >= 2 * max(processes, 1)
    if several and given.gpus is None and not as_many_as_visible:
        started = f"{processes} process{'es' * (processes > 1)}"
        raise InputError(f"{given.starts}: CUDA_VISIBLE_DEVICES={visible} with {started}: {reading.form.framework} "
                         f"then splits the model over the GPUs, which is not predicted: {instead}")

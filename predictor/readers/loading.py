"""Checks on loading a model that several frameworks share, and that no key of a workload covers."""

from __future__ import annotations

from predictor.common.errors import NotPredicted
from predictor.readers.reading import Reading

RESUMED = "training continues adapters of a checkpoint, whose adapter_config.json sets rank and layers: give those"


def on_one_gpu(reading: Reading, processes: int, instead: str) -> None:
    """Rejects a command whose processes see several GPUs each.

    axolotl (0.19, utils/config/__init__.py, ``choose_device``) and ms-swift (4.6, model/utils.py,
    ``get_default_device_map``) then split the model over them.

    Raises:
        InputError: CUDA_VISIBLE_DEVICES lists at least two GPUs for each process.
    """
    user_input = reading.input
    visible = user_input.environment.get("CUDA_VISIBLE_DEVICES", "")
    as_many_as_visible = user_input.world_size is None and user_input.launched_by
    several = len([word for word in visible.split(",") if word.strip()]) >= 2 * max(processes, 1)
    if several and user_input.gpus is None and not as_many_as_visible:
        started = f"{processes} process{'es' * (processes > 1)}"
        raise NotPredicted(f"{user_input.starts}: CUDA_VISIBLE_DEVICES={visible} with {started}: "
                           f"{reading.form.framework} then splits the model over the GPUs, which is not predicted: "
                           f"{instead}")

"""Which sizes of pictures are the same to a model, because its image processor makes the same tensors of them.

They share a formula. What the processors of transformers do is repeated here without transformers: a shipped formula
must be found without it. Sizes of other models stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

from predictor.model.model_config import ModelConfig

Size = tuple[int, int]
"""Height and width in pixels."""
MOST_UNEQUAL = 200
"""The largest ratio of sides that Qwen-VL's processor takes."""
FEWEST_PIXELS, MOST_PIXELS = 56 * 56, 28 * 28 * 1280
"""Limits of Qwen-VL's processor, if the model's settings give none."""
MOST_TILES = 12


def of_one_kind(config: ModelConfig, sizes: tuple[Size, ...]) -> tuple[Size, ...]:
    """Sizes that stand for these: the same for all sizes that the model's processor treats the same.

    If all pictures are treated the same, one size stands for all of them. Sizes of a model whose vision tower is that
    of its class, because it has no ``vision_config``, stay as they are.
    """
    stands_for, vision = PROCESSORS.get(config.document["model_type"]), config.document.get("vision_config")
    if stands_for is None or not isinstance(vision, Mapping):
        return sizes
    found = tuple(stands_for(vision, config.preprocessor, *size) for size in sizes)
    return found[:1] if len(set(found)) == 1 else found


def _of_patches(vision: Mapping[str, Any], settings: Mapping[str, Any], height: int, width: int) -> Size:
    """The size in whole image tokens, where the processor takes it (transformers 5.17,
    models/qwen2_vl/image_processing_pil_qwen2_vl.py, ``smart_resize``)."""
    own = {**vision, **settings}
    side = own.get("patch_size", 14) * own.get("merge_size", own.get("spatial_merge_size", 2))
    limits = settings.get("size") or {}
    least = settings.get("min_pixels", limits.get("shortest_edge", FEWEST_PIXELS))
    most = settings.get("max_pixels", limits.get("longest_edge", MOST_PIXELS))
    rounded = round(height / side) * side, round(width / side) * side
    if math.prod(rounded) > most:
        by = math.sqrt(height * width / most)
        rounded = max(side, math.floor(height / by / side) * side), max(side, math.floor(width / by / side) * side)
    elif math.prod(rounded) < least:
        by = math.sqrt(least / (height * width))
        rounded = math.ceil(height * by / side) * side, math.ceil(width * by / side) * side
    taken = all(max(size) <= MOST_UNEQUAL * min(size) for size in ((height, width), rounded))
    return rounded if taken else (height, width)


def _of_tiles(vision: Mapping[str, Any], settings: Mapping[str, Any], height: int, width: int) -> Size:
    """The size in whole tiles, with the longer side as width: only the number of tiles counts (transformers 5.17,
    models/got_ocr2/image_processing_pil_got_ocr2.py, ``get_optimal_tiled_canvas``)."""
    size = settings.get("size") or dict(zip(("height", "width"), vision["image_size"]))
    rows, columns = 1, 1
    if settings.get("crop_to_patches", True):
        least, most = settings.get("min_patches", 1), settings.get("max_patches", MOST_TILES)
        grids = [grid for grid in product(range(1, most + 1), repeat=2) if least <= math.prod(grid) <= most]
        best = math.inf
        for grid in sorted(grids, key=math.prod):
            off = abs(width / height - grid[0] / grid[1])
            several = height * width > 0.5 * size["height"] * size["width"] * math.prod(grid)
            if off < best or (off == best and several):
                best, (columns, rows) = off, grid
    return size["height"] * min(rows, columns), size["width"] * max(rows, columns)


PROCESSORS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any], int, int], Size]] = {
    "qwen2_vl": _of_patches, "qwen2_5_vl": _of_patches, "qwen3_vl": _of_patches, "qwen3_vl_moe": _of_patches,
    "internvl": _of_tiles,
}
"""``model_type`` -> a function that gives the size that stands for one, from the vision tower's configuration and the
processor's settings."""

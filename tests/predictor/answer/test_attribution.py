"""Every tensor at the peak is listed under the module that it belongs to."""

from __future__ import annotations

from functools import cache

import pytest

from predictor import Workload, predict
from predictor.answer.prediction import Prediction
from predictor.events.events import Factor, Moment

ENGINES = [{"engine": "torch", "data_parallel_size": 1}, {"engine": "ddp"}, {"engine": "fsdp2"},
           *({"zero_stage": stage} for stage in range(4))]


@cache
def explained(**keys) -> Prediction:
    return predict(Workload(**{"model": "llava-1.5-7b", "sequence_length": 2048, "per_device_train_batch_size": 16,
                               "data_parallel_size": 8, "gpu": "h100-80gb", **keys}), timeline=True)


def total(splits) -> int:
    return sum(sum(split.values()) for split in splits.values())


@pytest.mark.parametrize("keys", [*ENGINES, {"zero_stage": 2, "recipe": "lora"}, 
                                  {"model": "gpt2", "sequence_length": 512, "data_parallel_size": 1}], ids=str)
def test_attributed_modules_and_layers_add_up_to_the_same_bytes(keys):
    prediction = explained(**keys)
    assert total(prediction.modules_attributed) == prediction.peak_allocated_bytes
    assert total(prediction.layers_attributed) == total(prediction.layers)
    for factor in Factor:
        assert sum(split.get(factor, 0) for split in prediction.modules_attributed.values()) == prediction.factors[factor]


@pytest.mark.parametrize("keys", ENGINES, ids=str)
def test_the_losss_tensors_are_the_heads(keys):
    prediction = explained(**keys)
    if prediction.peak.moment is not Moment.BACKWARD:  # ZeRO-0 peaks in step()
        assert keys == {"zero_stage": 0} and "lm_head" in prediction.layers_attributed
        return
    logits = 16 * 2048 * 32064  # of the vocabulary
    assert sum(prediction.layers_attributed["lm_head"].get(factor, 0) for factor in (
        Factor.ACTIVATIONS, Factor.TEMPORARIES)) > 3 * 4 * logits
    assert prediction.layers_attributed.get("", {}).keys() <= {Factor.COMMUNICATION, Factor.ACTIVATIONS}


def test_a_flat_buffer_is_split_among_the_layers_that_train():
    prediction = explained(zero_stage=2)
    head, down = (prediction.layers_attributed[name][Factor.OPTIMIZER_STATES] for name in (
        "lm_head", "model.language_model.layers.7.mlp.down_proj"))
    assert head / down == pytest.approx(32064 / 11008)
    assert Factor.OPTIMIZER_STATES not in prediction.modules_attributed["vision_tower"]  # it is frozen


def test_what_contains_several_modules_is_shared_by_them():
    prediction = explained(zero_stage=2)
    assert prediction.modules_attributed["shared"][Factor.ACTIVATIONS] == prediction.layers["model"][Factor.ACTIVATIONS]
    assert "model" not in prediction.modules_attributed


def test_a_prediction_without_its_timeline_is_attributed_in_the_same_way():
    with_timeline = explained(zero_stage=2)
    prediction = predict(Workload(**{key: with_timeline.workload[key] for key in (
        "model", "sequence_length", "per_device_train_batch_size", "data_parallel_size", "gpu", "zero_stage")}))
    assert prediction.modules_attributed == with_timeline.modules_attributed != {}
    assert prediction.layers_attributed == with_timeline.layers_attributed != {}

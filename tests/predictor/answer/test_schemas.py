"""JSON Schemas: they take what peakcast takes and writes, and reject what it rejects."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from predictor.answer import schemas
from predictor.answer.predict import predict
from predictor.answer.remedies import with_remedies
from predictor.common.errors import InputError
from predictor.common.value_types import Invalid
from predictor.workload.keys import KEYS
from predictor.workload.workload import Workload

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
WORKLOAD = jsonschema.Draft202012Validator(schemas.workload())
RESULT = jsonschema.Draft202012Validator(schemas.result())
FINETUNE = {"model": "llava-1.5-7b", "sequence_length": 1024, "gpu": "a100-40gb"}
VALUES = st.one_of(
    st.integers(-2, 1 << 60), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.text(max_size=4),
    st.sampled_from(["80GiB", "40 gb", "768x1024", "nf4", "none", "worst", "bf16", "a100-40gb"]),
    st.lists(st.sampled_from(["model.visual", "", 3]), max_size=2),
    st.dictionaries(st.sampled_from(["r", "bias", "use_reentrant", "load_in_4bit", "tokens"]), st.integers(0, 9)))


def result_of(**keys) -> dict:
    workload = Workload(**FINETUNE | keys)
    searched = {"maximum_load": workload.capacity is not None}
    return json.loads(json.dumps(with_remedies(predict(workload, **searched), workload).to_json()))


@pytest.mark.parametrize("validator", [WORKLOAD, RESULT], ids=["workload", "result"])
def test_each_is_a_schema_of_its_draft(validator):
    validator.check_schema(validator.schema)


def test_the_example_of_the_documentation_is_valid():
    WORKLOAD.validate(yaml.safe_load((EXAMPLES / "job.yaml").read_text()))


def test_the_workload_has_every_key():
    assert WORKLOAD.schema["properties"].keys() == KEYS.keys()


@pytest.mark.parametrize("keys, place", [
    ({"sequence_lenght": 5}, "$"), ({"per_device_train_batch_size": 0}, "$.per_device_train_batch_size"),
    ({"lora": {"rank": 8}}, "$.lora"), ({"optim": "adam"}, "$.optim")])
def test_a_mistake_is_marked_where_it_is(keys, place):
    assert [error.json_path for error in WORKLOAD.iter_errors(FINETUNE | keys)] == [place]


@given(name=st.sampled_from([name for name in KEYS if name not in ("model", "deepspeed", "conversation")]), value=VALUES)
def test_what_a_key_takes_is_valid(name, value):
    try:
        KEYS[name].metadata["kind"].check(value)
    except (Invalid, InputError):
        return
    assert not list(WORKLOAD.iter_errors({"model": "llava-1.5-7b", name: value}))


def test_the_keys_of_a_result_are_those_of_its_schema():
    assert result_of().keys() == set(RESULT.schema["required"])


def test_what_only_options_add_is_in_the_schema_too():
    assert RESULT.schema["properties"].keys() - RESULT.schema["required"] == schemas.WHERE_ASKED


@pytest.mark.parametrize("keys", [
    {}, {"gpu": None}, {"per_device_train_batch_size": 16, "gpu": "rtx-4090"},
    {"mode": "inference", "gpu_memory_utilization": 0.9}],
    ids=["fits", "no GPU", "does not fit", "inference"])
def test_a_result_is_valid(keys):
    RESULT.validate(result_of(**keys))

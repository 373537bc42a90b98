"""The record of a measured job: its JSON, and messages for edited records."""

import json

import pytest

from calibrate.records.record import Peak, Predicted, PredictedMoment, read
from predictor.common.errors import InputError
from predictor.events.events import Moment
from tests.calibrate.small_jobs import record


def saved(path, **changes) -> str:
    path.write_text(json.dumps(record().to_json() | changes))
    return str(path)


def test_a_record_comes_back_from_its_file_as_it_was(tmp_path):
    predicted = Predicted(Peak(3000, Moment.BACKWARD, 2), (PredictedMoment(0, Moment.INIT, 1000),))
    made = record(predicted=predicted, not_predicted=None)
    (tmp_path / "record.json").write_text(json.dumps(made.to_json()))
    assert read(tmp_path / "record.json") == made


def test_the_peak_is_in_the_first_of_equal_moments():
    assert record().peak("requested_bytes") == Peak(3000, Moment.BACKWARD, 2)


def test_overall_peaks_stand_at_the_top_of_the_json():
    document = record().to_json()
    assert document["peak_reserved_bytes"] == 3000 + 4096
    assert document["peak_reserved_at"] == {"moment": "backward", "step": 2}


def test_an_emulated_record_says_so():
    assert record().to_json()["job"]["measured_on"] == "emulated"


def test_another_schema_is_refused(tmp_path):
    with pytest.raises(InputError, match="schema_version is 2, not 1"):
        read(saved(tmp_path / "r.json", schema_version=2))


def test_an_unknown_key_names_the_nearest(tmp_path):
    with pytest.raises(InputError, match='unknown key "rnk".*did you mean "rank"'):
        read(saved(tmp_path / "r.json", rnk=1))


def test_a_missing_key_is_named(tmp_path):
    document = record().to_json()
    del document["job"]["moments"]
    (tmp_path / "r.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match='r.json: job: the key "moments" is missing'):
        read(tmp_path / "r.json")


@pytest.mark.parametrize(("key", "value", "message"), [
    ("rank", "0", "rank: must be a whole number"),
    ("rank", True, "rank: must be a whole number"),
    ("rank_chosen_by", "dice", "must be one of workload, prediction, launcher"),
    ("command", "peakcast", "command: must be a list"),
    ("job", [], "job: must be a mapping"),
])
def test_a_wrong_type_is_one_line_that_names_the_key(tmp_path, key, value, message):
    with pytest.raises(InputError, match=message) as caught:
        read(saved(tmp_path / "r.json", **{key: value}))
    assert "\n" not in str(caught.value)

"""Invalid profiles are rejected in one line that names the file and the mistake."""

from __future__ import annotations

import copy
import math

import pytest

from predictor.cli import main
from predictor.common.errors import InputError
from predictor.common.json_dataclasses import to_plain
from predictor.profile import profile
from predictor.profile.calibration import Coefficient, Interval, OperatorWorkspace
from tests.predictor.profile.test_profile import calibration, written


@pytest.mark.parametrize("change, message", [
    ({"schema_version": 2}, "schema_version is 2, and this release reads 1"),
    ({"schema_version": None}, "schema_version is missing, and this release reads 1"),
    ({"coefficients": {"speed": to_plain(Coefficient(1.0, 0.0, 1, True, True, ""))}}, '"speed" is no factor'),
    ({"residuals": {"reserved": {"low": 0.0, "high": 11.0, "level": 0.9, "samples": 1}}}, "residuals.reserved.high is 11.0"),
    ({"calibrated": {"tokens": [2, 1]}}, "calibrated.tokens must be a lower and an upper bound"),
    ({"calibrated": {"token": [1, 2]}}, '"token" is no quantity: they are tokens, sequence_length, images, data_parallel_size (did you mean "tokens"?)'),
    ({"covered": {"engines": ["torch"]}}, '"engines" is no kind of job: they are formula, model, recipe, quantization, engine, '),
    ({"covered": {"engine": "torch"}}, "covered.engine: must be a list"),
    ({"workspaces": [to_plain(OperatorWorkspace("aten::mm", 1.0, 0.0, 0.0, 0.0, 9, "", grows)) for grows in (True, False, True)]},
     'workspaces has "aten::mm" twice with grows true: leave one of them out'),
    ({"coefficients": {"activations": to_plain(Coefficient(1.0, 0.0, 1, True, True, "")) | {"applied": "yes"}}},
     'applied: must be true or false, not "yes"'),
    ({"runtime": 3}, "must be a mapping"), ({"workspaces": {}}, "must be a list"), ({"more": 1}, 'unknown key "more"'),
])
def test_a_bad_profile_is_one_clear_line(tmp_path, change, message):
    path = written(tmp_path, to_plain(calibration()) | change)
    with pytest.raises(InputError) as error:
        profile.read(path)
    assert message in str(error.value) and str(error.value).startswith(path) and "\n" not in str(error.value)


HUGE = 10 ** 400
GOOD = to_plain(calibration(
    coefficients={"activations": Coefficient(1.0, 0.1, 9, True, False, "")},
    workspaces=(OperatorWorkspace("aten::mm", 1.0, 0.0, 0.0, 0.0, 9, ""),),
    residuals={"reserved": Interval(-0.01, 0.02, 0.9, 60)}, calibrated={"tokens": (1.0, 2.0)}))


@pytest.mark.parametrize("path, value, message", [
    ("measured_on", "moon", 'measured_on is "moon": it must be one of device, emulated, assumed'),
    ("runtime.measured_on", "", 'runtime.measured_on is ""'),
    *((f"runtime.{key}", value, key) for key in ("fixed_bytes", "nccl_bytes", "nccl_bytes_per_rank")
      for value in (-1, HUGE, 10 ** 30, -10 ** 30)),
    *(("runtime.standard_error", value, "standard_error") for value in (math.nan, math.inf, -1.0, HUGE)),
    *(("device.capacity_bytes", value, "device.capacity_bytes") for value in (-1, 0, HUGE)),
    *(("coefficients.activations.value", value, "coefficients.activations") for value in (math.nan, 0.0, -1.0, HUGE)),
    *(("coefficients.activations.standard_error", value, "standard_error") for value in (math.nan, -1.0)),
    *((f"workspaces.0.{key}", value, key) for key in ("fixed_bytes", "bytes_per_result_byte")
      for value in (math.nan, -math.inf, 1e30, HUGE)),
    ("workspaces.0.samples", -1, "workspaces: aten::mm: samples is -1"),
    *((f"residuals.reserved.{end}", value, "residuals.reserved" + key) for end, value, key in (
        ("low", -1.01, ".low"), ("low", math.nan, ".low"), ("high", HUGE, ".high"), ("low", 0.03, ""), ("high", -0.02, ""))),
    *(("residuals.reserved.level", value, "residuals.reserved.level") for value in (0.0, 5.0, math.nan, -0.9)),
    ("residuals.reserved.samples", 0, "residuals.reserved.samples"),
    *(("calibrated.tokens", value, "calibrated.tokens") for value in (
        [1.0, math.inf], [math.nan, 2.0], [-1.0, 2.0], [2.0, 1.0], [1.0], [1.0, HUGE])),
    *(("allocator.roundup_power2_divisions", value, "allocator.roundup_power2_divisions") for value in (3, -4, HUGE)),
    *(("provenance.jobs", value, "provenance.jobs must be a mapping") for value in (3, {"fit": "x"}, {"fit": None})),
    ("provenance.workspaces_left_out", ["aten::amax"], "provenance.workspaces_left_out must be a mapping"),
])
def test_a_value_that_makes_no_sense_is_one_line_with_its_file_and_key(tmp_path, path, value, message):
    document = copy.deepcopy(GOOD)
    *way, last = path.split(".")
    place = document
    for key in way:
        place = place[int(key) if key.isdigit() else key]
    place[last] = value
    file = written(tmp_path, document)
    with pytest.raises(InputError) as error:
        profile.read(file)
    said = str(error.value)
    assert said.startswith(file) and "\n" not in said and len(said) < 300
    assert message.replace(": ", ".") in said.replace(": ", ".")  # a key of another type is told as "runtime: key"


def test_the_profile_that_these_are_changes_of_is_good(tmp_path):
    assert to_plain(profile.read(written(tmp_path, GOOD))) == GOOD


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1}'])
def test_a_corrupt_profile_is_one_line_and_exit_code_2(tmp_path, capsys, text):
    path = written(tmp_path, text)
    assert main(["predict", "llava-1.5-7b", "--sequence-length", "1024", "--profile", path]) == 2
    out, err = capsys.readouterr()
    assert out == "" and path in err and err.count("\n") == 1

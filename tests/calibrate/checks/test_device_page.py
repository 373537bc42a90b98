"""The check ``device`` and its page, with complete and with missing measurements."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from calibrate.checks import device, device_page, device_steps
from calibrate.probes.libraries import Libraries, StageMemory
from calibrate.probes.operators import Convolution, OperatorMeasurement, Operators, traced
from calibrate.records.record import Device
from predictor.common import gpus
from predictor.common.errors import InputError
from predictor.common.json_dataclasses import to_plain

HERE = Device("NVIDIA H200", 1 << 37, (9, 0), 132, "1", None), {"torch": "2.11.0"}
MIB = 1 << 20
H200 = gpus.find("h200")


def saved(directory, name: str, document) -> None:
    (directory / name).write_text(json.dumps(to_plain(document)) + "\n")


def test_each_stage_has_what_it_took_beyond_pytorchs_segments(tmp_path):
    uses = StageMemory("before", 2 * MIB, None, 0), StageMemory("CUDA context", 502 * MIB, 500 * MIB, 20 * MIB)
    saved(tmp_path, "device-libraries.json", Libraries("device", *HERE, uses))
    assert "| CUDA context | 480.0 |" in list(device_page.library_uses(tmp_path))


def test_a_call_with_a_private_workspace_is_listed_with_it(tmp_path):
    call = Convolution(pictures=1, side=28, patch=14, channels=8)
    predicted = traced(call, H200)
    answer = OperatorMeasurement({"kind": "convolution", **asdict(call)}, (*predicted, 4096, -4096), ())
    saved(tmp_path, "device-operators.json", Operators("device", *HERE, (answer,)))
    *_, row, _ = device_page.operator_calls(tmp_path, H200)
    assert row.startswith("| convolution: pictures 1 side 28 patch 14 channels 8 |") and row.endswith("| 4,096 |")


def test_a_call_that_its_library_refuses_is_counted_apart(tmp_path):
    answer = OperatorMeasurement({"kind": "convolution", **asdict(Convolution(1, 28, 14, 8))}, None, (1,),
                                 "No available kernel.")
    saved(tmp_path, "device-operators.json", Operators("device", *HERE, (answer,)))
    [_, text, why] = device_page.operator_calls(tmp_path, H200)
    assert text.startswith("0 of 0 calls") and why == "1 more are refused by their library: No available kernel.\n"


def test_a_history_that_cannot_be_replayed_is_a_row_that_says_why(tmp_path):
    (tmp_path / "broken.pickle.gz").write_bytes(b"nothing")
    row = device.replayed(tmp_path / "broken.pickle.gz")
    (tmp_path / "device-replays.jsonl").write_text(json.dumps({"id": "0a", **row}) + "\n")
    assert f"| 0a |  |  |  |  | {row['error']} |" in list(device_page.replays(tmp_path))


def test_a_further_job_stands_beside_its_emulation(tmp_path):
    task = {"group": "Liger", "job": {"model": "grouped", "per_device_train_batch_size": 2, "sequence_length": 1100}}
    for side, requested in (("device", MIB), ("emulated", MIB + 12)):
        peaks = {"requested_bytes": requested, "allocated_bytes": 2 * MIB, "reserved_bytes": 4 * MIB}
        saved(tmp_path, f"{side}-further.jsonl", {"task": task, **peaks})
    [row] = [line for line in device_page.further(tmp_path) if line.startswith("| Liger")]
    cells = row.split(" | ")
    assert [cells[i] for i in (0, 1, 2, 4, 5, 7, 8)] == ["| Liger: grouped, 2 x 1100", "1.0", "+12", "2.0", "0", "4.0", "0"]
    assert int(cells[3].replace(",", "")) > 1 << 30  # predicted less a device of 1 MiB


def test_what_was_measured_before_is_not_measured_again():
    known = device.PROFILES / "h200" / "device"
    tasks = [list(task) for task in (*device.ALONE, *device.OTHERS)], device.listed(str(device.FURTHER))
    for side in device_page.SIDES:
        for name, expected in zip(("programs", "further"), tasks):
            assert [task for task in expected if task not in
                    [row["task"] for row in device.lines(known / f"{side}-{name}.jsonl")]] == []


def test_the_profile_is_judged_by_the_jobs_that_it_was_not_fitted_to():
    [*_, last, _] = rows = list(device_page.profiled(device.PROFILES / "h200/device"))
    jobs = json.loads(device.JOBS.read_text())["jobs"]
    assert len(rows) - 4 == sum(job["role"] != "fit" for job in jobs) and last.startswith("| mean (worst) |")


def test_a_side_that_was_not_measured_is_said(tmp_path):
    saved(tmp_path, "emulated-libraries.json", Libraries("emulated", *HERE, (StageMemory("before", 0, None, 0),)))
    assert "Nothing was measured on a real GPU yet." in device_page.page_of("h200", tmp_path)


def test_a_page_of_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match="nothing was measured there"):
        device_page.page_of("h200", tmp_path)


def test_without_the_gpu_nothing_is_left(check, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert check.main(["device", "--gpu", "h200", "--directory", str(tmp_path / "new")]) == 2
    assert "PyTorch finds no CUDA device" in capsys.readouterr().err and not (tmp_path / "new").exists()


@pytest.mark.parametrize("pair, difference", [
    ("emulated of device", 0.25), ("predicted of device", -0.5), ("predicted of emulated", -0.6)])
def test_a_difference_is_how_much_more_the_first_has(pair, difference):
    assert device_page.Peaks(device=8, emulated=10, predicted=4).differences()[pair] == difference


H100 = device.PROFILES / "h100-80gb" / "device"


def test_the_h100_and_the_h200_took_the_same_bytes_in_every_job_that_ran_on_both():
    [row] = [line for line in device_steps.other_gpus(H100) if line.startswith("| h200")]
    assert row == "| h200 | 24 | 24 | 24 |"


def test_the_courses_of_llava_on_the_h100_are_as_simulated_after_every_step():
    rows = [line.split(" | ") for line in device_steps.courses(H100) if line.startswith("| llava")]
    assert len(rows) == 7 and {row[3] for row in rows} == {"0"}


def test_a_course_died_on_the_h100_in_the_simulated_micro_step():
    died = [line for line in device_steps.courses(H100) if "micro-step" in line and line.startswith("| ll")]
    assert len(died) == 1 and "simulated:" not in died[0]


def test_only_under_zero_2_did_the_pool_of_streams_grow():
    rows = [line for line in device_steps.outside(H100) if line.startswith("| ") and " context (context)" in line]
    assert [" 70 zeros (init)" in row for row in rows] == ["zero_stage 2" in row for row in rows]

"""``scripts/file_measurement.py``: records from real GPUs are checked and filed."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from calibrate.records.record import Device, MeasuredOn
from calibrate.regression import files
from predictor.workload.workload import Workload
from tests.calibrate import small_jobs

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import file_measurement  # noqa: E402

SOURCE = ("--source", "https://example.org/issues/12")
WORKLOAD = Workload(model="llava-1.5-7b", sequence_length=1024, gpu="h100-80gb")
REAL = {"measured_on": MeasuredOn.DEVICE, "device": Device("NVIDIA H100", 80 << 30, (9, 0), 132, "580.1", None)}


@pytest.fixture
def record(tmp_path):
    """Writes a record made by hand, as from a real H100 unless the job's changes say something else."""
    def written(job: dict = REAL, **changes) -> str:
        made = small_jobs.record(workload=WORKLOAD.resolved(), **changes)
        path = tmp_path / "run.json"
        path.write_text(json.dumps(replace(made, job=replace(made.job, **job)).to_json()))
        return str(path)

    return written


def test_a_record_is_copied_with_its_source_and_its_difference_is_said(record, tmp_path, capsys):
    path, folder = record(), tmp_path / "contributed"
    assert file_measurement.main([path, *SOURCE], folder) == 0
    [name] = yaml.safe_load((folder / "sources.yaml").read_text())
    assert (folder / name).read_bytes() == Path(path).read_bytes()
    assert "requested +" in capsys.readouterr().out


@pytest.mark.parametrize(("gpu", "begins"), [
    ("../../../stolen", "stolen-"), ("NVIDIA\0L4\nx", "nvidia-l4-x-"), ("a/b", "a-b-"), ("..", "gpu-"), ("x" * 999, "x" * 60 + "-")])
def test_no_name_of_a_gpu_leads_out_of_the_folder(record, tmp_path, gpu, begins):
    path, folder = record(REAL | {"device": replace(REAL["device"], name=gpu)}), tmp_path / "contributed"
    assert file_measurement.main([path, *SOURCE], folder) == 0
    [name] = yaml.safe_load((folder / "sources.yaml").read_text())
    assert name.startswith(begins) and sorted(file.name for file in folder.iterdir()) == sorted([name, "sources.yaml"])


@pytest.mark.parametrize("source", ["https://", "http://example.org", "https://example.org/a\nb: c", "example.org"])
def test_a_source_is_the_address_of_a_page(record, tmp_path, capsys, source):
    assert file_measurement.main([record(), "--source", source], tmp_path / "contributed") == 2
    assert "must be an address such as" in capsys.readouterr().err


def test_it_is_not_filed_twice(record, tmp_path, capsys):
    path, folder = record(), tmp_path / "contributed"
    assert [file_measurement.main([path, *SOURCE], folder) for _ in range(2)] == [0, 2]
    assert "is filed already" in capsys.readouterr().err


def test_a_copy_with_an_edited_field_is_not_filed_again(record, tmp_path, capsys):
    folder = tmp_path / "contributed"
    codes = [file_measurement.main([record(command=(command,)), *SOURCE], folder) for command in ("peakcast", "mine")]
    assert codes == [0, 2] and len(list(folder.glob("*.json"))) == 1


def test_another_measurement_of_the_same_job_is_filed(record, tmp_path, capsys):
    folder = tmp_path / "contributed"
    codes = [file_measurement.main([record(REAL | {"device_used_bytes": size}), *SOURCE], folder) for size in (1 << 13, 1 << 14)]
    assert codes == [0, 0]


def test_a_report_of_the_folder_skips_nothing(record, tmp_path, capsys):
    folder = tmp_path / "contributed"
    file_measurement.main([record(), *SOURCE], folder)
    assert files.read([str(folder)])[1] == []


def test_what_a_report_would_skip_is_not_filed(record, tmp_path, capsys):
    folder = tmp_path / "contributed"
    device = replace(REAL["device"], event_completion="immediate")
    assert file_measurement.main([record(REAL | {"device": device}), *SOURCE], folder) == 2
    assert 'event_completion is "immediate", and a real GPU has none' in capsys.readouterr().err and not folder.exists()


@pytest.mark.parametrize("workload, message", [
    ({"model": "./mine"}, "cannot be predicted: .*no such directory"), ({"gpu": "a100-40gb"}, 'is of gpu "a100-40gb", but')])
def test_a_job_that_nobody_can_predict_is_not_filed(workload, message, record, tmp_path, capsys):
    path, folder = Path(record(REAL | {"device": replace(REAL["device"], name="NVIDIA H100 80GB HBM3")})), tmp_path / "contributed"
    document = json.loads(path.read_text())
    document["workload"] |= workload
    path.write_text(json.dumps(document))
    assert file_measurement.main([str(path), *SOURCE], folder) == 2
    assert re.search(message, capsys.readouterr().err) and not folder.exists()


def test_a_record_without_moments_is_one_line(record, tmp_path, capsys):
    path = Path(record())
    document = json.loads(path.read_text())
    document["job"]["moments"] = []
    path.write_text(json.dumps(document))
    assert file_measurement.main([str(path), *SOURCE], tmp_path / "contributed") == 2
    assert "it has no moments: nothing was measured" in capsys.readouterr().err


@pytest.mark.parametrize("job, message", [
    (REAL | {"device": Device("NVIDIA H100", 80 << 30, (9, 0), 132, "0.0-emulated", None)}, "was measured on an emulated GPU"),
    ({}, "was measured on an emulated GPU, and only real ones are filed"),
    (REAL | {"device": Device("NVIDIA H100", 80 << 30, (9, 0), 132, "580.1", None, {"block": 1})},
     "has injected differences")])
def test_what_is_no_measurement_of_a_real_gpu_is_rejected(job, message, record, tmp_path, capsys):
    folder = tmp_path / "contributed"
    assert file_measurement.main([record(job), *SOURCE], folder) == 2
    assert message in capsys.readouterr().err and not folder.exists()


def test_a_model_in_python_is_neither_run_nor_filed(record, tmp_path, capsys):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef make(batch, sequence): ...\n")
    path, folder = Path(record()), tmp_path / "contributed"
    document = json.loads(path.read_text())
    document["workload"]["model"] = f"{tmp_path / 'evil.py'}:make"
    path.write_text(json.dumps(document))
    assert file_measurement.main([str(path), *SOURCE], folder) == 2
    assert "is code, which is not run because a record names it" in capsys.readouterr().err
    assert not folder.exists() and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", ["{}", "[1]", "nonsense"])
def test_what_is_no_record_is_rejected_in_one_line(content, tmp_path, capsys):
    path = tmp_path / "run.json"
    path.write_text(content)
    assert file_measurement.main([str(path), *SOURCE], tmp_path / "contributed") == 2
    assert capsys.readouterr().err.count("\n") == 1

"""``peakcast calibrate``: plan, options, inconsistent files, and output."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest

from calibrate.campaign import consistency, environment
from calibrate.campaign.design import Job
from calibrate.campaign.rows import Row, opened, read
from calibrate.emulator.devices import find_gpu
from calibrate.measure.device_choice import MeasuringDevice
from calibrate.records.record import InTraining, MeasuredOn, Peak, Predicted
from calibrate.report.calibrate import Progress, unexplained
from predictor.cli import main
from predictor.common.errors import InputError
from predictor.common.gpus import GPUS
from predictor.events.events import Moment
from predictor.profile import profile
from predictor.profile.calibration import OperatorWorkspace
from predictor.version import VERSION
from predictor.workload.workload import Workload
from tests.calibrate import small_jobs
from tests.calibrate.campaign.test_campaign import JOBS
from tests.calibrate.launched_campaign import alone
from tests.predictor.profile.test_profile import calibration

pytestmark = pytest.mark.usefixtures("importing_tests")

WORDS = ["calibrate", "--device", "emulated", "--gpu", "h100-80gb"]


def emulated(job: Job, **device) -> Row:
    record = small_jobs.record(workload={"model": "small", "gpu": "h100-80gb"})
    record = replace(record, job=replace(record.job, **device))
    return Row(job.id, job.role, job.group, dict(job.keys), record, unexplained_bytes=3)


def found_here(where) -> environment.JobEnvironment:
    """The device and software of the rows."""
    job = small_jobs.record().job
    return environment.JobEnvironment(job.device, job.software)


def stand_in(job: Job, where) -> Row:
    return emulated(job)


@pytest.fixture
def fake(monkeypatch):
    """Six jobs that take no time, and a fit that finds nothing."""
    monkeypatch.setattr("calibrate.campaign.design.campaign", lambda **_: JOBS)
    monkeypatch.setattr("calibrate.campaign.measured_job.row_of", stand_in)
    monkeypatch.setattr("calibrate.campaign.environment.read_environment", found_here)
    monkeypatch.setattr("calibrate.fit.fit_profile", lambda rows, **given: calibration(**given))
    monkeypatch.setattr("calibrate.fit.coverage", lambda rows, found: {})
    monkeypatch.setattr("calibrate.fit.cross_validate", lambda rows, found: [])


def error_of(capsys, *words: str) -> str:
    assert main([*WORDS, *words]) == 2
    return capsys.readouterr().err.splitlines()[-1].removeprefix("peakcast: error: ")


def test_the_plan_names_every_job_and_runs_none(capsys):
    assert main([*WORDS, "--quick", "--plan-only", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [job["role"] for job in plan["jobs"]].count("fit") == 12
    assert plan["expected_minutes"] > 0


def test_the_profile_and_the_measurements_are_written_side_by_side(fake, tmp_path, capsys):
    assert main([*WORDS, "--jobs", "1", "--json", "-o", str(tmp_path / "p.json")]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["jobs"] == {"measured": 6, "failed": 0, "skipped": 0, "left_out_by_the_time_limit": 0}
    assert profile.read(tmp_path / "p.json").provenance["measurements"] == "p.jsonl"
    assert len((tmp_path / "p.jsonl").read_text().splitlines()) == 6
    assert "6 jobs, 1 at a time" in err and "6 of 6 jobs" in err


def test_the_summary_names_the_file_and_what_was_found(fake, tmp_path, capsys):
    assert main([*WORDS, "--jobs", "1", "-o", str(tmp_path / "p.json")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "jobs: 6 measured." in text and "Outside PyTorch (device): 500.00 MiB." in text


def test_a_finished_campaign_is_only_fitted_again(fake, tmp_path, capsys):
    words = [*WORDS, "--jobs", "1", "-o", str(tmp_path / "p.json")]
    assert main(words) == 0
    before = (tmp_path / "p.jsonl").read_bytes()
    assert main([*words, "--force"]) == 0
    assert (tmp_path / "p.jsonl").read_bytes() == before
    assert "6 were measured before" in capsys.readouterr().err


def test_a_campaign_is_explained_and_fitted_again_without_a_gpu(fake, monkeypatch, tmp_path, capsys):
    words = [*WORDS, "--jobs", "1", "-o", str(tmp_path / "p.json")]
    assert main(words) == 0
    monkeypatch.setattr("calibrate.campaign.measured_job.explained_again",
                        lambda row, directory: replace(row, unexplained_bytes=len(directory.name)))
    assert main([*words, "--device", "cuda", "--refit", "--snapshots", "four", "--force"]) == 2
    assert "was measured with device emulated, and this is device" in capsys.readouterr().err
    assert main([*words, "--refit", "--snapshots", "four", "--force"]) == 0
    assert {row.unexplained_bytes for row in read(tmp_path / "p.jsonl")} == {4}
    assert "--snapshots" in error_of(capsys, "--refit", "--force", "-o", str(tmp_path / "p.json"))
    assert "leave out --records" in error_of(capsys, *words[5:], "--refit", "--snapshots", "four", "--retry-failed", "--force")


@pytest.fixture
def trained(tmp_path) -> str:
    """A record of a training."""
    workload = Workload(model="llava-1.5-7b", sequence_length=1024, gpu="h100-80gb").resolved()
    made = small_jobs.record(
        workload=workload, predicted=Predicted(Peak(3000, Moment.BACKWARD, 2), ()), not_predicted=None,
        in_training=InTraining("watch", 3, ("1 x 1,024 tokens",), ()))
    (tmp_path / "run.json").write_text(json.dumps(made.to_json()))
    return str(tmp_path / "run.json")


def test_records_of_trainings_are_kept_with_the_held_out_jobs(fake, trained, tmp_path, capsys):
    words = [*WORDS, "--jobs", "1", "-o", str(tmp_path / "p.json"), "--json"]
    assert main([*words, "--records", trained]) == 0
    kept = [row for row in read(tmp_path / "p.jsonl") if row.record.in_training]
    assert [(row.role, row.group) for row in kept] == [("holdout", "given records")]
    capsys.readouterr()
    assert main([*words, "--force"]) == 0  # the next time it is there
    assert json.loads(capsys.readouterr().out)["jobs"]["measured"] == 7


def test_a_record_of_another_gpu_is_refused_by_its_name(fake, trained, tmp_path, capsys):
    found = error_of(capsys, "-o", str(tmp_path / "p.json"), "--records", trained, "--gpu", "a100-80gb")
    assert found.startswith(f"{trained}: was measured with gpu h100-80gb, and this is a100-80gb")
    assert not (tmp_path / "p.jsonl").exists()


def test_under_torchrun_a_finished_campaign_is_known_as_such(fake, monkeypatch, tmp_path, capsys):
    alone(monkeypatch)
    words = [*WORDS, "--json", "-o", str(tmp_path / "p.json")]
    assert main(words) == 0
    assert "6 of 6 jobs" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0
    out, err = capsys.readouterr()
    assert "0 jobs, 1 at a time, about 0 s; 6 were measured before" in err
    assert json.loads(out)["jobs"]["measured"] == 6


def test_a_profile_is_not_overwritten_unasked(fake, tmp_path, capsys):
    (tmp_path / "p.json").write_text("{}")
    assert error_of(capsys, "-o", str(tmp_path / "p.json")).endswith("exists already: add --force to overwrite it, or "
                                                                     "name another file")


@pytest.mark.parametrize("words, message", [
    ((), "-o is not given: name the file of the profile, such as h100.json"),
    (("-o", "a", "--measurements", "./a"), "-o and --measurements name the same file: give two"),
    (("-o", "a.jsonl"), "-o and --measurements (not given: as -o, ending in .jsonl) name the same file: give two"),
    (("-o", ""), 'the output is "": name a file'),
    (("-o", "a", "--time-limit", "soon"), '--time-limit must be a number from 0.1, not "soon"'),
    (("-o", "a", "--jobs", "1.5"), '--jobs must be a whole number from 1, not "1.5"'),
    (("-o", "a", "--inject", "nothing=1"), 'inject: unknown key "nothing"'),
])
def test_a_mistake_is_one_line(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert error_of(capsys, *words) == message
    assert not list(tmp_path.iterdir())


def test_an_unknown_gpu_is_not_told_of_what_this_command_lacks(capsys):
    assert main(["calibrate", "--device", "emulated", "--gpu", "h101"]) == 2
    message = capsys.readouterr().err
    assert 'unknown GPU "h101"' in message and "capacity_bytes" not in message


@small_jobs.needs_emulator
def test_a_mistake_about_the_device_is_told_before_anything_runs(tmp_path, capsys):
    message = error_of(capsys, "--events", "late", "-o", str(tmp_path / "p.json"))
    assert message == 'events: "late" is not one of immediate, launches:N, synchronization'


@pytest.mark.parametrize("words, message", [
    ((), "--device is not given: say cuda or emulated"),
    (("--device", "emulated"), "--gpu is not given: say which GPU it is, such as h100-80gb"),
    (("--device", "cuda", "--gpu", "h100", "--inject", "context_bytes=1"),
     "nothing can be injected into a real GPU: --inject needs --device emulated"),
])
def test_where_to_measure_must_be_said(capsys, words, message):
    assert main(["calibrate", *words]) == 2
    assert capsys.readouterr().err == f"peakcast: error: {message}\n"


@pytest.mark.parametrize("words, message", [
    (("--gpu", "a100-80gb"), "was measured with gpu h100-80gb, and this is a100-80gb"),
    (("--events", "synchronization"), "was measured with events immediate, and this is synchronization"),
    (("--inject", "context_bytes=5"), "was measured with injected {}, and this is {'context_bytes': 5}"),
])
def test_measurements_of_another_device_are_not_mixed_in(fake, tmp_path, capsys, words, message):
    with opened(str(tmp_path / "p.jsonl")) as store:
        store.add(emulated(JOBS[0]))
    found = error_of(capsys, "-o", str(tmp_path / "p.json"), *words)
    assert found == f"{tmp_path}/p.jsonl: {message}: name another file with --measurements"


def test_measurements_of_two_softwares_are_not_mixed(fake, tmp_path, capsys):
    with opened(str(tmp_path / "p.jsonl")) as store:
        store.add(emulated(JOBS[0]))
        store.add(emulated(JOBS[1], software={"torch": "2.12.0"}))
    assert "ran on different devices or software" in error_of(capsys, "-o", str(tmp_path / "p.json"))


def test_measurements_that_another_release_explained_are_not_mixed_in(fake, tmp_path, capsys):
    row = emulated(JOBS[0])
    with opened(str(tmp_path / "p.jsonl")) as store:
        store.add(replace(row, record=replace(row.record, peakcast_version="0.0.9")))
    assert error_of(capsys, "-o", str(tmp_path / "p.json")) == (
        f"{tmp_path}/p.jsonl: was measured with peakcast 0.0.9, and this is {VERSION}: name another file with "
        "--measurements")


@pytest.mark.parametrize("what, changes", [
    ("torch 2.10.0, and here is 2.11.0", {"software": {"torch": "2.10.0"}}),
    ("GPU H800, and here is H100", {"device": replace(small_jobs.record().job.device, name="H800")}),
])
def test_other_software_or_another_gpu_is_noticed_before_a_job_runs(fake, tmp_path, capsys, what, changes):
    file = tmp_path / "p.jsonl"
    with opened(str(file)) as store:
        store.add(emulated(JOBS[0], **changes))
    before = file.read_bytes()
    assert error_of(capsys, "-o", str(tmp_path / "p.json")) == (
        f"{file}: was measured with {what}: name another file with --measurements, and measure all with one")
    assert file.read_bytes() == before


def test_a_gpu_that_is_not_the_one_named_is_noticed_before_a_job_runs(fake, monkeypatch, tmp_path, capsys):
    job = small_jobs.record().job
    other = environment.JobEnvironment(replace(job.device, name="NVIDIA A100-SXM4-40GB"), job.software)
    monkeypatch.setattr("calibrate.campaign.environment.read_environment", lambda where: other)
    assert error_of(capsys, "-o", str(tmp_path / "p.json")).startswith(
        'the GPU is "NVIDIA A100-SXM4-40GB", which is a100-40gb, not h100-80gb')
    assert not (tmp_path / "p.jsonl").exists()


def test_a_refusal_leaves_the_measurements_as_they_are(fake, tmp_path, capsys):
    file = tmp_path / "p.jsonl"
    with opened(str(file)) as store:
        store.add(emulated(JOBS[0]))
    torn = file.read_bytes() + b'{"id": '
    file.write_bytes(torn)
    assert "was measured with events" in error_of(capsys, "--events", "synchronization", "-o", str(tmp_path / "p.json"))
    assert file.read_bytes() == torn


def test_measurements_of_another_product_than_the_gpu_named_are_refused(fake, tmp_path, capsys):
    with opened(str(tmp_path / "p.jsonl")) as store:
        store.add(emulated(JOBS[0], device=replace(small_jobs.record().job.device, name="NVIDIA L40S")))
    message = error_of(capsys, "-o", str(tmp_path / "p.json"))
    assert f"job {JOBS[0].id}: the GPU is \"NVIDIA L40S\", which is l40s, not h100-80gb" in message


@pytest.mark.parametrize("gpu", GPUS)
def test_every_known_gpu_is_recognised_by_its_products_name(gpu):
    consistency.check_gpu(gpu, replace(small_jobs.record().job.device, name=find_gpu(gpu).product))


@pytest.mark.parametrize("share, fits", [(0.98, True), (1.02, True), (0.5, False), (1.2, False)])
def test_a_product_that_is_not_known_is_told_by_its_memory(share, fits):
    capacity = int(GPUS["h100-80gb"].capacity_bytes * share)
    device = replace(small_jobs.record().job.device, name="NVIDIA H100 80GB HBM3 MIG 7g.80gb", capacity_bytes=capacity)
    with nullcontext() if fits else pytest.raises(InputError, match=f"MIG .*with {capacity:,} bytes, not h100-80gb"):
        consistency.check_gpu("h100-80gb", device)


@small_jobs.needs_emulator
def test_what_is_here_is_what_a_jobs_record_says():
    found = environment.read_environment(MeasuringDevice("l40s", MeasuredOn.EMULATED))
    assert (found.device.name, found.device.capacity_bytes) == ("NVIDIA L40S", GPUS["l40s"].capacity_bytes)
    assert set(consistency.DECISIVE_SOFTWARE) <= set(found.software)


def test_the_time_left_is_what_is_expected_at_the_pace_so_far(monkeypatch):
    now = iter([100.0, 160.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    progress = Progress(JOBS, workers=1, known=())
    progress._left /= 2  # half of it took a minute
    assert progress._text() == "about 60 s left"


def test_what_is_unexplained_is_relative_to_the_measured_peak():
    assert unexplained([emulated(JOBS[0])]) == {"fit": {"jobs": 1, "median": 3 / 3000, "worst": 3 / 3000}}


@pytest.mark.parametrize("grows, where", [(False, "a buffer of its own"), (True, "in a predicted buffer")])
def test_the_report_says_where_a_workspace_is(fake, monkeypatch, tmp_path, capsys, grows, where):
    workspace = OperatorWorkspace("aten::mm", 4096, 0, 0.5, 0, 9, "test", grows)
    monkeypatch.setattr("calibrate.fit.fit_profile", lambda rows, **given: calibration(workspaces=(workspace,), **given))
    assert main([*WORDS, "--jobs", "1", "-o", str(tmp_path / "p.json")]) == 0
    row, = (line for line in capsys.readouterr().out.splitlines() if line.startswith("aten::mm"))
    assert " ".join(row.split()).startswith(f"aten::mm {where} 4,096 0")

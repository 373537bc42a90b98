"""``peakcast report``: formats, files, exit codes, and the shipped gates over the shipped records."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from calibrate.regression.cases import COUNTERS
from predictor.cli import main
from predictor.common.errors import InputError
from predictor.events import sizes, workspaces
from predictor.profile import profile
from predictor.profile.calibration import Coefficient
from tests import documents
from tests.predictor.profile.test_profile import calibration

PROFILES = Path(__file__).parents[3] / "profiles"
RECORDS = PROFILES / "h100-80gb"
GATE = """
[[gate]]
name = "emulated"
where = { measured_on = "emulated" }
requested_worst = 1e-6
allocated_mape = 0.005
"""


@pytest.fixture
def records(tmp_path) -> str:
    """Six measured jobs of LLaVA-1.5-7B, from the shipped ones: answered by shipped formulas."""
    rows = (RECORDS / "emulated.jsonl").read_text().splitlines()
    jobs = [json.loads(row) for row in rows]
    chosen = [row for row, job in zip(rows, jobs)
              if job["group"] == "paper" and {"zero_stage": 2, "data_parallel_size": 8}.items() <= job["job"].items()][:6]
    path = tmp_path / "six.jsonl"
    path.write_text("\n".join(chosen) + "\n")
    return str(path)


@pytest.fixture
def gate(tmp_path) -> str:
    path = tmp_path / "gate.toml"
    path.write_text(GATE)
    return str(path)


def error_of(capsys, *words: str) -> str:
    assert main(["report", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err.removeprefix("peakcast: error: ").rstrip()


def test_the_text_says_how_near_predictions_are(records, capsys):
    assert main(["report", records]) == 0
    text = capsys.readouterr().out
    assert text.startswith("6 measurements on emulated GPUs, 1 model.\n")
    assert "No case has a capacity that its GPU has, so there are no verdicts." in text


def test_the_short_report_fits_on_one_screen_whatever_is_asked_beside(records, gate, capsys):
    assert main(["report", records, "--gate", gate, "--baselines", "fast"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40 and max(len(line.rstrip()) for line in lines) <= 100
    assert any(line.startswith("Eq. 1 ") for line in lines) and "--details shows all groups" in "\n".join(lines)


def test_worst_explains_as_many_cases(records, capsys):
    path = Path(records)  # predictions are equal to the byte, so these say that each job took 1 GiB more
    jobs = [json.loads(row) for row in path.read_text().splitlines()]
    peaks = [f"{counter}_bytes" for counter in COUNTERS]
    more = [job | {peak: job[peak] + 2**30 for peak in peaks if peak in job} for job in jobs]
    path.write_text("".join(json.dumps(job) + "\n" for job in more))
    assert main(["report", records, "--worst", "2"]) == 0
    assert capsys.readouterr().out.count("  predicted there: ") == 2


def test_json_is_alone_on_stdout_and_has_every_case(records, capsys):
    assert main(["report", records, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["peakcast_version", "command", "profile", "groups", "cases", "methods", "paper", "history",
                              "explained", "skipped", "real_gpus", "gates"]
    assert len(document["cases"]) == 6
    case = document["cases"][0]
    for counter in COUNTERS[:3]:
        assert case[f"{counter}_error"] == pytest.approx(
            case[f"predicted_{counter}_bytes"] / case[f"measured_{counter}_bytes"] - 1)
    assert document["groups"][0]["errors"]["requested"]["cases"] == 6


def test_a_directory_gets_the_report_in_every_form(records, tmp_path, capsys):
    target = tmp_path / "new" / "report"
    assert main(["report", records, "-o", str(target), "--json"]) == 0
    assert json.loads((target / "report.json").read_text()) == json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in target.iterdir()) == ["cases.csv", "real_gpus.md", "report.html", "report.json",
                                                               "report.md"]
    with open(target / "cases.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["measured_requested_bytes"] for row in rows[:1]] == ["36126125220"]
    assert "| model | llava-1.5-7b | 6 |" in (target / "report.md").read_text()


def test_a_report_that_is_there_is_kept_without_force(records, tmp_path, capsys):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "report.md").write_text("mine")
    assert "has report.md already: add --force to overwrite" in error_of(capsys, records, "-o", str(tmp_path / "r"))
    assert (tmp_path / "r" / "report.md").read_text() == "mine"
    assert main(["report", records, "-o", str(tmp_path / "r"), "--force"]) == 0


def test_what_is_skipped_is_named_and_the_report_goes_on(records, capsys):
    with open(records, "a") as stream:
        stream.write('{"group": "paper", "jo')
    assert main(["report", records]) == 0
    assert f"{records}:7: not valid JSON" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("words, message", [
    (["nowhere.json"], "nowhere.json: no such file or directory"),
    (["{empty}"], "empty: no file in there ends in .json or .jsonl"),
    ([""], "an empty name: name files or directories of measurements"),
    (["/dev/zero"], "/dev/zero: not a regular file: only those are read"),
    (["{text}"], "rows.txt: its name must end in .json (one record) or in .jsonl (a row each line)"),
    (["{profile}"], "a profile, not a measurement: give it as --profile"),
    (["{records}", "-o", "/dev/null/report"], "/dev/null/report: cannot be made a directory: Not a directory"),
    (["{records}", "--baselines", "some"], "argument --baselines: invalid choice"),
    (["{records}", "--worst", "many"], "--worst must be a whole number"),
    (["{records}", "--gate", "nowhere.toml"], "nowhere.toml: no such file: check the path of the gates"),
    (["{records}", "--profile", "nowhere.json"], "nowhere.json: no such file: check the path of the profile"),
    (["{records}", "-o", "{records}"], "cannot be made a directory: it is a file: name another with -o"),
])
def test_bad_input_is_one_line(records, tmp_path, capsys, words, message):
    (tmp_path / "empty").mkdir()
    path = tmp_path / "profile.json"
    profile.write(str(path), calibration())
    text = Path(records).with_name("rows.txt")
    text.write_text(Path(records).read_text())
    names = {"records": records, "empty": tmp_path / "empty", "profile": path, "text": text}
    assert message in error_of(capsys, *(word.format(**names) for word in words))


def test_a_directory_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("os.access", lambda *_: False)
    assert error_of(capsys, "nowhere.json", "-o", str(tmp_path / "r")).endswith(
        "r: is not writable: name another directory with -o")


def test_a_directory_without_measurements_beside_others_is_named(records, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["report", records, str(tmp_path / "empty"), "--json"]) == 0
    skipped = json.loads(capsys.readouterr().out)["skipped"]
    assert [(one["file"], one["why"]) for one in skipped] == [
        (str(tmp_path / "empty"), "no file in there ends in .json or .jsonl")]


def test_measurements_of_a_campaign_are_read(tmp_path, capsys):
    """Its jobs ran with the profile none; they are predicted as the option has it."""
    lines = (RECORDS / "campaign.jsonl").read_text().splitlines()
    row = next(line for line in lines if json.loads(line)["job"]["model"] == "llava-1.5-7b")
    path = tmp_path / "campaign.jsonl"
    path.write_text(row + "\n")
    assert json.loads(row)["record"]["workload"]["profile"] == "none"
    assert main(["report", str(path), "--profile", "none", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(one["model"], one["profile"]) for one in document["cases"]] == [("llava-1.5-7b", None)]


def test_explain_says_that_rows_are_for_report(records, capsys):
    assert main(["explain", "--measured", records]) == 2
    assert capsys.readouterr().err == (f"peakcast: error: {records}: holds rows of measurements, which peakcast report "
                                       "reads: --measured takes one record of peakcast measure --json -o\n")


# --- other methods ----------------------------------------------------------------------------------


def test_other_methods_stand_beside_ours_in_every_form(records, tmp_path, capsys):
    target = tmp_path / "report"
    assert main(["report", records, "--baselines", "fast", "--details", "-o", str(target)]) == 0
    names = ["Eq. 1", "DeepSpeed", "accelerate", "states only"]
    document = json.loads((target / "report.json").read_text())
    assert [one["name"] for one in document["methods"]] == names
    assert document["paper"]["errors"]["peakcast"]["mape"] < 1e-4 < 0.05 < document["paper"]["errors"]["equation_1"]["mape"]
    heads = "| " + " | ".join(["recipe", "shape", "buckets", "GPUs", "measured", "peakcast", *names]) + " |"
    assert heads in (target / "report.md").read_text()
    page = (target / "report.html").read_text()
    assert all(f"<th scope=\"col\">{name}</th>" in page for name in names) and 'id="figure-methods"' in page
    assert "Allocated peaks of the paper's jobs, GiB" in capsys.readouterr().out


# --- gates ------------------------------------------------------------------------------------------


def test_a_gate_that_holds_is_exit_code_0(records, gate, capsys):
    assert main(["report", records, "--gate", gate]) == 0
    assert "Gates that hold: emulated (6 cases)." in capsys.readouterr().out
    assert main(["report", records, "--gate", gate, "--details"]) == 0
    assert "gate emulated: holds (6 cases)" in capsys.readouterr().out


def test_one_wrong_coefficient_breaks_the_gate(records, gate, tmp_path, capsys):
    path = str(tmp_path / "wrong.json")
    wrong = Coefficient(1.05, 0.001, 60, fitted=True, applied=True, note="wrong on purpose")
    profile.write(path, calibration(coefficients={"activations": wrong}))
    assert main(["report", records, "--gate", gate, "--profile", path]) == 1
    broken = [line for line in capsys.readouterr().out.splitlines() if line.startswith("gate ")]
    assert [line.split(" is ")[0] for line in broken] == [
        "gate emulated: requested_worst", "gate emulated: allocated_mape"]


def test_one_wrong_formula_breaks_the_gate(records, gate, monkeypatch, capsys):
    right = workspaces.FUNCTIONS["cublas_workspace"]
    monkeypatch.setitem(workspaces.FUNCTIONS, "cublas_workspace", lambda gpu: right(gpu) + (1 << 20))
    sizes._values.cache_clear()
    try:
        assert main(["report", records, "--gate", gate]) == 1
    finally:
        sizes._values.cache_clear()
    assert "gate emulated: requested_worst is " in capsys.readouterr().out


def test_with_json_broken_gates_are_lines_on_stderr(records, tmp_path, capsys):
    path = tmp_path / "strict.toml"
    path.write_text('[[gate]]\nname = "many"\nminimum_cases = 7')
    assert main(["report", records, "--gate", str(path), "--json"]) == 1
    out, err = capsys.readouterr()
    line = "many: minimum_cases is 6: must be at least 7"
    assert json.loads(out)["gates"][0]["broken"] == [line]
    assert err == f"peakcast: gate {line}\n"


@pytest.fixture
def only_shipped_formulas(monkeypatch, tmp_path):
    """As CI runs it: what would have to be traced is skipped, and gates say that too few cases remain."""
    def refuse(*_, **__):
        raise InputError("its formula is not shipped: run scripts/build_formulas.py")

    monkeypatch.setenv("PEAKCAST_CACHE", str(tmp_path))
    monkeypatch.setattr("predictor.formula.tracing.trace_formula", refuse)


def test_the_manual_shows_the_report_of_the_shipped_records_whose_gates_hold(
        only_shipped_formulas, monkeypatch, tmp_path, capsys):
    [example] = [example for example in documents.examples(documents.PAGES / "how-to/reports.md") if example.output]
    (tmp_path / "profiles").symlink_to(PROFILES)
    monkeypatch.chdir(tmp_path)
    code, printed = main([*example.words]), capsys.readouterr().out
    assert (code, documents.missing(example.output, printed)) == (0, [])
    assert (tmp_path / "report" / "report.html").exists()


def test_the_gates_of_the_h200_hold_over_its_records(only_shipped_formulas, capsys):
    code = main(["report", str(PROFILES / "h200/device/device-jobs.jsonl"), "--gate", str(PROFILES / "h200/gates.toml")])
    assert (code, [line for line in capsys.readouterr().out.splitlines() if "must be" in line]) == (0, [])


def test_code_that_a_record_names_is_not_run(records, tmp_path, capsys):
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef train(batch): ...\n")
    rows = [json.loads(row) for row in Path(records).read_text().splitlines()]
    rows[0]["job"]["model"] = f"{tmp_path / 'own.py'}:train"
    Path(records).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    main(["report", records])
    assert "5 measurements" in capsys.readouterr().out and not (tmp_path / "ran").exists()

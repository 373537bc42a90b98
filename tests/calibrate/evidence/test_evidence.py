"""Other people's measurements: the files are valid, the errors are as defined, and the page says what the data says."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from calibrate.checks import real_gpus, registry
from calibrate.evidence import addresses, comparison, headline, page, predictions, sources, verdicts
from calibrate.evidence.addresses import Orders
from calibrate.evidence.predictions import Predicted
from calibrate.evidence.sources import Basis, Command, Job, Kind, Printed, Report, Row, Source
from calibrate.evidence.verdicts import Happened, Judged, Revision, Thread, Threads, Verdict
from predictor.common.errors import InputError
from predictor.workload.workload import Workload

README = Path(__file__).parents[3] / "README.md"
EVERYTHING = sources.read_all()
WORKLOAD = {"model": "gpt2", "sequence_length": 8}


def row(name: str, **changes) -> Row:
    values = {"id": name, "kind": Kind.TRAINING, "gpu": "A", "emulated": "a100-80gb", "where": "a table",
              "job": Job(workload=WORKLOAD), "measured": {"allocated_bytes": 1000}}
    return Row(**{**values, **changes})


def compared(rows: list[Row], predicted: dict[str, int]) -> comparison.Comparison:
    """The comparison of one source whose rows have these predicted bytes, whatever the quantity."""
    source = Source("owner/name", "MIT", "", rows=tuple(rows))
    entries = [Predicted(source.name, row.id, row.digest, "2026-11-25",
                         dict.fromkeys(sources.QUANTITIES, predicted[row.id])) for row in rows if row.id in predicted]
    return comparison.make([source], {entry.key: entry for entry in entries})


def files(tmp_path: Path, **changes) -> Path:
    """A file with one row, changed."""
    shared = {"kind": "training job", "gpu": "A", "emulated": "a100-80gb", "where": "a table",
              "job": {"workload": {"model": "gpt2", "sequence_length": 8}}}
    document = {"name": "owner/name", "license": "MIT", "about": "", "shared": shared,
                "rows": [{"id": "one", "measured": {"allocated_bytes": 5}, **changes}]}
    path = tmp_path / "source.json"
    path.write_text(json.dumps(document))
    return path


def test_an_error_is_the_difference_as_a_share_of_what_was_measured():
    figures = compared([row("low"), row("high")], {"low": 990, "high": 1020}).figures
    assert [figure.error for figure in figures] == [-0.01, 0.02]
    assert [figure.is_close for figure in figures] == [True, False]


def test_what_nvidia_smi_shows_is_compared_with_reserved_bytes_and_not_judged():
    only = row("a", measured={"device_bytes": 2000})
    (figure,) = compared([only], {"a": 1000}).figures
    assert figure.error == -0.5 and not figure.is_judged


@pytest.mark.parametrize("changes", [{"fitted": "the length"}, {"basis": Basis.ASSUMED, "note": "the length"},
                                     {"kind": Kind.OPERATOR}, {"kind": Kind.RECORDING}],
                         ids=["fitted", "assumed", "operator", "recording"])
def test_the_headline_leaves_out(changes):
    found = compared([row("judged"), row("other", **changes)], {"judged": 1000, "other": 9000})
    assert [figure.row.id for figure in found.judged] == ["judged"]
    assert ": 1, of 1 jobs, 1 of training, from 1 sources. peakcast predict (1, " in headline.summary(found)
    assert "other" in page.text(found, Threads((), {})) or changes.get("kind") in (Kind.OPERATOR, Kind.RECORDING)


def test_the_headline_tells_predictions_from_runs_of_the_authors_scripts():
    script = Job(command=Command(("python", "train.py")))
    said = headline.summary(compared([row("a"), row("b", job=script)], {"a": 1000, "b": 1500}))
    assert "predict (1, of 1 jobs): allocated within 1% in 1 of 1" in said
    assert "scripts (1, of 1 jobs): allocated within 1% in 0 of 1" in said


def test_figures_of_one_run_at_several_moments_are_one_job():
    moments = [row(moment, job=Job(report=Report(2, moment))) for moment in "CDG"]
    printed = [row(name, job=Job(command=Command(("python", "a.py"), prints={"allocated_bytes": Printed(name, 1)})))
               for name in ("before", "after")]
    other = row("other", job=Job(command=Command(("python", "b.py"))))
    rows = [*moments, *printed, other]
    found = compared(rows, {one.id: 1000 for one in rows}).judged
    assert (comparison.measurements(found), comparison.jobs(found)) == (6, 3)


def test_a_prediction_of_another_reconstruction_does_not_count():
    old, new = row("a"), row("a", capacity_bytes=1)
    source = Source("owner/name", "MIT", "", rows=(new,))
    entry = Predicted(source.name, "a", old.digest, "2026-11-25", {"allocated_bytes": 1000})
    found = comparison.make([source], {entry.key: entry})
    assert not found.figures and found.unpredicted == ((source, new),)


def test_a_cause_changes_nothing_of_what_is_predicted():
    assert row("a").digest == row("a", cause="versions", note="seen", measured={"allocated_bytes": 7}).digest


def test_a_figure_beyond_one_percent_needs_a_cause():
    found = compared([row("why"), row("known", cause="versions")], {"why": 1011, "known": 1500})
    assert [figure.row.id for figure in found.unexplained] == ["why"]


def printing(name: str) -> Row:
    """A row whose script prints what it reserves."""
    script = Command(("python", "a.py"), prints={"reserved_bytes": Printed("([0-9]+) bytes", 1)})
    return row(name, job=Job(command=script), measured={"reserved_bytes": 1000})


def test_the_page_has_what_scripts_reserve_with_other_addresses(tmp_path):
    runs, other = printing("a"), printing("b")
    kept = [Orders("owner/name", "a", runs.digest, "2026-11-29", (1000, 1020, 1000)),
            Orders("owner/name", "b", "of another reconstruction", "2026-11-29", (1, 2))]
    addresses.write(kept, tmp_path / "a.jsonl")
    orders = addresses.read(tmp_path / "a.jsonl")
    assert list(orders.values()) == kept
    text = page.text(compared([runs, other], {"a": 1020, "b": 1000}), Threads((), {}), (), orders)
    assert "| owner/name | a | 1,000 | 1,020 | 1,000 (2), 1,020 (1) | 2 of 3 |" in text and "1 (1), 2 (1)" not in text
    assert "Other addresses" not in page.text(compared([runs], {"a": 1000}), Threads((), {}), (), {})


def test_a_script_runs_once_for_each_order_of_addresses(monkeypatch, tmp_path):
    (tmp_path / "owner+name").mkdir()
    source, asked = Source("owner/name", "MIT", "", rows=(printing("a"), row("workload"))), []

    def run(words, **_how):
        asked.append(words)
        return SimpleNamespace(returncode=0, stdout=f"{len(asked)} bytes")

    monkeypatch.setattr("calibrate.checks.reconstruction.subprocess.run", run)
    monkeypatch.setattr("calibrate.evidence.addresses.write", lambda entries: None)
    found = real_gpus.Evidence((source,), {}, Threads((), {}), {})
    args = Namespace(table_only=False, checkouts=tmp_path, recordings=None, only="no prediction", orders=3)
    assert not real_gpus.measure(found, args).orders
    args.only = "owner/name a"
    found.predicted["owner/name", "a"] = Predicted("owner/name", "a", printing("a").digest, "2026-11-29", {"reserved_bytes": 1})
    orders = real_gpus.measure(found, args).orders
    assert [one.reserved_bytes for one in orders.values()] == [(1, 2, 3)]
    assert [word for words in asked for word in words if "seed" in word] == [f"address_seed={seed}" for seed in (1, 2, 3)]
    real_gpus.measure(real_gpus.Evidence((source,), found.predicted, Threads((), {}), orders), args)
    assert len(asked) == 3  # they are kept


def test_a_job_that_ran_out_of_memory_and_is_said_to_fit_is_counted():
    thread = Thread("t", "owner/name#1", "A", "a100-80gb", Happened.OUT_OF_MEMORY, Job(workload=WORKLOAD))
    for verdict, false in ((Verdict.FITS, 1), (Verdict.UNCERTAIN, 0), (Verdict.DOES_NOT_FIT, 0)):
        found = Threads((thread,), {"t": Judged("t", thread.digest, "2026-11-25", verdict)})
        assert len(found.false_fits) == false


@pytest.mark.parametrize("source, counted", [("", 1), ("the README", 2)])
def test_a_report_whose_setting_was_chosen_after_its_verdict_is_not_counted_and_its_first_verdict_is_told(source, counted):
    plain = Thread("p", "owner/name#1", "A", "a100-80gb", Happened.OUT_OF_MEMORY, Job(workload=WORKLOAD))
    revised = replace(plain, id="r", revision=Revision("ranks", Verdict.FITS, source))
    judged = {one.id: Judged(one.id, one.digest, "2026-11-25", Verdict.DOES_NOT_FIT) for one in (plain, revised)}
    said = headline.verdict_summary(Threads((plain, revised), judged))
    assert said.startswith(f"0 of {counted} public reports are false fits") and "At first reading, 1 of 2 were false fits." in said
    assert f"{counted - 1} were then given settings" in said and f"{2 - counted} with a setting that was chosen" in said


@pytest.mark.parametrize("revision", [{"setting": "ranks"}, {"first_verdict": "fits"}, {"setting": "ranks", "first_verdict": "perhaps"}])
def test_a_fitted_report_has_its_first_verdict(tmp_path, revision):
    thread = {"id": "t", "where": "owner/name#1", "gpu": "A", "emulated": "a100-80gb", "happened": "ran",
              "job": {"workload": WORKLOAD}, "revision": revision}
    path = tmp_path / "threads.json"
    path.write_text(json.dumps({"threads": [thread]}))
    with pytest.raises(InputError, match="threads.json.*revision"):
        verdicts.read(path)


@pytest.mark.parametrize("line", ['{"thread": "t", ', "[]"])
def test_a_torn_line_of_what_is_kept_is_refused(tmp_path, line):
    (tmp_path / "verdicts.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match="verdicts.jsonl:1: "):
        verdicts.read(verdicts.FILE, tmp_path / "verdicts.jsonl")


def test_rows_take_what_their_source_shares(tmp_path):
    (only,) = sources.read(files(tmp_path, job={"workload": {"sequence_length": 16}})).rows
    assert only.job.workload == {"model": "gpt2", "sequence_length": 16} and only.kind is Kind.TRAINING


@pytest.mark.parametrize("changes, problem", [
    ({"measured": {"allocated": 5}}, "measured has allocated: known are requested_bytes"),
    ({"measured": {}}, "measured has nothing"), ({"measured": {"allocated_bytes": 0}}, "must be positive"),
    ({"job": {"recording": "x.pickle"}}, "exactly one of"), ({"basis": "assumed"}, "needs a note"),
    ({"kind": "training"}, "must be one of training job"), ({"measured_on": "A"}, "unknown key")])
def test_a_row_that_is_not_valid_is_one_line(tmp_path, changes, problem):
    with pytest.raises(InputError, match=problem):
        sources.read(files(tmp_path, **changes))


def test_rows_of_one_id_are_refused(tmp_path):
    path = files(tmp_path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "rows": document["rows"] * 2}))
    with pytest.raises(InputError, match="rows of the same id: one"):
        sources.read(path)


@pytest.mark.parametrize("source", EVERYTHING, ids=lambda source: source.name)
def test_every_source_says_where_it_is_from(source):
    assert source.license and source.about and source.name.count("/") == 1
    assert all(row.where for row in source.rows)


@pytest.mark.parametrize("job, gpu, capacity_bytes", [
    pytest.param(row.job, row.emulated, row.capacity_bytes, id=f"{source.name} {row.id}")
    for source in EVERYTHING for row in source.rows if row.job.workload] + [
    pytest.param(thread.job, thread.emulated, thread.capacity_bytes, id=thread.id)
    for thread in verdicts.read().threads if thread.job.workload])
def test_every_workload_is_a_request_that_peakcast_takes(job, gpu, capacity_bytes):
    model = job.workload["model"]
    own = {"model": str(sources.DIRECTORY / model)} if model.endswith(".json") else {}
    Workload(**{**job.workload, **own, "gpu": gpu, "capacity_bytes": capacity_bytes or None})


def test_every_prediction_is_of_a_row():
    known = {(source.name, row.id) for source in EVERYTHING for row in source.rows}
    assert set(predictions.read()) <= known
    assert {key: found.digest for key, found in addresses.read().items()}.items() <= {
        (source.name, row.id): row.digest for source in EVERYTHING for row in source.rows}.items()
    assert set(verdicts.read().judged) <= {thread.id for thread in verdicts.read().threads}


def test_the_page_is_what_the_data_says():
    made = page.load(comparison.load())
    (written,) = (path for path in registry.CHECKS["real_gpus"].writes if path.endswith(".md"))
    assert made == (Path(__file__).parents[3] / written).read_text()


def test_the_evidence_is_large():
    found, threads = comparison.load(), verdicts.read()
    training = [figure for figure in found.judged if figure.row.kind is Kind.TRAINING]
    assert comparison.jobs(found.judged) >= 60 and len(found.judged_sources) >= 12 and len(found.gpus) >= 8
    assert comparison.jobs(training) >= 35 and len(threads.judged_pairs) >= 20


def test_no_job_that_ran_out_of_memory_is_said_to_fit():
    """But these, each of which says why, as far as that is known. The check goes on failing while there is one."""
    false_fits = verdicts.read().false_fits
    assert {thread.id for thread in false_fits} == {
        "FastChat#407 four GPUs, batch 2", "FastChat#407 four GPUs, batch 1", "Firefly#33", "stanford_alpaca#46", "stanford_alpaca#308",
        "ms-swift#411"}
    assert all(thread.cause for thread in false_fits)


def test_every_figure_that_is_off_is_explained():
    assert not comparison.load().unexplained


def test_a_figure_that_is_off_without_a_cause_is_marked():
    text = page.text(compared([row("why")], {"why": 1011}), Threads((), {}))
    assert text.count("**unexplained**") == 2  # among the worst, and among all


def test_the_readme_has_the_figures_of_real_gpus():
    text, found, threads = README.read_text(), comparison.load(), verdicts.read()
    rows = [row for row in page.by_kind(found) if "---" not in row][1:]
    assert len(rows) > 2 and [row for row in rows if f"| real GPU {row}" not in text] == []
    assert f"The figures of real GPUs ({found.date}) are" in " ".join(text.split())
    assert f"Allocated within 1%, by GPU: {headline.by_gpu(found)}." in " ".join(text.split())
    happened = Counter(thread.happened for thread, _ in threads.pairs)
    failed, ran = happened[Happened.OUT_OF_MEMORY], happened[Happened.RAN]
    at_first, now = len(threads.false_fits_at_first), len(threads.false_fits)
    on_a100 = sum(thread.gpu.startswith("A100 40 GB") for thread in threads.false_fits)
    assert (f"We predicted {len(threads.pairs)} jobs whose end is public. Of {failed} that ran out of memory we said that {at_first} fit, and still say "
            f"so of {now}, {['none', 'one', 'two', 'three', 'four'][on_a100]} on A100s of 40 GB; in the others we had misread settings. Of {ran} that "
            f"ran, {len(threads.false_alarms)} of unstated lengths is said not to fit.") in " ".join(text.split())
    recordings = [figure for figure in found.figures if figure.row.kind is Kind.RECORDING]
    evidence = " ".join((README.parent / "docs/pages/evidence/index.md").read_text().split())
    assert f"{len(recordings)} memory histories" in evidence and not any(figure.error for figure in recordings)

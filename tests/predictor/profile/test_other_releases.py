"""What other releases changed is what was measured under them, and answers say it where others are installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor import Workload, predict
from predictor.formula import installed_versions
from predictor.profile.other_releases import MOVED, moved

ROWS = [json.loads(line) for line in (Path(__file__).parents[3] / "profiles/evidence/stacks.jsonl").read_text().splitlines()]
MEASURED = {(row["software"]["torch"], row["stack"], json.dumps(row["job"], sort_keys=True)): row["reserved_bytes"]["measured"]
            for row in ROWS if "reserved_bytes" in row}
USUAL = {job: size for (_, stack, job), size in MEASURED.items() if stack == "pinned"}


@pytest.mark.parametrize("entry", MOVED, ids=lambda entry: entry.torch)
def test_an_entry_is_what_was_measured(entry):
    ratios = [size / USUAL[job] - 1 for (torch, stack, job), size in MEASURED.items()
              if torch == entry.torch and stack != "pinned" and job in USUAL]
    assert (len(ratios), round(min(ratios), 3), round(max(ratios), 3)) == (entry.jobs, entry.lowest, entry.highest)


def test_every_set_of_releases_has_an_entry():
    assert [entry.torch for entry in MOVED] == sorted(
        {torch for torch, stack, _ in MEASURED if stack != "pinned"}, key=lambda text: [int(part) for part in text.split(".")])


@pytest.mark.parametrize("torch, of", [("2.3.0", "2.4.1"), ("2.7.1", "2.6.0"), ("2.9.0", "2.8.0"), ("2.15.0", "2.14.1")])
def test_a_release_between_is_told_by_the_set_before_it(torch, of):
    assert moved(torch).torch == of


@pytest.mark.parametrize("installed, said", [({}, False), ({"torch": "2.11.0"}, False), ({"torch": "2.8.0"}, True)], ids=str)
def test_a_shipped_formula_of_other_releases_than_the_installed_ones_says_so(installed, said, monkeypatch):
    monkeypatch.setattr(installed_versions, "versions", lambda: installed)
    job = Workload(model="llava-1.5-7b", sequence_length=1024, gpu="h100-80gb")
    texts = [text for text in predict(job).assumptions if "for which a formula is shipped. torch 2.8.0 may need another amount" in text]
    assert bool(texts) is said
    given = job.replace(versions={"torch": "2.11.0", "transformers": "5.17.0", "deepspeed": "0.19.8"})
    assert not [text for text in predict(given).assumptions if "shipped formula" in text]

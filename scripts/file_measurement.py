#!/usr/bin/env python3
"""Check a record from somebody's real GPU, and file it under profiles/evidence/contributed/.

    peakcast measure … --json -o run.json                      # or PeakcastCallback(record="run.json")
    python scripts/file_measurement.py run.json --source https://github.com/OWNER/peakcast/issues/12
    peakcast report profiles/evidence/contributed              # all of them beside today's predictions

Only peaks of one real GPU are filed, of a job that can be predicted: not those of an emulated one, none of a training
whose batches had several shapes, and none of a model that only the contributor has. A measurement that is there already
is not filed again, even if other keys of its record differ. The file is copied as it is; its origin goes into
sources.yaml beside it.

exit codes: 0 filed, 2 bad input
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from datetime import date
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the repository need not be installed

from calibrate.records.record import MeasuredOn, Record, read  # noqa: E402
from calibrate.regression import cases, compare, files  # noqa: E402
from predictor.common import gpus  # noqa: E402
from predictor.common.errors import InputError  # noqa: E402
from predictor.common.files import read_bytes, read_mapping, write_whole  # noqa: E402
from predictor.common.suggestions import file_name, quoted  # noqa: E402

CONTRIBUTED = ROOT / "profiles" / "evidence" / "contributed"
SOURCES = "sources.yaml"
"""YAML, because a report of the folder reads every JSON file as a measurement."""
ADDRESS = re.compile(r"https://[\w.-]+\.[a-z]+(/[\w.~/?#=&%+-]*)?", re.ASCII)
"""Web addresses of a host and a path, in one line."""
LIKE = 0.05
"""Part by which the memory of two GPUs of one kind may differ, at most."""
LONGEST_NAME = 60
"""Characters of a GPU's name that a file's name has."""
BAD_INPUT = 2


def main(words: list[str], folder: Path = CONTRIBUTED) -> int:
    """Checks and files one record; prints how near its prediction is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", help="the record, a JSON file")
    parser.add_argument("--source", required=True, metavar="URL", help="where it was published, such as an issue")
    arguments = parser.parse_args(words)
    try:
        print(filed(Path(arguments.record), arguments.source, folder))
        return 0
    except InputError as error:
        print(f"file_measurement: error: {error}", file=sys.stderr)
        return BAD_INPUT


def filed(path: Path, source: str, folder: Path) -> str:
    """Files a record, and returns a line on its prediction.

    Raises:
        InputError: it is no record, it is not of a real GPU, it cannot be predicted, or it is filed already.
    """
    if not ADDRESS.fullmatch(source):
        raise InputError(f"--source {quoted(source, 200)}: must be an address such as https://github.com/OWNER/peakcast/"
                         "issues/12")
    record = read(path)
    check(record, file_name(path))
    content = read_bytes(path, "the record")
    gpu = "-".join(re.findall(r"[a-z0-9]+", record.job.device.name.lower()))[:LONGEST_NAME]
    name = f"{gpu or 'gpu'}-{hashlib.sha256(content).hexdigest()[:12]}.json"
    known = read_mapping(folder / SOURCES, "the list of sources") if (folder / SOURCES).exists() else {}
    [case], _ = files.read([str(path)])
    for earlier in known:
        [filed_case], _ = files.read([str(folder / earlier)])
        if measured(filed_case) == measured(case):
            raise InputError(f"{file_name(path)}: is filed already, as {earlier}, from "
                             f"{quoted(known[earlier]['source'], 200)}")
    try:
        peaks = compare.compare(case).peaks
    except InputError as error:
        raise InputError(f"{file_name(path)}: cannot be predicted: {error}") from None
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(str(folder / name), content)
    known[name] = {"source": source, "filed": date.today().isoformat()}
    write_whole(str(folder / SOURCES), yaml.safe_dump(known).encode())
    errors = (f"{counter} {peak.error:+.3%}" for counter, peak in peaks.items() if peak.error is not None)
    return f"{name}: {', '.join(errors)}"


def measured(case: cases.Case) -> tuple[object, ...]:
    """What was measured: the job, the GPU and the peaks. Other keys of a record may differ between its copies."""
    return case.workload.resolved() | {"model": case.model}, case.gpu, dict(case.peaks)


def check(record: Record, name: str) -> None:
    """Rejects a record that is no evidence.

    Raises:
        InputError: the reason.
    """
    device = record.job.device
    if record.job.measured_on is not MeasuredOn.DEVICE or "emulated" in device.driver:
        raise InputError(f"{name}: was measured on an emulated GPU, and only real ones are filed")
    if device.injected:
        raise InputError(f"{name}: has injected differences: it is no measurement of that GPU")
    gpu = record.workload.get("gpu")
    known = [gpus.find(one) for one in (gpu, device.name) if one and gpus.is_known(one)]
    if len({one.name for one in known}) > 1 or not all(
            abs(device.capacity_bytes / one.capacity_bytes - 1) <= LIKE for one in known):
        raise InputError(f"{name}: is of gpu {quoted(gpu)}, but its device is {quoted(device.name)} with "
                         f"{device.capacity_bytes:,} bytes")
    try:
        record.check_model()
        record.check_shapes()
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

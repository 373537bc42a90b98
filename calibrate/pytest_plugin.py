"""A pytest plugin: tests with a limit of GPU memory, which run on an emulated GPU.

    @pytest.mark.limit_gpu_memory("38 GiB", gpu="a100-40gb")
    def test_a_training_step(): ...

Such a test runs in a pytest process of its own, with the test's fixtures, whose PyTorch sees the emulated GPU. It fails
if PyTorch reserves more than the limit at any moment. All other tests run as usual. It needs ``peakcast[calibrate]``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from calibrate.dryrun.dryrun import DryRun

MARK = "limit_gpu_memory"
STRICT = "[XPASS(strict)]"
"""Beginning of pytest's words for a test that passed although a strict ``xfail`` expects it to fail."""
REPORTS = "PEAKCAST_PYTEST_REPORTS"
"""Environment variable of the child process: the file that gets its reports, one JSON object a line."""
GPU = "h100-80gb"
OUT_OF_MEMORY = "OutOfMemoryError"
"""In the report of a test that ended with PyTorch's error."""


@dataclass(frozen=True)
class Limit:
    """The limit of a test: bytes that PyTorch may reserve, and the GPU."""

    bytes: int
    gpu: str

    @classmethod
    def of(cls, mark: pytest.Mark) -> Limit:
        """The limit in a mark, such as ``limit_gpu_memory("38 GiB", gpu="a100-40gb")``.

        Raises:
            pytest.UsageError: it is none.
        """
        from predictor.common import gpus
        from predictor.common.errors import InputError
        from predictor.common.value_types import Invalid, Size
        from predictor.report.units import size_text

        def read(size: int | str, *, gpu: str = GPU) -> Limit:
            found = gpus.find(gpu)
            limit = cls(Size().check(size), found.name)
            if limit.bytes > found.capacity_bytes:
                raise InputError(f"{size} is more than the {size_text(found.capacity_bytes)} of {found.name}")
            return limit

        read.__qualname__ = MARK  # errors about arguments name it
        try:
            return read(*mark.args, **mark.kwargs)
        except (Invalid, InputError, TypeError) as error:
            raise pytest.UsageError(f'{MARK}: {error}: write @pytest.mark.{MARK}("38 GiB", gpu="a100-40gb")') from None


def pytest_configure(config: pytest.Config) -> None:
    """Makes the mark known, and lets a child process report to its parent."""
    config.addinivalue_line("markers", f'{MARK}(size, gpu="{GPU}"): run on an emulated GPU, and fail if PyTorch '
                                       "reserves more (peakcast)")
    if REPORTS in os.environ:
        config.pluginmanager.register(_Sender(config, Path(os.environ[REPORTS])))


class _Sender:
    """In a child process: writes every report to the parent's file."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self.config, self.path = config, path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(data, default=str) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Runs a test with a limit in a child process, and reports what that reports."""
    mark = item.get_closest_marker(MARK)
    if mark is None or REPORTS in os.environ:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item, mark):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _reports(item: pytest.Item, mark: pytest.Mark) -> Iterator[pytest.TestReport]:
    """The reports of the child process: that of the call fails if the test reserved too much."""
    with tempfile.TemporaryDirectory(prefix="peakcast-") as folder:
        try:
            limit = Limit.of(mark)
            result, sent, said = _run(item, limit, Path(folder))
        except Exception as error:  # what pytest would report of an error in a fixture
            yield _failed(item, "setup", str(error))
            return
    reports = [item.config.hook.pytest_report_from_serializable(config=item.config, data=data) for data in sent]
    if not reports:
        yield _failed(item, "setup", f"the test did not start on the emulated GPU:\n{said}")
    for report in reports:
        if isinstance(report.longrepr, list):  # of a skipped test: JSON has no tuples
            report.longrepr = tuple(report.longrepr)
        if report.when == "call" and result:
            passed = report.passed or STRICT in str(report.longrepr)
            if passed and result.peak_reserved_bytes > limit.bytes:
                _fail(report, exceeded(result, limit))
            elif report.failed and result.out_of_memory and OUT_OF_MEMORY in str(report.longrepr):
                report.longrepr = exhausted(result, limit)
        yield report
    if reports and reports[0].passed and all(report.when == "setup" for report in reports):
        code = "" if result is None else f" with exit code {result.exit_code}"
        yield _failed(item, "call", f"the test's process ended{code} before the test did:\n{said}")


def _fail(report: pytest.TestReport, text: str) -> None:
    """Makes the report of a test that passed that of one that reserved too much, which an ``xfail`` expects."""
    expects = hasattr(report, "wasxfail") or STRICT in str(report.longrepr)  # pytest says so of one that passed
    report.outcome, report.longrepr = "skipped" if expects else "failed", text
    if expects:
        report.wasxfail = getattr(report, "wasxfail", "")


def _run(item: pytest.Item, limit: Limit, folder: Path) -> tuple[DryRun | None, list[Any], str]:
    """Runs one test on the emulated GPU: its memory (None if it used no GPU), its reports, and its output."""
    from calibrate.dryrun.dryrun import NoGpuUsed, Streams, dryrun
    from calibrate.emulator import Machine

    reports, output = folder / "reports.jsonl", folder / "output.txt"
    config = item.config
    ini = ["-c", str(config.inipath)] if config.inipath else []
    command = [sys.executable, "-m", "pytest", *ini, "--rootdir", str(config.rootpath), "-o", "addopts=",
               "-p", "no:cacheprovider", f"{config.rootpath}{os.sep}{item.nodeid}"]
    os.environ[REPORTS] = str(reports)
    try:
        with output.open("wb") as stream:
            result = dryrun(command, Machine(gpu=limit.gpu), streams=Streams(stream.fileno(), stream.fileno()))
    except NoGpuUsed:
        result = None
    finally:
        del os.environ[REPORTS]
    sent = [json.loads(line) for line in reports.read_text(encoding="utf-8").splitlines()] if reports.exists() else []
    return result, sent, output.read_text(encoding="utf-8", errors="replace")


def exceeded(result: DryRun, limit: Limit) -> str:
    """How far a test went beyond its limit, and what took the memory."""
    from calibrate.report.dryrun import at
    from predictor.report.units import size_text

    text = (f"reserved {size_text(result.peak_reserved_bytes)}, over its limit of {size_text(limit.bytes)}, on an "
            f"emulated {limit.gpu}")
    if result.peak is None:
        return text
    largest = sorted(result.factors.items(), key=lambda item: -item[1])
    factors = ", ".join(f"{name} {size_text(size)}" for name, size in largest if size)
    return f"{text}\n{at('peak', result.peak)}" + (f"\nheld there: {factors}" if factors else "")


def exhausted(result: DryRun, limit: Limit) -> str:
    """What a test asked for that its GPU does not have, beyond any limit."""
    from calibrate.report.dryrun import at
    from predictor.report.units import size_text

    failed = result.out_of_memory[-1]
    return (f"out of memory on an emulated {limit.gpu} of {size_text(result.capacity_bytes)}, with a limit of "
            f"{size_text(limit.bytes)}: {size_text(failed.tried_to_allocate_bytes)} more were asked for when "
            f"{size_text(failed.reserved_bytes)} were reserved\n{at('asked for', failed.where)}")


def _failed(item: pytest.Item, when: Any, text: str) -> pytest.TestReport:
    return pytest.TestReport(nodeid=item.nodeid, location=item.location, keywords={}, outcome="failed", longrepr=text,
                             when=when)

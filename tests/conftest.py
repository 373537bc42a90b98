"""Fixtures of all tests, and the list of quick tests (``-m quick``)."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from calibrate.measure import warm_workers
from tests.long_tests import is_long

hypothesis.settings.register_profile("peakcast", deadline=None)  # timings are benchmarks, not tests
hypothesis.settings.load_profile("peakcast")

HERE = Path(__file__).parent
QUICK = (
    "test_contributing.py",
    "test_docs.py",
    "test_layers.py",
    "test_readme.py",
    "predictor/allocator/",
    "predictor/events/test_regimes.py",
    "predictor/workload/test_compared.py",
    "predictor/workload/test_contradictions.py",
    "predictor/workload/test_deepspeed_config.py",
    "predictor/workload/test_immutable.py",
    "predictor/workload/test_support_matrix.py",
    "predictor/workload/test_workload.py",
    "predictor/workload/test_workload_files.py",
    "predictor/readers/test_readers.py",
    "predictor/readers/test_readers_frameworks.py",
    "predictor/readers/test_readers_fsdp.py",
    "predictor/readers/test_readers_launchers.py",
    "predictor/readers/test_readers_rules.py",
    "predictor/readers/test_readers_shell.py",
    "predictor/readers/test_readers_shell_page.py",
    "predictor/readers/test_readers_trainer.py",
    "predictor/readers/test_readers_whose.py",
    "predictor/oom/",
    "predictor/report/",
    "predictor/snapshot/test_snapshot_hostile.py",
    "predictor/snapshot/test_snapshot_reader.py",
    "predictor/common/test_arrays.py",
    "predictor/common/test_files.py",
    "predictor/common/test_gpus.py",
    "predictor/common/test_safe_text.py",
    "predictor/common/test_suggestions.py",
    "predictor/commands/test_cli.py",
    "calibrate/records/",
    "calibrate/regression/test_regression_causes.py",
    "calibrate/regression/test_regression_gates.py",
    "calibrate/regression/test_regression_rows.py",
    "calibrate/regression/test_regression_statistics.py",
    "replay/test_replay_set.py",
)
"""Files, and directories with a slash, whose tests are quick: they need neither torch nor the emulated GPU."""
NEED_TORCH = (
    "test_a_command_prints_what_the_page_shows",
    "test_a_command_that_takes_long_prints_what_the_page_shows",
    "test_filters_are_deepspeeds_own",
    "test_the_table_is_what_the_installed_packages_say",
    "test_layers_that_trl_does_not_name_are_pefts",
    "test_llavas_frozen_backbone_is_its_language_model_without_the_head",
    "test_no_option_that_tells_another_trainer_is_one_of_transformers",
    "test_the_written_script_is_predicted_as_the_plan_says_and_is_the_plan",
    "test_what_transformers_says_of_a_configuration_is_plain",
)
"""Tests of quick files that import torch all the same: they are not quick."""
FIRST = ("test_types.py", "replay/test_replay_set.py", "predictor/explore/test_explore.py", "predictor/explore/test_explore_scripts.py")
"""Files that take long and come first, so that of several processes none works on one of them when the others have ended."""
REPLAY_SHARE = 20
"""One in so many requests of the replay set is quick."""


def _is_quick(path: Path) -> bool:
    name = path.relative_to(HERE).as_posix()
    return any(name.startswith(entry) if entry.endswith("/") else name == entry for entry in QUICK)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m quick``, other files are not even imported: most import torch."""
    if config.option.markexpr == "quick" and collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        return not _is_quick(collection_path) or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the quick tests and the long ones, and puts the files first that take the longest."""
    items.sort(key=lambda item: item.path.relative_to(HERE).as_posix() not in FIRST)
    requests = 0
    for item in items:
        if is_long(item.path.relative_to(HERE).as_posix(), item.name):
            item.add_marker("long")
        if not _is_quick(item.path) or getattr(item, "originalname", item.name) in NEED_TORCH:
            continue
        if item.path.parent.name == "replay":
            requests += 1
            if requests % REPLAY_SHARE:
                continue
        item.add_marker("quick")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """With ``-m quick``, a test that imports torch fails."""
    yield
    if item.config.option.markexpr == "quick":
        assert "torch" not in sys.modules, "this test imports torch, so it is not quick: see tests/conftest.py"


@pytest.fixture(scope="session", autouse=True)
def warm_jobs():
    """Measured jobs fork from a process that has imported PyTorch already."""
    with warm_workers.forked_jobs(apart_from=("PEAKCAST_CACHE", "PYTEST_CURRENT_TEST")):
        yield


_frozen_modules = 0
"""Number of modules that were imported when :func:`frozen` last froze objects."""


@pytest.fixture(autouse=True)
def frozen():
    """Every trace starts with a garbage collection: it skips the objects that imports made."""
    global _frozen_modules
    if len(sys.modules) > _frozen_modules:
        gc.collect()
        gc.freeze()
        _frozen_modules = len(sys.modules)


@pytest.fixture
def importing_tests(monkeypatch):
    """Child processes find this package: campaigns that tests start run functions of theirs."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)


@pytest.fixture(scope="session")
def traced_formulas(tmp_path_factory) -> Path:
    """The directory of formulas that tests trace, one for all workers of a run."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "formulas"


@pytest.fixture(scope="module")
def formula_cache(traced_formulas):
    """Tests share the formulas that they trace; those of one file also share which of them have several regimes."""
    from predictor.formula import store

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_SPLIT", set())
        patch.setattr(store, "_NOT_KEPT", {})  # of tests whose cache could not be written
        patch.setenv("PEAKCAST_CACHE", str(traced_formulas))
        yield

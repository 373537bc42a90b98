"""Order of the code: packages import only packages below them, and the linter reports nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from importlinter import cli

import calibrate
import predictor
from calibrate.checks.walk import layers

ROOT = Path(__file__).parents[1]
PACKAGES = ("predictor", "calibrate")
FLAT = {"predictor": {"__init__", "__main__", "cli", "version"}, "calibrate": {"__init__", "pytest_plugin"}}
COMMAND_TABLES = {"predictor/cli.py", "predictor/commands/registry.py"}
"""The only files that name modules above them: the subcommands."""


def sources(*packages: str) -> list[Path]:
    return [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]


def named_modules(path: Path) -> Iterator[str]:
    """Texts in a file that name a module or one of its attributes: ``calibrate.job.job``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = node.value.split(".")
            if parts[0] in PACKAGES and len(parts) > 1 and all(part.isidentifier() for part in parts):
                yield node.value


def half_named_modules(path: Path) -> Iterator[str]:
    """Formatted texts in a file that begin with a package, such as ``f"predictor.readers.{name}"``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr) and re.match(rf"f['\"]({'|'.join(PACKAGES)})\.", ast.unparse(node)):
            yield ast.unparse(node)


def module_of(name: str) -> str | None:
    """The longest beginning of ``name`` that is a module below a package."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        found = ".".join(parts[:length])
        try:
            if find_spec(found):
                return found
        except ModuleNotFoundError:
            continue
    return None


def test_a_package_imports_only_packages_below_it(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert cli.lint_imports(no_cache=True) == 0


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_lies_flat_but_the_entry_point_and_public_names(package):
    assert {path.stem for path in (ROOT / package).glob("*.py")} == FLAT[package]


@pytest.mark.parametrize("path", [path for path in sources(*PACKAGES) if any(named_modules(path))],
                         ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_that_is_named_in_text_is_there_and_lies_below(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    order = layers(parts[0])
    for name in named_modules(path):
        module = module_of(name)
        assert module is not None, name
        package, room = module.split(".")[:2]
        if str(path.relative_to(ROOT)) not in COMMAND_TABLES:
            assert package == parts[0] or parts[0] == "calibrate", name
            assert package != parts[0] or order.index(room) >= order.index(parts[1]), name


def test_no_module_is_named_in_parts_which_the_test_above_would_not_see():
    assert [(path.name, text) for path in sources(*PACKAGES) for text in half_named_modules(path)] == []


def test_the_linter_finds_nothing():
    done = subprocess.run([sys.executable, "-m", "ruff", "check", "--quiet", str(ROOT)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def functions(package: str) -> list[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    return [(path, node) for path in sources(package) for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


@pytest.mark.parametrize("package", (*PACKAGES, "scripts", "tests"))
def test_no_function_has_more_than_60_lines(package):
    assert not [f"{path}:{node.lineno} {node.name}" for path, node in functions(package)
                if node.end_lineno - node.lineno >= 60]


@pytest.mark.parametrize("package", (*PACKAGES, "scripts", "tests"))
def test_no_function_has_more_than_7_parameters(package):
    """Keyword-only options of a function that the package exports do not count: callers name those that they need."""
    exported = set(predictor.__all__) | set(calibrate.__all__)
    wide = []
    for path, node in functions(package):
        parameters = [*node.args.posonlyargs, *node.args.args]
        if node.name not in exported:
            parameters += node.args.kwonlyargs
        if len([p for p in parameters if p.arg not in ("self", "cls")]) > 7:
            wide.append(f"{path}:{node.lineno} {node.name}")
    assert not wide


def test_no_line_asks_the_linter_to_overlook_size():
    """A function that is too long, too branched or too wide is split, not excused."""
    for path in sources(*PACKAGES, "scripts", "tests"):
        assert not re.search(r"noqa: *[^#\n]*\b(C901|PLR\d)", path.read_text()), path

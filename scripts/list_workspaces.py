#!/usr/bin/env python3
"""Write profiles/pages/workspaces.md: every operator with a workspace, its formula and where PyTorch allocates it.

    pip install -e '.[trace]'
    python scripts/list_workspaces.py

The text comes from the docstrings of the tables that predictions use: predictor/trace/operators/ and
predictor/events/workspaces.py.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from pathlib import Path

from predictor.common.files import write_whole
from predictor.events import workspaces
from predictor.trace import operators

TARGET = Path(__file__).resolve().parents[1] / "profiles" / "pages" / "workspaces.md"
HEAD = """# Workspaces

What each operator allocates on CUDA beyond its results, and the file and function of PyTorch 2.11 that allocates it,
or of the library that is named.
An operator that is not listed allocates its results and nothing else. Made by `scripts/list_workspaces.py` from
the tables that predictions use, `predictor/trace/operators/` and `predictor/events/workspaces.py`.
"""


def page() -> str:
    """The whole page as Markdown."""
    lines = [HEAD, "| operator | what it does | formulas |", "|---|---|---|"]
    lines += [f"| `{name}` | {_summary(play)} | {', '.join(f'[`{link}`](#{link})' for link in formulas(play))} |"
              for name, play in operators.TABLE.items()]
    lines += ["", "## Formulas", "", "In bytes, by the GPU and dimensions of the call.", ""]
    for name, function in workspaces.FUNCTIONS.items():
        lines += [f"### {name}", "", _summary(function), "", "```python", _body(function), "```", ""]
    helpers = [function for name, function in vars(workspaces).items()
               if name.startswith("_") and inspect.isfunction(function)]
    lines += ["## Shared by them", "", "```python",
              "\n\n".join(inspect.getsource(helper).rstrip() for helper in helpers), "```", ""]
    return "\n".join(lines)


def formulas(play: Callable) -> list[str]:
    """Names in ``workspaces.FUNCTIONS`` that an entry of the operators' table uses, directly or in functions that
    it calls."""
    text = inspect.getsource(play)
    text += "".join(inspect.getsource(value) for name, value in vars(inspect.getmodule(play)).items()
                    if inspect.isfunction(value) and value is not play and f"{name}(call" in text)
    return [name for name in workspaces.FUNCTIONS if f'"{name}"' in text]


def _summary(function: Callable) -> str:
    return " ".join(inspect.getdoc(function).split())


def _body(function: Callable) -> str:
    source = inspect.getsource(function).rstrip()
    head, _, rest = source.partition('"""')
    return head.rstrip() + rest.partition('"""')[2]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    write_whole(str(TARGET), page().encode())
    print(TARGET)


if __name__ == "__main__":
    main()

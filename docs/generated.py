"""What the site has beyond ``docs/pages``: parts made from the code, pages that stand elsewhere. mkdocs calls ``on_…``.

The pages can be read in the repository, too. So their links lead to files of the repository, and the site translates
them. Where the site has a part made from the code, a page has a sentence that says where to find its content.
"""

from __future__ import annotations

import argparse
import os
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from predictor.answer.prediction import Prediction
from predictor.answer.schemas import described
from predictor.commands.options import GROUPS
from predictor.commands.registry import COMMANDS, load_command
from predictor.common import gpus
from predictor.common.value_types import NotYetSupported, thaw
from predictor.workload.keys import KEYS

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "pages"
ELSEWHERE = {f"evidence/{path.name}": path for path in sorted((ROOT / "profiles" / "pages").iterdir())} | {
    "reference/security.md": ROOT / "docs" / "SECURITY.md", "changes.md": ROOT / "CHANGELOG.md"}
"""Pages and pictures of the site that stand elsewhere, such as the tables that ``scripts/`` make."""


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages and pictures that stand elsewhere."""
    from mkdocs.structure.files import File

    for page, path in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text of a page of the site, with the parts made from the code and the site's own links.

    The search leaves out the tables of evidence: their many rows would hide every other page.
    """
    if page.file.src_uri in ELSEWHERE and page.file.src_uri.startswith("evidence/"):
        page.meta["search"] = {"exclude": True}
    return with_links_of_the_site(with_parts(markdown), Path(page.file.abs_src_path))


def with_parts(markdown: str) -> str:
    """Puts each part made from the code in the place of the sentence that stands for it in the repository."""
    return PART.sub(lambda found: PARTS[found["name"]](), markdown)


PART = re.compile(r"^<!-- generated: (?P<name>.+?) -->\n(?P<sentence>.+?)\n<!-- end -->$", re.MULTILINE | re.DOTALL)


def with_links_of_the_site(markdown: str, file: Path) -> str:
    """Makes links between files of the repository links between pages of the site. Code is left alone.

    Args:
        file: the file in the repository that has the text.
    """
    def translated(found: re.Match[str]) -> str:
        path, anchor = found["path"], found["anchor"] or ""
        page = site_page((file.parent / path).resolve()) if path and "://" not in path else None
        if page is None:
            return found[0]
        return f"]({Path(os.path.relpath(page, Path(str(site_page(file))).parent)).as_posix()}{anchor})"

    return LINK_OR_CODE.sub(lambda found: translated(found) if found["path"] is not None else found[0], markdown)


LINK_OR_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`|\]\((?P<path>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)",
                          re.MULTILINE | re.DOTALL)


def site_page(file: Path) -> str | None:
    """The page or picture that a file of the repository is in the site; None if it is not there."""
    if file.is_relative_to(PAGES):
        return file.relative_to(PAGES).as_posix()
    return next((page for page, path in ELSEWHERE.items() if path == file), None)


def on_page_content(html: str, **_: Any) -> str:
    """Marks options, which browsers would break behind their hyphens."""
    return re.sub(r"<code>(-[^<\s]{1,40})</code>", r'<code class="option">\1</code>', html)


def commands() -> str:
    """Every command with its help, its examples and its options."""
    return "\n\n".join(_command(name) for name in COMMANDS)


def _command(name: str) -> str:
    module, parser = load_command(name)
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS and action.dest != "help"]
    parts = [f"## peakcast {name}", (module.__doc__ or "").strip()]
    of_workloads = {f"--{key.replace('_', '-')}" for key in KEYS} - {"--model"}
    if of_workloads <= set(parser._option_string_actions):
        actions = [action for action in actions if not of_workloads.intersection(action.option_strings)]
        parts.append("It also takes the [keys of a workload](workload.md) as options.")
    rows = [(_spelled(action), (action.help or "") % _named(action)) for action in actions]
    examples, _, rest = module.EXAMPLES.partition("examples:\n")[2].partition("\n\n")
    parts += [table(("argument", "meaning"), rows), f"```bash\n{textwrap.dedent(examples)}\n```", rest.strip()]
    return "\n\n".join(parts)


def _named(action: argparse.Action) -> dict[str, Any]:
    return {"default": action.default, "prog": "peakcast"}


def _spelled(action: argparse.Action) -> str:
    choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else ""
    value = action.metavar or choices or action.dest.upper()
    if not action.option_strings:
        return f"`{value}`"
    return " ".join(f"`{option}`" if action.nargs == 0 else f"`{option} {value}`" for option in action.option_strings)


def workload_keys() -> str:
    """The keys of a workload by group, with what they take, their default and their meaning."""
    parts = []
    for group, title in GROUPS.items():
        fields = [field for field in KEYS.values() if field.metadata["group"] == group
                  and not isinstance(field.metadata["kind"], NotYetSupported)]
        rows = [(f"`{field.name}`", _takes(field.metadata["kind"].metavar), _default(field.metadata["default"]),
                 field.metadata["help"]) for field in fields]
        parts.append(f"## {title[0].upper()}{title[1:]}\n\n"
                     + table(("key", "takes", "default", "meaning"), rows))
    return "\n\n".join(parts)


def _takes(metavar: str | None) -> str:
    """What a key takes: the choices that its metavar lists in braces, or the metavar."""
    if metavar is None:
        return "`true`, `false`"
    choices = metavar[1:-1].split(",") if metavar.startswith("{") else [metavar]
    return ", ".join(f"`{choice}`" for choice in choices)


def _default(value: Any) -> str:
    if value is None or value == ():
        return ""
    if hasattr(value, "items"):
        value = " ".join(f"{key}={str(item).lower()}" for key, item in thaw(value).items())
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if value != "" else ""


def result_keys() -> str:
    """The attributes of a prediction, as its docstring describes them."""
    rows = [(f"`{name}`", text.replace("``", "`")) for name, text in described(Prediction).items()]
    return table(("attribute", "meaning"), rows)


def gpu_names() -> str:
    """The GPUs that go by name, with their memory."""
    rows = [(f"`{gpu.name}`", f"{gpu.capacity_bytes / (1 << 30):.2f} GiB") for gpu in gpus.GPUS.values()]
    return table(("name", "memory"), rows)


def h200() -> str:
    """How far emulation and prediction are from a real H200, from the page of the check ``device``."""
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", ELSEWHERE["evidence/device_h200.md"].read_text(),
                               re.MULTILINE | re.DOTALL))
    rows = [(f"{jobs}: {counter}", emulated, predicted) for jobs, title in H200_JOBS.items()
            for counter, emulated, predicted in re.findall(
                r"^\| (\w+) \| (\S+% \(\S+%\)), \d+ \| (\S+% \(\S+%\)), \d+ \|", sections[title], re.MULTILINE)]
    held_out = sections["Predicted with the profile, for jobs that it was not fitted to"]
    means = re.findall(r"\S+% \(\S+%\)", held_out.rpartition("| mean (worst) |")[2])
    count = len(re.findall(r"^\| ", held_out, re.MULTILINE)) - 3  # without title, rule and means
    rows += [(f"{count} jobs that the profile was not fitted to: {counter}", "", found)
             for counter, found in zip(("requested", "allocated", "reserved", "device"), means)]
    return table(("mean absolute difference (worst)", "emulated of device", "predicted of device"), rows)


H200_JOBS = {"25 jobs, predicted without the profile": "Mean absolute difference (worst), number of jobs",
             "29 further jobs, predicted with it": "Other models and recipes"}
"""Name of some jobs -> the section of the page that has their means."""


def emulated_jobs() -> str:
    """How far predictions are from jobs on the emulated GPU, at most, from the rows of the pages that have them."""
    rows = []
    for title, (page, has) in EMULATED_JOBS.items():
        jobs = [cells for line in ELSEWHERE[f"evidence/{page}.md"].read_text().splitlines()
                if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) >= 8
                and re.match(r"[+-]\d", cells[3]) and re.search(has, cells[1])]
        worst = [max(abs(_number(cells[at + 1]) / _number(cells[at])) for cells in jobs) for at in (2, 4, 6)]
        rows.append((f"[{title}](../../../profiles/pages/{page}.md)", str(len(jobs)), *map(_share, worst),
                     f"`python scripts/check.py {page}`"))
    return table(("jobs on the emulated H100", "number", "requested off by at most", "allocated", "reserved",
                  "made by"), rows)


EMULATED_JOBS = {"recipes": ("recipes", ""), "models": ("models", ""),
                 "tensor parallelism of transformers": ("tensor_parallel", r"(torch|ddp) rank"),
                 "tensor parallelism of DeepSpeed (AutoTP)": ("tensor_parallel", r"zero\d rank")}
"""Name of some jobs -> their page, and what the names of their rows contain."""


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _share(error: float) -> str:
    return "equal" if not error else "<0.0001%" if error < 1e-6 else f"{error:.4%}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    head = list(head)
    cells = [[_escaped(cell.replace("\n", " ")) for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(cell: str) -> str:
    """A cell whose bars do not end it. In code they do not, and a backslash before them would show."""
    return "".join(part if part.startswith("`") else part.replace("|", "\\|") for part in re.split(r"(`[^`]*`)", cell))


PARTS = {"commands": commands, "workload keys": workload_keys, "result keys": result_keys, "GPUs": gpu_names,
         "H200": h200, "emulated jobs": emulated_jobs}
"""Every part by the name in its mark."""

#!/usr/bin/env python3
"""Build a static site of explore pages: ten models in their usual recipe, and an index. It needs no server of its own.

    pip install '.[trace]'
    python scripts/build_explore_site.py                 # into site/explore/
    python scripts/build_explore_site.py -o /srv/www --all

Every page works offline and loads nothing. Pages of this release that are there already are kept (--all makes them
again), so an interrupted build goes on where it stopped. A page of LLaVA takes a minute. The others also trace what no
formula is shipped for: jobs without checkpointing, adapters under DeepSpeed, lengths that are no multiples of 8. That
takes three to ten minutes for a model, once, as formulas are kept. No GPU is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the repository need not be installed

from predictor import cli  # noqa: E402
from predictor.common.files import write_whole  # noqa: E402
from predictor.report.styles import styles  # noqa: E402
from predictor.version import VERSION  # noqa: E402


class Page(NamedTuple):
    """A page: its file's stem, its title, and the words of ``peakcast explore``."""

    name: str
    title: str
    words: tuple[str, ...]


LORA = ("--recipe", "lora", "--lora", "r=16", "--gpu", "rtx-4090")
PICTURES = ("--image-size", "768x1024")
PAGES = (
    Page("llava-1.5-7b", "LLaVA-1.5 7B, fine-tuning", ("llava-1.5-7b", "--gpu", "a100-40gb")),
    Page("llava-1.5-13b", "LLaVA-1.5 13B, fine-tuning", ("llava-1.5-13b", "--gpu", "a100-80gb")),
    Page("qwen2.5-vl-7b", "Qwen2.5-VL 7B, LoRA", ("Qwen/Qwen2.5-VL-7B-Instruct", *PICTURES, *LORA)),
    Page("qwen2.5-vl-3b", "Qwen2.5-VL 3B, LoRA", ("Qwen/Qwen2.5-VL-3B-Instruct", *PICTURES, *LORA)),
    Page("qwen3-vl-8b", "Qwen3-VL 8B, LoRA", ("Qwen/Qwen3-VL-8B-Instruct", *PICTURES, *LORA)),
    Page("qwen3-vl-4b", "Qwen3-VL 4B, LoRA", ("Qwen/Qwen3-VL-4B-Instruct", *PICTURES, *LORA)),
    Page("internvl3-8b", "InternVL3 8B, LoRA", ("OpenGVLab/InternVL3-8B-hf", *PICTURES, *LORA)),
    Page("gemma-3-12b", "Gemma 3 12B, LoRA", ("google/gemma-3-12b-it", *LORA)),
    Page("llama-3.1-8b", "Llama 3.1 8B, LoRA", ("meta-llama/Llama-3.1-8B-Instruct", *LORA)),
    Page("qwen3-8b", "Qwen3 8B, LoRA", ("Qwen/Qwen3-8B", *LORA)),
)
MADE = "made.json"
"""File beside the pages that says which release made which, with which words."""


def main(words: Sequence[str], pages: Sequence[Page] = PAGES) -> int:
    """Builds the pages and the index. The exit code is that of the first page that fails, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="site/explore", metavar="DIR", help="default: site/explore")
    parser.add_argument("--all", action="store_true", help="also make pages again that are there")
    arguments = parser.parse_args(words)
    folder = Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    made = json.loads((folder / MADE).read_text()) if (folder / MADE).exists() and not arguments.all else {}
    for number, page in enumerate(pages, start=1):
        recipe = [VERSION, *page.words]
        if made.get(page.name) == recipe and file_of(folder, page).exists():
            continue
        print(f"page {number} of {len(pages)}: {page.title}", flush=True)
        summary = io.StringIO()
        with contextlib.redirect_stdout(summary):
            code = cli.main(["explore", *page.words, "-o", str(file_of(folder, page)), "--force"])
        if code:
            return code
        made[page.name] = recipe
        write_whole(str(folder / MADE), (json.dumps(made, indent=2) + "\n").encode())
    write_whole(str(folder / "index.html"), index(pages).encode())
    print(f"{folder / 'index.html'}: {len(pages)} pages")
    return 0


def file_of(folder: Path, page: Page) -> Path:
    """The file of a page."""
    return folder / f"{page.name}.html"


def index(pages: Sequence[Page]) -> str:
    """The page that links to all others, with the command that makes each."""
    rows = "\n".join(f'<li><a href="{html.escape(page.name)}.html">{html.escape(page.title)}</a><br>'
                     f"<code>peakcast explore {html.escape(' '.join(page.words))} -o page.html</code></li>"
                     for page in pages)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>peakcast: GPU memory of training, model by model</title>
<link rel="icon" href="data:,">
<style>
{styles()}</style>
</head>
<body>
<h1>How much GPU memory does it take to train …</h1>
<p class="lead">Move the sliders: batch, sequence, pictures, GPUs, engine. Each page predicts the peak, what causes it,
and what fits. It runs in your browser and sends nothing.</p>
<ul>
{rows}
</ul>
<p class="from">Made by peakcast {html.escape(VERSION)}.</p>
</body>
</html>
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Open the page of a regression report in headless Chromium: figures drawn, no console messages, no requests?

    peakcast report profiles/h100-80gb --baselines fast -o report
    python scripts/check.py report_page report/report.html --pictures /tmp/pictures

In a wide, a dark and a narrow window the check looks for console messages, network requests, figures without size,
labels that leave their figure or overlap, and a page that is wider than its window. It uses Chrome's DevTools protocol
through pipes and needs no Python package. ``--pictures`` saves a screenshot of each window. This is no automatic test:
it needs Chromium (``apt install chromium``, or ``--browser PATH``).
"""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from calibrate.checks import browser
from calibrate.checks.browser import WINDOWS, Browser, Window
from calibrate.checks.outcome import Outcome

options = browser.options
LOOK = """
(() => {
  const wrong = [], inside = (a, b) => a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1
    && a.bottom <= b.bottom + 1;
  for (const details of document.querySelectorAll('details')) details.open = false;
  for (const figure of document.querySelectorAll('figure')) {
    const svg = figure.querySelector('svg'), frame = svg.getBoundingClientRect();
    if (frame.width < 300 || frame.height < 100) wrong.push(`${figure.id}: drawn ${frame.width} x ${frame.height}`);
    if (svg.querySelectorAll('path, circle, rect, line').length < 3) wrong.push(`${figure.id}: nothing is drawn`);
    const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
    for (const [words, box] of texts) if (!inside(box, frame)) wrong.push(`${figure.id}: "${words}" is cut off`);
    texts.forEach(([words, a], place) => {
      for (const [others, b] of texts.slice(place + 1))
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
          wrong.push(`${figure.id}: "${words}" runs into "${others}"`);
    });
  }
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) wrong.push(`the page is ${wide} wide in a window of ${innerWidth}`);
  return JSON.stringify({figures: document.querySelectorAll('figure svg').length, wrong,
    height: document.documentElement.scrollHeight});
})()
"""


@dataclass(frozen=True)
class Seen:
    """The page in one window: number of figures, height in CSS pixels, faults."""

    figures: int
    height: int
    faults: list[str]


def jobs(args: Namespace) -> dict[str, Window]:
    return WINDOWS


def measure(jobs: dict[str, Window], args: Namespace) -> dict[str, Seen]:
    """Looks at the page in every window, one after another."""
    with browser.started(args) as chromium:
        return {name: look(chromium, args.page.resolve().as_uri(), window,
                           args.pictures and args.pictures / f"{name}.png") for name, window in jobs.items()}


def look(chromium: Browser, url: str, window: Window, picture: Path | None) -> Seen:
    """Looks at the page in one window."""
    chromium.open(window)
    chromium.load(url)
    seen = json.loads(chromium.call("Runtime.evaluate", expression=LOOK)["result"]["value"])
    faults = seen["wrong"] + ([] if seen["figures"] else ["no figure"]) + chromium.complaints(url)
    if picture:
        chromium.picture(picture, window[0], seen["height"])
    return Seen(seen["figures"], seen["height"], faults)


def table(windows: dict[str, Seen], args: Namespace) -> Outcome:
    """Faults by window."""
    lines = []
    for name, seen in windows.items():
        lines += [f"{name}: {seen.figures} figures, {seen.height} units high, {len(seen.faults)} faults",
                  *(f"  {fault}" for fault in seen.faults)]
    return Outcome({"faults": sum(len(seen.faults) for seen in windows.values())}, shown=tuple(lines))

"""Open the page of a regression report in headless Chromium: is it drawn, silent, and alone?

    peakcast report profiles/h100-80gb --baselines fast -o report
    python scripts/check.py report_page report/report.html --pictures /tmp/pictures

In a wide window, in a dark one and in a narrow one it asks the browser (Chrome's DevTools protocol, through pipes; no
package is needed) for console messages, network requests, figures without size, words that leave their figure or run
into each other, and a page that is wider than its window.
``--pictures`` keeps what it saw.
A check by hand, not a test: it needs Chromium (``apt install chromium``, or ``--browser PATH``).
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
    """A page in one window."""

    figures: int
    height: int
    wrong: list[str]


def jobs(given: Namespace) -> dict[str, Window]:
    return WINDOWS


def measure(jobs: dict[str, Window], given: Namespace) -> dict[str, Seen]:
    """Every window in turn."""
    with browser.started(given) as there:
        return {name: look(there, given.page.resolve().as_uri(), window,
                           given.pictures and given.pictures / f"{name}.png") for name, window in jobs.items()}


def look(there: Browser, url: str, window: Window, picture: Path | None) -> Seen:
    """Opens the page in one window."""
    there.open(window)
    there.load(url)
    seen = json.loads(there.call("Runtime.evaluate", expression=LOOK)["result"]["value"])
    wrong = seen["wrong"] + ([] if seen["figures"] else ["no figure"]) + there.complaints(url)
    if picture:
        there.picture(picture, window[0], seen["height"])
    return Seen(seen["figures"], seen["height"], wrong)


def table(found: dict[str, Seen], given: Namespace) -> Outcome:
    """What is wrong, by window."""
    shown = []
    for name, seen in found.items():
        shown += [f"{name}: {seen.figures} figures, {seen.height} units high, {len(seen.wrong)} faults",
                  *(f"  {fault}" for fault in seen.wrong)]
    return Outcome({"faults": sum(len(seen.wrong) for seen in found.values())}, shown=tuple(shown))

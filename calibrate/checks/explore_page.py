"""Open a page of ``peakcast explore`` in headless Chromium: does it predict what Python does, at once, and alone?

    peakcast explore llava-1.5-7b -o page.html
    python scripts/check.py explore_page page.html --pictures /tmp/pictures --save profiles/evidence/explore_page.json

At random settings, chosen through the page's own controls, it compares every value of the answer with the predictor's
to the command line that the page shows, and what stands in the tables with the answer; it takes the time from the
input event until the frame with the new numbers is painted, and how much of it the page's thread had a processor. In a
light, a dark and a narrow window it asks the browser for console messages, for requests, and whether the page is wider
than its window. Keys alone change the setting, too. A redraw that takes 50 ms or more is too slow.
``--pictures`` keeps what it saw. A check by hand, not a test: it needs Chromium (``apt install chromium``, or
``--browser PATH``), and cores that nothing else uses.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import statistics
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from calibrate.checks import browser
from calibrate.checks.browser import WINDOWS, Browser, Window
from calibrate.checks.outcome import Outcome
from predictor.answer.predict import predict
from predictor.commands import options as command_line

MOST_MS = 50
READY = """new Promise(done => { const look = () => state.found ? done(true) : setTimeout(look, 5); look(); })"""
# from the event to the first task after the frame that shows its numbers
CHOOSE = """new Promise(done => {
  const [id, value] = %s, control = document.getElementById(id), begin = performance.now();
  if (control.type === "checkbox") control.checked = value; else control.value = value;
  control.dispatchEvent(new Event("input", {bubbles: true}));
  requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => done(performance.now() - begin);
    channel.port2.postMessage(0);
  });
})"""
LOOK = """JSON.stringify({refused: state.found.refused, answer: state.found.answer, setting: state.setting,
  command: document.getElementById("command").textContent,
  shown: [...document.querySelectorAll("#peaks tr")].map(row => row.cells[2].textContent),
  factors: [...document.querySelectorAll("#factors tbody tr")].map(row => row.cells[3].textContent),
  wide: document.documentElement.scrollWidth, height: document.documentElement.scrollHeight})"""


class Page:
    """One page in one window."""

    def __init__(self, browser: Browser, url: str, window: Window) -> None:
        self.browser, self.url, self.window = browser, url, window
        browser.open(window, ("Performance.enable", {"timeDomain": "threadTicks"}))
        begin = time.perf_counter()
        browser.load(url)
        self.ask(READY)
        self.seconds_to_open = time.perf_counter() - begin

    def ask(self, expression: str):
        """The value of an expression, awaited."""
        found = self.browser.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(json.dumps(found["exceptionDetails"])[:500])
        return found["result"].get("value")

    def choose(self, control: str, value: object) -> tuple[float, float]:
        """Moves a control; milliseconds until that is painted, and of them the thread's own."""
        before = self._busy()
        elapsed = self.ask(CHOOSE % json.dumps([control, value]))
        return elapsed, self._busy() - before

    def _busy(self) -> float:
        metrics = self.browser.call("Performance.getMetrics")["metrics"]
        return 1e3 * next(one["value"] for one in metrics if one["name"] == "TaskDuration")

    def seen(self) -> dict:
        return json.loads(self.ask(LOOK))

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def complaints(self) -> list[str]:
        """What the console and the network say that they should not."""
        wide = self.seen()["wide"]
        wrong = self.browser.complaints(self.url)
        return wrong + ([f"the page is {wide} wide in a window of {self.window[0]}"] if wide > self.window[0] else [])

    def picture(self, path: Path) -> None:
        self.browser.picture(path, self.window[0], self.seen()["height"])


def settings(page: Page, count: int, seed: int) -> list[dict]:
    """Random ones of those that the page has."""
    offered = page.ask("({engines: state.data.engines, gpus: state.data.gpus.map(gpu => gpu.name), limits: "
                       "state.data.limits, first: state.data.first, most: +document.getElementById('sequence-range')"
                       ".max})")
    draw, found = random.Random(seed), []
    while len(found) < count:
        engine = draw.choice(offered["engines"])
        limits = offered["limits"]
        images = draw.choice((1, 1, 2, 3)) if limits["images"] else offered["first"]["images"]
        least = limits["room"][images] + 1 + images * limits["apart"]
        found.append({"batch": draw.choice((1, 2, 3, 4, 6, 8, 16, 32, 61)), "images": images,
                      "sequence": draw.randint(least, max(offered["most"], least)) if limits["tokens"] else 0,
                      "engine": engine["name"], "degree": draw.choice(engine["degrees"]),
                      "gpu": draw.choice(offered["gpus"]),
                      "checkpointing": offered["first"]["checkpointing"] and draw.random() < 0.7})
    return found


def controls(page: Page, setting: dict) -> list[tuple[str, object]]:
    """What to move; the engine first, because it says which degrees there are."""
    degrees = page.ask(f"degrees({json.dumps(setting['engine'])})")
    return [("engine", setting["engine"]), ("degree", degrees.index(setting["degree"])), ("gpu", setting["gpu"]),
            ("checkpointing", setting["checkpointing"]), ("batch", setting["batch"]),
            *((name, setting[name]) for name in ("images", "sequence")
              if not page.ask(f"document.getElementById('{name}-control').hidden"))]


def predicted(command: str) -> dict:
    """Python's answer to the command line that the page shows."""
    parser = ArgumentParser()
    command_line.add_workload(parser)
    workload = command_line.workload(parser.parse_args(shlex.split(command.removeprefix("peakcast predict "))))
    return json.loads(json.dumps(predict(workload).to_json()))


def differences(seen: dict, expected: dict) -> list[str]:
    """Between the page's answer, what its tables show, and Python's."""
    if "refused" in seen:
        return [seen["refused"]]
    wrong = [f"{key}: {value} is {expected[key]} in Python" for key, value in seen["answer"].items()
             if value != expected[key]]
    shown = [expected[f"peak_{name}_bytes"] for name in ("requested", "allocated", "reserved", "device")]
    if seen["shown"] != ["" if size is None else f"{size:,} B" for size in shown]:
        wrong.append(f"the table of peaks shows {seen['shown']}")
    parts = [f"{size:,}" for size in expected["factors"].values() if size]
    if seen["factors"] != [*parts, f"{expected['peak_allocated_bytes']:,}"]:
        wrong.append(f"the table of factors shows {seen['factors']}")
    return wrong


def compare(page: Page, chosen: list[dict]) -> tuple[list[str], dict[str, list[tuple[float, float]]]]:
    """Values at every setting, and times of each control that was moved."""
    wrong, times = [], {}
    for setting in chosen:
        for control, value in controls(page, setting):
            times.setdefault(control, []).append(page.choose(control, value))
        seen = page.seen()
        if seen["setting"] != setting:
            wrong.append(f"the page is at {seen['setting']} instead of {setting}")
        wrong += [f"{setting}: {fault}" for fault in differences(seen, predicted(seen["command"]))]
    return wrong, times


def slide(page: Page) -> list[tuple[float, float]]:
    """Times of a slider that moves step by step, as under a hand."""
    page.choose("batch", 1)
    return [page.choose("batch-range", batch) for batch in range(2, 42)]


def keyboard(page: Page) -> list[str]:
    """Keys alone change the setting, on a slider and on the map."""
    wrong = []
    for control, key, code, name in (("batch-range", "ArrowRight", 39, "batch"), ("map", "ArrowLeft", 37, "batch")):
        before = page.seen()["setting"][name]
        page.ask(f"document.getElementById('{control}').focus()")
        page.press(key, code)
        page.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        if page.seen()["setting"][name] == before:
            wrong.append(f"{key} on the {control} changes nothing")
    return wrong


def milliseconds(times: Sequence[float]) -> dict:
    ordered = sorted(times)
    return {"median": round(statistics.median(ordered), 1), "highest": round(ordered[-1], 1),
            "percentile_95": round(ordered[int(0.95 * (len(ordered) - 1))], 1)}


def options(parser: ArgumentParser) -> None:
    browser.options(parser)
    parser.add_argument("--settings", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep what was found there, as JSON")


def jobs(given: Namespace) -> dict[str, Window]:
    return WINDOWS


def measure(jobs: dict[str, Window], given: Namespace) -> dict[str, Any]:
    """Values and times in the first window, then what every window has to complain of."""
    told, wrong = {}, []
    with browser.started(given) as there:
        version = there.call("Browser.getVersion")["product"]
        for name, window in jobs.items():
            page = Page(there, given.page.resolve().as_uri(), window)
            if name == "light":
                told, faults = used(page, given)
                wrong += faults
            page.ask("new Promise(done => { const look = () => state.map.cells.every(cell => cell.refused || "
                     "cell.verdict) ? done() : setTimeout(look, 50); look(); })")
            wrong += [f"{name}: {fault}" for fault in page.complaints()]
            if given.pictures:
                page.picture(given.pictures / f"{name}.png")
    return {"date": date.today().isoformat(), "browser": version, **told, "windows": list(jobs), "wrong": wrong}


def used(page: Page, given: Namespace) -> tuple[dict[str, Any], list[str]]:
    """What is told of a page that is used at random settings, and what was wrong."""
    data = page.ask("({model: state.data.model, version: state.data.version})")
    wrong, times = compare(page, settings(page, given.settings, given.seed))
    times["batch, step by step"] = slide(page)
    load = round(os.getloadavg()[0], 1)
    wrong += keyboard(page)
    page.choose("batch", 16)
    redraws = {name: {"count": len(each), "until_painted_ms": milliseconds([wall for wall, _ in each]),
                      "of_its_thread_ms": milliseconds([own for _, own in each])} for name, each in times.items()}
    return {"peakcast": data["version"], "model": data["model"], "page_bytes": given.page.stat().st_size,
            "settings": given.settings, "seed": given.seed, "seconds_to_open": round(page.seconds_to_open, 2),
            "load_average": load, "redraws": redraws}, wrong


def table(told: dict[str, Any], given: Namespace) -> Outcome:
    """What was found, and how many controls redraw too slowly."""
    slow = sum(one["until_painted_ms"]["highest"] >= MOST_MS for one in told["redraws"].values())
    text = json.dumps(told, indent=2)
    return Outcome({"faults": len(told["wrong"]), "controls that redraw too slowly": slow},
                   {given.save: text + "\n"} if given.save else {}, (text,))

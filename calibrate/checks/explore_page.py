"""Open a page of ``peakcast explore`` in headless Chromium: same answers as Python, fast redraws, no requests?

    peakcast explore llava-1.5-7b -o page.html
    python scripts/check.py explore_page page.html --pictures /tmp/pictures --save profiles/evidence/explore_page.json

The check moves the page's own controls to random settings. At each setting it compares every value of the page's
answer with Python's prediction for the command line that the page shows, and the page's tables with that answer. It
measures the time from the input event until the frame with the new numbers is painted, and the processor time of the
page's thread in it. The keyboard alone, and the page's address, must change the setting too. In a light, a dark and a
narrow window it collects console messages and network requests, and checks that the page is not wider than its window.
A redraw of 50 ms or more is too slow. ``--pictures`` saves a screenshot of each window. This is no automatic test: it
needs Chromium (``apt install chromium``, or ``--browser PATH``) and idle processor cores.
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
"""Redraws that take as long as this, in milliseconds, are too slow."""
READY = """new Promise(done => { const look = () => state.found ? done(true) : setTimeout(look, 5); look(); })"""
# measures from the input event to the first task after the frame that shows the new numbers
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
    """One page of ``peakcast explore`` in one browser window."""

    def __init__(self, browser: Browser, url: str, window: Window) -> None:
        self.browser, self.url, self.window = browser, url, window
        browser.open(window, ("Performance.enable", {"timeDomain": "threadTicks"}))
        begin = time.perf_counter()
        browser.load(url)
        self.evaluate(READY)
        self.seconds_to_open = time.perf_counter() - begin

    def evaluate(self, expression: str) -> Any:
        """Evaluates a JavaScript expression and awaits its value.

        Raises:
            RuntimeError: the expression throws.
        """
        result = self.browser.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:500])
        return result["result"].get("value")

    def choose(self, control: str, value: object) -> tuple[float, float]:
        """Moves a control. Returns milliseconds until it is painted, and the page thread's busy milliseconds."""
        before = self._busy()
        elapsed = self.evaluate(CHOOSE % json.dumps([control, value]))
        return elapsed, self._busy() - before

    def _busy(self) -> float:
        metrics = self.browser.call("Performance.getMetrics")["metrics"]
        return 1e3 * next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    def seen(self) -> dict:
        return json.loads(self.evaluate(LOOK))

    def press(self, key: str, code: int) -> None:
        for event_type in ("keyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=event_type, key=key, code=key, windowsVirtualKeyCode=code)

    def complaints(self) -> list[str]:
        """Console messages, network requests, and whether the page is wider than its window."""
        wide = self.seen()["wide"]
        faults = self.browser.complaints(self.url)
        return faults + ([f"the page is {wide} wide in a window of {self.window[0]}"] if wide > self.window[0] else [])

    def picture(self, path: Path) -> None:
        self.browser.picture(path, self.window[0], self.seen()["height"])


def settings(page: Page, count: int, seed: int) -> list[dict]:
    """Random settings among those that the page offers."""
    offered = page.evaluate("({engines: state.data.engines, gpus: state.data.gpus.map(gpu => gpu.name), limits: "
                            "state.data.limits, first: state.data.first, "
                            "most: +document.getElementById('sequence-range').max})")
    draw = random.Random(seed)
    chosen: list[dict] = []
    while len(chosen) < count:
        engine = draw.choice(offered["engines"])
        limits = offered["limits"]
        batch = draw.choice(offered["limits"]["batches"] or (1, 2, 3, 4, 6, 8, 16, 32, 61))
        images = offered["first"]["images"]
        if limits["images"]:  # of one sample with several images only some engines have a formula
            shipped = batch > 1 or engine["traced"] == offered["engines"][0]["traced"]
            images = draw.choice((1, 1, 2, 3)) if shipped else 1
        least = limits["room"][images] + 1 + images * limits["apart"]
        chosen.append({"batch": batch, "images": images,
                      "sequence": draw.randint(least, max(offered["most"], least)) if limits["tokens"] else 0,
                      "engine": engine["name"], "degree": draw.choice(engine["degrees"]),
                      "gpu": draw.choice(offered["gpus"]),
                      "checkpointing": offered["first"]["checkpointing"] and draw.random() < 0.7})
    return chosen


def controls(page: Page, setting: dict) -> list[tuple[str, object]]:
    """Controls to move, with their values. The engine comes first, because it decides the available degrees."""
    degrees = page.evaluate(f"degrees({json.dumps(setting['engine'])})")
    return [("engine", setting["engine"]), ("degree", degrees.index(setting["degree"])), ("gpu", setting["gpu"]),
            ("checkpointing", setting["checkpointing"]), ("batch", setting["batch"]),
            *((name, setting[name]) for name in ("images", "sequence")
              if not page.evaluate(f"document.getElementById('{name}-control').hidden"))]


def predicted(command: str) -> dict:
    """Python's prediction for the command line that the page shows."""
    parser = ArgumentParser()
    command_line.add_workload(parser)
    workload = command_line.workload(parser.parse_args(shlex.split(command.removeprefix("peakcast predict "))))
    return json.loads(json.dumps(predict(workload).to_json()))


def differences(seen: dict, expected: dict) -> list[str]:
    """Differences of the page's answer, and of its tables, from Python's prediction."""
    if "refused" in seen:
        return [seen["refused"]]
    faults = [f"{key}: {value} is {expected[key]} in Python" for key, value in seen["answer"].items()
             if value != expected[key]]
    peaks = [expected[f"peak_{name}_bytes"] for name in ("requested", "allocated", "reserved", "device")]
    if seen["shown"] != ["" if size is None else f"{size:,} B" for size in peaks]:
        faults.append(f"the table of peaks shows {seen['shown']}")
    parts = [f"{size:,}" for size in expected["factors"].values() if size]
    if seen["factors"] != [*parts, f"{expected['peak_allocated_bytes']:,}"]:
        faults.append(f"the table of factors shows {seen['factors']}")
    return faults


def compare(page: Page, chosen: list[dict]) -> tuple[list[str], dict[str, list[tuple[float, float]]]]:
    """Faults at all settings, and redraw times of each control (:meth:`Page.choose`)."""
    faults: list[str] = []
    times: dict[str, list[tuple[float, float]]] = {}
    for setting in chosen:
        for control, value in controls(page, setting):
            times.setdefault(control, []).append(page.choose(control, value))
        seen = page.seen()
        if seen["setting"] != setting:
            faults.append(f"the page is at {seen['setting']} instead of {setting}")
        faults += [f"{setting}: {fault}" for fault in differences(seen, predicted(seen["command"]))]
    return faults, times


def slide(page: Page) -> list[tuple[float, float]]:
    """Redraw times of a slider that moves step by step, as if dragged."""
    page.choose("batch", 1)
    return [page.choose("batch-range", batch) for batch in range(2, 42)]


def keyboard(page: Page) -> list[str]:
    """Faults of the keyboard: an arrow key must change the setting on a slider and on the map."""
    faults = []
    for control, key, code, name in (("batch-range", "ArrowRight", 39, "batch"), ("map", "ArrowLeft", 37, "batch")):
        before = page.seen()["setting"][name]
        page.evaluate(f"document.getElementById('{control}').focus()")
        page.press(key, code)
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        if page.seen()["setting"][name] == before:
            faults.append(f"{key} on the {control} changes nothing")
    return faults


def address(page: Page) -> list[str]:
    """Faults of the address: it follows the setting, is read when it changes, and its bad values give a notice."""
    page.choose("batch", 3)
    written = page.evaluate("new Promise(done => setTimeout(() => done(location.hash), 500))")
    faults = [] if "batch=3" in written else [f"the address {written} lacks batch=3"]
    for fragment, batch, notice in ((written.replace("batch=3", "batch=5"), 5, False), ("#batch=0&x=1", None, True)):
        page.evaluate(f"location.hash = {json.dumps(fragment)}")
        shown = page.evaluate("new Promise(done => setTimeout(() => "
                              "done(!document.getElementById('notice').hidden), 500))")
        setting = page.seen()["setting"]
        if shown != notice or setting["batch"] != (batch or page.evaluate("state.data.first.batch")):
            faults.append(f"the address {fragment} gives {setting}, {'with' if shown else 'without'} a notice")
    return faults


def milliseconds(times: Sequence[float]) -> dict:
    ordered = sorted(times)
    return {"median": round(statistics.median(ordered), 1), "highest": round(ordered[-1], 1),
            "percentile_95": round(ordered[int(0.95 * (len(ordered) - 1))], 1)}


def options(parser: ArgumentParser) -> None:
    browser.options(parser)
    parser.add_argument("--settings", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the result to this file as JSON")


def jobs(args: Namespace) -> dict[str, Window]:
    return WINDOWS


def measure(jobs: dict[str, Window], args: Namespace) -> dict[str, Any]:
    """Values and times in the first window, then the faults of every window."""
    figures: dict[str, Any] = {}
    faults: list[str] = []
    with browser.started(args) as chromium:
        version = chromium.call("Browser.getVersion")["product"]
        for name, window in jobs.items():
            page = Page(chromium, args.page.resolve().as_uri(), window)
            if name == "light":
                figures, more_faults = used(page, args)
                faults += more_faults
            page.evaluate("new Promise(done => { const look = () => state.map.cells.every(cell => cell.refused || "
                          "cell.verdict) ? done() : setTimeout(look, 50); look(); })")
            faults += [f"{name}: {fault}" for fault in page.complaints()]
            if args.pictures:
                page.picture(args.pictures / f"{name}.png")
    return {"date": date.today().isoformat(), "browser": version, **figures, "windows": list(jobs), "wrong": faults}


def used(page: Page, args: Namespace) -> tuple[dict[str, Any], list[str]]:
    """Figures and faults of a page at random settings."""
    data = page.evaluate("({model: state.data.model, version: state.data.version})")
    faults, times = compare(page, settings(page, args.settings, args.seed))
    times["batch, step by step"] = slide(page)
    load = round(os.getloadavg()[0], 1)
    faults += keyboard(page) + address(page)
    page.choose("batch", 16)
    redraws = {name: {"count": len(each), "until_painted_ms": milliseconds([wall for wall, _ in each]),
                      "of_its_thread_ms": milliseconds([own for _, own in each])} for name, each in times.items()}
    return {"peakcast": data["version"], "model": data["model"], "page_bytes": args.page.stat().st_size,
            "settings": args.settings, "seed": args.seed, "seconds_to_open": round(page.seconds_to_open, 2),
            "load_average": load, "redraws": redraws}, faults


def table(result: dict[str, Any], args: Namespace) -> Outcome:
    """The result, and the number of controls that redraw too slowly."""
    slow = sum(redraw["until_painted_ms"]["highest"] >= MOST_MS for redraw in result["redraws"].values())
    text = json.dumps(result, indent=2)
    return Outcome({"faults": len(result["wrong"]), "controls that redraw too slowly": slow},
                   {args.save: text + "\n"} if args.save else {}, (text,))

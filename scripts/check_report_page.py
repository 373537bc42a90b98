#!/usr/bin/env python3
"""Open the page of a regression report in headless Chromium: is it drawn, silent, and alone?

    peakcast report profiles/h100-80gb --baselines fast -o report
    python scripts/check_report_page.py report/report.html --pictures /tmp/pictures

In a wide window, in a dark one and in a narrow one it asks the browser (Chrome's DevTools protocol, through pipes; no
package is needed) for console messages, network requests, figures without size, words that leave their figure or run
into each other, and a page that is wider than its window. Exit code 1 if there is any.
``--pictures`` keeps what it saw.
A check by hand, not a test: it needs Chromium (``apt install chromium``, or ``--browser PATH``).
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WINDOWS = {"light": (1280, 900, "light"), "dark": (1280, 900, "dark"), "narrow": (390, 800, "light")}
"""Name to width, height and colour scheme."""
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


class Browser:
    """A headless Chromium at the other end of two pipes; messages end with a NUL."""

    def __init__(self, program: str, profile: str) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # the browser reads from descriptor 3 and writes to 4: the shell puts them there
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
                   "--disable-background-networking", f"--user-data-dir={profile}", "about:blank"]
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "sh", *command],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self._last, self._rest = 0, b""
        self.events: list[dict] = []
        self.session: str | None = None

    def call(self, method: str, **parameters) -> dict:
        """Sends a command and waits for its result; events on the way are kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive()
            if found.get("id") == self._last:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']['message']}")
                return found["result"]
            self.events.append(found)

    def wait(self, method: str) -> None:
        """Until an event comes."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._receive())

    def _receive(self) -> dict:
        while b"\0" not in self._rest:
            more = os.read(self._read, 1 << 20)
            if not more:
                raise RuntimeError("the browser ended")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def end(self) -> None:
        """Closes it."""
        self.process.terminate()
        self.process.wait()


def look(browser: Browser, url: str, window: tuple[int, int, str], picture: Path | None) -> list[str]:
    """Opens the page in one window: what is wrong with it."""
    width, height, scheme = window
    browser.session, browser.events = None, []
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    browser.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Network", "Log", "Runtime"):
        browser.call(f"{domain}.enable")
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.events = []
    browser.call("Page.navigate", url=url)
    browser.wait("Page.loadEventFired")
    seen = json.loads(browser.call("Runtime.evaluate", expression=LOOK)["result"]["value"])
    wrong = seen["wrong"] + ([] if seen["figures"] else ["no figure"])
    for event in browser.events:
        detail = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent" and detail["request"]["url"] != url:
            wrong.append(f"it asks for {detail['request']['url'][:100]}")
        elif event.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            wrong.append(f"console: {json.dumps(detail)[:200]}")
    if picture:
        shot = browser.call("Page.captureScreenshot", captureBeyondViewport=True,
                            clip={"x": 0, "y": 0, "width": width, "height": seen["height"], "scale": 1})
        picture.write_bytes(base64.b64decode(shot["data"]))
    print(f"{seen['figures']} figures, {seen['height']} units high, {len(wrong)} faults")
    return wrong


def main() -> int:
    """Every window in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="keep a picture of each window there")
    parser.add_argument("--browser", default=shutil.which("chromium") or shutil.which("google-chrome"))
    given = parser.parse_args()
    if given.browser is None:
        parser.error("no Chromium found: name one with --browser")
    if given.pictures:
        given.pictures.mkdir(parents=True, exist_ok=True)
    faults = 0
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(given.browser, profile)
        try:
            for name, window in WINDOWS.items():
                print(f"{name}: ", end="", flush=True)
                wrong = look(browser, given.page.resolve().as_uri(), window,
                             given.pictures and given.pictures / f"{name}.png")
                faults += len(wrong)
                for fault in wrong:
                    print(f"  {fault}")
        finally:
            browser.end()
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())

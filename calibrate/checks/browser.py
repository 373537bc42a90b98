"""A headless Chromium, asked through Chrome's DevTools protocol; no package is needed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from predictor.common.errors import InputError

Window = tuple[int, int, str]
WINDOWS: dict[str, Window] = {"light": (1280, 900, "light"), "dark": (1280, 900, "dark"), "narrow": (390, 800, "light")}
"""Name to width, height and colour scheme."""


def options(parser: ArgumentParser) -> None:
    """The page, and what is done with it."""
    parser.add_argument("page", type=Path)
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="keep a picture of each window there")
    parser.add_argument("--browser", default=shutil.which("chromium") or shutil.which("google-chrome"),
                        help="default: chromium or google-chrome, wherever they are")


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

    def open(self, window: Window, *more: tuple[str, dict]) -> None:
        """An empty page of its own in a window; the messages ``more`` are sent before anything is loaded."""
        width, height, scheme = window
        self.session, self.events = None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for method, parameters in more:
            self.call(method, **parameters)
        self.events = []

    def load(self, url: str) -> None:
        """Until it is loaded."""
        self.call("Page.navigate", url=url)
        self.wait("Page.loadEventFired")

    def complaints(self, url: str) -> list[str]:
        """What the console and the network have said of a page that they should not."""
        wrong = []
        for event in self.events:
            detail = event.get("params", {})
            if event.get("method") == "Network.requestWillBeSent" and detail["request"]["url"] != url:
                wrong.append(f"it asks for {detail['request']['url'][:100]}")
            elif event.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                wrong.append(f"console: {json.dumps(detail)[:300]}")
        return wrong

    def picture(self, path: Path, width: int, height: int) -> None:
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def end(self) -> None:
        """Closes it."""
        self.process.terminate()
        self.process.wait()


@contextlib.contextmanager
def started(given: Namespace) -> Iterator[Browser]:
    """The browser of the command line; the directory for pictures is there.

    Raises:
        InputError: there is none.
    """
    if given.browser is None:
        raise InputError("no Chromium found: name one with --browser")
    if given.pictures:
        given.pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(given.browser, profile)
        try:
            yield browser
        finally:
            browser.end()

"""Drives a headless Chromium through Chrome's DevTools protocol. Needs no Python package."""

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
"""Window name -> width and height in CSS pixels, and colour scheme."""


def options(parser: ArgumentParser) -> None:
    """Adds the options of both page checks: the page, the directory for screenshots, the browser."""
    parser.add_argument("page", type=Path)
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="save a screenshot of each window there")
    parser.add_argument("--browser", default=shutil.which("chromium") or shutil.which("google-chrome"),
                        help="default: chromium or google-chrome, wherever they are")


class Browser:
    """A headless Chromium that is controlled through two pipes. Each message is JSON and ends with a NUL byte."""

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
        """Sends a command and returns its result. Events that arrive before it are appended to ``events``.

        Raises:
            RuntimeError: the browser reports an error, or it ended.
        """
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self._last:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']['message']}")
                return reply["result"]
            self.events.append(reply)

    def wait(self, method: str) -> None:
        """Waits until an event of that name has arrived."""
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
        """Opens an empty page of the given size. The commands ``more`` are sent before anything is loaded."""
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
        """Loads a page and waits for its load event."""
        self.call("Page.navigate", url=url)
        self.wait("Page.loadEventFired")

    def complaints(self, url: str) -> list[str]:
        """Console messages, exceptions and network requests (other than the page itself) since the page was opened."""
        faults = []
        for event in self.events:
            detail = event.get("params", {})
            if event.get("method") == "Network.requestWillBeSent" and detail["request"]["url"] != url:
                faults.append(f"it asks for {detail['request']['url'][:100]}")
            elif event.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                faults.append(f"console: {json.dumps(detail)[:300]}")
        return faults

    def picture(self, path: Path, width: int, height: int) -> None:
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def end(self) -> None:
        """Ends the browser process."""
        self.process.terminate()
        self.process.wait()


@contextlib.contextmanager
def started(args: Namespace) -> Iterator[Browser]:
    """Starts the browser that the command line names, and makes the directory for screenshots.

    Raises:
        InputError: no browser is named and none is installed.
    """
    if args.browser is None:
        raise InputError("no Chromium found: name one with --browser")
    if args.pictures:
        args.pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(args.browser, profile)
        try:
            yield browser
        finally:
            browser.end()

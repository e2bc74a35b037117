"""A headless Chromium, driven through its DevTools protocol: opens a page and tells everything that the page did.

The process is started once (`Browser`); every test gets a tab of its own (`Browser.tab`), and with it the console's messages,
the exceptions and the requests of its page alone.
"""

import asyncio
import base64
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

import aiohttp

NAMES: Final = (
    "/usr/lib/chromium/chromium-headless-shell",  # Debian's command of that name is a shell around it, whose end it would not notice
    "chromium-headless-shell",
    "chromium",
    "google-chrome",
)
FLAGS: Final = (
    "--headless",
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
WITH_US: Final = ("setpriv", "--pdeathsig", "KILL")  # a test run that is killed leaves no browser behind
START_TIMEOUT_S: Final = 60.0
ANSWER_TIMEOUT_S: Final = 60.0
MAX_MESSAGE_BYTES: Final = 64 << 20  # a screenshot of a long page
Scheme = Literal["light", "dark"]


def chromium() -> str:
    """Return the browser's program. Raises `RuntimeError`: there is none."""
    for name in (os.environ.get("CHROMIUM"), *NAMES):
        if name and (found := shutil.which(name)):
            return found
    raise RuntimeError("no Chromium: run deploy/test_setup.sh, or name one with CHROMIUM=/path")


class Browser:
    def __init__(self, folder: Path) -> None:
        """`folder` must be empty: it becomes the browser's profile."""
        self._port_file = folder / "DevToolsActivePort"
        self._log = folder.with_suffix(".log")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*WITH_US, chromium(), *FLAGS, f"--user-data-dir={folder}", "about:blank"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def address(self) -> str:
        """Wait until the browser listens; return where. Raises `RuntimeError`: it does not come up."""
        give_up = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up and self._process.poll() is None:
            with suppress(FileNotFoundError):
                port, _, path = self._port_file.read_text().partition("\n")
                if path:
                    return f"ws://127.0.0.1:{port}{path.strip()}"
            time.sleep(0.05)
        raise RuntimeError(f"the browser did not come up:\n{self._log.read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        """End the process, and whatever it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)

    @asynccontextmanager
    async def tab(self) -> AsyncIterator["Tab"]:
        """Open a tab; it is closed at the end."""
        address = await asyncio.to_thread(self.address)
        async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=MAX_MESSAGE_BYTES) as socket:
            tab = Tab(socket)
            reading = asyncio.create_task(tab.read())
            try:
                target = (await tab.call("Target.createTarget", url="about:blank"))["targetId"]
                await tab.attach(target)
                yield tab
                await tab.call("Target.closeTarget", targetId=target)
            finally:
                reading.cancel()
                await asyncio.wait({reading})


class Tab:
    """One page, and what it said and asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.said: list[str] = []  # on the console, whatever the level
        self.exceptions: list[str] = []
        self.requested: list[str] = []  # URLs
        self.failed: list[str] = []  # why a load failed
        self._socket = socket
        self._session: dict[str, str] = {}
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded: set[str] = set()  # documents that are complete
        self._has_loaded = asyncio.Event()

    async def attach(self, target: str) -> None:
        """Speak to a target from now on, and hear what happens in it."""
        attached = await self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.setLifecycleEventsEnabled", enabled=True)

    async def open(self, page: Path | str, *, width: int, scheme: Scheme, height: int = 900) -> None:
        """Show a file or an address, and wait until it is complete."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        navigated = await self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while navigated["loaderId"] not in self._loaded:  # the event of the document before may come late
                self._has_loaded.clear()
                await self._has_loaded.wait()

    async def evaluate(self, script: str) -> Any:
        """Return what an expression gives, as JSON has it. Raises `RuntimeError`: it threw."""
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def screenshot(self) -> bytes:
        """Return the whole page as a PNG."""
        taken = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(taken["data"])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give an order and return the answer. Raises `RuntimeError`: the browser refuses."""
        number = next(self._ids)
        waiting = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters, **self._session})
        answer = await asyncio.wait_for(waiting, ANSWER_TIMEOUT_S)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        found: dict[str, Any] = answer["result"]
        return found

    async def read(self) -> None:
        """Take in what the browser sends, until it stops."""
        async for message in self._socket:
            event = message.json()
            if "id" not in event:
                self._take(event["method"], event["params"])
            elif not (waiting := self._answers.pop(event["id"])).done():
                waiting.set_result(event)

    def _take(self, name: str, event: dict[str, Any]) -> None:
        if name == "Page.lifecycleEvent" and event["name"] == "load":
            self._loaded.add(event["loaderId"])
            self._has_loaded.set()
        elif name == "Runtime.consoleAPICalled":
            self.said.append(" ".join(str(part.get("value", part)) for part in event["args"]))
        elif name == "Log.entryAdded":
            self.said.append(event["entry"]["text"])
        elif name == "Runtime.exceptionThrown":
            self.exceptions.append(str(event["exceptionDetails"]))
        elif name == "Network.requestWillBeSent":
            self.requested.append(event["request"]["url"])
        elif name == "Network.loadingFailed":
            self.failed.append(event["errorText"])

"""A page opened in headless Chromium, spoken to over a pipe (DevTools protocol): what it says, what
it asks of a network, what stands in it, how it looks."""
import base64
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest

CHROMIUM = shutil.which("chromium")
# Without a sandbox: tests may run as root, in a container. The page is one of our own.
ARGUMENTS = ("--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --mute-audio "
             "--no-first-run --disable-extensions --disable-background-networking --disable-component-update "
             "--disable-sync --metrics-recording-only --remote-debugging-pipe").split()


def require_chromium():
    """The launcher installs it (cmake/deps.txt); only where it did not, and this is no CI, is a test left out."""
    if CHROMIUM:
        return
    if os.environ.get("CI"):
        raise AssertionError("chromium is missing: apt-get install chromium (cmake/deps.txt names it)")
    raise unittest.SkipTest("chromium is missing: apt-get install chromium")


class Browser:
    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.net_log = pathlib.Path(self.profile.name) / "net.json"
        down, self.writer = os.pipe()
        self.reader, up = os.pipe()

        def take_pipes():  # the protocol's descriptors are 3 and 4
            for given, wanted in ((os.dup(down), 3), (os.dup(up), 4)):
                os.dup2(given, wanted)

        self.process = subprocess.Popen(
            [CHROMIUM, *ARGUMENTS, f"--user-data-dir={self.profile.name}", f"--log-net-log={self.net_log}"],
            preexec_fn=take_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(down)
        os.close(up)
        self.number, self.buffer, self.events, self.session = 0, b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def receive(self):
        while b"\0" not in self.buffer:
            part = os.read(self.reader, 1 << 20)
            if not part:
                raise AssertionError("chromium has ended")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **arguments):
        self.number += 1
        message = {"id": self.number, "method": method, "params": arguments}
        if self.session:
            message["sessionId"] = self.session
        text, sent = json.dumps(message).encode() + b"\0", 0
        while sent < len(text):
            sent += os.write(self.writer, text[sent:])
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, path, width=1280, height=900, dark=False, media="",
             ready="document.readyState === 'complete' && document.body.dataset.ready === 'yes'"):
        """Opens the page and waits until it says that it is ready, as our reports do, or until `ready` holds."""
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", media=media, features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri())
        for _ in range(600):
            if self.value(ready):
                return
            time.sleep(0.05)
        raise AssertionError("the page is never ready: " + "; ".join(self.complaints()))

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def complaints(self):
        """Errors and warnings of the page, exceptions among them."""
        said = []
        for event in self.events:
            method, given = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                details = given["exceptionDetails"]
                said.append(details.get("exception", {}).get("description", details["text"]))
            elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
                said.append(given["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
                said.append(str(given["args"]))
        return said

    def requested(self):
        """The addresses that the page asked for."""
        return [event["params"]["request"]["url"] for event in self.events
                if event.get("method") == "Network.requestWillBeSent"]

    def shot(self, path, top=0, height=None):
        """A picture of the page, from `top` on, as long as it is."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": top, "width": size["width"], "scale": 1,
                "height": min(height or size["height"], size["height"] - top)}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))

    def close(self):
        """Ends the browser; `logged` is then what pages asked for by its own log of the network. What the browser asks
        for itself has no origin there."""
        if self.process is None:
            return
        self.session = None
        try:
            self.call("Browser.close")
        except AssertionError:
            pass
        try:
            self.process.wait(timeout=300)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None
        os.close(self.writer)
        os.close(self.reader)
        text = self.net_log.read_text() if self.net_log.exists() else ""
        events = json.loads(text)["events"]
        self.logged = {e["params"]["url"] for e in events if "url" in e.get("params", {})
                       and e["params"].get("initiator", "not an origin") != "not an origin"}
        self.profile.cleanup()

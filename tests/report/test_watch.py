"""`report --watch`: a page in a browser that shows a run's steps as they come."""
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import unittest

from browser import Browser, require_chromium
from cases import BIN, ProgramCase

# Each step waits until the test lets it go on: a file of its number.
STEPWISE = """\
e.log, e.name = "runs/live.h5", "live"
e.steps, e.timeout = 6, 900
e.observe = function(step)
  while not io.open("go-" .. step) do os.execute "sleep 0.1" end
end
"""


class Watch(ProgramCase):
    def serve(self, *arguments):
        """The program, once it has said its address."""
        process = subprocess.Popen([BIN, "report", *arguments, "--watch", "--json"], cwd=self.folder, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: (process.kill(), process.wait(), process.stdout.close(), process.stderr.close()))
        line = json.loads(process.stdout.readline())
        self.assertEqual(line["kind"], "watch")
        return process, line["url"]

    def ask(self, url, path="/", method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", int(url.rstrip("/").rpartition(":")[2]), timeout=300)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer, text

    def until(self, condition, why):
        end = time.monotonic() + 300
        while not condition():
            self.assertLess(time.monotonic(), end, why)
            time.sleep(0.1)

    def test_the_server(self):
        self.only("run", self.script("dp(2)", 'e.log = "runs/a.h5"'))
        process, url = self.serve("runs", "--title", "All of it")
        self.assertRegex(url, r"^http://127\.0\.0\.1:\d+/$")
        answer, page = self.ask(url)
        self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertEqual(answer.headers["Cache-Control"], "no-store")
        self.assertIn("<title>All of it</title>", page)
        self.assertIn("connect-src 'self'", page)
        stamp = self.ask(url, "/stamp")[1]
        self.assertEqual(self.ask(url, "/stamp")[1], stamp)
        self.assertIn(f'"watch":"{stamp}"', page)
        self.only("run", self.script("tp(2)", 'e.log = "runs/b.h5"'))
        self.assertNotEqual(self.ask(url, "/stamp")[1], stamp)
        self.assertIn("tp(2)", self.ask(url)[1])
        self.assertEqual(self.ask(url, "/etc/passwd")[0].status, 404)
        self.assertEqual(self.ask(url, method="POST")[0].status, 405)
        for host, status in (("evil.example", 403), ("localhost:1", 200), ("127.0.0.1", 200)):
            self.assertEqual(self.ask(url, Host=host)[0].status, status, host)
        # Files that go away are no end; the page asks again.
        for path in (self.folder / "runs").iterdir():
            path.rename(self.folder / f"{path.name}.away")
        self.assertEqual(self.ask(url)[0].status, 503)
        for path in self.folder.glob("*.away"):
            path.rename(self.folder / "runs" / path.stem)
        self.assertEqual(self.ask(url)[0].status, 200)
        # Somebody who connects and says nothing holds up nobody.
        with socket.create_connection(("127.0.0.1", int(url.rstrip("/").rpartition(":")[2]))):
            self.assertEqual(self.ask(url)[0].status, 200)
        port = url.rstrip("/").rpartition(":")[2]
        self.refused(2, "watch.port", "report", "runs", "--watch", "--port", port)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=300), 130)
        self.assertEqual(process.stderr.read().count("watching at"), 1)

    def test_nobody_else_on_the_network_reaches_it(self):
        self.only("run", self.script("dp(2)", 'e.log = "runs/a.h5"'))
        process, url = self.serve("runs/a.h5")
        port = int(url.rstrip("/").rpartition(":")[2])
        listening = [line.split()[1] for line in pathlib.Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]
                     if line.split()[3] == "0A"]
        self.assertIn(f"0100007F:{port:04X}", listening)  # 127.0.0.1, as the kernel writes it
        self.assertNotIn(f"00000000:{port:04X}", listening)

    def test_what_cannot_be_watched(self):
        self.refused(2, "file.missing", "report", "gone.h5", "--watch")
        self.refused(2, "usage.option", "report", "gone.h5", "-o", "a.html", "--port", "8080")

    def test_a_page_of_a_file_asks_nobody(self):
        self.only("run", self.script("dp(2)", 'e.log = "runs/a.h5"'))
        self.only("report", "runs/a.h5", "-o", "a.html")
        page = (self.folder / "a.html").read_text()
        self.assertNotIn("connect-src", page)
        self.assertNotIn('"watch":', page)

    def test_a_run_in_a_browser(self):
        require_chromium()
        script = self.script("dp(2)", STEPWISE)
        run = subprocess.Popen([BIN, "run", script, "--quiet"], cwd=self.folder, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, env={**os.environ, "MESHWRIGHT_FIRST_USE": "off"})
        self.addCleanup(lambda: (run.kill(), run.wait(), run.stderr.close()))
        go_on = lambda step: (self.folder / f"go-{step}").write_text("")
        go_on(0)
        self.until(lambda: (self.folder / "runs/live.h5").exists(), "the run has no file")
        process, url = self.serve("runs/live.h5")
        with Browser() as browser:
            browser.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
            browser.call("Page.navigate", url=url)

            def shows(steps):
                try:
                    return browser.value("document.body?.dataset.ready === 'yes' && data.cells[0].steps") == steps
                except AssertionError:  # between two pages
                    return False

            for step in range(1, 4):
                time.sleep(1.5)  # a run writes its rows at the end of a step, once a second at most
                go_on(step)
                self.until(lambda: shows(step + 1), f"step {step} is not shown")
            self.assertEqual(browser.value("data.cells[0].status"), "running")
            browser.value("document.querySelector('details').open = true")
            browser.value("window.scrollTo(0, 500)")
            for step in (4, 5):
                go_on(step)
            self.until(lambda: shows(6), "the last step is not shown")
            self.until(lambda: browser.value("data.cells[0].status") == "done", "its end is not shown")
            self.assertEqual(run.wait(timeout=300), 0)
            self.until(lambda: browser.value("window.scrollY") == 500, "the page has lost its place")
            self.assertTrue(browser.value("document.querySelector('details').open"))
            self.assertIn("Watching", browser.value("document.getElementById('watching').textContent"))
            process.send_signal(signal.SIGINT)
            process.wait(timeout=300)
            self.until(lambda: "has ended" in browser.value("document.getElementById('watching').textContent"),
                       "the page does not say that nobody serves it")
            asked = {address for address in browser.requested() if not address.startswith("data:")}
            self.assertEqual({address.split("/")[2] for address in asked}, {url.split("/")[2]})


if __name__ == "__main__":
    unittest.main(verbosity=2)

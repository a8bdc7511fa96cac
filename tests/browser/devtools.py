"""devtools.py - drive a headless Chromium over its DevTools pipe, with the standard library alone.

    with Browser() as browser:
        page = browser.page(1400, 900, dark=True)
        page.open("http://127.0.0.1:8080/")
        page.wait("document.title !== 'ralo'")
        page.screenshot("page.png")

By hand: devtools.py                                 which browser starts here? Status 77 and the reasons: none
         devtools.py ADDRESS WIDTH FILE.png [dark]   a picture of the whole page
"""
import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time

PROGRAMS = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge"]
START_S = 30


class NoBrowser(Exception):
    pass


class Browser:
    """The first browser that starts, or the one that RALO_BROWSER names. An installed one may not: a container without user namespaces
    has no sandbox (which root never has), so each is tried with it and without."""

    def __init__(self):
        named, reasons = os.environ.get("RALO_BROWSER"), []
        for program in [named] if named else filter(None, map(shutil.which, PROGRAMS)):
            for sandbox in [["--no-sandbox"]] if os.geteuid() == 0 else [[], ["--no-sandbox"]]:
                self.start(program, sandbox)
                try:
                    self.name = self.call("Browser.getVersion", timeout=START_S)["product"]
                    return
                except (RuntimeError, TimeoutError, OSError) as e:
                    self.stop()
                    reasons.append(f"{program} does not start: {self.complaint or e}")
        raise NoBrowser("; ".join(dict.fromkeys(reasons)) or f"found none of {', '.join(PROGRAMS)}; make test-browser installs one")

    def start(self, program, sandbox):
        self.profile = tempfile.mkdtemp(prefix="ralo_browser_")
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()

        def descriptors():  # the browser reads from 3 and writes to 4
            a, b = os.dup(to_browser), os.dup(from_browser)
            os.dup2(a, 3)
            os.dup2(b, 4)
        command = [program, "--headless", "--remote-debugging-pipe", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                   "--disable-background-networking", "--disable-extensions", "--mute-audio", f"--user-data-dir={self.profile}"]
        with open(f"{self.profile}/stderr", "wb") as said:
            self.process = subprocess.Popen(command + sandbox + ["about:blank"], preexec_fn=descriptors, close_fds=False,
                                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.number, self.answers, self.events = b"", 0, {}, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        os.close(self.write_end)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.read_end)
        with open(f"{self.profile}/stderr", errors="replace") as said:
            self.complaint = (said.read().strip().splitlines() or [""])[-1][:300]
        shutil.rmtree(self.profile, ignore_errors=True)

    def receive(self, timeout):
        if not select.select([self.read_end], [], [], timeout)[0]:
            return False
        data = os.read(self.read_end, 1 << 20)
        if not data:
            raise RuntimeError("the browser has ended")
        self.buffer += data
        *messages, self.buffer = self.buffer.split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.answers[message["id"]] = message
            else:
                self.events.append(message)
        return True

    def call(self, method, session=None, timeout=60, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + timeout
        while self.number not in self.answers:
            if not self.receive(max(0, end - time.monotonic())) and time.monotonic() >= end:
                raise TimeoutError(method)
        answer = self.answers.pop(self.number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def page(self, width, height, dark=False):
        return Page(self, width, height, dark)


class Page:
    def __init__(self, browser, width, height, dark):
        self.browser, self.width, self.height = browser, width, height
        # A window of its own: a tab behind another one is not drawn.
        target = browser.call("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        self.target = target
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.call("Log.enable")
        self.size(width, height)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def size(self, width, height):
        self.width = width
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url):
        self.call("Page.navigate", url=url)

    def eval(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if self.eval(expression):
                    return
            except RuntimeError:
                pass  # between two documents
            time.sleep(0.1)
        raise TimeoutError(f"not true in {seconds} s: {expression}")

    def screenshot(self, path, whole=False):
        if whole:  # a taller window, because charts below it are not drawn
            self.size(self.width, self.eval("document.documentElement.scrollHeight"))
            time.sleep(0.5)
        data = self.call("Page.captureScreenshot", format="png")["data"]
        self.size(self.width, self.height)
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))

    def complaints(self):
        """Errors of scripts, of the policy and of the network that the page has seen."""
        out = []
        for e in self.browser.events:
            if e.get("sessionId") != self.session:
                continue
            if e["method"] == "Runtime.exceptionThrown":
                out.append(str(e["params"]["exceptionDetails"]))
            if e["method"] == "Log.entryAdded" and e["params"]["entry"]["level"] == "error":
                out.append(e["params"]["entry"]["text"] + " " + e["params"]["entry"].get("url", ""))
            if e["method"] == "Runtime.consoleAPICalled" and e["params"]["type"] in ("error", "assert"):
                out.append(str(e["params"]["args"]))
        return out


def main(arguments):
    try:
        with Browser() as browser:
            if not arguments:
                return print(browser.name)
            address, width, path, *dark = arguments
            page = browser.page(int(width), 900, dark == ["dark"])
            page.open(address)
            page.wait("document.readyState === 'complete'")
            page.screenshot(path, whole=True)
    except NoBrowser as e:
        print(f"no browser: {e}")
        return 77


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven over a pipe by the DevTools protocol
(https://chromedevtools.github.io/devtools-protocol). It has no network of its own to reach: what it asks for is noted."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable",
         "chrome-headless-shell", "chrome", "microsoft-edge"]
DEADLINE_S = 60


def find_browser():
    """$CHROME, or what there is."""
    for name in filter(None, [os.environ.get("CHROME"), *NAMES]):
        path = shutil.which(name)
        if path:
            return path
    return None


class Failed(Exception):
    pass


class Browser:
    def __init__(self, program, width=1280, height=1000):
        self.profile = tempfile.TemporaryDirectory()
        command = [program, "--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu",
                   "--disable-background-networking", "--disable-component-update", "--disable-sync",
                   "--disable-dev-shm-usage", "--hide-scrollbars", "--no-proxy-server", "--host-rules=MAP * ~NOTFOUND",
                   f"--window-size={width},{height}", f"--user-data-dir={self.profile.name}", "about:blank"]
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # Chromium's does not start for root
        # The browser reads at 3 and writes at 4. Libraries preloaded for the shim are not for the browser.
        environment = {key: value for key, value in os.environ.items()
                       if key not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
        environment["HOME"] = self.profile.name
        self.process = subprocess.Popen(
            ["sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null', "sh", *command], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        self.session, self.number, self.rest = None, 0, b""
        self.requests, self.complaints, self.replies, self.events = [], [], {}, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "DOM"):
            self.ask(domain + ".enable")

    def read(self, deadline):
        while b"\0" not in self.rest:
            if not select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise Failed("the browser does not answer")
            piece = os.read(self.process.stdout.fileno(), 1 << 20)
            if not piece:
                raise Failed(f"the browser has ended: {self.process.wait()}")
            self.rest += piece
        text, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(text)
        if "id" in message:
            self.replies[message["id"]] = message
            return
        method, given = message["method"], message["params"]
        self.events.append(method)
        if method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(given["exceptionDetails"].get("exception", given["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(given["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append("a dialog: " + given["message"])
            self.send("Page.handleJavaScriptDialog", accept=True)

    def send(self, method, **given):
        self.number += 1
        message = {"id": self.number, "method": method, "params": given}
        if self.session and not method.startswith("Target."):
            message["sessionId"] = self.session
        self.process.stdin.write(json.dumps(message).encode() + b"\0")
        self.process.stdin.flush()
        return self.number

    def ask(self, method, **given):
        number, deadline = self.send(method, **given), time.monotonic() + DEADLINE_S
        while number not in self.replies:
            self.read(deadline)
        reply = self.replies.pop(number)
        if "error" in reply:
            raise Failed(f"{method}: {reply['error']}")
        return reply["result"]

    def open(self, path, dark=False, scripts=True):
        self.requests.clear()
        self.complaints.clear()
        self.events.clear()
        self.ask("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.ask("Page.navigate", url="file://" + os.path.abspath(path))
        deadline = time.monotonic() + DEADLINE_S
        while "Page.loadEventFired" not in self.events:
            self.read(deadline)

    def value(self, expression):
        """The value of a JavaScript expression, from JSON."""
        reply = self.ask("Runtime.evaluate", expression=expression, returnByValue=True,
                         awaitPromise=True)
        if "exceptionDetails" in reply:
            raise Failed(f"{expression}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    def source(self):
        """The page as it is now."""
        root = self.ask("DOM.getDocument", depth=0)["root"]["nodeId"]
        return self.ask("DOM.getOuterHTML", nodeId=root)["outerHTML"]

    def press(self, key, text=""):
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
        given = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        self.ask("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **given)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **given)

    def type(self, text):
        self.ask("Input.insertText", text=text)

    def move(self, x, y):
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def drag(self, x, y, to):
        """To another x. A click if it is the same."""
        for kind, at in (("mousePressed", x), ("mouseMoved", to), ("mouseReleased", to)):
            self.ask("Input.dispatchMouseEvent", type=kind, x=at, y=y, button="left", buttons=1, clickCount=1)

    def size(self, width, height):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self, path):
        data = self.ask("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        try:
            self.session = None
            self.send("Browser.close")
            self.process.wait(timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.profile.cleanup()

# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of verdicts in a real browser, without a network. No server is needed."""

from __future__ import annotations

import html.parser
import http.server
import os
import re
import shutil
import subprocess
import threading

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import page, report
from ansible_collections.inference.fleet.tests.unit.plugins.plugin_utils.reporting.test_report import verdict

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
    "--enable-logging=stderr", "--v=0", "--virtual-time-budget=2000",
)  # fmt: skip
# The browser asks its maker for updates and the time, whatever page it shows.
OWN = re.compile(r"^[A-Z]+ (https?://)?([a-z0-9-]+\.)*(google|googleapis|gvt1|gstatic)\.com[:/]")
NOW = "2026-01-02T03:04:05Z"


def find_browser():
    return next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="module")
def chromium():
    """Path of the browser. CI installs it where it is missing; elsewhere the tests are skipped."""
    if not find_browser() and os.environ.get("CI"):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            pytest.fail("CI needs chromium for these tests, and only root can install it with apt-get.")
        print("No chromium here: installing Debian's with apt-get.")
        for command in (["update", "-qq"], ["install", "-qq", "--no-install-recommends", "chromium"]):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(["apt-get", "-y", *command], env=environment, check=True, timeout=300)
    found = find_browser()
    if not found:
        pytest.skip("No chromium on this machine (Debian: apt-get install chromium); CI has it.")
    return found


class Recorder:
    """A server on loopback that only writes down what is asked of it: directly, or as the browser's proxy."""

    def __init__(self):
        recorder = self
        self.requests = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def handle_one_request(self):
                line = self.rfile.readline(65537).decode("latin-1").strip()
                if line and not OWN.match(line):
                    recorder.requests.append(line)
                self.close_connection = True

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = "127.0.0.1:%d" % self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class Dom(html.parser.HTMLParser):
    """Elements of a dumped DOM: (tag, attributes, hidden, text), hidden where one around it is."""

    EMPTY = ("meta", "link", "br", "input", "path", "use")

    def __init__(self, text):
        super().__init__()
        self.elements, self._open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        hidden = "hidden" in attributes or any(element["hidden"] for element in self._open)
        element = {"tag": tag, "attributes": attributes, "hidden": hidden, "text": ""}
        self.elements.append(element)
        if tag not in self.EMPTY:
            self._open.append(element)

    def handle_endtag(self, tag):
        if tag in self.EMPTY:
            return
        while self._open and self._open.pop()["tag"] != tag:
            pass

    def handle_data(self, data):
        for element in self._open:
            element["text"] += data

    def all(self, tag, word=None):
        return [
            element
            for element in self.elements
            if element["tag"] == tag and (not word or word in element["attributes"].get("class", "").split())
        ]

    def shown(self, tag, word):
        return [element for element in self.all(tag, word) if not element["hidden"]]

    def by_id(self, name):
        return next(element for element in self.elements if element["attributes"].get("id") == name)


class Browser:
    """Opens pages from files; everything that leaves a page goes to the recorder."""

    def __init__(self, executable, folder, recorder):
        self.executable, self.folder, self.recorder = executable, folder, recorder

    def open(self, text, place="", *flags):
        """(DOM as it is after loading, lines of the browser's console, requests that were made)."""
        path = self.folder / "verdict.html"
        path.write_text(text, encoding="utf-8")
        before = len(self.recorder.requests)
        done = subprocess.run(
            [
                self.executable, *FLAGS, "--user-data-dir=%s" % (self.folder / "profile"),
                "--proxy-server=" + self.recorder.address, "--proxy-bypass-list=<-loopback>", *flags,
                "--dump-dom", "file://%s%s" % (path, place),
            ],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
        return Dom(done.stdout), console, self.recorder.requests[before:]


@pytest.fixture
def browser(chromium, tmp_path):
    recorder = Recorder()
    yield Browser(chromium, tmp_path, recorder)
    recorder.close()


def fleet(hosts=6, servers=8, bad=()):
    """A fleet whose servers named in `bad` as (host, server) failed."""
    value = None
    names = ["node-%d" % number for number in range(hosts)]
    for name in names:
        verdicts = [verdict("server-%d" % number, (name, "server-%d" % number) not in bad) for number in range(servers)]
        value = report.merge(value, report.host_report(name, "full", verdicts, NOW), names, NOW)
    return page.render(value)


BAD = (("node-1", "server-3"), ("node-4", "server-0"))


def test_everything_is_there_and_failures_are_open(browser):
    dom, console, requests = browser.open(fleet(bad=BAD))
    assert (console, requests) == ([], [])
    assert [element["text"] for element in dom.all("h1")] == ["46 of 48 servers verified, 2 failed"]
    assert len(dom.shown("a", "cell")) == len(dom.shown("details", "server")) == 48
    opened = [element for element in dom.all("details", "server") if "open" in element["attributes"]]
    assert [element["attributes"]["data-s"] for element in opened] == ["failed", "failed"]
    assert not dom.by_id("filter")["hidden"]
    assert dom.by_id("shown")["text"] == "48 of 48 servers shown"


@pytest.mark.parametrize(
    ("place", "count", "hosts"),
    [
        ("#show=all&host=NODE-4", 8, {"node-4"}),
        ("#show=failed&host=node-4", 1, {"node-4"}),
        ("#host=%3Cimg%20src%3Dx%3E", 0, set()),
    ],
)
def test_the_filter_by_the_address(browser, place, count, hosts):
    dom, console, requests = browser.open(fleet(bad=BAD), place)
    assert (console, requests) == ([], [])
    for tag, word in (("a", "cell"), ("details", "server")):
        shown = dom.shown(tag, word)
        assert len(shown) == count
        assert {element["attributes"]["data-h"] for element in shown} == hosts
    assert len(dom.shown("details", "host")) == len(hosts)
    assert dom.by_id("shown")["text"] == "%d of 48 servers shown" % count
    assert not dom.all("img")


@pytest.mark.parametrize("script", [True, False])
def test_a_link_to_a_server_opens_it_and_without_script_nothing_pretends_to_filter(browser, script):
    text = fleet(bad=BAD) if script else re.sub(r"(?s)<script>.*</script>", "", fleet(bad=BAD))
    dom, console, _requests = browser.open(text, "#s5")
    assert console == []
    opened = [element for element in dom.all("details", "server") if "open" in element["attributes"]]
    assert len(opened) == 3
    assert len(dom.shown("details", "server")) == 48
    assert dom.by_id("filter")["hidden"] is not script


CANARIES = '<img src="http://%s/canary"><img src="http://canary.invalid/"><script>document.title = "owned"</script>'


def test_these_tests_would_see_an_error_and_a_request(browser):
    text = "<!DOCTYPE html><title>x</title>" + CANARIES % browser.recorder.address + "<script>throw Error(1)</script>"
    dom, console, requests = browser.open(text)
    assert len(console) == 1
    assert len({line.split()[1] for line in requests if "canary" in line}) == 2
    assert dom.all("title")[0]["text"] == "owned"


def test_the_policy_stops_what_gets_through_the_escaping(browser):
    text = fleet(1, 1).replace("</main>", CANARIES % browser.recorder.address + "</main>")
    dom, console, requests = browser.open(text)
    assert requests == []
    assert len(dom.all("img")) == 2
    assert dom.all("title")[0]["text"] == "1 of 1 server verified"
    assert len([line for line in console if "Content Security Policy" in line]) == 3

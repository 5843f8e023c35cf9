# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import html.parser
import re
import time
from collections import Counter

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import page, report
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.plugins.plugin_utils.reporting.test_report import probe, verdict
from hypothesis import given
from hypothesis import strategies as st

NOW = "2026-01-02T03:04:05Z"
HOSTILE = (
    "</pre></details></style></script><script>alert(1)</script><img src=x onerror='alert(1)'>\"'` &amp; {{ 7*7 }} "
    "{% raw %} \x00\x1b[31m \u202egnp.exe\u2066 שלום \ud83d 👩\u200d👩 \u2028 " + "A" * 5000
)


def fleet(deployed=None, **hosts):
    """A fleet's report of {host: [verdicts]}; in a host's name _ stands for -."""
    result = None
    for name, verdicts in hosts.items():
        one = report.host_report(name.replace("_", "-"), "full", verdicts, NOW, None, deployed)
        result = report.merge(result, one, [host.replace("_", "-") for host in hosts], NOW)
    return result


class Reader(html.parser.HTMLParser):
    """The page as a browser would see it: tags with attributes, and the text outside of style and script."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.texts, self.raw, self._inside = [], [], [], {}, None
        self.feed(text)
        self.close()
        self.text = re.sub(r"\s+", " ", "".join(self.texts))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))
        self._inside = tag if tag in ("style", "script") else None
        self._apart(tag)

    def handle_endtag(self, tag):
        self._inside = None
        self._apart(tag)

    def _apart(self, tag):
        if tag not in ("b", "a", "em", "svg", "use"):
            self.texts.append(" ")

    def handle_data(self, data):
        if self._inside:
            self.raw.setdefault(self._inside, []).append(data)
        else:
            self.texts.append(data)

    def values(self, name):
        return [attributes[name] for _tag, attributes in self.attributes if name in attributes]


def read(value):
    return Reader(page.render(value))


# -- what it says ------------------------------------------------------------------------------------------------------


def test_failures_come_first_once_for_equal_ones_with_cause_and_what_to_do():
    failing = probe("tool-call", False, 1500, cause="started without `--tool-call-parser`", got="HTTP 200 no call")
    other = probe("alive", False, 3, cause="nothing listens", got=None)
    value = fleet(
        node_1=[verdict("server-0"), verdict("server-1", False, [probe("alive"), failing])],
        node_2=[verdict("server-0")],
        node_3=[verdict("server-0", False, [other]), verdict("server-2", False, [dict(failing, got="else")])],
    )
    seen = page.view(value)
    assert [(item["probe"], item["total"]) for item in seen["failures"]] == [("tool-call", 2), ("alive", 1)]
    assert [host["name"] for host in seen["hosts"]] == ["node-1", "node-3", "node-2"]
    assert [server["name"] for server in seen["hosts"][0]["servers"]] == ["server-1", "server-0"]
    assert [host["name"] for host in seen["overview"]] == ["node-1", "node-2", "node-3"]
    assert seen["failures"][0]["again"] == (
        "ansible-playbook playbooks/verify.yml -i INVENTORY --limit node-1,node-3 -e fleet_verify=full"
    )
    assert seen["failures"][1]["logs"] == (
        "ansible-playbook playbooks/logs.yml -i INVENTORY --limit node-3 -e fleet_log_server=server-0"
    )
    text = read(value).text
    order = ("tool-call failed on 2 servers", "Cause started without --tool-call-parser", "on node-1 / server-1",
             "alive failed on 1 server", "Servers")  # fmt: skip
    assert sorted(order, key=text.index) == list(order)
    assert "What failed" not in read(fleet(node_1=[verdict()])).text


@pytest.mark.parametrize(
    ("model", "deployed", "told"),
    [
        ("gpt-oss-120b", None, False),
        ("gpt-oss-tiny-standin", None, True),
        ("mine", report.deployed([], {"model": {"id": "mine", "source": "standin"}}), True),
    ],
)
def test_a_stand_in_is_labelled(model, deployed, told):
    text = read(fleet(node_1=[verdict(model_id=model)], deployed=deployed)).text
    assert ("Stand-in checkpoint. %s is a stand-in" % model in text) is (told and deployed is None)
    assert ("They show nothing about the quality or the speed of gpt-oss." in text) is told


def run_for(due, planned, before=None, began=NOW):
    """What a run for the hosts `due` begins with; planned: {host: plan entries}."""
    what = {name: report.deployed(entries) for name, entries in planned.items()}
    return report.begin(before, {"id": "a" * 12, "began": began}, due, what, began)


def test_hosts_without_a_verdict_of_this_run_are_not_verified():
    entries = [plan_entry(8000), plan_entry(8001, "server-1"), plan_entry(8002, "decode-0", role="decode")]
    planned = {"node-1": entries[:1], "node-2": entries, "node-3": entries[:1]}
    before = report.merge(None, report.host_report("node-1", "full", [verdict()], NOW), list(planned), NOW)
    value = run_for(["node-1", "node-2"], planned, before)
    one = report.host_report("node-1", "full", [verdict()], NOW, None, report.deployed(planned["node-1"]))
    value = report.merge(value, one, list(planned), NOW)
    seen = page.view(value)
    assert (seen["state"], seen["counts"]) == ("unknown", {"failed": 0, "unknown": 3, "passed": 1})
    assert [server["name"] for server in seen["overview"][1]["servers"]] == ["server-0", "server-1"]
    reader = read(value)
    for words in ("Not verified. node-2: %s The run began on 2 Jan 2026, 03:04:05 UTC." % report.MISSED,
                  "Not verified. node-3: " + report.NEVER, "server-1 not verified 127.0.0.1:8001 not asked",
                  "Behind the frontends decode-0 decode"):  # fmt: skip
        assert words in reader.text, words
    assert "hosts/node-2.json" not in reader.values("href")
    # a node of workers has no verdict, and counts all the same
    planned = {"node-1": [plan_entry(8000)], "node-2": [plan_entry(8000, "decode-0", role="decode")]}
    value, states = run_for(list(planned), planned), []
    for name, verdicts in (("node-1", [verdict()]), ("node-2", [])):
        value = report.merge(value, report.host_report(name, "full", verdicts, NOW), list(planned), NOW)
        states.append(page.view(value)["state"])
    assert states == ["unknown", "passed"]


def test_a_verdict_from_before_the_last_run_is_older():
    old = report.merge(None, report.host_report("node-1", "full", [verdict()], "2026-01-01T00:00:00Z"), ["node-1"], NOW)
    value = run_for(["node-2"], {"node-1": [plan_entry(8000)], "node-2": [plan_entry(8000)]}, old)
    assert "Older verdicts. node-1: verified before the last run" in read(value).text


def test_what_went_wrong_before_the_servers_were_asked_is_a_failure():
    problem = "0 of 1 servers ready after 9 s. decode-0: it died. Last log lines: no device"
    worker = [plan_entry(8000, "decode-0", role="decode")]
    value = None
    for name in ("node-1", "node-2"):
        one = report.host_report(name, "full", [], NOW, None, report.deployed(worker), problem)
        value = report.merge(value, one, ["node-1", "node-2", "node-3"], NOW)
    value = report.merge(value, report.host_report("node-3", "full", [verdict()], NOW), list(value["hosts"]), NOW)
    assert page.view(value)["state"] == "failed"
    reader = read(value)
    text = reader.text
    assert text.count(problem) == 1
    assert text.index("Failed before the servers were asked, on 2 hosts") < text.index("Servers")
    assert "node-1 0 of 0 verified failed full sequence" in text
    assert {"#h0", "#h1"} <= set(reader.values("href"))


def test_a_hostile_host_name_is_one_word_of_the_shell():
    value = fleet(node_1=[verdict(ok=False)])
    value["hosts"]["a; rm -rf /\n\u202e"] = value["hosts"].pop("node-1")
    assert "--limit 'a; rm -rf /??' -e" in page.view(value)["failures"][0]["again"]


# -- that it is a page -------------------------------------------------------------------------------------------------


def everywhere(text):
    """A report with `text` wherever a text can stand."""
    some = [probe(text, ok, sent=text, got=text, cause=text) for ok in (True, False, None)]
    one = verdict(text, False, some, model_id=text, host=text, mode=text, at=text, url=text, hash=text)
    full = {"ok": True, "generated": text, "verdicts": [one]}
    deployed = {
        "recipe": text, "description": text, "guide": text, "platform": text, "engine": text, "software": [text, text],
        "model": dict.fromkeys(("id", "repo", "revision", "format", "source"), text), "simulated": text,
        "servers": [{"name": name, "role": text, "devices": text} for name in (text, "worker")],
    }  # fmt: skip
    host = {"host": text, "ok": False, "generated": text, "mode": text, "deployed": deployed, "verdicts": [one]}
    host.update(last_full=full, problem=text)
    missing = {"cause": text, "run": text, "began": text, "last": {"ok": True, "generated": text, "mode": text}}
    unasked = dict(deployed, servers=[{"name": text, "role": "server", "bind": text, "port": text, "hash": text}])
    hosts = {text: host, text + "-": dict(host, deployed=unasked, verdicts=[], missing=missing)}
    return {"schema": 1, "ok": False, "generated": text, "run": {"id": text, "began": text}, "hosts": hosts}


PLAIN = read(everywhere("x"))


def test_what_a_server_says_is_text_and_nothing_else():
    text = page.render(everywhere(HOSTILE))
    reader = Reader(text)
    # backticks become <code>; so long a name is no file's, so it has no link, on neither host
    assert Counter(PLAIN.tags) - Counter(reader.tags) == {"p": 2, "a": 2}
    assert set(Counter(reader.tags) - Counter(PLAIN.tags)) == {"code"}
    assert reader.tags.count("script") == reader.tags.count("style") == 1
    assert "</pre></details></style></script><script>alert(1)</script><img src=x onerror='alert(1)'>\"'" in reader.text
    assert (
        "&amp; {{ 7*7 }} {% raw %} ␀␛[31m ⟨U+202E⟩gnp.exe⟨U+2066⟩ שלום ⟨U+D83D⟩ 👩\u200d👩 ⟨U+2028⟩ AAA" in reader.text
    )
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
    assert "A" * 4001 not in text
    text.encode("utf-8")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=5,
)


def places(value, path=()):
    """Every path into a JSON value."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


PLACES = list(places(everywhere("x")))


@given(st.sampled_from(PLACES), JSON)
def test_a_report_of_another_form_is_a_page_as_well(path, junk):
    value = everywhere("x")
    if not path:
        value = junk
    else:
        inner = value
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = junk
    assert page.render(value).endswith("</html>\n")


@pytest.mark.parametrize(("hosts", "servers"), [(1, 2), (9, 8)])
def test_it_needs_nothing_but_itself(hosts, servers):
    verdicts = [verdict("server-%d" % number, number > 0) for number in range(servers)]
    reader = read(fleet(**{"n_%d" % number: verdicts for number in range(hosts)}))
    ids = reader.values("id")
    assert len(ids) == len(set(ids))
    for link in reader.values("href"):
        assert link.startswith(("data:image/svg+xml,", "hosts/")) or link[1:] in ids, link
    assert not {"img", "iframe", "object", "embed", "base", "audio", "video"} & set(reader.tags)
    assert not reader.values("src")
    assert not reader.values("style")
    assert not [name for _tag, attributes in reader.attributes for name in attributes if name.startswith("on")]
    assert not re.search(r"url\(|@import|fetch|XMLHttp|://", "".join(reader.raw["style"] + reader.raw["script"]))


def test_the_host_file_is_linked_as_it_lies_on_the_disk():
    value = fleet(node_1=[verdict()])
    value["hosts"]["a/b %41"] = value["hosts"].pop("node-1")
    assert report.host_path("", "a/b %41") == "hosts/a%2Fb %2541.json"
    assert "hosts/a%252Fb%20%252541.json" in read(value).values("href")


def test_a_hundred_hosts_are_one_page_that_opens():
    """Each with eight servers that fail thirteen probes, evidence as long as probes make it."""
    sent, got = 'POST /v1/chat/completions {"model":"m"' + ', "a": "b"' * 40, 'HTTP 200 {"id":"x"' + ', "a": "b"' * 20
    probes = [probe("probe-%d" % number, False, sent=sent, got=got, cause=got) for number in range(13)]
    verdicts = [verdict("server-%d" % index, False, probes) for index in range(8)]
    hosts = {name: report.host_report(name, "full", verdicts, NOW) for name in map("node-{}".format, range(100))}
    value = report.merge({"hosts": hosts}, hosts["node-0"], hosts, NOW)
    page.render(fleet(node_1=[verdict()]))  # the template is compiled once for each process
    started = time.process_time()
    text = page.render(value)
    assert time.process_time() - started < 3  # 0.5 s on a core of its own
    assert len(text.encode("utf-8")) < 5e6
    assert len(re.findall(r'<a class="cell', text)) == 800

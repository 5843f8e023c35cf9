# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks of the role serve with modules that only write down how they were called: what follows from what; in
which batches Ansible takes the hosts."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from ansible_collections.inference.fleet.tests.runs import CLONE, play
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import (
    LOCAL,
    Tasks,
    hosts_file,
    play_tasks,
    tasks_play,
)

KEYS = ("state", "engine", "restart", "only", "changes", "deployed")
CHANGES = """
changed = name in json.load(open(folder + "/changing"))
answer = {"changed": changed, "answering": not changed, "pending": {}, "waves": []}
if given.get("changes") in ("one_by_one", "together"):
    answer["waves"] = json.load(open(folder + "/waves"))
    answer["pending"] = {one: "it changes" for wave in answer["waves"] for one in wave}
if given.get("state") == "rolled_back":
    answer["back"] = ["server-1"]
if [name, given.get("only"), given.get("deployed")] in json.load(open(folder + "/failing")):
    answer = {"failed": True, "msg": "it failed.", "final": True}
"""
VERIFY = """
- name: Verify
  stand_in_endpoint_verify:
    only: "{{ verify_servers | default(serve_servers) | map(attribute='name') }}"
"""
# What the role verify makes of it.
CHANGED = yaml.safe_load((CLONE / "roles/verify/defaults/main.yml").read_text())["verify_servers_changed"]


class Serve:
    """Plays of the tasks, with stand-ins in place of the modules."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "verify.yml").write_text(VERIFY)
        include, tasks = "include_role:\n        name: inference.fleet.verify", "include_tasks: %s/verify.yml" % folder
        self.tasks = Tasks(
            folder, "serve", ("node", "endpoint_verify"), CHANGES, lambda text: text.replace(include, tasks)
        )
        (folder / "roles/serve/meta/argument_specs.yml").unlink()

    def play(self, entries, changing=(), waves=(), **variables):
        """([modules and operations that were called, with what matters of them], whether the servers were changed)."""
        run, calls = self.run(entries, changing, waves, **variables)
        run.ok()
        return calls, (self.folder / "verdict").read_text() == "True"

    def run(self, entries, changing=(), waves=(), failing=(), **variables):
        """(the Run, [modules that were called]); failing: [(module, its only, its deployed)]."""
        options = ["--check"] if variables.pop("check", False) else []
        for name, value in (("waves", waves), ("failing", failing), ("changing", list(changing))):
            (self.folder / name).write_text(json.dumps(value))
        show = {"ansible.builtin.copy": {"content": CHANGED, "dest": str(self.folder / "verdict")}}
        calls, run = self.tasks.run(*options, variables={"serve_servers": entries, **variables}, more=[show])
        return run, [{"module": name, **{key: given[key] for key in KEYS if key in given}} for name, given in calls]


def entry(engine=None):
    container = engine and {"engine": engine, "address": None}
    return {"name": "server-0", "container": container, "health": {"budget_s": 1, "poll_s": 1}, "start": {"after": []},
            "secrets": {}}  # fmt: skip


SERVERS = {"module": "engine_servers", "state": "started", "changes": "one_by_one"}
READY = {"module": "engine_ready", "only": ["server-0"]}


def turn(*names):
    """The calls for a wave that is changed as it should."""
    named = {"only": list(names)}
    return [
        {"module": "engine_servers", "state": "started", "changes": "wave", **named},
        {"module": "engine_ready", **named},
        {"module": "endpoint_verify", **named},
        {"module": "engine_servers", "state": "verified", **named},
    ]


BACK = [{"module": "engine_servers", "state": "rolled_back"},
        {"module": "engine_ready", "only": ["server-1"], "deployed": True}]  # fmt: skip


@pytest.fixture
def serve(tmp_path):
    return Serve(tmp_path)


def test_servers_are_waited_for_if_they_changed_or_do_not_answer(serve):
    """A restart of Docker by prepare counts as a change."""
    only = ["server-0"]
    assert serve.play([entry("docker")], serve_only=only) == ([dict(SERVERS, only=only)], False)
    assert serve.play([entry()], ["engine_servers"]) == ([SERVERS, READY], True)
    assert serve.play([entry("docker")], container_engine_restarted={"changed": True})[1]


def servers(count):
    return [dict(entry(), name="server-%d" % number, role="server") for number in range(count)]


def test_servers_that_run_are_changed_one_after_the_other(serve):
    """Each is waited for and verified before the next one; what has no turn is waited for first."""
    calls, changed = serve.play(servers(4), ["engine_servers"], [["server-1"], ["server-3", "orphan"]])
    second = turn("server-3", "orphan")
    second[1:3] = [dict(one, only=["server-3"]) for one in second[1:3]]
    assert calls == [SERVERS, dict(READY, only=["server-0", "server-2"]), *turn("server-1"), *second]
    assert changed


def test_what_is_only_removed_is_not_waited_for(serve):
    calls, changed = serve.play(servers(1), [], [["orphan"]], serve_changes="together")
    first, *_between, last = turn("orphan")
    assert calls == [dict(SERVERS, changes="together"), first, last]
    assert changed


@pytest.mark.parametrize("module", ["engine_servers", "endpoint_verify"])
def test_what_fails_is_put_back_and_ends_the_run_with_the_versions(serve, module):
    waves = [["server-0"], ["server-1"], ["server-2"]]
    run, calls = serve.run(servers(3), [], waves, [[module, ["server-1"], None]])
    run.failed(
        "server-1 failed with the new definition: it failed.", "The old definition was restored and answers: server-1.",
        "Changed before: server-0.", "Nothing else was changed",
    )  # fmt: skip
    tried = turn("server-1")[: ["engine_servers", "engine_ready", "endpoint_verify"].index(module) + 1]
    assert calls == [SERVERS, *turn("server-0"), *tried, *BACK, *calls[-1:]]
    assert calls[-1] == {"module": "endpoint_verify", "only": ["server-0", "server-1", "server-2"]}


def test_an_old_definition_that_does_not_answer_either_is_said_and_check_mode_changes_nothing(serve):
    failing = [["engine_ready", ["server-1"], None], ["engine_ready", ["server-1"], True]]
    run, _calls = serve.run(servers(2), [], [["server-1"]], failing)
    run.failed("The old definition does not answer either: it failed.", "Changed before: none.")
    run, calls = serve.run(servers(2), [], [["server-0"], ["server-1"]], check=True)
    run.ok()
    assert "server-1" in run.output
    assert calls == [SERVERS]


# -- batches -----------------------------------------------------------------------------------------------------------

# What the look would have found: whether servers run on the host.
FOUND = {"n1": True, "n2": True, "n3": False, "n4": True, "n5": False}
LOOKUP = """
from ansible.plugins.lookup import LookupBase
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import run_look
class LookupModule(LookupBase):
    def run(self, terms, variables=None, **kwargs):
        for host, serving in %r.items():
            run_look.note(host, ["serve"], "serve", serving)
        return ["noted"]
"""


STEP = yaml.safe_load((CLONE / "playbooks/steps/serve.yml").read_text())[0]
NOTE = {"ansible.builtin.debug": {"msg": "{{ lookup('look') }}"}, "run_once": True}


def show(step):
    """A play that shows its batches, which are those of another play."""
    message = {"ansible.builtin.debug": {"msg": "batch {{ ansible_play_batch | join(' ') }}."}, "run_once": True}
    return tasks_play([message], hosts=step["hosts"], serial=step["serial"])


def batches(folder, found, plays, own, **options):
    """The batches that plays show for the hosts `found`; own: variables of some."""
    (folder / "lookup_plugins").mkdir()
    (folder / "lookup_plugins" / "look.py").write_text(LOOKUP % found)
    hosts = {host: {**LOCAL, "fleet_recipe": "cpu-tiny", **own.get(host, {})} for host in found}
    (folder / "play.yml").write_text(json.dumps(plays))
    run = play(str(folder / "play.yml"), hosts_file(folder, hosts), **options)
    return re.findall(r"batch ([^.]*)\.", run.output)


@pytest.mark.parametrize(("variables", "own", "changed", "restarted"), [
    ({"fleet_serial": 1}, {"n1": 2}, ["n3 n5", "n1", "n2", "n4"], list(FOUND)),
    ({"fleet_changes": "together"}, {"n2": [1, 2], "n3": 3}, ["n3", "n5 n1", "n2 n4"], ["n1", "n2 n3", "n4 n5"]),
])  # fmt: skip
def test_bare_hosts_first_then_one_alone(tmp_path, variables, own, changed, restarted):
    own = {host: {"fleet_serial": serial} for host, serial in own.items()}
    restart = yaml.safe_load((CLONE / "playbooks/restart.yml").read_text())[-1]
    plays = [tasks_play([NOTE], hosts="all"), show(STEP), show(restart)]
    assert batches(tmp_path, FOUND, plays, own, variables=variables) == changed + restarted


def test_a_host_that_failed_before_is_not_the_one_that_goes_alone(tmp_path):
    """Its batch would have no host, and the change would begin on all others at the same time."""
    fails = {
        "block": [{"ansible.builtin.fail": {}, "when": "inventory_hostname in ['n1', 'n2']"}],
        "rescue": [{"ansible.builtin.fail": {}, "when": "inventory_hostname == 'n1'"}],
    }
    plays = [tasks_play([NOTE, fails], hosts="all"), show(STEP)]
    environment = {"ANSIBLE_CALLBACKS_ENABLED": "inference.fleet.unreachable"}
    found = dict.fromkeys(("n1", "n2", "n3"), True)
    assert batches(tmp_path, found, plays, {}, environment=environment) == ["n2", "n3"]


def test_a_number_and_its_string_are_the_same_cluster(tmp_path):
    clusters = {"n1": {"fleet_cluster": 5}, "n2": {"fleet_cluster": "5"}, "n3": {"fleet_cluster": 6}, "n4": {}}
    inventory = hosts_file(tmp_path, {host: {**LOCAL, **own, "fleet_recipe": "x"} for host, own in clusters.items()})
    show = {"ansible.builtin.debug": {"msg": "of 5: {{ query('inference.fleet.hosts', cluster=5) | join(' ') }}."}}
    assert "of 5: n1 n2." in play_tasks(tmp_path, [show], inventory=inventory, hosts="n1").ok().output


def test_after_a_failure_no_server_of_another_host_is_changed(tmp_path):
    common = {"servers": [], "root": str(tmp_path / "r"), "reports_dir": ""}

    def call(**more):
        return {"inference.fleet.node": {"operation": "engine_servers", "arguments": {**common, **more}}}

    tasks = [
        {**call(changes="one_by_one"), "when": "inventory_hostname == 'n2'"},
        {**call(state="rolled_back"), "when": "inventory_hostname == 'n1'"},
        {**call(changes="wave", only=[]), "when": "inventory_hostname == 'n2'"},
    ]
    inventory = hosts_file(tmp_path, dict.fromkeys(("n1", "n2"), LOCAL))
    run = play_tasks(tmp_path, tasks, inventory=inventory, hosts="all")
    run.failed("servers of n1 could not be changed, so the run ends; those of n2 are left as they are.")
    assert run.output.count("fatal:") == 1

# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plans of earlier runs: when one is taken, when not, and what may be in the folder beside them."""

from __future__ import annotations

import base64
import hashlib
import os
import pathlib
import re
import stat

import pytest
from ansible_collections.inference.fleet.plugins.action import plan as action
from ansible_collections.inference.fleet.plugins.plugin_utils import cache_folder, seen_files
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet, run_plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.inventory import Hosts, inference_hosts
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load
from ansible_collections.inference.fleet.tests.unit.engines.plans import LOCAL, Lazy, error

OPTIONS = {"only_check": False, "report": True, "restart": None, "restarts": False, "secrets": False, "strict": True}
KEY = "sk-never-in-a-file"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the plans, and a list that gets an item for each plan that is made."""
    made, make = [], fleet.make
    monkeypatch.setenv(run_plan.VARIABLE, str(tmp_path / "plans"))
    monkeypatch.setattr(seen_files, "seen", {})
    monkeypatch.setattr(fleet, "make", lambda *given: made.append(1) or make(*given))
    return tmp_path / "plans", made


def ask(variables=None, hosts=("node1",), sources=("/inventory",), limit=None, **options):
    """The answer to what the action asks for; variables: of each host, or {host: those of each}."""
    variables = LOCAL if variables is None else variables
    each = variables if set(variables) == set(hosts) else dict.fromkeys(hosts, variables)
    others, options = Hosts(lambda host: Lazy(each[host]), sources), {**OPTIONS, **options}
    ours = inference_hosts(hosts, others)
    return action.answer_of(list(hosts), list(limit or hosts), ours, others, options)


def plan_in(answer):
    return answer["plan"]["hosts"]["node1"]["plan"]


def test_a_plan_is_made_once_and_the_same(cache):
    folder, made = cache
    first = ask()
    assert ask() == first
    assert len(made) == 1
    assert len(plan_in(first)["servers"]) == 2
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("change", "plans"),
    [
        ({"fleet_override_more": {"start": {"budget_s": 5}}}, 2),
        ({"serve_manager": "systemd"}, 2),  # a role's: it is checked, though nothing is planned of it
        ({"ansible_host": "192.0.2.7"}, 2),  # two hosts may be one machine then
        ({"fleet_hub_token": KEY}, 2),
        ({"theirs": "x", "vault_of_the_boss": RuntimeError("locked")}, 1),
    ],
)
def test_a_changed_variable_is_planned_anew_if_a_plan_reads_it(cache, change, plans):
    hosts = {"node1": LOCAL, "node2": LOCAL}
    ask(hosts, hosts)
    for _turn in range(2):
        ask({**hosts, "node2": {**LOCAL, **change}}, hosts)
    assert len(cache[1]) == plans


@pytest.mark.parametrize(
    "change",
    [
        {"hosts": ("node1", "node2")},
        {"limit": ("node2",), "hosts": ("node1", "node2")},
        {"sources": ("/another",)},
        {"report": False},
        {"strict": False},
        {"secrets": True},
        {"only_check": True},
        {"restarts": True, "restart": "server-0"},
    ],
)
def test_something_else_that_is_asked_for_is_planned(cache, change):
    ask()
    ask(**change)
    assert len(cache[1]) == 2
    ask(**change)
    ask()
    assert len(cache[1]) == 2


def test_a_changed_file_of_a_recipe_is_planned_anew(cache, tmp_path):
    (tmp_path / "inventory").mkdir()
    folder = tmp_path / "recipes"
    (folder / "families").mkdir(parents=True)
    own = folder / "mine.yml"
    own.write_text("name: mine\nextends: ours\n")
    (folder / "ours.yml").write_text("name: ours\nextends: common\n")
    family = folder / "families" / "common.yml"
    family.write_text("extends: cpu-tiny\n")

    def seconds():
        for cached in (load._content, load._load):  # of a new run
            cached.cache_clear()
        load._resolved.clear()
        seen_files.seen.clear()
        answer = ask({**LOCAL, "fleet_recipe": "mine"}, sources=(str(tmp_path / "inventory"),))
        return plan_in(answer)["deployment"]["start"]["budget_s"]

    assert [seconds(), seconds(), len(cache[1])] == [300, 300, 1]
    family.write_text("extends: cpu-tiny\nstart: {budget_s: 7}\n")
    assert [seconds(), len(cache[1])] == [7, 2]
    (folder / "ours.yml").write_text("name: ours\nextends: cpu-tiny\n")
    assert [seconds(), len(cache[1])] == [300, 3]
    own.write_text("name: mine\nextends: ours\nlauncher: container\ncontainer: {image: mine}\n")
    images = folder / "images.yml"
    for number in (1, 2):
        images.write_text("mine: {image: 'registry.example.com/mine:%d'}\n" % number)
        assert [seconds(), len(cache[1])] == [300, 3 + number]
    (folder / "another.yml").write_text("name: another\n")  # that nobody named
    assert [seconds(), len(cache[1])] == [300, 5]
    (folder / "cpu-tiny.yml").write_text(
        (pathlib.Path(load.OWN_RECIPES) / "cpu-tiny.yml").read_text() + "# the site's\n"
    )
    assert [seconds(), len(cache[1])] == [300, 6]
    images.unlink()
    assert error(seconds).problems[0].code == "recipe.name-unknown"


def test_what_planning_looks_at_is_noted():
    """Besides the collection's own files, which the digest of the code has, and modules that do not plan."""
    looks = re.compile(
        r"\bopen\(|os\.(path\.(exists|lexists|is\w+)|scandir|listdir|walk|environ)\b"
        r"|read(able)?_(json|text|bytes)\("
    )
    known = {
        "engines/options.py": 1,
        "models/chat.py": 1,
        "planning/container.py": 1,
        "planning/steps.py": 1,  # roles and playbooks of the collection
        "planning/variables.py": 3,
        "platforms/neuron/artifacts.py": 1,
        "recipe/schema.py": 1,
    }
    others = ("inventory.py", "run_plan.py", "run_look.py")
    root, found = pathlib.Path(seen_files.__file__).parent, {}
    for folder in ("engines", "models", "planning", "platforms", "recipe"):
        for path in sorted((root / folder).rglob("*.py")):
            count = len(looks.findall(path.read_text(encoding="utf-8")))
            if count and path.name not in others and not path.name.startswith("operation_"):
                found[str(path.relative_to(root))] = count
    assert found == known


def test_other_code_is_another_question(tmp_path, monkeypatch, cache):
    """Not another time of a file, and not what no plan reads."""
    ask()
    monkeypatch.setattr(run_plan, "COLLECTION", str(tmp_path))
    ask()
    assert len(cache[1]) == 2
    found = [run_plan.code()]
    for place, text, counts in (
        ("plugins/plugin_utils/planner.py", "one", True),
        ("roles/serve/tasks/main.yml", "one", True),
        ("roles/serve/tasks/main.yml", "two", True),
        ("roles/serve/README.md", "x", False),
        ("roles/serve/files/data", "x", False),
        ("roles/serve/tasks/.main.yml.swp", "x", False),
    ):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (0, 0))
        assert (run_plan.code() not in found) is counts, place
        found.append(run_plan.code())


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ({**LOCAL, "fleet_root": "here"}, {}),
        ({**LOCAL, "fleet_root": "here"}, {"only_check": True}),
        ({**LOCAL, "fleet_override": {"secrets": {"HF_TOKEN": "hf"}}}, {"secrets": True}),
        (LOCAL, {"restarts": True, "restart": "none-such"}),
    ],
)
def test_what_is_wrong_is_never_kept(cache, variables, options):
    for _turn in range(2):
        error(ask, variables, **options)
    assert len(cache[1]) == 2
    assert not list(cache[0].glob("*.json"))


def test_no_secret_is_in_any_file(cache):
    secrets = {
        "fleet_api_key": [KEY, KEY + "-2"],
        "fleet_hub_token": KEY + "-hub",
        "hf": KEY + "-hf",
        "container_engine_logins": {"registry.example.com": {"username": "me", "password": KEY + "-login"}},
        "fleet_override": {"secrets": {"HF_TOKEN": "hf"}},
    }
    ask({**LOCAL, **secrets}, secrets=True)
    ask({**LOCAL, **secrets, "hf": KEY + "-other"}, secrets=True)
    assert len(cache[1]) == 2
    data = b"".join(path.read_bytes() for path in cache[0].iterdir())
    for end in ("", "-2", "-hub", "-hf", "-login", "-other"):
        text = (KEY + end).encode()
        for form in (text, base64.b64encode(text)[:-4], hashlib.sha256(text).hexdigest().encode()):
            assert form not in data


class HostVars(dict):
    """Ansible's hostvars outside of a template."""

    def __missing__(self, key):
        raise ReferenceError(key)


def test_a_plan_that_read_a_host_of_before_is_none(cache):
    found = []
    for hosts in (("n1", "n2"), ("n1",)):
        others = Hosts.of_task({"hostvars": HostVars({host: {} for host in hosts})})
        for host in hosts:
            others(host).get("fleet_recipe")
        found.append(run_plan.PlanCache("question").recall(others))
        run_plan.PlanCache("question").keep(others, "answer of %d" % len(hosts))
    assert [*found, run_plan.PlanCache("question").recall(others)] == [None, None, "answer of 1"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path, _patch: path.symlink_to(path.rename(path.parents[1] / "elsewhere")),
        lambda path, _patch: path.chmod(0o644),
        lambda path, _patch: path.write_bytes(path.read_bytes()[:-20]),
        lambda path, _patch: path.write_bytes(b"[1]"),
        lambda path, _patch: (path.unlink(), path.mkdir()),
        lambda _path, patch: patch.setattr(cache_folder.os, "geteuid", lambda: os.getuid() + 1),
    ],
)
def test_a_file_of_others_or_a_damaged_file_is_ignored(cache, monkeypatch, damage):
    folder, made = cache
    first = ask()
    (path,) = folder.glob("*.json")
    damage(path, monkeypatch)
    assert ask() == first
    assert len(made) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder, _other, _patch: folder.write_text(""),
        lambda folder, other, _patch: folder.symlink_to(other),
        lambda folder, _other, _patch: (folder.mkdir(), folder.chmod(0o777)),
        lambda folder, _other, patch: (folder.write_text(""), patch.setenv(run_plan.VARIABLE, str(folder / "plans"))),
    ],
)
def test_a_folder_that_is_none_of_ours_keeps_nothing(tmp_path, cache, monkeypatch, damage):
    other = tmp_path / "elsewhere"
    other.mkdir(mode=0o700)
    damage(cache[0], other, monkeypatch)
    assert ask() == ask()
    assert len(cache[1]) == 2
    assert list(other.iterdir()) == []


def test_it_does_not_grow(cache, monkeypatch):
    folder, made = cache
    monkeypatch.setattr(run_plan, "KEPT", 2)
    (folder).mkdir(mode=0o700)
    (folder / ".left.plan.x").write_text("by a run that was killed")
    os.utime(folder / ".left.plan.x", (0, 0))
    for number in range(5):
        ask(sources=("/inventory%d" % number,))
    assert len(list(folder.iterdir())) == 2
    assert not (folder / ".left.plan.x").exists()
    ask(sources=("/inventory4",))
    assert len(made) == 5

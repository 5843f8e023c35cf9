# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Servers in containers of real engines, below a root of this machine: what arrives inside, and what is left."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers import engine as container_engine
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines import trtllm
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files, processes
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import container as container_launch
from ansible_collections.inference.fleet.tests.unit.engines import small_node

NASTY = ['%n %% $HOME ${HOME} $$ " \' \\ \\x41 \t\n; # {"a": [1]} é 漢 \U0001f600', "", " ", "-", "--", "--env=A=b",
         "=", "a=b", "\r\n", "\x7f", "*", "~", "|", "@file", "a,b", 'a"b,"c', "\n", "\ufeff", "x" * 5000,
         "{{ 1 + 1 }}", "{% raw %}", "`id` $(id)", "%h%i%%", "\\", "'"]  # fmt: skip
SLEEP = ["/usr/bin/python3", "-I", "-S", "-c", "import time; time.sleep(900)"]


class ContainerNode(small_node.SmallNode):
    """A node below a root whose servers run in containers of the engine at `address`."""

    def __init__(self, root, engine, image, options):
        super().__init__(root)
        self.image = image
        self.engine = engine
        self.options = options

    def contained(self, entry, command=None, **container):
        """The entry as the plan would have it with launcher: container."""
        options = {"image": self.image, "engine": self.engine.kind, "entrypoint": "", **self.options, **container}
        options.setdefault("mounts", [{"source": small_node.ENGINE, "read_only": True}])
        entry = dict(entry, launcher="container", start=dict(entry["start"], restart_with_leader=False))
        entry["command"] = command or ["/usr/bin/python3", *entry["command"][1:]]
        folders = list(entry["directories"].values())
        entry["container"] = container_launch.resolve(options, "test", None, [0], [], folders, entry["command"])
        entry["launch"] = container_launch.launch_argv(entry, self.root)
        return small_node.rehash(entry)

    @property
    def flags(self):
        return ["--ulimit=%s=%s" % item for item in self.options.get("ulimits", {}).items()]

    def containers(self, name=None):
        return self.engine.containers(self.root, name)

    def inside(self, name, word):
        """Pids of the server's processes, the engine's client apart, whose argv has the word."""
        return [pid for pid in self.running(name) if word in processes.argv(pid) and "--rm" not in processes.argv(pid)]

    def record(self, name):
        return files.readable_json(self.paths.server_state(name)) or {}

    def end(self):
        self.is_empty()
        super().end()
        # a container whose `docker run` had just begun is there a moment later
        small_node.wait_until(self.is_empty)

    def is_empty(self):
        """Whether no container was left; those that were are removed."""
        with contextlib.suppress(container_engine.EngineError):
            self.engine.remove(self.containers())
        return self.containers() == []


def _docker(nodes):
    """The engine that the nodes' tool found or started, and its base image."""
    address = "unix://%s" % nodes.SOCKET if nodes.SOCKET.exists() else None
    return container_engine.Engine("docker", address), nodes.build_base(), {"address": address}


def _podman(nodes):
    """This machine's podman, where it can run a container; the image comes from docker."""
    engine, options = container_engine.Engine("podman"), {"ulimits": {"nofile": "1024:1024", "nproc": "1000:1000"}}
    flags = ["--ulimit=%s=%s" % item for item in options["ulimits"].items()]
    image = nodes.build_base()
    try:
        if engine.image(image) is None:
            docker, archive = _docker(nodes)[0], nodes.CACHE / "podman.tar"
            docker.call("save", "--output", str(archive), image, timeout=300)
            try:
                engine.call("load", "--input", str(archive), timeout=300)
            finally:
                archive.unlink()
        engine.call("run", "--rm", "--init", "--pull=never", "--network=host", *flags, image, "/bin/true")
    except container_engine.EngineError as error:
        pytest.skip("podman runs no containers here: %s" % error.words)
    return engine, image, options


@pytest.fixture(scope="module", params=[_docker, _podman], ids=["docker", "podman"])
def each_engine(request, nodes):
    """(Engine, image, what a recipe's container says because of it)."""
    return request.param(nodes)


@contextlib.contextmanager
def running_node(folder, *engine):
    made = ContainerNode(folder / "root", *engine)
    with small_node.watched(folder):
        try:
            yield made
        finally:
            made.end()


@pytest.fixture
def node(nodes, tmp_path):
    with running_node(tmp_path, *_docker(nodes)) as made:
        yield made


@pytest.fixture
def each_node(each_engine, tmp_path):
    """As `node`, with docker and with podman; for what differs between the two."""
    with running_node(tmp_path, *each_engine) as made:
        yield made


def rows(result):
    return {row["name"]: row for row in result["servers"]}


def environment_of(pid):
    return {os.fsdecode(key): os.fsdecode(value) for key, value in processes.environment_of(pid).items()}


def test_words_arrive_as_planned(each_node):
    """The kernel shows the process inside with the argv and environment of the entry, byte for byte."""
    environment = {"V%d" % number: value for number, value in enumerate(NASTY)}
    command = [*SLEEP, "word", *NASTY]
    entry = each_node.contained(each_node.entry("word", environment=environment), command, mounts=[], workdir="/")
    each_node.servers([entry])
    pid = small_node.wait_until(lambda: [one for one in each_node.inside("word", "word")
                                         if processes.argv(one)[0] == SLEEP[0]])[0]  # fmt: skip
    assert processes.argv(pid) == command
    found = environment_of(pid)
    assert {key: found[key] for key in environment} == environment


def test_from_the_start_to_nothing(each_node):
    entries = [each_node.contained(each_node.entry(name)) for name in ("server-0", "server-1")]
    assert each_node.module("engine_servers", entries, check=True)["changed"]
    assert each_node.containers() == []
    each_node.serving(entries)
    assert not each_node.servers(entries)["changed"]
    info = rows(each_node.module("engine_servers_info", entries, log_lines=5, probe=True))
    for entry in entries:
        row = info[entry["name"]]
        assert (row["state"], row["ready"], row["drift"], row["hash"]) == ("running", True, None, entry["hash"])
        assert row["memory_mib"] > 5
        assert any(line.startswith("small engine ") for line in row["log_tail"])
        (container,) = each_node.containers(entry["name"])
        assert (container.hash, container.name) == (
            entry["hash"], container_engine.container_name(entry["name"], each_node.root),
        )  # fmt: skip
        holder = processes.port_holder("127.0.0.1", entry["port"])
        assert (holder["server"], holder["root"]) == (entry["name"], each_node.root)

    before = {one.server: one.id for one in each_node.containers()}
    changed = [
        each_node.contained(each_node.entry("server-0", port=entries[0]["port"], environment={"B": "1"})),
        entries[1],
    ]
    assert "server-0" in each_node.serving(changed)["diff"]["after"]
    after = {one.server: one.id for one in each_node.containers()}
    assert (after["server-0"] == before["server-0"], after["server-1"] == before["server-1"]) == (False, True)

    assert each_node.servers(changed[:1])["removed"] == ["server-1"]
    assert [one.server for one in each_node.containers()] == ["server-0"]
    each_node.servers(changed, only=["server-0"], state="stopped")
    assert each_node.containers() == []
    each_node.servers([])
    assert each_node.running("server-0") == []


def restarted(node, entry, container):
    """The one container of the server, another one than this."""

    def look():
        found = node.containers(entry["name"])
        return found[0] if len(found) == 1 and found[0].running and found[0].id != container.id else None

    return small_node.wait_until(look, 300, "another container")


def test_of_a_killed_engine_there_is_one_container_afterwards(each_node):
    """Molecule's scenario containers kills the client and dockerd."""
    entry = each_node.contained(each_node.entry("server-0", "--child", "--away"))
    each_node.serving([entry])
    (container,) = each_node.containers("server-0")
    pids = each_node.running("server-0")
    client = each_node.record("server-0")["pid"]
    init = int(each_node.engine.call("container", "inspect", "--format", "{{.State.Pid}}", container.id))
    assert client in pids and init in pids
    assert processes.argv(client)[0] == each_node.engine.kind
    engine = next(
        pid for pid in pids if processes.argv(pid)[0] == "/usr/bin/python3" and processes.process(pid).parent == init
    )
    os.kill(engine, signal.SIGKILL)
    restarted(each_node, entry, container)
    assert not [pid for pid in pids if small_node.alive(pid)]
    each_node.ready([entry])
    assert each_node.module("engine_servers_info", [entry])["servers"][0]["restarts"] == 1


def kill_managers(node):
    """Kill supervisord and the client of the container."""
    for pid in [*node.daemons(), node.record("server-0")["pid"]]:
        with contextlib.suppress(ProcessLookupError):  # some end by themselves when supervisord has ended
            os.kill(pid, signal.SIGKILL)


def test_a_container_without_its_service_manager_is_found_and_ended(node):
    entry = node.contained(node.entry("server-0"))
    node.serving([entry])
    kill_managers(node)
    small_node.wait_until(lambda: not node.daemons())
    row = node.module("engine_servers_info", [entry])["servers"][0]
    assert (row["state"], row["reason"], row["hash"]) == (
        "running", "it runs without its service manager", entry["hash"],
    )  # fmt: skip
    (container,) = node.containers()
    assert node.servers([entry])["changed"]
    restarted(node, entry, container)
    os.unlink(node.paths.entry("server-0"))
    kill_managers(node)
    other = node.contained(node.entry("other"))
    assert node.servers([other])["removed"] == ["server-0"]
    assert [one.server for one in node.containers()] in ([], ["other"])


def test_process_and_container_make_way_for_each_other(node):
    process = node.entry("server-0")
    container = node.contained(process)
    for entry, inside in ((process, 0), (container, 1), (process, 0)):
        node.serving([entry])
        assert len(node.containers()) == inside
        assert not node.servers([entry])["changed"]


def test_a_foreign_container_of_the_same_name_is_left_alone(node):
    entry = node.contained(node.entry("server-0"))
    name = container_engine.container_name("server-0", node.root)
    node.engine.call(
        "run", "--detach", "--pull=never", "--name", name, "--network=host", *node.flags, node.image, *SLEEP
    )
    try:
        message = node.module("engine_servers", [entry])["msg"]
        assert message.startswith(
            "Server 'server-0': the name %s belongs to another container of %s (" % (name, node.engine.label)
        )
        assert not os.path.exists(node.paths.entry("server-0"))
        # and where it comes later, the guard says so and does not start
        holder = node.engine.container(name)["Id"]
        node.engine.call("rename", holder, name + "-x")
        node.serving([entry])
        (ours,) = node.containers()
        node.engine.call("rename", ours.id, name + "-y")
        node.engine.call("rename", holder, name)
        node.engine.remove([ours])

        def refusal():
            reason = node.record("server-0").get("reason") or ""
            return reason if "belongs to a container" in reason else None

        reason = small_node.wait_until(refusal, 300, "the refusal")
        assert reason == "the name %s belongs to a container that is not of this server (%s)" % (name, holder[:12])
        node.servers([entry], state="absent")
        assert node.engine.container(name)["Id"] == holder
    finally:
        node.engine.call("rm", "--force", name, check=False)
        node.engine.call("rm", "--force", name + "-x", check=False)


def test_a_secret_is_in_no_argv(node):
    entry = node.entry("server-0", secrets={"HF_TOKEN": "fleet_hf_token"}, secret_versions={"HF_TOKEN": "1"})
    entry = node.contained(entry)
    secret = "s3cr3t $(id) \"'\n%"
    node.serving([entry], secrets={"fleet_hf_token": secret})
    engine = node.inside("server-0", "--port")
    assert [environment_of(pid)["HF_TOKEN"] for pid in engine] and not [
        pid for pid in engine if environment_of(pid)["HF_TOKEN"] != secret
    ]
    client = node.record("server-0")["pid"]
    assert "--env=HF_TOKEN" in processes.argv(client)
    assert "s3cr3t" not in " ".join(word for pid in processes.process_table() for word in processes.argv(pid))
    with open(node.paths.entry("server-0"), encoding="utf-8") as stream:
        assert "s3cr3t" not in stream.read()


def test_an_image_that_is_gone_is_said_and_the_start_limit_holds(node):
    entry = node.contained(node.entry("server-0"), ["/no/such/program"])
    node.servers([entry])
    small_node.wait_until(lambda: node.record("server-0").get("count", 0) >= 2, 300, "the second start")
    small_node.wait_until(lambda: not node.containers(), 300, "the end of a container that could not start")
    row = node.module("engine_servers_info", [entry], log_lines=20)["servers"][0]
    assert any("/no/such/program" in line for line in row["log_tail"]), row
    missing = node.contained(node.entry("server-1"), image="inference-fleet-nothing:1")
    assert "the image inference-fleet-nothing:1 is not on this node." in node.module("engine_servers", [missing])["msg"]


@pytest.mark.soak
def test_a_separate_network(node):
    """The port that the engine's proxy listens on is the server's, so that it can be restarted."""
    name = "inference-fleet-test-%d" % os.getpid()
    try:
        node.engine.call("network", "create", name)
    except container_engine.EngineError as error:
        pytest.skip("no user networks here: %s" % error.words)
    try:
        plain = node.entry("server-0", "--bind", "0.0.0.0")
        for environment in ({}, {"B": "1"}):
            entry = node.contained(dict(plain, environment=environment), network=name)
            entry["container"]["flags"].append("--publish=127.0.0.1:%d:%d" % (plain["port"], plain["port"]))
            entry["launch"] = container_launch.launch_argv(entry, node.root)
            entry = small_node.rehash(entry)
            assert node.serving([entry])["changed"]
            assert not node.servers([entry])["changed"]
        node.servers([entry], state="absent")
    finally:
        node.engine.call("network", "rm", name, check=False)


# What an engine's own modules would say: what reached it, and whether it has a network.
ASKED = """
import json, socket, sys
text = sys.stdin.read()
words = "%s %s %s" % (" ".join(text.split()), sys.argv[2:], sorted(name for _number, name in socket.if_nameindex()))
print(sys.argv[1] + json.dumps({"verdict": "refused" if "wrong" in text else "taken", "words": words}))
"""


def test_an_image_is_shown_the_configuration_before_anything_stops(each_node, monkeypatch):
    monkeypatch.setattr(trtllm.Trtllm, "config_check", lambda self, entry: (ASKED, ["ä b"]))
    monkeypatch.setattr(trtllm.Trtllm, "config_verdict", lambda self, verdict, words: (verdict, words))

    port = small_node.free_port()

    def entry(value):
        config = {"path": each_node.paths.configs + "/one.yml", "format": "yaml", "content": {"key": value}}
        made = each_node.entry("one", port=port, engine="trtllm", config=config)
        return each_node.contained(made, [*SLEEP, "one"], mounts=[], workdir="/")

    each_node.servers([entry("right")])
    small_node.wait_until(lambda: each_node.inside("one", "one"))
    before = [one.id for one in each_node.containers()]
    refused = each_node.module("engine_servers", [entry("wrong ü")])
    assert "refuses its configuration: { \"key\": \"wrong ü\" } ['ä b'] ['lo']." in refused["msg"]
    assert [one.id for one in each_node.containers()] == before
    assert not each_node.servers([entry("right")])["changed"]
    assert [one.id for one in each_node.containers()] == before

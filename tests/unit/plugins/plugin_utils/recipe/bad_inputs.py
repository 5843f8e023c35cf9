# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people write wrongly, and the place that the message must name.

Each row is (input, a part of the message that names the place). Inputs of FILES are whole recipe files; of LINES,
lines that are put behind cpu-tiny's; of OVERRIDES, fleet_override over cpu-tiny; of HARDWARE, fleet_hardware; of
VARIABLES, further variables of the host.
"""

from __future__ import annotations

import functools
import math

LOOP = {}
LOOP["arguments"] = LOOP
DEEP = functools.reduce(lambda inner, _level: {"a": inner}, range(40), 1)


def server(**changes):
    """An override of cpu-tiny's only group."""
    return {"servers": {"server": changes}}


def two(*changes):
    """An override that gives two groups."""
    return {"servers": [{"role": "server", "count": 1, "devices": 1, "port": 1024 + number, **one}
                        for number, one in enumerate(changes)]}  # fmt: skip


# A whole recipe file, as bytes or text.
FILES = [
    ("", "mine.yml"),
    ("- schema: 1\n", "mine.yml"),
    ("schema: [1\n", "line 2"),
    ("schema: 1\n---\nschema: 1\n", "line 2"),
    ("x: !!python/object/apply:os.system [id]\n", "python/object/apply:os.system"),
    ("x: !vault abc\n", "!vault"),
    ("x: !!int abc\n", "mine.yml"),
    ("x: %s\n" % ("1" * 5000), "mine.yml"),
    ("a: " + "[" * 100_000, "line 1"),
    (b"name: \xff\xfe\n", "mine.yml"),
    ("x: '\x00'\n", "mine.yml"),
    ("? [1]\n: 2\n", "line 1"),
]

# Lines behind those of cpu-tiny; a key that is there already is replaced.
LINES = [
    ("name: other", "'name'"),
    ("on: 1", '"on"'),
    ("2024-01-01: x", '"2024-01-01"'),
    ("environment: {A: 1, A: 2}", '"A"'),
    ("arguments: {<<: 3}", "mine.yml"),
    ("start: {budget_s: 010}", "010"),
    ("arguments: {x: .nan}", "arguments.x"),
    ("arguments: {x: &a [*a]}", "arguments.x[0]"),
    (
        "arguments: {a: &a [1,1,1,1,1,1,1,1,1,1], b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a], "
        "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b], d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c], "
        "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]}",
        "the recipe",
    ),
    ("model: {revision: 2024-01-01}", "model.revision"),
    ("schema: '1'", "schema"),
    ("model: null", "'model'"),
    ("servers: [{role: server, count: 8.0, devices: 1, port: 8000}]", "servers[0].count"),
    ("servers: [{role: server, count: 1, devices: 1, port: '8000'}]", "servers[0].port"),
    ("model: {path: '{{ models }}/x'}", "model.path"),
    ("arguments: {model: |\n    x\n  }", "line"),
    ("arguements: {}", "arguements"),
    ('"arguments\\u200b": {}', "arguments\\u200b"),
    ('servers: [{name: "server\\n", role: server, count: 1, devices: 1, port: 8000}]', "servers[0].name"),
]

DEVICES = ("nvidia0", "/etc/passwd", "/dev/../etc", "nvidia.com/gpu", "/dev/nvidia0:rwx")
# fleet_override over cpu-tiny.
OVERRIDES = [
    ("arguments", "fleet_override"),
    ({True: 1}, "the key true"),
    (LOOP, "arguments"),
    ({"arguments": {"x": DEEP}}, "arguments.x.a"),
    ({"arguments": {"x": math.nan}}, "arguments.x"),
    ({"start": {"budget": 3}}, "start.budget"),
    (server(count=10**15), "servers.server.count"),
    (server(count=0), "the sum of servers.server.count"),
    (server(port=None), "'servers.server' lacks 'port'"),
    (server(ports={"metrics": 80}), "servers.server.ports.metrics"),
    ({"command": []}, "command"),
    (server(ports={"model": 1}), "'servers.server.ports' has the name"),
    (server(health={"port": "system"}), "servers.server.health.port"),
    (server(secrets={"A": "b"}, environment={"A": "c"}), "environment.A"),
    (server(after=["server"]), "server-0"),
    (server(after=["x"]), "servers.server.after"),
    ({"venv": None, **server(venv={"create": False})}, "servers.server.venv.path"),
    ({"services": {"web": {"port": 1}}, **server(ports={"web": 9100})}, "servers.server.ports.web"),
    (server(cpus="5-2"), "cpus"),
    ({"servers": {"srv": {"port": 9000}}}, "'srv'"),
    ({"servers": {"server": None}}, "servers"),
    (two({"name": "a"}, {"name": "a"}), "servers[1].name"),
    (two({"name": "a", "count": "auto"}, {"name": "b", "count": "auto"}), "servers.a.count and servers.b.count"),
    (two({"name": "a", "after": ["b"]}, {"name": "b", "after": ["a"]}), "a-0, b-0"),
    ({"instances": {"server-1": {"port": None}}}, "instances.server-1.port"),
    ({"instances": {"server-1": {"prot": 9000}}}, "instances.server-1.prot"),
    ({"instances": {"server-1": {"arguments": {"max-num-seqs": -1}}}}, "arguments.max-num-seqs"),
    ({"model": {"id": "/"}}, "model.id"),
    ({"model": {"repo": "Qwen/Qwen3-32B"}}, "model.repo"),
    ({"model": {"path": "/"}}, "model.path"),
    ({"model": {"source_path": "/", "source": "path"}}, "model.source_path"),
    ({"model": {"format": "fp8"}}, "model.format"),
    ({"directories": {"work": "/"}}, "directories.work"),
    ({"directories": {"log": "/x"}}, "directories.log"),
    ({"arguments": {"max-model-len": 131073}}, "arguments.max-model-len"),
    ({"arguments": {"kv-cache-memory-bytes": "-64M"}}, "arguments.kv-cache-memory-bytes"),
    ({"arguments": {"tensor-parallel-size": 2}}, "arguments.tensor-parallel-size"),
    ({"arguments": {"tp": 1}}, "unknown key 'tp'"),
    ({"arguments": {"tp": 1, "tensor-parallel-size": 1}}, "arguments.tp"),
    ({"arguments": {"a": True, "no-a": True}}, "arguments.no-a"),
    ({"arguments": {"enforce-eager": "false"}}, "arguments.enforce-eager"),
    ({"arguments": {"--max-num-seqs": 4}}, '"--max-num-seqs"'),
    ({"arguments": {"enforce-eagr": None}}, "arguments.enforce-eagr"),
    ({"arguments": {"port": 9000}}, "arguments.port"),
    ({"arguments": {"model": "x\n"}}, "arguments.model"),
    ({"arguments": {"served-model-name": "other"}}, "arguments.served-model-name"),
    ({"environment": {"A B": "1"}}, '"A B"'),
    ({"environment": {"A": "${port"}}, "environment.A"),
    ({"environment": {"VLLM_CPU_KVCACHE_SPACE": "-4"}}, "environment.VLLM_CPU_KVCACHE_SPACE"),
    ({"secrets": {"OMP_NUM_THREADS": "vault_x"}}, "environment.OMP_NUM_THREADS"),
    ({"secrets": {"A": "x"}, "instances": {"server-0": {"environment": {"A": "1"}}}}, "environment.A"),
    ({"config": {"format": "yaml", "content": {"max_model_len": 10**9}}}, "config.content.max_model_len"),
    ({"config": {"format": "yaml", "content": {"a": "${b}"}}}, "config.a"),
    ({"probes": [{"name": "chat", "body": {"messages": []}}]}, "probes[0].name"),
    ({"probes": [{"name": "mine"}]}, "probes[0].body"),
    ({"model": {"adapters": [{"name": "a", "path": "/x"}] * 2}}, "model.adapters[1].name"),
    ({"config": {"format": "yaml", "content": {"${name}": 1}}}, '"${name}"'),
    ({"probes": {"mine": {}}}, "'mine'"),
    ({"needs": {"accelerators": ["cpu", "cpus"]}}, "needs.accelerators[1]"),
    ({"environment": {"X": "y" * 200_000}}, "environment.X"),
    ({"launcher": "container"}, "container.image"),
    ({"container": {"ipc": "hosst"}}, "container.ipc"),
    ({"container": {"network": "none"}}, "container.network"),
    *[({"container": {"devices": [one]}}, "container.devices[0]") for one in DEVICES],
    ({"platform": "gpu"}, "platform"),
    ({"extra": 1}, "extra"),
    ({"st\u0430rt": {"budget_s": 3}}, "st\u0430rt"),
]

# fleet_hardware.
CPU = {"accelerator": "cpu", "count": 1, "cores": 2}
HARDWARE = [
    (None, "fleet_hardware"),
    ({}, "fleet_hardware.accelerator"),
    ({**CPU, "accelerator": "Cpu"}, "fleet_hardware.accelerator"),
    ({**CPU, "count": 0}, "fleet_hardware.count"),
    ({**CPU, "cores": 10**15}, "fleet_hardware.cores"),
    ({**CPU, "cores": math.inf}, "'cores'"),
    ({**CPU, "lnc": 2}, "fleet_hardware.lnc"),
    ({**CPU, "exclude": [1]}, "fleet_hardware.exclude"),
    ({"accelerator": "h200", "count": 8, "cores": 2}, "fleet_hardware.cores"),
    ({"accelerator": "trainium3", "count": 16, "cores": 7}, "fleet_hardware.cores"),
    ({**CPU, "memory_gib": "nan"}, "fleet_hardware.memory_gib"),
    ({**CPU, "memory": 3}, "'memory'"),
    ({**CPU, 1: 3}, "the key 1"),
]

ARGUMENT = {"arguments": {"x": 1}}
# Further variables of the host; the key is the variable's name where it is not given.
VARIABLES = [
    ({"fleet_recipe": "cpu-tini"}, "fleet_recipe"),
    ({"fleet_recipe_paths": 3}, "fleet_recipe_paths"),
    ({"fleet_recipe_paths": ["/nowhere"]}, "fleet_recipe_paths"),
    ({"fleet_overlay": [3]}, "fleet_overlay"),
    ({"fleet_tuning": "fast"}, "fleet_tuning"),
    ({"fleet_tuning": {"input": 0, "output": 1, "concurrency": 1}}, "fleet_tuning.input"),
    ({"fleet_container_engine": "crio"}, "fleet_container_engine"),
    ({"fleet_serial": "some"}, "fleet_serial"),
    ({"fleet_serial": []}, "fleet_serial"),
    ({"fleet_artifact_force": 1.0}, "fleet_artifact_force"),
    ({"fleet_reports_dir": "a\nb"}, "fleet_reports_dir"),
    ({"fleet_overide": {}}, "fleet_overide"),
    ({"Fleet_root": "x"}, "Fleet_root"),
    ({"fleet_override": {"secrets": {"A": "vault_a"}}, "vault_a_version": ["2"]}, "vault_a_version"),
    ({"fleet_override_a": [1]}, "fleet_override_a"),
    ({"fleet_override_a": server(port="x"), "fleet_override_b": ARGUMENT}, "fleet_override_a: 'servers.server.port'"),
    ({"fleet_override": ValueError("Decryption failed (no vault secrets were found)")}, "fleet_override"),
]


def login(username, password):
    return {"username": username, "password": password}


SHA = "0" * 64
SECRET = "s3cret-Zq81"  # no message repeats it
# Values of variables by the code of their error; nothing is changed before it.
VALUES = {
    "input.value-invalid": {
        "fleet_tune_limits": [3, {"ttft": 1}, [1], {}, {"ttft_ms": 0}, {"tpot_ms": "fast"}, {"ttft_ms": True}],
        "fleet_host_key": [3, [None]],
        "fleet_watchdog": ["maybe", 2, [True], {}, "tru", "ja"],
        "etcd_tls": ["maybe", "mtls", 3],
        "fleet_watchdog_interval_s": [0, -1, 1.5, "60s", "1m", True, [60], 10**9],
        "etcd_client_port": [0, 65536, -1, "http", 2379.5, True, "2379/tcp"],
        "etcd_install": ["package", "docker", ""],
        "tiktoken_encodings_names": [["p50k_base"]],
        "fleet_pip_index_url": ["pypi.example.org", "htp://pypi", "https://a b/simple", "https://x:99999",
                                "https://a..b", "https://999.1.1.1", ["https://a"]],
        "fleet_hf_endpoint": ["hf-mirror.example", "https:///x", True, "https://hf\nX: y", "/srv/hub"],
        "etcd_url": ["/srv/etcd.tar.gz", "https://example.org/{flavour}/etcd.tar.gz"],
        "vllm_extra_index_urls": [["pypi.example"], ["https://a b"]],
        "monitoring_accelerator_ports": [{"nvida": 9400}, {"nvidia": 0}],
        "fleet_plan_file": ["", "plan\x1b[31m.json", 7, ["plan.json"]],
        "fleet_ca_bundle": ["ca.pem", "./ca.pem", "~/ca.pem", "/etc/../ca.pem", "/", "/etc/ca\n.pem", 3, ["/ca.pem"]],
        "etcd_certificates": [{"ca": "ca.crt", "certificate": "/c", "key": "/k"}, "/etc/etcd/tls"],
        "etcd_data_dir": ["data", "/var/../etc", "/", "/var/lib", "/etc", "", "/var/lib/etcd\n"],
        "toolkit_packages": [["uv", 3], [""], "uv"],
        "fleet_address": ["10.0.0.5\n", "10.0.0.5:8000", "http://node1", "a b", "300.1.1.1", "user@node1", "[::1]", 5],
        "etcd_certificate_names": [["a b"], ["10.0.0.300"], [5], "node1", {"a": 1}],
        "fleet_bind_address": ["10.0.0.5\n", "10.0.0.5\nX=1"],
        "fleet_cluster": ["a b", "a\nb", "", ["a"], "a/b"],
        "fleet_server": ["server 0", "a,b c", "a,", {}, [{}], []],
        "etcd_image": ["etcd image", "", "-v", "a\nb"],
        "etcd_image_digest": ["sha256:abc", SHA, "md5:" + SHA],
        "etcd_checksums": [{"amd64": "abc"}, {"amd64": 3}, SHA],
        "benchmark_python": ["python 3", "3.12; id"],
        "evaluate_aisbench_torch": ["torch == 2", "--index-url=x"],
        "model_weights_repo": ["openai/gpt-oss/120b", "a b"],
        "toolkit_user": ["Root", "a b", "1x"],
        "container_engine_insecure_registries": [["http://registry"], [5]],
        "fleet_proxy_env": [{"HTTPS PROXY": "x"}, {"https-proxy": "x"}, {"1X": "x"}],
        "etcd_settings": [["a"], {"quota bytes": 1}, {"quota-backend-bytes": [1]}, {"a": "x\ny"}, {"a": None}],
        "fleet_api_key_version": [[1], {"a": 1}],
        "fleet_registry_auth": [{"a b": login("a", SECRET)}],
    },
    "input.secret-invalid": {
        "fleet_proxy_env": [
            {"HTTPS_PROXY": "a b"}, {"HTTPS_PROXY": "http://p:99999"}, {"HTTPS_PROXY": ["x"]}, {"A": None},
            {"http_proxy": "http://u:%s@p\nX: y" % SECRET}, {"NO_PROXY": "a\nb"},
        ],
        "fleet_registry_auth": [
            {"nvcr.io": SECRET}, {"nvcr.io": {"username": "a"}}, "me:" + SECRET,
            {"nvcr.io": login("a", 3)}, {"nvcr.io": login("", SECRET)}, {"nvcr.io": {**login("a", SECRET), "x": 1}},
        ],
        "fleet_hf_token": [SECRET + " x", 3, [SECRET], {"a": SECRET}, SECRET + "\nX: y", True],
        "etcd_certificates": [{"ca": "/ca"}],
        "nats_password": [SECRET + " ", SECRET + "\nx: y", 12345],
        "serve_secrets": [SECRET],
    },
    "images.setting-invalid": {
        "fleet_registry_mirror": ["https://m.example", "m example", 3, "me:%s@m.io" % SECRET, {"a b": "m.example"}],
    },
    "secrets.invalid": {"fleet_api_key": [12345678, True, SECRET + " x", [SECRET, SECRET]]},
    "measure.profile-unknown": {"benchmark_profile": ["guid"]},
    "inventory.variable-unknown": {"fleet_watchdog_interval": [60], "fleet_bind_adress": ["::"], "fleet-watchdog": [1]},
}  # fmt: skip

# Values that are as they should be, also those that -e gives as strings.
SOUND = {
    "fleet_watchdog": [True, "true", "no", "on", 1, "0", None],
    "fleet_watchdog_interval_s": ["60", 1, "", None],
    "fleet_regression_limit": [15, "7.5", 0.5],
    "fleet_address": ["10.0.0.5", "fd00::5", "node-1.example.org", "node_1"],
    "fleet_proxy_env": [{}, {"HTTPS_PROXY": "http://u:p%40x@p.example:3128/"}, {"no_proxy": "localhost, .example.org"},
                        {"HTTP_PROXY": "proxy:3128"}, {"ALL_PROXY": "socks5h://[fd00::1]:1080"}, {"HTTPS_PROXY": ""}],
    "fleet_pip_index_url": ["https://u:p@pypi.example:8443/simple/", "file:///srv/wheels", "/srv/wheels", ""],
    "fleet_hf_token": ["hf_abc", "hf_abc\n", ""],
    "fleet_api_key": ["key-1", ["a", "b"], "", None],
    "fleet_registry_auth": [{"nvcr.io": login("$oauthtoken", "x y")}, {"r:5000": login("a", "b")}],
    "fleet_registry_mirror": ["registry.example.org:5000/hub", {"docker.io": "m.example"}, ""],
    "fleet_server": ["all", "server-0, server-1", ["server-0"]],
    "fleet_serial": ["50%", 2, ["1", "100%"]],
    "fleet_tune_limits": [{"ttft_ms": 2000}, {"tpot_ms": "50"}],
    "etcd_url": ["file:///opt/etcd-v{version}-linux-{architecture}.tar.gz", "https://example.org/etcd.tar.gz"],
    "etcd_settings": [{"quota-backend-bytes": 8589934592, "auto-compaction-mode": "periodic"}],
    "etcd_certificates": [{}, dict.fromkeys(("ca", "certificate", "key"), "/x")],
    "etcd_certificate_names": [["*.example.org", "10.0.0.5", "fd00::5"]],
    "nats_password": ["", "s3cret", "a-word\"with 'quotes"],
    "benchmark_profile": ["quick", "", None],
    "benchmark_python": ["", "3.12", 3.12, "/usr/bin/python3.12", "/opt/a b/python", "python3"],
    "evaluate_aisbench_torch": ["torch==2.13.0+cpu", "torch>=2.1,<3"],
    "container_engine_insecure_registries": [["localhost:5000", "10.0.0.1"]],
    "fleet_chips": [3],
    "other_role_setting": [{"a": 1}],
}  # fmt: skip


def rows(table):
    """[(name, value)] of a table {name: [value]}."""
    return [(name, value) for name, values in table.items() for value in values]

# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""plan.yml and preflight.yml with secrets that are missing or locked, and with an API key: for real, on no node."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.tests.runs import play

KEY = 'sk-a"b\\c/%41&'
LOCKED = "!vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  33363965326261303234623039623732663234626136373736316163653563\n"
HEAD = "Secrets of servers have no value, nothing was changed:"


@pytest.fixture
def site(tmp_path):
    """An inventory of one host; site.playbook(name, variables of the inventory, *arguments)."""

    class Site:
        root = tmp_path / "r"

        def playbook(self, name, text, *arguments, **environment):
            folder = tmp_path / "inventory"
            (folder / "group_vars").mkdir(parents=True, exist_ok=True)
            (folder / "hosts.yml").write_text(
                "cpu: {hosts: {node1: {ansible_connection: local}}}\nvllm: {children: {cpu: }}\n"
            )
            (folder / "group_vars" / "all.yml").write_text(
                "fleet_recipe: cpu-tiny\nfleet_hardware: {accelerator: cpu, count: 1, cores: 2}\n"
                "fleet_root: %s\n%s" % (self.root, text)
            )
            return play("playbooks/%s.yml" % name, folder, *arguments, environment=environment)

    return Site()


TEXT = (
    "fleet_override: {secrets: {A: vault_token, B: vault_empty, C: vault_other}}\nvault_empty: ''\n"
    "vault_other: '{{ vault_key }}'\nfleet_api_key: " + LOCKED
)
LINES = [
    ("A", "vault_token", "is not set for this host; set it, best in a vault."),
    ("B", "vault_empty", "is empty; set it, best in a vault."),
    ("C", "vault_other", "names 'vault_key', which is not set for this host; set it, best in a vault."),
    ("VLLM_API_KEY", "fleet_api_key", "is in a vault that is locked, or opened with another password; give its "
     "password (--ask-vault-pass, --vault-password-file)."),
]  # fmt: skip


def test_preflight_names_every_secret_without_a_value_and_a_plan_needs_none(site):
    site.playbook("plan", TEXT).ok()
    run = site.playbook("preflight", TEXT).failed(HEAD)
    output = " ".join(run.output.split())
    for line in LINES:
        assert "node1: server-0, server-1: the secret %s comes from the variable '%s', which %s" % line in output
    assert "INFERENCE_FLEET_OTHER_API_KEYS" not in output
    assert not site.root.exists()
    # a run that does not start servers needs neither the variables nor the vault
    assert HEAD not in site.playbook("preflight", TEXT, "--skip-tags", "serve").output


def test_what_is_no_key_is_one_error_that_does_not_show_it(site):
    text = "fleet_api_key: %s\n" % json.dumps(KEY + "\n" + KEY)
    run = site.playbook("preflight", text, "-vvv").failed(
        "node1: fleet_api_key is empty, or contains a space or a character that is not printable ASCII."
    )
    for spelling in (KEY, json.dumps(KEY)[1:-1], repr(KEY)[1:-1]):
        assert spelling not in run.output
    assert not site.root.exists()


def test_a_key_is_nowhere_in_the_output_of_a_plan_nor_in_what_is_cached(site, tmp_path):
    cache = {"ANSIBLE_CACHE_PLUGIN": "jsonfile", "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(tmp_path / "cache")}
    text = "fleet_bind_address: 0.0.0.0\n"
    warning = "node1: the servers listen on 0.0.0.0 (fleet_bind_address) and ask for no API key"
    assert warning in " ".join(
        site.playbook("plan", text, "-e", "fleet_plan_file=%s" % (tmp_path / "p")).output.split()
    )
    text += "fleet_api_key: %s\n" % json.dumps([KEY, "sk-second"])
    run = site.playbook(
        "plan", text, "-vvv", "--diff", "-e", "fleet_plan_file=%s" % (tmp_path / "plan.json"), **cache
    ).ok()
    assert warning not in " ".join(run.output.split())
    preflight = site.playbook("preflight", text, "-vvv", "--diff", **cache)
    texts = [run.output, preflight.output, (tmp_path / "plan.json").read_text()]
    texts += [path.read_text() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    for spelling in (KEY, json.dumps(KEY)[1:-1], repr(KEY)[1:-1], "sk-second"):
        assert not [one for one in texts if spelling in one]
    assert json.loads(texts[2])["node1"][0]["secrets"]["VLLM_API_KEY"] == "fleet_api_key"

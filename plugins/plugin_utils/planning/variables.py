# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables of hosts, as the plan reads them: which there are, what they may be, and where recipes are found."""

from __future__ import annotations

import difflib
import hashlib
import os

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.server_spec import canonical
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import checks as input_checks
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import overrides
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe.words import show

# Shared variables of the collection; those of roles carry the role's name instead.
KNOWN = (
    "fleet_address",
    "fleet_api_key",
    "fleet_api_key_version",
    "fleet_artifact_dir",
    "fleet_artifact_force",
    "fleet_artifact_remote",
    "fleet_artifact_source",
    "fleet_bind_address",
    "fleet_ca_bundle",
    "fleet_capacity",
    "fleet_charts",
    "fleet_clean",
    "fleet_clean_shared",
    "fleet_cluster",
    "fleet_container_engine",
    "fleet_deployment",
    "fleet_hardware",
    "fleet_hf_endpoint",
    "fleet_hf_token",
    "fleet_host_key",
    "fleet_log_file_mb",
    "fleet_log_files",
    "fleet_log_lines",
    "fleet_log_rate",
    "fleet_log_server",
    "fleet_look",
    "fleet_modelscope_endpoint",
    "fleet_modelscope_token",
    "fleet_node",
    "fleet_overlay",
    "fleet_override",
    "fleet_pip_index_url",
    "fleet_plan_file",
    "fleet_play_hosts",
    "fleet_proxy_env",
    "fleet_purge",
    "fleet_purge_artifacts",
    "fleet_purge_images",
    "fleet_recipe",
    "fleet_recipe_paths",
    "fleet_registry_auth",
    "fleet_registry_mirror",
    "fleet_regression_limit",
    "fleet_reports_dir",
    "fleet_require_digests",
    "fleet_root",
    "fleet_serial",
    "fleet_server",
    "fleet_servers",
    "fleet_start_on_boot",
    "fleet_status_file",
    "fleet_status_strict",
    "fleet_tune_again",
    "fleet_tune_file",
    "fleet_tune_limits",
    "fleet_tuning",
    "fleet_verify",
    "fleet_watchdog",
    "fleet_watchdog_failures",
    "fleet_watchdog_interval_s",
    "fleet_watchdog_timeout_s",
    "fleet_weights_min_rate",
)


class HostVariables:
    """One host's variables, read one by one: only those that the plan needs are ever templated or decrypted."""

    def __init__(self, host, variables, inventory_sources=()):
        """variables: mapping. inventory_sources: paths given with -i."""
        self.host = host
        self.names = set(variables)
        self.inventory_sources = tuple(str(source) for source in inventory_sources)
        self.read = set()  # names of the variables that were asked for
        self._variables = variables

    def get(self, name, default=None):
        """The variable's value, or ``default``. FleetError names a variable that cannot be worked out here."""
        self.read.add(name)
        if name not in self.names:
            return default
        try:
            return input_checks.clean(self._variables[name], "variable " + name)
        except FleetError:
            raise
        except Exception as error:  # whatever the templating engine raises: undefined facts, a locked vault, bad Jinja
            text = " ".join(str(error).split()).rstrip(".")
            locked = any(word in text.lower() for word in ("vault", "decrypt"))
            raise FleetError(
                "inventory.variable-unresolvable",
                "variable %s cannot be worked out for the plan: %s. %s",
                (
                    name,
                    text,
                    "Give the vault's password (--ask-vault-pass), or write the value where it is not encrypted."
                    if locked
                    else "The plan touches no node and reads no facts; write the value into the inventory.",
                ),
            ) from error

    @property
    def has_recipe(self):
        """Whether this is an inference host. One whose fleet_recipe cannot be read is: the plan says why."""
        try:
            return self.get("fleet_recipe") is not None
        except FleetError:
            return True

    def fingerprint(self, names):
        """A digest of what a plan that reads the variables ``names`` depends on."""
        values = {name: self._readable(name) for name in sorted(names) if name in self.names}
        ours = sorted(name for name in self.names if name.lower().startswith("fleet"))
        return hashlib.sha256(canonical([self.host, self.inventory_sources, ours, values])).hexdigest()

    def _readable(self, name):
        try:
            return [self.get(name)]
        except FleetError as error:
            return error.message  # a locked vault's API key is no reason against a plan


def recipe_paths(variables):
    """Folders that recipes are looked for in, before the collection's own."""
    configured = variables.get("fleet_recipe_paths") or []
    if isinstance(configured, str):
        configured = [part for part in configured.split(os.pathsep) if part]
    if not isinstance(configured, list) or not all(isinstance(folder, str) and folder for folder in configured):
        raise FleetError(
            "inventory.recipe-paths-not-a-list",
            "fleet_recipe_paths is %s; allowed: a list of folders, for example [/srv/recipes].",
            (show(configured),),
        )
    folders = [os.path.expanduser(folder) for folder in configured]
    missing = [folder for folder in folders if not os.path.isdir(folder)]
    if missing:
        raise FleetError(
            "inventory.recipe-path-missing",
            "fleet_recipe_paths names %s, which is no folder on the controller; allowed: folders that are there. Make "
            "it, or remove it from the list.",
            (", ".join(show(folder) for folder in missing),),
        )
    for source in variables.inventory_sources:
        folder = source if os.path.isdir(source) else os.path.dirname(source)
        folders.append(os.path.join(folder, "recipes"))
    return list(dict.fromkeys(folders))


def overlays_of(variables):
    """Names in fleet_overlay: a name, several joined by commas, or a list of them."""
    given = variables.get("fleet_overlay") or []
    names = [part.strip() for part in given.split(",")] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise FleetError(
            "inventory.overlay-invalid",
            "fleet_overlay is %s; allowed: the name of an overlay of the recipe, or a list of names.",
            (show(given),),
        )
    return tuple(dict.fromkeys(names))


def check_names(variables):
    """FleetError for variables that are one slip away from one of ours: they would be ignored."""
    mistakes = input_checks.Mistakes()
    for name in sorted(variables.names):
        usual = name.lower().replace("-", "_")
        if usual.startswith("fleet") and name not in KNOWN and not overrides.VARIABLE.match(name):
            close = difflib.get_close_matches(usual, KNOWN, 1, cutoff=0.9)
            if close:
                mistakes.add(
                    "inventory.variable-unknown",
                    "variable %s is unknown; did you mean %s? Use that name.",
                    (name, close[0]),
                )
    mistakes.raise_any()


# What each variable of a host must be, beside those that the plan itself reads. None of them may be in a vault.
CHECKS = {
    "fleet_artifact_force": input_checks.check_switch,
    "fleet_log_lines": lambda name, value: input_checks.check_number(name, value, 10**6),
    "fleet_look": input_checks.check_switch,
    "fleet_purge": input_checks.check_switch,
    "fleet_purge_artifacts": input_checks.check_switch,
    "fleet_purge_images": input_checks.check_switch,
    "fleet_reports_dir": lambda name, value: value == "" or input_checks.check_string(name, value),
    "fleet_require_digests": input_checks.check_switch,
    "fleet_serial": input_checks.check_batches,
    "fleet_verify": lambda name, value: input_checks.check_choice(name, value, ("auto", "full", "quick")),
}


def check_variables(variables, mistakes):
    """Note each variable of CHECKS whose value cannot be."""
    for name, check in CHECKS.items():
        with mistakes.noted():
            value = variables.get(name)
            if value is not None:
                check(name, value)


def read_checked(variables, name, default, mistakes, check):
    """A variable's value, ``default`` where it is not set or null; what is wrong with it is noted."""
    value = default
    with mistakes.noted():
        given = variables.get(name)
        value = default if given is None else given
        check(name, value)
    return value

# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operations of each step of site.yml on a host, with the arguments of the roles' module calls.

The operation check runs them in check mode. Everything that a role does on a node is therefore listed here, or depends
on something that is listed here; a test compares the arguments with the roles' tasks. Steps that are not fully known
run each time: a platform or an engine without operations(), a role or a playbook whose files differ from
known_tasks.json, and a step with a variable that only its play can evaluate.

The value of a role's variable is set for the host, or is its default: a literal in the role's defaults/main.yml, or a
value from the caller if that default is a template. Variables that may contain a password are not read: the plan
contains their names.
"""

from __future__ import annotations

import functools
import json
import os

import yaml

from ...module_utils.fleet_node.errors import FleetError
from ..base.words import is_true
from ..engines import ENGINES
from ..models import DEFAULT
from ..platforms import PLATFORMS
from ..seen_files import COLLECTION, digest_of
from . import server_lists
from .run_look import LATER

PLAYBOOK = "playbooks/steps/%s.yml"
LIBRARY = "/var/lib/inference-fleet"
CHANGED = "%s differs from the collection, so it is run each time"
NOT_KNOWN = "what the role %s does is known to no plan, so it is run each time"
UNREAD = "it cannot be looked at: %s"


def steps_of(variables, servers, deployment):
    """Return [{step, operation, arguments}] in the order of the run, and {step, reason, changed} for a step that runs
    each time. Some arguments are completed when they are sent (run_look.py).

    variables: HostVariables. servers, deployment: of the host's plan.
    """
    found = []
    for step, calls in STEPS.items():
        host = Host(step, variables, servers, deployment)
        try:
            found += [
                {
                    "step": step,
                    "operation": operation,
                    "arguments": {name: one for name, one in arguments.items() if one is not None},
                }
                for operation, arguments in calls(host)
            ]
        except FleetError as error:
            host.runs_always(UNREAD % error.message.partition("\n")[0])
        except (AttributeError, LookupError, TypeError, ValueError) as error:  # an unchecked variable of a wrong type
            host.runs_always(UNREAD % ("%s: %s" % (type(error).__name__, error)))
        changed = not is_known(PLAYBOOK % step)
        if changed:
            host.runs_always(CHANGED % (PLAYBOOK % step), first=True)
        if host.reasons:
            found.append({"step": step, "reason": host.reasons[0], "changed": changed})
    return found


class Host:
    """A host in a step, for the operations() of its platform and its engine.

    servers, deployment: references to parts of the plan, for arguments. entries, recipe: the values of these. root:
    fleet_root. network, ca_bundle: see the roles.
    """

    def __init__(self, step, variables, servers, deployment):
        self.step, self.name = step, variables.host
        self.entries, self.recipe = servers, deployment
        self.servers, self.deployment = of_plan("servers"), of_plan("deployment")
        self.reasons = []  # why the step runs each time
        self._variables = variables

    @property
    def root(self):
        return self.shared("fleet_root", "")

    def shared(self, name, default):
        """Return the value of a variable that several roles read; `default` if it is empty or not set.
        Not for secrets."""
        return self.read(name) or default

    def role(self, name):
        """Return the variables of a role that the step runs."""
        if not is_known("roles/" + name):
            self.runs_always(CHANGED % ("roles/" + name))
        return Role(name, self)

    def groups(self):
        """Return {group: [hosts]} of the inventory."""
        return self._variables.get("groups") or {}

    def set(self, name):
        """Return whether the host has a variable."""
        return self._variables.has(name)

    def read(self, name, default=None):
        """Return the value of a variable, `default` if it is not set. The plan depends on it, unless it cannot be
        evaluated here. Raises FleetError."""
        if not self.set(name):
            return default
        self._variables.peek(name)
        return self._variables.get(name)

    def part(self, name, default):
        """Return a part of the deployment, `default` if it does not have the part."""
        return of_plan("deployment", name) if name in self.recipe else default

    def network(self, role):
        """Return the arguments with the environment variables of a role, such as proxies, and its certificates."""
        variables = role.later(role.name + "_environment", "fleet_proxy_env", {})
        return {"environment": variables, "ca_bundle": self.ca_bundle(role) or None}

    def ca_bundle(self, role):
        """Return the certificates that a role trusts."""
        return role.value(role.name + "_ca_bundle", self.shared("fleet_ca_bundle", ""))

    def platform(self):
        """Return the operations of the platform's role in this step."""
        return self._of(PLATFORMS[self.recipe["platform"]].operations(self), self.recipe["platform"])

    def engine(self, name, venv):
        """Return the operations of an engine's role for an environment."""
        return self._of(ENGINES[name].operations(self, venv), name)

    def _of(self, calls, role):
        if calls is None:
            self.runs_always(NOT_KNOWN % role)
        return calls or ()

    def runs_always(self, reason, first=False):
        """Note why the step runs each time."""
        self.reasons.insert(0 if first else len(self.reasons), reason)


def _call(operation, **arguments):
    return operation, arguments


def _preflight(host):
    platform = host.recipe["platform"]
    installs = platform + "_packages"
    packages = host.read(installs, defaults_of(platform).get(installs, {}))
    parts = [*host.recipe["venvs"], *host.recipe["models"]]
    yield _call(
        "node_preflight",
        platform=platform,
        hardware=host.read("fleet_hardware"),
        needs=host.recipe["needs"],
        servers=host.servers,
        models=of_plan("deployment", "models"),
        venvs=of_plan("deployment", "venvs"),
        prepares=if_prepared(True, False),
        adopt=is_true(host.shared("fleet_adopt", False)),
        installs=if_prepared(packages, {}),
        satisfied_by=[one["path"] for one in parts],
    )


def _prepare(host):
    yield from _toolkit(host)
    yield from host.platform()
    if any(entry["container"] for entry in host.entries):
        yield from _containers(host)
    for venv in host.recipe["venvs"]:
        yield from host.engine(host.recipe["engine"], venv)
    if host.groups().get("monitoring") and not host.root:
        host.role("monitoring")
        yield _call("node_exporter")


def _toolkit(host):
    role = host.role("toolkit")
    root = role.value("toolkit_root", host.root)
    yield _call(
        "node_layout",
        root=root,
        user=role.value("toolkit_user", "" if root else "inference-fleet") or None,
    )
    yield _call(
        "python_environment",
        path=role.value("toolkit_path", root + LIBRARY + "/toolkit"),
        packages=role.value("toolkit_packages"),
        python=role.value("toolkit_python") or None,
        find_links=role.later("toolkit_find_links"),
        index_url=role.later("toolkit_index_url", "fleet_pip_index_url", "", omits=True),
        **host.network(role),
    )


def _containers(host):
    role = host.role("container_engine")
    engines = role.value("container_engine_names", server_lists.container_engines(host.entries))
    images = role.value("container_engine_images", server_lists.container_images(host.entries))
    mirror = role.value("container_engine_mirror", host.shared("fleet_registry_mirror", ""))
    settings = role.value("container_engine_platform_settings", host.recipe["engine_settings"])
    if role.has("container_engine_settings"):
        settings = later("container_engine_settings", over=settings)
    root = role.value("container_engine_root", host.root)
    proxies = role.later("container_engine_proxy_env", "fleet_proxy_env", {})
    for engine in engines:
        yield _call(
            "container_engine",
            engine=engine,
            settings=settings,
            registry_mirrors=role.later("container_engine_registry_mirrors"),
            insecure_registries=role.value("container_engine_insecure_registries"),
            registries=server_lists.registries(images, mirror),
            ca_bundle=host.ca_bundle(role),
            proxy_env=proxies,
            root=root,
        )
    for image in images:
        yield _call(
            "container_image",
            image=image["image"],
            digest=image["digest"] or None,
            engine=image["engine"],
            address=image["address"] or None,
            mirror=mirror,
            auth=role.later("container_engine_auth", "fleet_registry_auth", {}),
            environment=proxies,
            root=root,
            wait_s=5,
        )


def _weights(host):
    if any((model.get("family") or DEFAULT) == DEFAULT for model in host.recipe["models"]):
        yield _encodings(host)
    first, *others = host.recipe["models"]
    for model in (first, *others):
        yield _model(host, model)
    if any("compile_cache" in entry["hooks"] for entry in host.entries):
        yield from host.platform()


def _encodings(host):
    role = host.role("tiktoken_encodings")
    package, controller, hub = role.defaults["tiktoken_encodings_sources"]
    venv = host.recipe.get("venv")
    sources = [
        {**package, "python": venv["path"] + "/bin/python" if venv else ""},
        {**controller, "path": role.value("tiktoken_encodings_controller")},
        hub,
    ]
    return _call(
        "tiktoken_encodings",
        directory=role.value("tiktoken_encodings_directory", host.root + LIBRARY + "/encodings"),
        encodings=role.value("tiktoken_encodings_names"),
        sources=role.later("tiktoken_encodings_sources", default=sources),
        **host.network(role),
    )


def _model(host, model):
    role = host.role("model_weights")
    draft = model.get("draft") or {}
    source = role.value("model_weights_source", model["source"])
    hub = "modelscope" if source == "modelscope" else "hf"
    destination = role.value("model_weights_destination", model["path"])
    path = role.value("model_weights_path", model.get("source_path") or model["path"])
    heads = draft.get("method") == "eagle3" and PLATFORMS[host.recipe["platform"]].checks_eagle3(host.entries)
    begins = role.switch("model_weights_begin")
    return _call(
        "model_weights",
        source=source,
        repo=role.value("model_weights_repo", model["repo"]),
        revision=role.value("model_weights_revision", model.get("revision") or "") or None,
        format=role.value("model_weights_format", model["format"]),
        family=role.value("model_weights_family", model.get("family") or DEFAULT),
        destination=destination,
        path=path,
        copy=role.value("model_weights_copy", path != destination),
        draft=role.value("model_weights_draft", draft.get("path", "")) or None,
        draft_repo=role.value("model_weights_draft_repo", draft.get("repo") or "") or None,
        draft_revision=role.value("model_weights_draft_revision", draft.get("revision") or "") or None,
        draft_eagle3=role.value("model_weights_draft_eagle3", heads),
        adapter=role.value("model_weights_adapter", model.get("adapter") or {}),
        verify=role.value("model_weights_verify"),
        endpoint=_endpoint(role, model, hub),
        include=role.value("model_weights_include", model["include"]),
        exclude=role.value("model_weights_exclude", model["exclude"]),
        token=role.later("model_weights_token", "fleet_%s_token" % hub, "", omits=True),
        refresh=role.value("model_weights_refresh"),
        workers=role.value("model_weights_workers", model.get("workers") or 8),
        retries=role.value("model_weights_retries"),
        timeout_s=role.value("model_weights_timeout_s"),
        wait_s=0 if begins else role.value("model_weights_poll_s"),
        **host.network(role),
        sha256sums=role.value("model_weights_sha256sums") or None,
        min_rate=role.value("model_weights_min_rate", host.shared("fleet_weights_min_rate", 10240)),
    )


def _endpoint(role, model, hub):
    if model.get("endpoint") and not role.has("model_weights_endpoint"):
        return model["endpoint"]
    if role.has("model_weights_endpoint") or not role.has("model_weights_site_endpoint"):
        return role.later("model_weights_endpoint", "fleet_%s_endpoint" % hub, "", omits=True)
    return role.later("model_weights_site_endpoint", omits=True)


def _serve(host):
    role = host.role("serve")
    servers = role.value("serve_servers", host.entries)
    given = host.servers if servers is host.entries else servers
    only = role.value("serve_only")
    recipe = role.value("serve_deployment", host.recipe)
    for client in recipe.get("service_clients", []):
        yield _call(
            "service_certificate",
            path=client["folder"],
            names=[host.name],
            endpoints=client["endpoints"],
        )
    yield _call(
        "engine_servers",
        manager=role.value("serve_manager"),
        toolkit=role.value("serve_toolkit") or None,
        servers=given,
        secrets=_secrets(role, servers),
        state=role.value("serve_state"),
        adopt=role.switch("serve_adopt", host.shared("fleet_adopt", False)),
        changes=role.value("serve_changes", host.shared("fleet_changes", "one_by_one")),
        watchdog=_watchdog(host, role),
        logs={
            "rate": role.value("serve_log_rate", host.read("fleet_log_rate", 10000)),
            "file_mb": role.value("serve_log_file_mb", host.shared("fleet_log_file_mb", 50)),
            "files": role.value("serve_log_files", host.shared("fleet_log_files", 4)),
        },
        start_on_boot=role.switch("serve_start_on_boot", host.shared("fleet_start_on_boot", False)),
        only=only or None,
        reports_dir=role.value("serve_reports_dir", host.read("verify_reports_dir", host.read("fleet_reports_dir"))),
    )


def _verify(host):
    """Return the verification that the operation check requests of a host on which nothing differs."""
    role, recipe = host.role("verify"), host.recipe
    asked = recipe["verify"]
    yield _call(
        "endpoint_verify",
        servers=role.value("verify_servers", host.servers),
        workers_elsewhere=role.value("verify_workers_elsewhere", host.part("workers_elsewhere", [])),
        manager=host.read("serve_manager", "auto"),
        toolkit=host.read("serve_toolkit") or None,
        mode=role.value("verify_mode", host.read("fleet_verify", "auto")),
        servers_changed=role.value("verify_servers_changed", host.read("serve_changed")),
        probes=role.value("verify_probes", host.part("probes", [])),
        effort_parameter=role.value("verify_effort_parameter", asked["effort_parameter"]),
        responses_api=role.value("verify_responses_api", asked["responses_api"]),
        timeout=role.value("verify_timeout_s", asked["timeout_s"]),
        quick_timeout=role.value("verify_quick_timeout_s"),
        reports_dir=role.value("verify_reports_dir", host.read("fleet_reports_dir")),
        deployment=role.value("verify_deployment", host.deployment),
        simulated=role.value("verify_simulated"),
        problem=role.value("verify_problem", host.read("serve_problem", "")),
    )


def _secrets(role, servers):
    if role.has("serve_secrets"):
        return later("serve_secrets")
    return {name: later(name) if role.has(name) else "" for name in server_lists.secret_names(servers)}


def _watchdog(host, role):
    if not role.switch("serve_watchdog", host.shared("fleet_watchdog", False)):
        return None
    return {
        "interval": role.value("serve_watchdog_interval_s", host.shared("fleet_watchdog_interval_s", 60)),
        "failures": role.value("serve_watchdog_failures", host.shared("fleet_watchdog_failures", 3)),
        "timeout": role.value("serve_watchdog_timeout_s", host.shared("fleet_watchdog_timeout_s", 60)),
    }


STEPS = {"preflight": _preflight, "prepare": _prepare, "weights": _weights, "serve": _serve, "verify": _verify}


KNOWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "known_tasks.json")
UNKNOWN_DATA = ("README.md", "files", "__pycache__")  # of a role: files that do not affect its tasks
LITERAL = object()  # the default is the literal in the role's file


def later(variable, **how):
    """Return an argument that is completed when it is sent, with the value of a variable. how: default, for an empty
    value; omits: an empty value is left out; over: a mapping that the value is merged over."""
    return {LATER: {"variable": variable, **how}}


def of_plan(*keys):
    """Return an argument that is a part of the host's plan."""
    return {LATER: {"plan": list(keys)}}


def if_prepared(value, other):
    """Return an argument that is `value` in a run that also prepares the node, and `other` in other runs."""
    return {LATER: {"prepared": value, "unprepared": other}}


class Role:
    """A role's variables on a host."""

    def __init__(self, name, host):
        """host: Host."""
        self.name, self.has = name, host.set
        self.defaults = defaults_of(name)
        self._host = host

    def value(self, name, default=LITERAL):
        """Return the host's variable, else `default`, else the literal of the role. Raises FleetError."""
        if self.has(name):
            return self._host.read(name)
        return self._literal(name) if default is LITERAL else default

    def switch(self, name, default=LITERAL):
        """value() of a switch."""
        return is_true(self.value(name, default))

    def later(self, name, shared=None, default=LITERAL, omits=False):
        """value() of a variable that may contain a password. shared: the fleet variable that is its default; if it is
        empty or not set, `default` applies."""
        if self.has(name):
            return later(name, omits=omits)
        if shared is not None and self.has(shared):
            return later(shared, omits=omits, **({} if default is LITERAL else {"default": default}))
        value = self._literal(name) if default is LITERAL else default
        return None if omits and not value else value

    def _literal(self, name):
        value = self.defaults[name]
        if "{{" in json.dumps(value):
            raise AssertionError("the default of %s is a template: specify its value here" % name)
        return value


@functools.cache
def defaults_of(role):
    """Return the role's defaults/main.yml; {} if there is none."""
    try:
        with open(os.path.join(COLLECTION, "roles", role, "defaults", "main.yml"), encoding="utf-8") as stream:
            return yaml.load(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}
    except FileNotFoundError:
        return {}


@functools.cache
def is_known(place):
    """Return whether a role's folder or a step's playbook has the content that the steps were written for."""
    return content_of(os.path.join(COLLECTION, place)) == known().get(place)


@functools.cache
def known():
    """Return {place: content_of(place)}, as recorded by tools/known_tasks.py."""
    with open(KNOWN, encoding="utf-8") as stream:
        return json.load(stream)


def content_of(path):
    """Return a digest of a playbook, or of all files of a role that affect its tasks."""
    path = os.fspath(path)
    return digest_of(path, sorted(_files(path)))


def _files(path):
    if os.path.isfile(path):
        yield ""
    for at, folders, files in os.walk(path):
        top = at == path
        folders[:] = [name for name in folders if name != "__pycache__" and not (top and name in UNKNOWN_DATA)]
        for name in files:
            if not (top and name in UNKNOWN_DATA) and not name.startswith(".") and not name.endswith("~"):
                yield os.path.relpath(os.path.join(at, name), path)

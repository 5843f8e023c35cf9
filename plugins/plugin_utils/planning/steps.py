# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operations of each step of site.yml on a host, with the arguments of the roles' module calls.

The operation check runs them in check mode. Everything that a role does on a node is therefore listed here, or depends
on something that is listed here. Steps that are not fully known run each time: a platform or an engine without
operations(), a role or a playbook whose files differ from known_tasks.json, and a step with a variable that only its
play can evaluate.

Arguments are read from the roles' tasks and evaluated with the variables of the host and the defaults of the role, by
Jinja alone: the few filters that only Ansible has are given here. Variables that may contain a password are not read:
the plan contains their names.
"""

from __future__ import annotations

import copy
import functools
import json
import operator
import os

import jinja2
import jinja2.meta
from ansible.errors import AnsibleError
from ansible.utils.vars import merge_hash

from ...module_utils.fleet_node.errors import FleetError
from ..base.words import is_true
from ..engines import ENGINES
from ..models import DEFAULT
from ..platforms import PLATFORMS
from ..seen_files import COLLECTION, digest_of, files_below
from . import server_values
from .run_look import LATER
from .variables import may_hold_secrets, read_yaml

PLAYBOOK = "playbooks/steps/%s.yml"
CHANGED = "%s differs from the collection, so it is run each time"
UNREAD = "it cannot be looked at: %s"


def steps_of(variables, servers, deployment):
    """Return [{step, operation, arguments}] in the order of the run, and {step, reason, changed} for a step that runs
    each time. Some arguments are completed when they are sent (run_look.py).

    variables: HostVariables. servers, deployment: of the host's plan.
    """
    found = []
    for step, calls in STEPS.items():
        host = Host(step, variables, servers, deployment)
        changed, reason = not is_known(PLAYBOOK % step), None
        try:
            if changed:
                raise Unknown(CHANGED % (PLAYBOOK % step))
            for operation, arguments in list(calls(host)):
                given = {name: one for name, one in arguments.items() if one is not None}
                found.append({"step": step, "operation": operation, "arguments": given})
        except Unknown as error:
            reason = str(error)
        except FleetError as error:
            reason = UNREAD % error.message.partition("\n")[0]
        except (AnsibleError, AttributeError, LookupError, TypeError, ValueError, jinja2.TemplateError) as error:
            reason = UNREAD % ("%s: %s" % (type(error).__name__, error))
        if reason is not None:
            found.append({"step": step, "reason": reason, "changed": changed})
    return found


class Unknown(Exception):
    """The work of a step is not known; the message is the reason why the step runs each time. The files of a playbook
    or role that differ from the collection's are not evaluated: they may contain anything, also passwords."""


class Host:
    """A host in a step, for the operations() of its platform and its engine.

    entries, recipe: the servers and the deployment of its plan.
    """

    def __init__(self, step, variables, servers, deployment):
        self.step, self.name = step, variables.host
        self.entries, self.recipe = servers, deployment
        self.has = variables.has
        self._variables = variables

    def groups(self):
        """Return {group: [hosts]} of the inventory."""
        return self._variables.get("groups") or {}

    def read(self, name, default=None):
        """Return the value of a variable, `default` if it is not set. The plan depends on it, unless it cannot be
        evaluated here. Raises FleetError."""
        if not self.has(name):
            return default
        self._variables.peek(name)
        return self._variables.get(name)

    def role(self, name, **parts):
        """Return the Tasks of a role that the step runs. parts: of the deployment, if they differ from the recipe's."""
        if not is_known("roles/" + name):
            raise Unknown(CHANGED % ("roles/" + name))
        return Tasks("roles/%s/tasks/%%s.yml" % name, defaults_of(name), self, **parts)

    def platform(self):
        """Return the operations of the platform's role in this step."""
        return self._of(PLATFORMS[self.recipe["platform"]].operations(self), self.recipe["platform"])

    def engine(self, name, venv):
        """Return the operations of an engine's role for an environment."""
        return self._of(ENGINES[name].operations(self, venv), name)

    def _of(self, calls, role):
        if calls is None:
            raise Unknown("what the role %s does is known to no plan, so it is run each time" % role)
        return calls


class Tasks:
    """The tasks of a role or a playbook, and their variables on a host."""

    def __init__(self, files, defaults, host, **parts):
        """files: path of a file of tasks, with %s for its name. parts: see Host.role."""
        self._files, self._defaults, self._host = files, defaults, host
        self._context = {
            "fleet_servers": host.entries,
            "fleet_deployment": {**host.recipe, **parts},
            "inventory_hostname": host.name,
            "omit": None,
        }

    def call(self, operation, given=None, file="main", **loop):
        """Return (operation, arguments) of the first task with this operation.

        given: arguments that cannot be evaluated here. loop: variables of the task's loop. Raises FleetError,
        jinja2.TemplateError.
        """
        arguments, own = tasks_of(self._files % file)[operation]
        given, task = given or {}, copy.copy(self)  # variables of a task are not those of the next
        task._context, task._defaults = {**self._context, **loop}, {**self._defaults, **own}
        return operation, {
            name: given[name] if name in given else task._evaluated(value) for name, value in arguments.items()
        }

    def value(self, name):
        """Return a variable: of the host, else the default of the role."""
        return self._evaluated("{{ %s }}" % name)

    def _evaluated(self, value):
        if isinstance(value, dict):
            return {key: self._evaluated(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self._evaluated(one) for one in value]
        if not isinstance(value, str) or "{{" not in value:
            return value
        names, omits, function = compiled(value)
        if value == "{{ fleet_servers }}":
            return of_plan("servers")
        found = function({name: self._variable(name) for name in names if self._is_set(name)})
        if omits and not found:
            return None
        if isinstance(found, jinja2.Undefined):
            str(found)  # raises UndefinedError
        if omits and is_later(found):
            found = {LATER: {**found[LATER], "omits": True}}
        return found

    def _is_set(self, name):
        return name in self._context or name in self._defaults or self._host.has(name)

    def _variable(self, name):
        if name in self._context:
            return self._context[name]
        if not self._host.has(name):
            return self._evaluated(self._defaults[name])
        if name in may_hold_secrets():
            return later(name, omits=False)
        return self._host.read(name)


def later(variable, **how):
    """Return an argument that is completed when it is sent, with the value of a variable. how: default, for an empty
    value; omits: an empty value is left out; over: a mapping that the value is merged over."""
    return {LATER: {"variable": variable, **how}}


def is_later(value):
    """Return whether a value is a result of later()."""
    return isinstance(value, dict) and LATER in value


def of_plan(*keys):
    """Return an argument that is a part of the host's plan."""
    return {LATER: {"plan": list(keys)}}


def if_prepared(value, other):
    """Return an argument that is `value` in a run that also prepares the node, and `other` in other runs."""
    return {LATER: {"prepared": value, "unprepared": other}}


def _default(value, default="", boolean=False):
    """Jinja's filter. A variable that is not read gets its default when it is sent."""
    if is_later(value):
        return {LATER: {**value[LATER], "default": default}} if boolean and "variable" in value[LATER] else value
    return default if isinstance(value, jinja2.Undefined) or (boolean and not value) else value


def _combine(base, over, recursive=False):
    """Ansible's filter of two mappings, of which the second may be a variable that is not read."""
    return later(over[LATER]["variable"], over=base) if is_later(over) else merge_hash(base, over, recursive)


JINJA = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)  # values for nodes, not for a page
JINJA.filters.update({"bool": is_true, "combine": _combine, "default": _default})
for _name in ("container_engines", "container_images", "registries", "secret_names"):
    JINJA.filters["inference.fleet." + _name] = getattr(server_values, _name)


@functools.cache
def compiled(text):
    """Return (names of variables, whether an empty value is omitted, {name: value} -> value) of a template."""
    expression = text.strip()
    if expression.count("{{") > 1 or not (expression.startswith("{{") and expression.endswith("}}")):
        return _names(text), False, JINJA.from_string(text).render
    omits = expression.endswith(" or omit }}")
    expression = expression[2:-2].strip().removesuffix(" or omit")
    if expression.isidentifier():  # most are; 20 times as fast
        return [expression], omits, operator.itemgetter(expression)
    return _names(text), omits, JINJA.compile_expression(expression, undefined_to_none=False)


def _names(text):
    return sorted(jinja2.meta.find_undeclared_variables(JINJA.parse(text)))


def _preflight(host):
    installs = host.recipe["platform"] + "_packages"
    packages = host.read(installs, defaults_of(host.recipe["platform"]).get(installs, {}))
    given = {
        "models": of_plan("deployment", "models"),
        "venvs": of_plan("deployment", "venvs"),
        "prepares": if_prepared(True, False),
        "installs": if_prepared(packages, {}),
        "satisfied_by": [one["path"] for one in (*host.recipe["venvs"], *host.recipe["models"])],
    }
    yield Tasks(PLAYBOOK, {}, host).call("node_preflight", given, "preflight")


def _prepare(host):
    tools = host.role("toolkit")
    yield tools.call("node_layout")
    yield tools.call("python_environment")
    yield from host.platform()
    if any(entry["container"] for entry in host.entries):
        role = host.role("container_engine")
        for engine in role.value("container_engine_names"):
            yield role.call("container_engine", container_engine_name=engine)
        for image in role.value("container_engine_images"):
            yield role.call("container_image", file="images", container_engine_image=image)
    for venv in host.recipe["venvs"]:
        yield from host.engine(host.recipe["engine"], venv)
    if host.groups().get("monitoring") and not host.read("fleet_root"):
        yield host.role("monitoring").call("node_exporter", file="exporter")


def _weights(host):
    if any((model.get("family") or DEFAULT) == DEFAULT for model in host.recipe["models"]):
        yield host.role("tiktoken_encodings").call("tiktoken_encodings")
    for model in host.recipe["models"]:
        yield host.role("model_weights", model=model).call("model_weights")
    if any("compile_cache" in entry["hooks"] for entry in host.entries):
        yield from host.platform()


def _serve(host):
    role = host.role("serve")
    for client in role.value("serve_deployment").get("service_clients", []):
        yield role.call("service_certificate", file="certificates", serve_client=client)
    secrets = {}
    if host.has("serve_secrets"):
        secrets = later("serve_secrets")
    else:
        for name in server_values.secret_names(host.read("serve_servers", host.entries)):
            secrets[name] = later(name) if host.has(name) else ""
    yield role.call("engine_servers", {"secrets": secrets})


def _verify(host):
    """Return the verification that the operation check requests of a host on which nothing differs."""
    given = {
        "servers_changed": host.read("verify_servers_changed", host.read("serve_changed")),
        "reports_dir": host.read("verify_reports_dir", host.read("fleet_reports_dir")),
        "deployment": host.read("verify_deployment", of_plan("deployment")),
    }
    for name in ("probes", "workers_elsewhere"):
        given[name] = host.read("verify_" + name, of_plan("deployment", name) if name in host.recipe else [])
    yield host.role("verify").call("endpoint_verify", given)


STEPS = {"preflight": _preflight, "prepare": _prepare, "weights": _weights, "serve": _serve, "verify": _verify}


KNOWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "known_tasks.json")


@functools.cache
def defaults_of(role):
    """Return the role's defaults/main.yml; {} if there is none."""
    try:
        return _yaml("roles/%s/defaults/main.yml" % role) or {}
    except FileNotFoundError:
        return {}


@functools.cache
def tasks_of(path):
    """Return {operation: (arguments, variables)} of the tasks in a file, the first of each operation."""
    content, found = _yaml(path), {}
    for task in _each(content[0]["tasks"] if path.startswith("playbooks") else content):
        for module, given in task.items():
            prefix, _dot, operation = module.rpartition(".")
            if prefix == "inference.fleet":
                if operation == "node":
                    operation, given = given["operation"], given.get("arguments", {})
                found.setdefault(operation, (given, task.get("vars", {})))
    return found


def _each(tasks):
    for task in tasks:
        yield from _each(task["block"]) if "block" in task else [task]


def _yaml(path):
    return read_yaml(os.path.join(COLLECTION, path))


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
    return digest_of(os.fspath(path), files_below(path))

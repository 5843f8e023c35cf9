# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a step would run on a host, read from its playbook and its roles: each module with its arguments.

So the look of node_state has the arguments from the only place where they are written. A task that follows from what
another one finds (its condition names what that one registers) is none of it. Whatever is not understood here is an
error or a module that nothing is known about, and then the step is run.
"""

from __future__ import annotations

import os

from ansible.errors import AnsibleError

COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
OWN = "inference.fleet."
STOCK = "ansible.builtin."
# What changes nothing on a node.
HARMLESS = frozenset(STOCK + name for name in ("assert", "debug", "fail", "meta", "set_fact", "set_stats"))
INCLUDES_ROLE = (STOCK + "include_role", STOCK + "import_role")
INCLUDES_TASKS = (STOCK + "include_tasks", STOCK + "import_tasks")
BLOCK = frozenset(("name", "block", "rescue", "always", "vars", "when", "tags"))
# What a task may say besides its module for its arguments to be all that counts.
TASK = frozenset(
    ("name", "vars", "when", "tags", "loop", "loop_control", "register", "until", "retries", "delay", "throttle",
     "async", "poll", "changed_when")
)  # fmt: skip
# What a task registers that had nothing to do.
NOTHING_DONE = {"changed": False, "failed": False, "skipped": False, "results": []}


class Unread(AnsibleError):
    """A playbook or a role says what is not understood here."""


class StepTasks:
    """The tasks of the steps for one host.

    loader: Ansible's. templar_of(variables) -> Templar. variables: the host's. extra: of the command line, which are
    above all others. run_tags, skip_tags: of the run.
    """

    def __init__(self, loader, templar_of, variables, extra, run_tags, skip_tags):
        self._loader = loader
        self._templar_of = templar_of
        self._variables = variables
        self._extra = extra
        self._tags = (set(run_tags), set(skip_tags))

    def of(self, step):
        """[(module's full name, its arguments)] in their order; None for the arguments of a module of others. Raises
        AnsibleError where that cannot be said before the step runs."""
        (play,) = self._load(os.path.join(COLLECTION, "playbooks", "steps", step + ".yml"))
        scope = _Scope(self, self._variables, {}, tags=_texts(play.get("tags")))
        scope.layers.update(play.get("vars") or {})
        for name in play.get("vars") or {}:  # once, and not for each argument that refers to it
            if name not in self._extra:
                scope.layers[name] = scope.templar().template(scope.layers[name])
        for role in play.get("roles") or ():
            scope.defaults.update(self._role_file(_role_name(role), "defaults"))
        for role in play.get("roles") or ():
            yield from self._role(scope, _role_name(role), "main")
        yield from self._walk(scope, play.get("tasks"), None)

    def _load(self, path):
        return self._loader.load_from_file(path, cache="all", trusted_as_template=True)

    def _role_file(self, name, folder, file="main"):
        if not name.startswith(OWN):
            raise Unread("the role %s is none of this collection" % name)
        path = os.path.join(COLLECTION, "roles", name[len(OWN) :], folder, file + ".yml")
        if not os.path.isfile(path):
            if folder == "tasks":
                raise Unread("there is no %s" % path)
            return {}
        return self._load(path) or {}

    def _role(self, scope, name, tasks_from):
        inner = scope.inner(self._role_file(name, "vars"))
        inner.defaults = {**scope.defaults, **self._role_file(name, "defaults")}
        inner.layers["role_path"] = os.path.join(COLLECTION, "roles", name[len(OWN) :])
        yield from self._walk(inner, self._role_file(name, "tasks", tasks_from), name)

    def _walk(self, scope, tasks, role):
        for task in tasks or ():
            here = scope.inner(task.get("vars"), tags=_texts(task.get("tags")))
            if "block" in task:
                _check_words(task, BLOCK)
                if here.holds(task.get("when")):
                    here.registered = scope.registered
                    yield from self._walk(here, task["block"], role)
                continue
            (module,) = (word for word in task if "." in word)
            follows = here.names_registered(task)
            if "register" in task:
                scope.register(task["register"])
            if follows or module in HARMLESS or not here.runs(*self._tags):
                continue
            for one in here.items(task):
                if one.holds(task.get("when")):
                    yield from self._task(one, task, module, role)

    def _task(self, scope, task, module, role):
        _check_words(task, {*TASK, module})
        arguments = task[module] or {}
        if module in INCLUDES_ROLE:
            given = scope.templar().template(arguments)
            yield from self._role(scope, given["name"], given.get("tasks_from", "main"))
        elif module in INCLUDES_TASKS:
            file = scope.templar().template(arguments)
            file = file["file"] if isinstance(file, dict) else file
            if role is None or not file.endswith(".yml"):
                raise Unread("%s is not in a role" % file)
            yield from self._walk(scope, self._role_file(role, "tasks", file[: -len(".yml")]), role)
        else:
            yield module, scope.templar().template(arguments) if module.startswith(OWN) else None


class _Scope:
    """The variables at one place, lowest first: defaults of roles, the host's, layers, the command line's."""

    def __init__(self, tasks, variables, layers, defaults=None, registered=None, tags=frozenset()):
        self._of = tasks
        self._variables = variables
        self.layers = layers
        self.defaults = defaults or {}
        self.registered = registered if registered is not None else set()
        self.tags = frozenset(tags)

    def inner(self, layers, tags=()):
        """A scope within this one."""
        layers = {**self.layers, **(layers or {})}
        return _Scope(self._of, self._variables, layers, self.defaults, self.registered, self.tags | set(tags))

    def templar(self):
        return self._of._templar_of({**self.defaults, **self._variables, **self.layers, **self._of._extra})

    def register(self, name):
        """A task before had nothing to do."""
        self.registered.add(name)
        self._variables = {**self._variables, name: NOTHING_DONE}

    def names_registered(self, task):
        """Whether the condition of a task names what another one registered."""
        return any(name in text for text in _texts(task.get("when")) for name in self.registered)

    def holds(self, when):
        templar = self.templar()
        return all(
            templar.evaluate_conditional(one) for one in (when if isinstance(when, list) else [when]) if one is not None
        )

    def items(self, task):
        """A scope for each item of the task's loop; this one without a loop."""
        if "loop" not in task:
            return [self]
        name = (task.get("loop_control") or {}).get("loop_var", "item")
        return [self.inner({name: item}) for item in self.templar().template(task["loop"])]

    def runs(self, only, skip):
        """Whether a task of these tags is part of the run, as ansible-playbook decides that."""
        tags = self.tags or {"untagged"}
        chosen = (
            "always" in tags
            or ("all" in only and "never" not in tags)
            or bool(tags & only)
            or ("tagged" in only and tags != {"untagged"} and "never" not in tags)
        )
        left_out = (
            bool(tags & skip) or ("all" in skip and "always" not in tags) or ("tagged" in skip and tags != {"untagged"})
        )
        return chosen and not left_out


def _role_name(role):
    return role if isinstance(role, str) else role.get("role") or role.get("name")


def _texts(value):
    return [str(one) for one in (value if isinstance(value, list) else [value]) if one is not None]


def _check_words(task, allowed):
    unknown = sorted(set(task) - set(allowed))
    if unknown:
        raise Unread("a task says %s" % unknown[0])

# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tasks of roles with modules that only write down how they were called, and what plays have in common."""

from __future__ import annotations

import json
import re
import shutil
import sys

import yaml
from ansible_collections.inference.fleet.tests.runs import CLONE, play

LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
CPU = {"fleet_recipe": "cpu-tiny", "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 2}}
# Writes down [name, arguments] in a folder's file `calls`; an operation of `node` has its own name. `changes` are lines
# that change the answer by name, given and folder.
MODULE = """#!%s
# WANT_JSON
import json, sys
folder, name = %r, sys.argv[0].rpartition("/")[2].partition(".")[0].partition("stand_in_")[2] or %r
given = {key: value for key, value in json.load(open(sys.argv[1])).items() if not key.startswith("_ansible_")}
if name == "node":
    name, given = given["operation"], given["arguments"]
with open(folder + "/calls", "a") as stream:
    stream.write(json.dumps([name, given]) + "\\n")
answer = {"changed": True}
%s
print(json.dumps(answer))
"""


def module(folder, changes="", name=""):
    """The text of a module; name: of a file that is not named stand_in_NAME."""
    return MODULE % (sys.executable, str(folder), name, changes)


class Tasks:
    """Copies of roles in a folder, whose tasks call stand_in_NAME in the place of the modules `names`.

    changes: see MODULE; edited: a function of the text of each file of tasks. Without another name run() and turns()
    include the first role.
    """

    def __init__(self, folder, roles, names, changes="", edited=lambda text: text):
        self.folder = folder
        self.name, *_others = roles = [roles] if isinstance(roles, str) else list(roles)
        pattern = r"\b(?:ansible\.builtin|inference\.fleet)\.(%s)(?=\"?:)" % "|".join(names)
        for role in roles:
            shutil.copytree(CLONE / "roles" / role, folder / "roles" / role)
            for path in (folder / "roles" / role / "tasks").glob("*.yml"):
                path.write_text(edited(re.sub(pattern, r"stand_in_\1", path.read_text(encoding="utf-8"))))
        library = folder / "library"
        library.mkdir()
        for name in names:
            (library / ("stand_in_%s.py" % name)).write_text(module(folder, changes))
        (library / "stand_in_turn.py").write_text(module(folder))

    def run(self, *options, variables=None, tasks="main", more=(), **keys):
        """([(module, arguments)], the Run) of a file of tasks; more: tasks after it; keys: of the play."""
        (self.folder / "calls").write_text("")
        include = {"ansible.builtin.include_role": {"name": self.name, "tasks_from": tasks}}
        done = play_tasks(self.folder, [include, *more], *options, variables=variables, **keys)
        return called(self.folder), done

    def turns(self, cases, *options, variables=None):
        """[[(module, arguments)] of each case], and the Run of all in one play.

        A case is (file of tasks, variables), or (file of tasks, variables, role). Where it fails, its last call is
        ("turn", {"failed": the message}).
        """
        tasks = []
        for name, given, *role in cases:
            include = {"ansible.builtin.include_role": {"name": (role or [self.name])[0], "tasks_from": name}}
            failed = {"stand_in_turn": {"failed": "{{ ansible_failed_result.msg | default('') }}"}}
            tasks.append({"block": [{**include, "vars": given}], "rescue": [failed], "always": [{"stand_in_turn": {}}]})
        (self.folder / "calls").write_text("")
        done = play_tasks(self.folder, tasks, *options, variables=variables).ok()
        found = [[]]
        for call in called(self.folder):
            if call == ("turn", {}):
                found.append([])
            else:
                found[-1].append(call)
        return found[:-1], done


def called(folder):
    """[(module, arguments)] that were written down."""
    return [tuple(json.loads(line)) for line in (folder / "calls").read_text().splitlines()]


def tasks_play(tasks, **keys):
    """A play of tasks on this machine, or on other hosts that keys name."""
    here = {} if "hosts" in keys else {"hosts": "localhost", "connection": "local"}
    return {**here, "gather_facts": False, "tasks": tasks, **keys}


def play_tasks(folder, tasks, *options, variables=None, inventory="localhost,", environment=None, **keys):
    """The Run of tasks on this machine, of a playbook in the folder."""
    (folder / "play.yml").write_text(json.dumps([tasks_play(tasks, **keys)]))
    variables = {"ansible_python_interpreter": sys.executable, **(variables or {})}
    return play(str(folder / "play.yml"), inventory, *options, variables=variables, environment=environment)


def hosts_file(folder, hosts, groups=("cpu", "vllm"), **more):
    """An inventory of hosts in a group and the group that has it, and of more groups; its path."""
    path = folder / "hosts.yml"
    children = {outer: {"children": {inner: {}}} for inner, outer in zip(groups, groups[1:])}
    path.write_text(yaml.safe_dump({groups[0]: {"hosts": hosts}, **children, **more}))
    return path


def flat(text):
    """A text without its line breaks and indents."""
    return " ".join(text.split())


# Each word and sign is a token, and none is known.
TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": None,
    "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"},
}  # fmt: skip


def model_folder(folder):
    """A folder of weights that has a tokenizer and nothing else."""
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return {"path": str(folder)}

# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tiktoken encodings that the harmony format needs, from the first source that has them, by their published sha256.

Without o200k_base where TIKTOKEN_ENCODINGS_BASE points, an engine starts, reports that it is healthy, and fails each
chat.
"""

from __future__ import annotations

import hashlib
import os
import tempfile

from ..errors import FleetError
from ..host import commands, files, trust
from ..host.files import make_directory
from ..host.os_errors import os_error
from ..host.redact import checked_variables, without_secrets
from ..model import gpt_oss

ENCODINGS = gpt_oss.VOCABULARIES
SUFFIX = gpt_oss.VOCABULARY_SUFFIX
MODE = 0o644
URL_TIMEOUT_S = 60
# The option with the location of each type of source.
SOURCES = {"package": "python", "file": "path", "controller": "path", "url": "base"}


class SourceFailed(Exception):
    """A source does not have the file, and why."""


class NotOnNode(Exception):
    """The files of a source of type controller have to be copied to the node first."""


def ensure(params, check_mode):
    """Install the named encodings in a directory as NAME.tiktoken, readable by every user: the operation.

    sources: tried in order, each {type: package, python: path of a Python with oss-harmony}, {type: file, path: file or
    directory of such files}, {type: controller, path: the same on the control node, copied: {name: path on the
    node} once that is done} or {type: url, base: URL of the directory}; a source with an empty location is skipped.
    environment: variables with proxies, in addition to those of this process. ca_bundle: file with the certificates to
    trust.

    Returns {changed, message, directory, files: {name: {path, sha256, size, source or null if it existed}},
    diff: {before, after}}. Nothing but the published bytes is ever written.
    Returns {changed: False, controller_needed: [names]} if files of the control node have to be copied first.
    Raises FleetError with the answers of all sources.
    """
    directory, names = params["directory"], list(dict.fromkeys(params["encodings"]))
    variables = {**os.environ, **checked_variables(params["environment"])}
    origins, contents = dict.fromkeys(names), {}
    try:
        before = {name: _state(directory, name) for name in names}
        wrong = [name for name in names if before[name][0] != ENCODINGS[name]["sha256"]]
        changed = [name for name in names if name in wrong or not before[name][1]]
        if not check_mode:
            for name in wrong:  # first all of them: a run that fails has replaced nothing
                contents[name], origins[name] = obtain(name, params["sources"], variables, params["ca_bundle"])
            for name in changed:
                make_directory(directory)
                if name in contents:
                    files.write_atomic(path_of(directory, name), contents[name], MODE)
                else:
                    files.place(path_of(directory, name), MODE)
    except NotOnNode:
        return {"changed": False, "controller_needed": wrong}
    except OSError as error:
        raise os_error("Encodings cannot be installed in %s" % directory, error) from error
    return {
        "changed": bool(changed),
        "message": "%s %s in %s" % ("would place" if check_mode else "placed", ", ".join(changed), directory)
        if changed
        else "up to date",
        "directory": directory,
        "files": {name: dict(ENCODINGS[name], path=path_of(directory, name), source=origins[name]) for name in names},
        "diff": {
            "before": _shown(directory, {name: digest for name, (digest, _readable) in before.items() if digest}),
            "after": _shown(directory, {name: ENCODINGS[name]["sha256"] for name in names}),
        },
    }


def _shown(directory, digests):
    return "".join("%s sha256 %s\n" % (path_of(directory, name), digest) for name, digest in digests.items())


def path_of(directory, name):
    """The path of the encoding, by the name that the harmony libraries look for."""
    return os.path.join(directory, name + SUFFIX)


def _state(directory, name):
    """(sha256, whether every user can read it) of the encoding's file; (None, True) for none."""
    try:
        path = path_of(directory, name)
        return files.sha256_file(path), os.stat(path).st_mode & MODE == MODE
    except (FileNotFoundError, NotADirectoryError):
        return None, True


def obtain(name, sources, variables, ca_bundle=None):
    """(bytes, description of the source) of an encoding, from the first source that has the published bytes."""
    failures, wanted = [], ENCODINGS[name]["sha256"]
    for source in sources:
        if not source[SOURCES[source["type"]]]:
            continue
        try:
            content = _fetched(name, source, variables, ca_bundle)
            digest = hashlib.sha256(content).hexdigest()
            if digest == wanted:
                return content, _named(source)
            failure = "%d bytes with sha256 %s instead of %s" % (len(content), digest, wanted)
        except (SourceFailed, commands.TimedOut) as error:
            failure = str(error)
        except OSError as error:
            failure = "%s: %s" % (error.filename, error.strerror)
        failures.append("%s: %s" % (_named(source), failure))
    tried = "; ".join(failures) or "none, sources names none"
    raise FleetError("encodings.no-source", name, wanted, tried, SUFFIX, details={"tried": failures})


def _fetched(name, source, variables, ca_bundle):
    """The bytes of an encoding from a source. Raises SourceFailed, NotOnNode, OSError, FleetError."""
    if source["type"] == "package":
        return _from_package(name, source["python"], variables)
    if source["type"] == "url":
        return _from_url(name, source["base"], variables, ca_bundle)
    path = os.path.expanduser(os.path.expandvars(source["path"]))
    if source["type"] == "controller":
        if source.get("copied") is None:
            raise NotOnNode
        if name not in source["copied"]:
            raise SourceFailed("there is no such file on the control node")
        path = source["copied"][name]
    with open(path_of(path, name) if os.path.isdir(path) else path, "rb") as stream:
        return stream.read()


def _from_package(name, python, variables):
    """Have encodings_worker write the file, under the Python of an environment with oss-harmony."""
    # its import here would load the library, if the node's Python has it
    from . import encodings_worker

    script = encodings_worker.__loader__.get_source(encodings_worker.__name__)  # also from a zip
    environment = {key: value for key, value in variables.items() if not key.startswith("PYTHON")}
    account = _account(python)
    with tempfile.TemporaryDirectory() as folder:
        if account:
            os.chown(folder, account["user"], account["group"])
        target = path_of(folder, name)
        options = {"env": {**environment, "HOME": folder}, "cwd": folder, **account}
        process = commands.run([python, "-", name, target], idle_s=commands.IDLE_S, text=script, **options)
        if process.returncode != 0:
            lines = process.stderr.strip().splitlines() or ["exit status %d" % process.returncode]
            raise SourceFailed(lines[-1].rstrip("."))
        return files.read_bytes(target, follow=False) or b""


def _account(python):
    """The account of an environment that others than root can change, as options of commands.run(); {} for others."""
    fault = trust.fault(python) if os.geteuid() == 0 else None
    if fault is None:
        return {}
    owner = os.stat(os.path.dirname(os.path.dirname(python)))
    if owner.st_uid == 0:
        raise SourceFailed("root does not execute it: " + fault)
    return {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}


def _from_url(name, base, variables, ca_bundle):
    from .http import Http, HttpFailure  # no other source needs it

    try:
        with Http(variables, ca_bundle, URL_TIMEOUT_S).get(base.rstrip("/") + "/" + name + SUFFIX) as response:
            # one more byte distinguishes a longer file from the right one
            return response.read(ENCODINGS[name]["size"] + 1)
    except HttpFailure as failure:
        raise SourceFailed(failure.text) from failure


def _named(source):
    """A source for a message, without the secrets that its URL may contain."""
    where = source[SOURCES[source["type"]]]
    return "%s %s" % (source["type"], without_secrets(where) if source["type"] == "url" else where)

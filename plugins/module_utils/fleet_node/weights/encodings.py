# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tiktoken encodings that the harmony format needs, from whichever source has them, by their published sha256.

Without o200k_base where TIKTOKEN_ENCODINGS_BASE points, an engine starts, says that it is healthy, and fails each chat.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.parse

from ..errors import FleetError
from ..host import commands, files
from ..host.directories import make_directory
from ..host.redact import checked_variables
from ..model import gpt_oss

ENCODINGS = gpt_oss.VOCABULARIES
SUFFIX = gpt_oss.VOCABULARY_SUFFIX
MODE = 0o644
URL_TIMEOUT_S = 60
# What each type of source needs beside its type.
SOURCES = {"package": "python", "file": "path", "controller": "path", "url": "base"}


class SourceFailed(Exception):
    """A source does not have the file; the text says why."""


class NotOnNode(Exception):
    """The files of a source of type controller have to be copied to the node first."""


def ensure(directory, encodings, sources, environment=None, ca_bundle=None, check_mode=False):
    """Put the named encodings into `directory` as NAME.tiktoken, readable by every user.

    sources: tried in order, each {type: package, python: path of a Python that has oss-harmony}, {type: file, path: the
    file or a directory of such files}, {type: controller, path: the same on the controller, copied: {name: path on the
    node} once that is done} or {type: url, base: URL of the directory}; one with an empty place is passed over.
    environment: variables with proxies (http_proxy, https_proxy, no_proxy) over this process's own. ca_bundle:
    file with the certificates to trust.

    Returns {changed, message, directory, files: {name: {path, sha256, size, source or null where it was there}},
    diff: {before, after}}. A file with another sha256 is replaced; nothing but the published bytes is ever written.
    Returns {changed: False, controller_needed: [names]} where files of the controller have to be copied first.
    Raises FleetError that names all sources and what each of them said.
    """
    if not os.path.isabs(directory):
        raise FleetError("encodings.directory-unusable", "directory is %r. Set an absolute path.", (directory,))
    variables = {**os.environ, **checked_variables(environment)}
    names = list(dict.fromkeys(encodings))
    before = {name: found(directory, name) for name in names}
    wrong = [name for name in names if before[name] != ENCODINGS[name]["sha256"]]
    modes = [name for name in names if name not in wrong and not _readable(directory, name)]
    origins = dict.fromkeys(names)
    if not check_mode:
        # First all of them, then the writing: a run that fails has replaced nothing.
        contents = {}
        try:
            for name in wrong:
                contents[name], origins[name] = obtain(name, sources, variables, ca_bundle)
        except NotOnNode:
            return {"changed": False, "controller_needed": wrong}
        try:
            for name, content in contents.items():
                make_directory(directory)
                files.write_atomic(path_of(directory, name), content, MODE)
            for name in modes:
                os.chmod(path_of(directory, name), MODE)
        except OSError as error:
            raise FleetError(
                "encodings.directory-unusable",
                "Cannot write to %s: %s. Check the disk and its mount.",
                (directory, error.strerror),
            ) from error
    changed = wrong + modes
    return {
        "changed": bool(changed),
        "message": _message(changed, wrong, directory, sources, check_mode),
        "directory": directory,
        "files": {name: dict(ENCODINGS[name], path=path_of(directory, name), source=origins[name]) for name in names},
        "diff": {
            "before": "".join(_line(directory, name, before[name], name in modes) for name in names),
            "after": "".join(_line(directory, name, ENCODINGS[name]["sha256"], False) for name in names),
        },
    }


def _message(changed, wrong, directory, sources, check_mode):
    if not changed:
        return "up to date"
    if not check_mode:
        return "placed %s in %s" % (", ".join(changed), directory)
    places = [_named(source) for source in sources if source[SOURCES[source["type"]]]]
    text = "would place %s in %s" % (", ".join(changed), directory)
    return "%s, from the first that has it: %s" % (text, "; ".join(places) or "no source is set") if wrong else text


def path_of(directory, name):
    """Where the encoding is, by the name that the harmony libraries look for."""
    return os.path.join(directory, name + SUFFIX)


def found(directory, name):
    """sha256 of the encoding's file, None where there is none."""
    try:
        return files.sha256_file(path_of(directory, name))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FleetError(
            "encodings.directory-unusable",
            "Cannot read %s: %s. Check its mode and the mount.",
            (path_of(directory, name), error.strerror),
        ) from error


def obtain(name, sources, variables, ca_bundle=None):
    """(bytes, description of the source) of an encoding, from the first source that has the published bytes."""
    failures = []
    for source in sources:
        if not source[SOURCES[source["type"]]]:
            continue
        where = _named(source)
        try:
            content = FETCH[source["type"]](name, source, variables, ca_bundle)
            digest = hashlib.sha256(content).hexdigest()
            if digest != ENCODINGS[name]["sha256"]:
                raise SourceFailed(
                    "gave %d bytes with sha256 %s instead of %s" % (len(content), digest, ENCODINGS[name]["sha256"])
                )
        except SourceFailed as error:
            failures.append("%s: %s" % (where, error))
            continue
        return content, where
    raise FleetError(
        "encodings.no-source",
        "No source has the encoding %s (sha256 %s). Tried: %s. Put %s%s on the node or the controller and name it as a "
        "source of type file or controller, or name a URL that the node reaches.",
        (name, ENCODINGS[name]["sha256"], "; ".join(failures) or "none, sources names none", name, SUFFIX),
        details={"tried": failures},
    )


def _from_package(name, source, variables, _ca_bundle):
    """Have the worker write the file, under the Python of an environment that oss-harmony is installed in."""
    # where the Python of the node has the library, this imports all of it
    from . import encodings_worker

    text = encodings_worker.__loader__.get_source(encodings_worker.__name__)  # also out of the zip a module runs from
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, name + SUFFIX)
        try:
            process = commands.run(
                [source["python"], "-", name, target],
                idle_s=commands.IDLE_S,
                text=text,
                env={key: value for key, value in variables.items() if not key.startswith("PYTHON")},
                cwd=folder,
            )
        except FileNotFoundError as error:
            raise SourceFailed("there is no such environment; the step prepare makes those of engines") from error
        except OSError as error:
            raise SourceFailed(error.strerror) from error
        except commands.TimedOut as error:
            raise SourceFailed(error.message.rstrip(".")) from error
        if process.returncode != 0:
            lines = process.stderr.strip().splitlines() or ["exit status %d" % process.returncode]
            raise SourceFailed(lines[-1].rstrip("."))
        return _read(target)


def _from_file(name, source, _variables, _ca_bundle):
    path = os.path.expanduser(os.path.expandvars(source["path"]))
    return _read(path_of(path, name) if os.path.isdir(path) else path)


def _from_controller(name, source, _variables, _ca_bundle):
    if source.get("copied") is None:
        raise NotOnNode
    if name not in source["copied"]:
        raise SourceFailed("there is no such file on the controller")
    return _read(source["copied"][name])


def _from_url(name, source, variables, ca_bundle):
    from .http import Http, HttpFailure  # here, since no other source needs it

    url = source["base"].rstrip("/") + "/" + name + SUFFIX
    try:
        with Http(variables, ca_bundle, URL_TIMEOUT_S).get(url) as response:
            # one more byte distinguishes a longer file from the right one
            return response.read(ENCODINGS[name]["size"] + 1)
    except HttpFailure as failure:
        raise SourceFailed(failure.text) from failure


FETCH = {"package": _from_package, "file": _from_file, "controller": _from_controller, "url": _from_url}


def _read(path):
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise SourceFailed("%s: %s" % (path, error.strerror)) from error


def _readable(directory, name):
    return os.stat(path_of(directory, name)).st_mode & MODE == MODE


def _named(source):
    """A source for a message, without the password that its URL may carry."""
    where = source[SOURCES[source["type"]]]
    parts = urllib.parse.urlsplit(where)
    if "@" in parts.netloc:
        where = parts._replace(netloc="***@" + parts.netloc.rpartition("@")[2]).geturl()
    return "%s %s" % (source["type"], where)


def _line(directory, name, digest, unreadable):
    if digest is None:
        return ""
    return "%s sha256 %s%s\n" % (path_of(directory, name), digest, " not readable by all" if unreadable else "")

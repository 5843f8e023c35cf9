# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""This package on a node: a folder for each version below LIB/program, and `current`, a link to the version that
service managers start servers with.

A version is written to a temporary folder, compiled, and then renamed, so a killed copy or a full disk changes nothing.
Versions that no process runs, except the current version, are removed when another version is installed.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import io
import json
import os
import shutil
import tempfile

from . import program_check
from .host import trust
from .host.files import folder_lock, leads_to, make_directory, put_link, sha256_file
from .host.os_errors import about, os_error
from .program_check import CURRENT, MANIFEST, current, place, record_of, version_of

ROOT = "fleet_node"  # the package in an archive and in a version's folder
MAIN = "__main__.py"
SUFFIXES = (".py", ".json", ".conf", ".service")
DATE = (1980, 1, 1, 0, 0, 0)
RIGHTS = (errno.EACCES, errno.EPERM)
KEPT = "Nothing was changed, and servers continue."


def files_of():
    """{path: bytes} of the program, which is this package."""
    if os.path.isfile(_place()):
        return unpacked(_place())
    folder, found = os.path.dirname(os.path.abspath(__file__)), {}
    for at, names, files in os.walk(folder, followlinks=True):
        names[:] = sorted(name for name in names if name != "__pycache__")
        for name in files:
            if name.endswith(SUFFIXES):
                path = os.path.join(at, name)
                with open(path, "rb") as stream:
                    found["%s/%s" % (ROOT, os.path.relpath(path, folder))] = stream.read()
    return {MAIN: found["%s/%s" % (ROOT, MAIN)], **found}


def version(files):
    """The version of a program of {path: bytes}."""
    return version_of({path: hashlib.sha256(data).hexdigest() for path, data in files.items()})


@functools.cache
def own_version():
    """The version of this program."""
    if os.path.exists(os.path.join(_place(), MANIFEST)):
        return os.path.basename(_place())
    return version(files_of())


def work(folder, name):
    """Arguments of Python that run main() of a module of this package, by its __name__, in a process that outlives the
    call. folder: see start(). Raises OSError."""
    return [start(folder), "work", name.rpartition(ROOT + ".")[2]]


def start(folder):
    """The path that Python executes: the version's folder, or, for a program that could not be installed, a copy of the
    archive in `folder`, which outlives the call. Raises OSError."""
    if os.path.isdir(_place()):
        return _place()
    return shutil.copyfile(_place(), os.path.join(folder, "program.zip"))


def _place():
    """The folder or archive that this program runs from."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def packed(files):
    """The bytes of an archive of {path: bytes}. They are reproducible with the same zlib."""
    import zipfile  # here and below, because a call that finds the program does not need it

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(files):
            info = zipfile.ZipInfo(path, date_time=DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[path], compresslevel=9)
    return buffer.getvalue()


def unpacked(archive):
    """{path: bytes} of an archive. Raises OSError, zipfile.BadZipFile."""
    import zipfile

    with zipfile.ZipFile(archive) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def current_fault(lib):
    """Why `current` is not this version as installed, as a clause; None if it is."""
    link = current(lib)
    try:
        found = os.readlink(link)
        if os.lstat(link).st_uid not in (0, os.geteuid()):
            return "belongs to another account"
    except OSError:
        return "is missing"
    if found != own_version():
        return "is another version"
    fault = program_check.fault(os.path.join(place(lib), found), found)
    return fault and "is damaged: " + fault


def keep(lib, check_mode=False, make=False):
    """Install this version on the node whose folder is `lib`. Returns its folder, or None if it must not be installed:
    in check mode, before that folder exists, if other accounts could change it, or without permission.

    make: create that folder, on hosts of services. Raises FleetError.
    """
    if check_mode or not (make or os.path.isdir(lib)):
        return None
    if os.geteuid() == 0 and trust.fault(lib, sticky=False):
        return None
    try:
        return put(lib)
    except OSError as error:
        if error.errno in RIGHTS and os.geteuid() != 0:
            return None
        raise os_error("The program cannot be kept in %s" % place(lib), error, KEPT) from error


def make_current(lib):
    """Install this version, and make it the version that service managers start. Raises FleetError."""
    try:
        put(lib)
        with folder_lock(place(lib)):
            _switch(place(lib), own_version())
            _clean(place(lib), own_version())
    except OSError as error:
        raise os_error("The program cannot be kept in %s" % place(lib), error, KEPT) from error


def put(lib):
    """Write this version if it is missing or damaged. Returns its folder. Raises OSError."""
    make_directory(place(lib))
    wanted = own_version()
    folder = os.path.join(place(lib), wanted)
    with folder_lock(place(lib)):
        if program_check.fault(folder, wanted) is None:
            return folder
        _remove_left(place(lib))
        fresh = tempfile.mkdtemp(prefix=".new-", dir=place(lib))
        try:
            with about(place(lib)):
                _write(fresh, files_of())
            if os.path.lexists(folder):
                os.rename(folder, tempfile.mkdtemp(prefix=".old-", dir=place(lib)))
            os.rename(fresh, folder)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        _clean(place(lib), wanted)
    return folder


def _write(folder, files):
    """Write {path: bytes}, compile it, and write the manifest."""
    import py_compile

    sources, compiled = sorted(files), []
    for path in sources:
        where = os.path.join(folder, path)
        make_directory(os.path.dirname(where))
        with open(where, "wb") as stream:
            stream.write(files[path])
    for path in (one for one in sources if one.endswith(".py")):
        final = os.path.join(os.path.dirname(folder), own_version(), path)  # in tracebacks
        made = py_compile.compile(os.path.join(folder, path), dfile=final, doraise=True)
        os.chmod(os.path.dirname(made), 0o755)
        compiled.append(os.path.relpath(made, folder))
    found = {"files": sources, "compiled": compiled}
    manifest = {kind: {path: _to_disk(os.path.join(folder, path)) for path in paths} for kind, paths in found.items()}
    where = os.path.join(folder, MANIFEST)
    with open(where, "w", encoding="utf-8") as stream:
        json.dump(manifest, stream)
    _to_disk(where)
    os.chmod(folder, 0o755)


def _to_disk(path):
    """Put a file on the disk, readable by all accounts. Returns its record."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fchmod(handle, 0o644)
        os.fsync(handle)
    finally:
        os.close(handle)
    return record_of(path, sha256_file(path))


def _switch(where, wanted):
    link = os.path.join(where, CURRENT)
    if leads_to(link, wanted):
        return
    if os.path.isdir(link) and not os.path.islink(link):
        os.rename(link, tempfile.mkdtemp(prefix=".old-", dir=where))
    put_link(link, wanted)


def _remove_left(where):
    """Remove the temporary folders of killed runs. The caller has locked the folder."""
    for name in os.listdir(where):
        if name.startswith("."):
            shutil.rmtree(os.path.join(where, name), ignore_errors=True)


def _clean(where, wanted):
    """Remove versions that are neither wanted nor current, and that no process runs."""
    try:
        kept = {wanted, os.readlink(os.path.join(where, CURRENT))}
    except OSError:
        kept = {wanted}
    for name in sorted(os.listdir(where)):
        folder = os.path.join(where, name)
        if name in kept or name == CURRENT or not os.path.isdir(folder) or os.path.islink(folder):
            continue
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            gone = tempfile.mkdtemp(prefix=".old-", dir=where)
            os.rename(folder, gone)
            shutil.rmtree(gone, ignore_errors=True)
        except OSError:  # it is in use, or the file system has no locks
            continue
        finally:
            os.close(handle)

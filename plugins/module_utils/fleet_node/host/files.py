# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Atomic writing of files, reading of files that other accounts may write, directories and mounts."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time

from .os_errors import about

MAX_JSON = 64 << 20  # bytes
MAX_DIGITS = 32
LOCK_POLL_S = 0.05
MOUNTS = "/proc/self/mountinfo"
ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks in that file


def write_atomic(path, data, mode=0o644, owner=None):
    """Write `data` (bytes or str) to `path` with `mode`; readers see the old or the new file, never a part.

    owner: (uid, gid) or None. The folder must exist. Raises OSError, whose filename is `path`.
    """
    with about(path):
        temporary = write_next_to(path, data, mode, owner)
        try:
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


def write_next_to(path, data, mode, owner=None):
    """Write `data` to a new file in the folder of `path`, and return its path. Arguments and errors are those of
    write_atomic()."""
    with about(path):
        handle, temporary = tempfile.mkstemp(prefix=".%s." % os.path.basename(path), dir=os.path.dirname(path))
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(as_bytes(data))
                # by its handle: in a folder of a server's account the name may be a link by now
                os.fchmod(stream.fileno(), mode)
                if owner is not None:
                    os.fchown(stream.fileno(), owner[0], owner[1])
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return temporary


def place(path, mode, uid=None, gid=None, folder=False):
    """Set mode and owner (None: unchanged) of an existing file or folder, without following a link at `path`.

    folder: only of a folder. Raises OSError.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC | (os.O_DIRECTORY if folder else 0)
    with about(path):
        if os.geteuid() != 0 and not os.path.islink(path):
            os.chmod(path, mode)  # an account's own, which it may not even be able to open
            return
        handle = os.open(path, flags)
        try:
            os.fchown(handle, -1 if uid is None else uid, -1 if gid is None else gid)
            os.fchmod(handle, mode)
        finally:
            os.close(handle)


def remove(path):
    """Remove the file or folder at the path, or a link itself; nothing if the path does not exist. Raises OSError."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        shutil.rmtree(path)  # follows no link, not even one that replaces a folder meanwhile
    else:
        os.unlink(path)


def put_link(path, target):
    """Make `path` a link to `target` in one step. Its folder must exist. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix=".new-", dir=os.path.dirname(path)) as folder:
        os.symlink(target, folder + "/link")
        os.replace(folder + "/link", path)


def leads_to(path, target):
    """Whether `path` is a link to `target` that belongs to this account."""
    try:
        return os.readlink(path) == target and os.lstat(path).st_uid == os.geteuid()
    except OSError:
        return False


def as_bytes(data):
    """str as UTF-8, with undecodable bytes restored; bytes unchanged."""
    return data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data


def read_bytes(path, most=-1, follow=True):
    """The content of the file `path`, at most `most` bytes, or None if there is no file.

    A FIFO, a device, and without `follow` a link, count as no file, because a read could block for ever. Raises
    OSError.
    """
    with _opened(path, follow) as stream:
        return None if stream is None else stream.read(most)


def read_end(path, most):
    """(the last `most` bytes of the file `path`, their offset), or (None, 0) if there is no file. Links are not
    followed. Raises OSError."""
    with _opened(path, follow=False) as stream:
        if stream is None:
            return None, 0
        start = max(0, stream.seek(0, os.SEEK_END) - most)
        stream.seek(start)
        return stream.read(most), start


@contextlib.contextmanager
def _opened(path, follow):
    """A binary stream of the file `path`, or None if read_bytes() returns None."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENXIO) or (error.errno == errno.ELOOP and not follow):
            yield None
            return
        raise
    try:
        kind = os.fstat(handle).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(kind):
            yield None
            return
        with about(path), open(handle, "rb", closefd=False) as stream:
            yield stream
    finally:
        os.close(handle)


def names_in(folder, prefix="", suffix=""):
    """Sorted [NAME] of the entries PREFIX NAME SUFFIX of a folder, without hidden entries; [] without the folder."""
    try:
        files = os.listdir(folder)
    except FileNotFoundError:
        return []
    files = [file for file in files if file.startswith(prefix) and file.endswith(suffix) and not file.startswith(".")]
    return sorted(file[len(prefix) : len(file) - len(suffix)] for file in files)


def read_text(path):
    """The content of the file `path` as a string, or None if there is no such file. Raises OSError."""
    data = read_bytes(path)
    return None if data is None else data.decode("utf-8", "replace")


def read_json(path, follow=False):
    """The JSON value in `path`, or None if there is no file, or no JSON of an acceptable size.

    A server's account can write files that root reads here, so size, depth and digits have limits.
    follow: follow links; files of checkpoints are links in the cache of a hub's client. Raises OSError.
    """
    data = read_bytes(path, MAX_JSON + 1, follow=follow)
    if data is None or len(data) > MAX_JSON:
        return None
    try:
        return json.loads(data.decode("utf-8", "replace"), parse_int=_whole)
    except (ValueError, RecursionError):
        return None


def _whole(digits):
    if len(digits) > MAX_DIGITS:
        raise ValueError("a number of %d digits" % len(digits))
    return int(digits)


def readable_json(path):
    """The same, and None if the file cannot be read, such as a file of another user."""
    try:
        return read_json(path)
    except OSError:
        return None


def fits(value, shape, complete=False):
    """Whether a JSON value has this shape.

    shape: a type (int: no boolean, of at most 63 bits; float: any finite number of that size); None; a list of one
    shape; {key: shape}, for existing keys, "*" for all others; a tuple of alternative shapes; object for
    anything. complete: all keys except "*" must exist.
    """
    if isinstance(shape, tuple):
        return any(fits(value, one, complete) for one in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(one, shape[0], complete) for one in value)
    if isinstance(shape, dict):
        if not isinstance(value, dict) or (complete and not shape.keys() - {"*"} <= value.keys()):
            return False
        return all(fits(one, shape.get(key, shape.get("*", object)), complete) for key, one in value.items())
    if shape in (int, float):
        number = isinstance(value, (int, shape)) and not isinstance(value, bool)
        return number and -(1 << 63) < value < 1 << 63  # neither NaN nor infinite
    return value is None if shape is None else isinstance(value, shape)


def write_json(path, value, mode=0o644, owner=None):
    """Write the JSON value to `path` with write_atomic()."""
    write_atomic(path, json.dumps(value), mode, owner)


@contextlib.contextmanager
def folder_lock(path, wait_s=3600, needed=True):
    """Lock a folder for other processes, and yield a handle of it. File systems without locks are used without.

    Every account that may read the folder can lock it, too. So after wait_s seconds TimeoutError is raised, or, unless
    the lock is `needed`, the folder is used without.
    """
    handle, end = os.open(path, os.O_RDONLY | os.O_DIRECTORY), time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    if needed:
                        raise TimeoutError(errno.ETIMEDOUT, "another process keeps it locked", path) from None
                    break
                time.sleep(LOCK_POLL_S)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.ENOSYS):
                    raise
                break
        yield handle
    finally:
        os.close(handle)


def record_lock(path):
    """folder_lock() of a folder of records, which are written without it rather than not at all."""
    return folder_lock(path, wait_s=5, needed=False)


def open_lock(path):
    """A stream of the lock file `path`, which no other account can open and so keep locked. Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(handle, 0o600)
    return os.fdopen(handle, "a", encoding="ascii")


def is_locked(path):
    """Whether a process has locked the file; False if there is no plain file. Raises OSError."""
    with _opened(path, follow=False) as stream:
        try:
            if stream is not None:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: other calls check as well
        except BlockingIOError:
            return True
    return False


def write_hashed(path, blocks):
    """Write and sync the blocks (bytes) to `path`, mode 0644; returns {size, sha256: hex}. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with about(path), open(path, "wb") as stream:
        for block in blocks:
            stream.write(block)
            digest.update(block)
            size += len(block)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(path, 0o644)
    return {"size": size, "sha256": digest.hexdigest()}


def sha256_file(path, read=None):
    """sha256 (hex) of the file's bytes; read(count): called after each block. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while True:
            chunk = stream.read(1 << 20)
            if not chunk:
                return digest.hexdigest()
            digest.update(chunk)
            if read is not None:
                read(len(chunk))


def make_directory(path):
    """Create `path` and its missing parents with mode 0755. Returns the created folders. Raises OSError.

    Existing folders keep their owner and mode.
    """
    if os.path.isdir(path):
        return []
    created = make_directory(os.path.dirname(path))
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return created  # another run created it meanwhile
    place(path, 0o755, folder=True)  # the mode of mkdir() is limited by the umask
    return [*created, path]


def existing_parent(path):
    """The nearest existing folder at or above `path`."""
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def mount_points():
    """{path} of the mounts on this node, including bind mounts; empty if they cannot be read."""
    try:
        with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as stream:
            fields = [line.split(" ") for line in stream]
    except OSError:
        return set()
    return {ESCAPED.sub(lambda found: chr(int(found.group(1), 8)), line[4]) for line in fields if len(line) > 4}


def size_of(path):
    """Bytes of a path on its disk. Links are not followed, and hard links count once."""
    seen, total, waiting = set(), 0, [path]
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError):
            status = os.lstat(one)
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
            if os.path.isdir(one) and not os.path.islink(one):
                waiting += [item.path for item in os.scandir(one)]
    return total

# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of containers: pulled before a server needs them, by digest if it is known, and through a mirror if it is set.

A pull is a background job: a lost connection does not end it, and the next call finds it.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import json
import os
import re
import time

from ..errors import FleetError
from ..host.files import read_text, write_atomic
from ..host.jobs import DetachedJob, fresh
from ..host.paths import NodePaths
from ..host.redact import url_secrets
from .engine import (
    PROBLEMS,
    Engine,
    EngineError,
    check_architecture,
    digest_tag,
    engine_failure,
    pinned_reference,
    split_reference,
)

DOCKER_HUB = "docker.io"
DOCKER_HUB_LOGIN = "https://index.docker.io/v1/"  # what docker files its login under
IMAGE = re.compile(r"^[a-z0-9][a-z0-9._:/-]*(:[A-Za-z0-9_][A-Za-z0-9._-]*)?$")
# What an engine accepts as a registry: any other first word of an image's name is a folder of Docker Hub.
HOST = r"(?:localhost|\[[0-9a-fA-F:]+\]|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9-]+(?=:[0-9]))(?::[0-9]+)?"
REGISTRY = re.compile(r"^%s$" % HOST)
MIRROR = re.compile(r"^%s(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*/?$" % HOST)
DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
POLL_S = 0.2
# The client's variable for a login, and its value: the file, or docker's folder with it.
LOGIN = {"docker": ("DOCKER_CONFIG", "login"), "podman": ("REGISTRY_AUTH_FILE", "login/config.json")}
# Removes the login when the pull has ended, also without a caller: job folder, then the client's argv.
JOB = 'folder=$1; shift; "$@"; status=$?; rm -rf "$folder/login"; ' \
      'echo $status >"$folder/.status" && mv "$folder/.status" "$folder/status"'  # fmt: skip
# Codes of errors, and what the output of a failed pull matches; the first counts.
CAUSES = (
    ("images.no-space", r"no space left on device|disk quota exceeded"),
    ("images.rate-limited", r"toomanyrequests|pull rate limit|too many requests"),
    ("images.digest-differs",
     r"manifest verification failed|layer verification failed|[Dd]igest did not match|does not match (?:the )?"
     r"(?:expected |provided )?(?:manifest )?digest|invalid checksum digest|failed to verify|unexpected commit digest|"
     r"manifest digest"),
    ("images.certificate-unknown", r"x509|certificate signed by unknown authority|tls: "),
    ("images.no-tls", r"server gave HTTP response to HTTPS client"),
    ("images.login-refused",
     r"unauthorized|authentication required|no basic auth credentials|incorrect username or password|denied: |"
     r"access to the resource is denied|pull access denied|invalid username/password"),
    ("images.not-found",
     r"manifest unknown|manifest for \S+ not found|name unknown|repository does not exist|NAME_UNKNOWN|"
     r"MANIFEST_UNKNOWN|not found: manifest|requested image's platform|no matching manifest|no image found in|"
     r": not found"),
    ("images.registry-unreachable",
     r"dial tcp|no such host|connection refused|i/o timeout|TLS handshake timeout|deadline exceeded|"
     r"network is unreachable|Client\.Timeout|connection reset|\bEOF\b|unexpected status.*50[0234]|"
     r"received unexpected HTTP status: 50[0234]"),
)  # fmt: skip


def check_mirror(mirror, name="fleet_registry_mirror"):
    """Raises FleetError with the variable's name unless `mirror` is "" or None for none, HOST[/PREFIX] for all
    registries, or such a string for some registries: {REGISTRY: HOST[/PREFIX]}."""
    named = mirror.items() if isinstance(mirror, dict) else [(None, mirror)]
    for registry, one in named:
        if registry is not None and not REGISTRY.match(str(registry)):
            raise _invalid("a key of " + name, repr(str(registry)),
                           "a registry as in container.image, HOST[:PORT]; docker.io for Docker Hub")  # fmt: skip
        if one and not (isinstance(one, str) and MIRROR.match(one)):
            shown = repr(str(one) if isinstance(one, str) else one)
            for secret in url_secrets(one):
                shown = shown.replace(secret, "********")
            raise _invalid(
                name + ("" if registry is None else "[%r]" % str(registry)),
                shown,
                "HOST[:PORT][/PREFIX] without https:// or a user, where HOST has a dot or a port and PREFIX is in "
                "small letters, such as registry.example.org:5000/hub",
            )


def _invalid(name, shown, allowed):
    return FleetError("images.setting-invalid", name, shown, allowed)


def mirrored(image, mirror):
    """The reference NAME:TAG that `image` is pulled by, with its registry, or with the mirror instead of it.

    A name without a registry is of Docker Hub, as docker reads it; podman would search the registries of its own
    configuration. mirror: as check_mirror() accepts it.
    """
    check_mirror(mirror)
    registry, name, tag = split_reference(image)
    registry = registry or DOCKER_HUB
    if isinstance(mirror, dict):
        mirror = mirror.get(registry)
    mirror = mirror or registry
    if registry == DOCKER_HUB and "/" not in name:
        name = "library/" + name
    return "%s/%s%s" % (mirror.rstrip("/"), name, ":" + tag if tag else "")


def login_file(auth):
    """The content of an authentication file as docker and podman read it, from {REGISTRY: {username, password}}.

    Raises FleetError, without the values.
    """
    auths = {}
    for registry, one in sorted(auth.items()):
        if (
            not isinstance(one, dict)
            or set(one) != {"username", "password"}
            or not all(isinstance(value, str) and value for value in one.values())
        ):
            raise _invalid(
                "fleet_registry_auth['%s']" % registry,
                "no login",
                "a mapping with the strings username and password; for NGC $oauthtoken and the API key",
            )
        key = DOCKER_HUB_LOGIN if registry == DOCKER_HUB else registry
        text = "%s:%s" % (one["username"], one["password"])
        auths[key] = {"auth": base64.b64encode(text.encode("utf-8")).decode("ascii")}
    return json.dumps({"auths": auths})


def pull_failure(engine, source, error, mirror):
    """The FleetError for a pull that ended with an EngineError. mirror: whether `source` is one."""
    if error.kind in PROBLEMS:
        return engine_failure(engine, error)
    code = next((code for code, pattern in CAUSES if re.search(pattern, error.words)), "images.pull-failed")
    registry = split_reference(source)[0] + (" (fleet_registry_mirror)" if mirror else "")
    return FleetError(code, source, registry, error.words.rstrip("."))


def _begin(job, engine, source, login):
    """Start a pull. Its folder contains the login (content of an authentication file, or None) during the pull, and its
    exit status afterwards. Raises EngineError, OSError."""
    program = engine.program()
    job.remove()
    os.makedirs(job.folder, mode=0o700)
    environment = engine.client_environment()
    if login is not None:
        os.mkdir(job.path("login"), 0o700)
        write_atomic(job.path("login/config.json"), login, mode=0o600)
        variable, path = LOGIN[engine.kind]
        environment[variable] = job.path(path)
    argv = ["/bin/sh", "-c", JOB, "sh", job.folder, program, *engine.argv("pull", source)[1:]]
    job.launch(argv, {"name": source}, environment)


def _has_result(job):
    """Whether the pull ended recently; a killed pull has no result."""
    try:
        return fresh(os.stat(job.path("status")).st_mtime)
    except FileNotFoundError:
        return False


def _pull(job, engine, source, login, end):
    """Start the pull unless it runs, and wait for it until `end`. Returns (whether this call started it, the last line
    of the output of a pull that still runs, else None). Raises EngineError with the output of a pull that failed."""
    begun = False
    with job.judging():
        while True:
            # not after its status is written, even if the client left a process behind
            runs = not os.path.exists(job.path("status")) and job.alive()
            if not runs and (begun or _has_result(job)):
                break
            if not runs:
                _begin(job, engine, source, login)
                begun = True
            if time.monotonic() > end:
                return begun, job.log().rstrip().rpartition("\n")[2]
            time.sleep(POLL_S)
        status, log = read_text(job.path("status")), job.log()
        job.remove()  # with the login
    if status is None:
        log = "the pull was ended from outside"
    if status is None or status.strip() != "0":
        raise EngineError.of(log)
    return begun, None


def _forget_ended(paths, found, check_mode):
    """Remove the folders of pulls that have ended, which may contain a login, and return their number.

    found: the job's folder of an image that is on the node. Recent results of others may still be read.
    """
    ended = 0
    for folder in glob.glob(glob.escape(paths.lib) + "/jobs/image-*/"):
        job = DetachedJob(folder.rstrip("/"))
        with job.judging(wait=False) as held:
            if held and not job.alive() and (job.folder == found or not _has_result(job)):
                ended += 1
                if not check_mode:
                    job.remove()
    return ended


def ensure_image(image, digest=None, engine="docker", address=None, mirror=None, auth=None, environment=None, root="",
                 wait_s=3600, check_mode=False):  # fmt: skip
    """Pull the image NAME:TAG (of that digest, if given) unless the node has it.

    mirror: see mirrored(). auth: {REGISTRY: {username, password}}. environment: proxies for podman's client; docker's
    daemon has its own. wait_s: seconds to wait for a pull. Returns {changed, finished, image, progress, msg, diff,
    ended: the number of ended pulls that were forgotten because the node has the image}; image is its name for `run`,
    None while the node does not have it. Raises FleetError.
    """
    if not IMAGE.match(image):
        raise _invalid("image", repr(image), "REGISTRY/NAME:TAG without a digest")
    if digest and not DIGEST.match(digest):
        raise _invalid("digest", repr(digest), "sha256: and 64 hexadecimal digits")
    login = login_file(auth) if auth else None
    source, own = (pinned_reference(mirrored(image, one), digest) for one in (mirror, None))
    wanted = pinned_reference(image, digest)
    kept = digest_tag(image, digest) if digest else image
    diff = {"before": "", "after": "image %s\n" % wanted}
    chosen, paths = Engine(engine, address, environment), NodePaths.of_parameter(root)
    try:
        found = chosen.find_image(image, digest)
    except EngineError as error:
        if check_mode and error.kind in ("missing", "down"):  # an earlier task would install it
            return _result(True, None, "would pull %s" % wanted, diff)
        raise engine_failure(chosen, error) from error
    key = hashlib.sha256(("%s %s" % (chosen.label, source)).encode("utf-8")).hexdigest()[:16]
    job = DetachedJob("%s/jobs/image-%s" % (paths.lib, key))
    ended = _forget_ended(paths, job.folder if found else None, check_mode)
    if found:
        check_architecture(chosen, wanted, found)
        return {**_with_tag(chosen, kept, wanted, found, False, diff, check_mode), "ended": ended}
    if check_mode:
        return _result(True, None, "would pull %s" % wanted, diff)
    end, begun = time.monotonic() + wait_s, False
    try:
        while not found and not begun:  # an earlier pull may have fetched an image that was removed since
            begun, running = _pull(job, chosen, source, login, end)
            if running is not None:
                found = "%s (%s)" % (source, running)
                progress = {"phase": "pulling", "file": found}
                return {**_result(True, None, "pulling " + found, diff), "finished": False, "progress": progress}
            pulled = chosen.image(source) if source != wanted else None
            if pulled and (not digest or any(one.endswith("@" + digest) for one in pulled["digests"])):
                chosen.call("tag", pulled["id"], kept)
            found = chosen.find_image(image, digest)
    except (EngineError, OSError) as error:
        failed = error if isinstance(error, EngineError) else EngineError("other", str(error))
        raise pull_failure(chosen, source, failed, source != own) from error
    if not found:
        words = "%s does not list the image under its digest" % chosen.label
        raise pull_failure(chosen, source, EngineError("other", words), source != own)
    check_architecture(chosen, wanted, found)
    return _with_tag(chosen, kept, wanted, found, True, diff, False)


def _with_tag(engine, kept, wanted, found, changed, diff, check_mode):
    """The result for an image on the node. The image gets the tag `kept`, so that it is not pruned, and is found even
    if it came through a mirror. With a digest, NAME:TAG is not changed: servers may use different images of that
    tag."""
    tagged = engine.image(kept) or {"id": "missing"}
    if tagged["id"] != found["id"]:
        if not changed:
            diff = {key: "tag %s: %s\n" % (kept, one["id"]) for key, one in (("before", tagged), ("after", found))}
        changed = True
        if not check_mode:
            engine.call("tag", found["id"], kept)
    if not changed:
        diff = dict.fromkeys(diff, diff["after"])
    return _result(changed, found, "%s is here" % wanted, diff)


def _result(changed, found, msg, diff):
    image, progress = (found["reference"], {"percent": 100, "phase": "done"}) if found else (None, None)
    return {"changed": changed, "finished": True, "image": image, "progress": progress, "msg": msg, "diff": diff}


def remove_image(image, digest=None, engine="docker", address=None, mirror=None, check_mode=False):
    """Remove the names of the image NAME:TAG (of that digest, if given) from this node: its tags, and its name in
    `mirror`. The engine deletes it with its last name; other names stay. Returns as ensure_image()."""
    wanted, chosen, names = pinned_reference(image, digest), Engine(engine, address), []
    try:
        found = chosen.find_image(image, digest)
        if found:
            tags = [image, *([digest_tag(image, digest)] if digest else [])]
            names = [name for name in tags if (chosen.image(name) or {}).get("id") == found["id"]]
            own = tuple(pinned_reference(name, "sha256:") for name in (image, mirrored(image, mirror)))
            names += sorted(name for name in found["digests"] if name.startswith(own))
        for name in names if not check_mode else ():
            try:
                chosen.call("rmi", name)
            except EngineError as error:
                if error.kind != "absent":  # its digests may go with the tag
                    raise
    except EngineError as error:
        if error.kind != "missing":
            raise engine_failure(chosen, error) from error
    diff = {"before": "".join("image %s\n" % name for name in names), "after": ""}
    return _result(bool(names), None, "%s is not here" % wanted, diff)

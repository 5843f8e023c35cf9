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
    Engine,
    EngineError,
    check_architecture,
    digest_tag,
    kind_of,
    one_line,
    pinned_reference,
    split_reference,
)
from .launcher import PROBLEMS, engine_failure, engine_problem

DOCKER_HUB = "docker.io"
DOCKER_HUB_LOGIN = "https://index.docker.io/v1/"  # what docker files its login under
IMAGE = re.compile(r"^[a-z0-9][a-z0-9._:/-]*(:[A-Za-z0-9_][A-Za-z0-9._-]*)?$")
# What an engine accepts as a registry: any other first word of an image's name is a folder of Docker Hub.
HOST = r"(?:localhost|\[[0-9a-fA-F:]+\]|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9-]+(?=:[0-9]))(?::[0-9]+)?"
REGISTRY = re.compile(r"^%s$" % HOST)
MIRROR = re.compile(r"^%s(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*/?$" % HOST)
DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
POLL_S = 0.2
# Removes the login when the pull has ended, also without a caller: job folder, then the client's argv.
JOB = 'folder=$1; shift; "$@"; status=$?; rm -rf "$folder/login"; ' \
      'echo $status >"$folder/.status" && mv "$folder/.status" "$folder/status"'  # fmt: skip
# What the output of a failed pull matches, and sentences with the registry, the image and the engine; the first counts.
CAUSES = (
    (r"no space left on device|disk quota exceeded",
     "There is no space for it. Free space on the file system on which {engine} keeps its images"),
    (r"toomanyrequests|pull rate limit|too many requests",
     "The registry {registry} allows no more pulls for now. Log in with fleet_registry_auth, or set "
     "fleet_registry_mirror"),
    (r"manifest verification failed|layer verification failed|[Dd]igest did not match|does not match (?:the )?"
     r"(?:expected |provided )?(?:manifest )?digest|invalid checksum digest|failed to verify|unexpected commit digest|"
     r"manifest digest",
     "The answer of the registry {registry} has another digest. Correct container.digest, or repair the registry"),
    (r"x509|certificate signed by unknown authority|tls: ",
     "The certificate of the registry {registry} is not trusted by this node. Set fleet_ca_bundle to a file with its "
     "authority and run the step prepare (for Docker Hub, docker reads only the system's authorities: add it to them "
     "and restart docker, or set fleet_registry_mirror)"),
    (r"server gave HTTP response to HTTPS client",
     "The registry {registry} has no TLS. Add it to container_engine_insecure_registries, or give it a certificate"),
    (r"unauthorized|authentication required|no basic auth credentials|incorrect username or password|denied: |"
     r"access to the resource is denied|pull access denied|invalid username/password",
     "The registry {registry} requires a login, or refuses this login. Set fleet_registry_auth: {{{registry}: "
     "{{username: …, password: …}}}}, best from a vault"),
    (r"manifest unknown|manifest for \S+ not found|name unknown|repository does not exist|NAME_UNKNOWN|"
     r"MANIFEST_UNKNOWN|not found: manifest|requested image's platform|no matching manifest|: not found",
     "The registry {registry} has no such image, tag or digest, or none for this machine's architecture ({machine}). "
     "Correct container.image and container.digest"),
    (r"dial tcp|no such host|connection refused|i/o timeout|TLS handshake timeout|deadline exceeded|"
     r"network is unreachable|Client\.Timeout|connection reset|\bEOF\b|unexpected status.*50[0234]|"
     r"received unexpected HTTP status: 50[0234]",
     "The registry {registry} cannot be reached from this node. Set fleet_registry_mirror, or fleet_proxy_env and run "
     "the step prepare"),
)  # fmt: skip
LAYER = re.compile(r"^(?:Copying blob (?:sha256:)?)?([0-9a-f]{12,64}):? (.+)$")
LAYER_DONE = re.compile(r"^(?:Pull complete|Already exists|done|skipped: already exists)\b")


def check_mirror(mirror):
    """Raises FleetError unless it is "" or None for none, HOST[/PREFIX] for all registries, or such a
    string for some registries: {REGISTRY: HOST[/PREFIX]}."""
    named = mirror.items() if isinstance(mirror, dict) else [(None, mirror)]
    for registry, one in named:
        if registry is not None and not REGISTRY.match(str(registry)):
            raise _invalid("a key of fleet_registry_mirror", repr(str(registry)),
                           "a registry as in container.image, HOST[:PORT]; docker.io for Docker Hub")  # fmt: skip
        if one and not (isinstance(one, str) and MIRROR.match(one)):
            shown = repr(str(one) if isinstance(one, str) else one)
            for secret in url_secrets(one):
                shown = shown.replace(secret, "********")
            raise _invalid(
                "fleet_registry_mirror" + ("" if registry is None else "[%r]" % str(registry)),
                shown,
                "HOST[:PORT][/PREFIX] without https:// or a user, where HOST has a dot or a port and PREFIX is in "
                "small letters, such as registry.example.org:5000/hub",
            )


def _invalid(name, shown, allowed):
    return FleetError("images.setting-invalid", name, shown, allowed)


def mirrored(image, mirror):
    """The reference NAME:TAG that `image` is pulled by: itself, or with its registry replaced.

    mirror: as check_mirror() accepts it; check it first.
    """
    check_mirror(mirror)
    registry, name, tag = split_reference(image)
    registry = registry or DOCKER_HUB
    if isinstance(mirror, dict):
        mirror = mirror.get(registry)
    if not mirror:
        return image
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


def pull_problem(engine, source, error, mirror):
    """Sentences on a pull that ended with an EngineError: the problem and the remedy."""
    if error.kind in PROBLEMS:
        return engine_problem(engine, error)
    words = error.words.rstrip(".")
    advice = next((advice for pattern, advice in CAUSES if re.search(pattern, words)), None)
    if advice is None:
        return "%s cannot be pulled: %s." % (source, words)
    registry = split_reference(source)[0] or DOCKER_HUB
    registry += " (fleet_registry_mirror)" if mirror else ""
    advice = advice.format(registry=registry, engine=engine.kind, machine=os.uname().machine)
    return "%s cannot be pulled: %s. (%s)" % (source, advice, words)


def progress_of(log):
    """{layers_done, layers_total, percent, phase} of what a pull printed so far."""
    layers = {}
    for line in log.splitlines():
        match = LAYER.match(line.strip())
        if match and (line.startswith("Copying blob") or len(match.group(1)) == 12):
            done = bool(LAYER_DONE.match(match.group(2)))
            layers[match.group(1)[:12]] = layers.get(match.group(1)[:12], False) or done
    done = sum(layers.values())
    return {
        "layers_done": done,
        "layers_total": len(layers),
        "percent": round(100 * done / len(layers)) if layers else 0,
        "phase": "pulling",
    }


class _Job(DetachedJob):
    """A pull on this node. Its folder contains login during the pull, and status afterwards."""

    def __init__(self, paths, engine, source):
        key = hashlib.sha256(("%s %s" % (engine.label, source)).encode("utf-8")).hexdigest()[:16]
        super().__init__("%s/jobs/image-%s" % (paths.lib, key))
        self.engine = engine
        self.source = source

    def alive(self):
        """Whether the pull runs: not after its status is written, even if the client left a process behind."""
        return not os.path.exists(self.path("status")) and super().alive()

    def begin(self, login):
        """Start the pull. login: content of the authentication file or None. Raises EngineError, OSError."""
        program = self.engine.program()
        self.remove()
        os.makedirs(self.folder, mode=0o700)
        environment = self.engine.client_environment()
        if login is not None:
            os.mkdir(self.path("login"), 0o700)
            write_atomic(self.path("login/config.json"), login, mode=0o600)
            if self.engine.kind == "docker":
                environment["DOCKER_CONFIG"] = self.path("login")
            else:
                environment["REGISTRY_AUTH_FILE"] = self.path("login/config.json")
        argv = ["/bin/sh", "-c", JOB, "sh", self.folder, program, *self.engine.argv("pull", self.source)[1:]]
        return self.launch(argv, {"name": self.source, "begun": time.time()}, environment)

    def end(self):
        """(whether it succeeded, its output) of a pull that has ended; the folder is removed with the login."""
        status, log = read_text(self.path("status")), self.log()
        self.remove()
        return (False, "the pull was ended from outside") if status is None else (status.strip() == "0", log)


def ensure_image(image, digest=None, engine="docker", address=None, mirror=None, auth=None, environment=None, root="",
                 wait_s=3600, check_mode=False):  # fmt: skip
    """Pull the image NAME:TAG (of that digest, if given) unless the node has it.

    mirror: see mirrored(). auth: {REGISTRY: {username, password}}. environment: proxies for podman's client; docker's
    daemon has its own. wait_s: seconds to wait for a pull. Returns {changed, finished, engine, image, progress, msg,
    diff, ended: the number of ended pulls that were forgotten because the node has the image}; image is {reference, id,
    digests, size}, None while the node does not have it. Raises FleetError.
    """
    if not IMAGE.match(image):
        raise _invalid("image", repr(image), "REGISTRY/NAME:TAG without a digest")
    if digest and not DIGEST.match(digest):
        raise _invalid("digest", repr(digest), "sha256: and 64 hexadecimal digits")
    login = login_file(auth) if auth else None
    name = mirrored(image, mirror)
    wanted = pinned_reference(image, digest)
    kept = digest_tag(image, digest) if digest else image
    diff = {"before": "", "after": "image %s\n" % wanted}
    chosen = Engine(engine, address, environment)
    try:
        found = chosen.find_image(image, digest)
    except EngineError as error:
        if check_mode and error.kind in ("missing", "down"):  # an earlier task would install it
            return _result(True, None, None, "would pull %s" % wanted, diff)
        raise engine_failure(chosen, error) from error
    source = pinned_reference(name, digest)
    job = _Job(NodePaths.of_parameter(root), chosen, source)
    ended = _forget_ended(NodePaths.of_parameter(root), job.folder if found else None, check_mode)
    if found:
        check_architecture(chosen, wanted, found)
        return {**_with_tag(chosen, kept, wanted, found, False, diff, check_mode), "ended": ended}
    if check_mode:
        return _result(True, chosen, None, "would pull %s" % wanted, diff)
    try:
        end = time.monotonic() + wait_s
        done = {"begun": False}
        while not found and not done["begun"]:  # an earlier pull may have fetched an image that was removed since
            done = _pull(job, login, max(0, end - time.monotonic()))
            if not done["finished"]:
                return dict(_result(True, chosen, None, done["msg"], diff), finished=False, progress=done["progress"])
            if source != wanted:
                pulled = chosen.image(source)
                if pulled and (not digest or any(one.endswith("@" + digest) for one in pulled["digests"])):
                    chosen.call("tag", pulled["id"], kept)
            found = chosen.find_image(image, digest)
    except EngineError as error:
        raise _pull_failed(pull_problem(chosen, source, error, name != image)) from error
    except OSError as error:
        raise _pull_failed("%s cannot be pulled: %s." % (source, error)) from error
    if not found:
        raise _pull_failed("%s was pulled, but %s does not list it under its digest." % (source, chosen.label))
    check_architecture(chosen, wanted, found)
    return _with_tag(chosen, kept, wanted, found, True, diff, False)


def _pull_failed(words):
    return FleetError("images.pull-failed", words)


def _forget_ended(paths, found=None, check_mode=False):
    """Remove the folders of pulls that have ended, which may contain a login, and return their number.

    found: the job of an image that is on the node. Recent results of others may still be read.
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


def _has_result(job):
    """Whether the pull ended recently; a killed pull has no result."""
    try:
        return fresh(os.stat(job.path("status")).st_mtime)
    except FileNotFoundError:
        return False


def _pull(job, login, wait_s):
    """Start the pull unless it runs, and wait. Returns {finished, begun: whether by this call, msg, progress}.

    Raises EngineError with the pull's output.
    """
    end = time.monotonic() + wait_s
    begun = False
    with job.judging():
        while True:
            if not job.alive():
                if begun or _has_result(job):
                    good, log = job.end()
                    break
                job.begin(login)
                begun = True
            if time.monotonic() > end:
                progress = progress_of(job.log())
                words = "pulling %s: %d of %d layers after %d s"
                counts = "%s (%d of %d layers)"
                progress["file"] = counts % (job.source, progress["layers_done"], progress["layers_total"])
                age = time.time() - job.request().get("begun", time.time())
                msg = words % (job.source, progress["layers_done"], progress["layers_total"], age)
                return {"finished": False, "msg": msg, "progress": progress}
            time.sleep(POLL_S)
    if not good:
        raise EngineError(kind_of(log), one_line(log))
    return {"finished": True, "begun": begun}


def _with_tag(engine, kept, wanted, found, changed, diff, check_mode):
    """The result for an image on the node. The image gets the tag `kept`, so that it is not pruned, and is found even
    if it came through a mirror. With a digest, NAME:TAG is not changed: servers may use different images of that
    tag."""
    tagged = engine.image(kept)
    if tagged is None or tagged["id"] != found["id"]:
        if not changed:
            diff = {"before": "tag %s: %s\n" % (kept, tagged["id"] if tagged else "missing"),
                    "after": "tag %s: %s\n" % (kept, found["id"])}  # fmt: skip
        changed = True
        if not check_mode:
            engine.call("tag", found["id"], kept)
    if not changed:
        diff = {"before": diff["after"], "after": diff["after"]}
    return _result(changed, engine, found, "%s is here" % wanted, diff)


def _result(changed, engine, found, msg, diff):
    image = {key: found[key] for key in ("reference", "id", "digests", "size")} if found else None
    progress = {"percent": 100, "phase": "done"} if found else None
    return {"changed": changed, "finished": True, "engine": engine.kind if engine else None, "image": image,
            "progress": progress, "msg": msg, "diff": diff}  # fmt: skip


def remove_image(image, digest=None, engine="docker", address=None, mirror=None, check_mode=False):
    """Remove the names of the image NAME:TAG (of that digest, if given) from this node: its tags, and its name in
    `mirror`. The engine deletes it with its last name; other names stay. Returns as ensure_image()."""
    wanted = pinned_reference(image, digest)
    chosen = Engine(engine, address)
    try:
        found = chosen.find_image(image, digest)
        names = []
        if found:
            for name in (image, *([digest_tag(image, digest)] if digest else [])):
                tagged = chosen.image(name)
                names += [name] if tagged and tagged["id"] == found["id"] else []
            own = tuple(pinned_reference(name, "sha256:") for name in (image, mirrored(image, mirror)))
            names += sorted(name for name in found["digests"] if name.startswith(own))
        for name in names if not check_mode else ():
            try:
                chosen.call("rmi", name)
            except EngineError as error:
                if error.kind != "absent":  # its digests may go with the tag
                    raise
    except EngineError as error:
        if error.kind == "missing":
            return _result(False, None, None, "%s is not here" % wanted, {"before": "", "after": ""})
        raise engine_failure(chosen, error) from error
    diff = {"before": "".join("image %s\n" % name for name in names), "after": ""}
    return _result(bool(names), chosen, None, "%s is not here" % wanted, diff)

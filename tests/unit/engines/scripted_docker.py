# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for the clients docker and podman: images, containers and a registry in a JSON file, errors as scripted.

What it prints where it fails are the words of the real clients (docker 20.10 to 28, podman 4.3).
"""

from __future__ import annotations

import json
import os
import sys
import time

DAEMON = "Error response from daemon: "
ERRORS = {
    "down": "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
    "permission": (
        "permission denied while trying to connect to the Docker daemon socket "
        "at unix:///var/run/docker.sock: dial unix /var/run/docker.sock: connect: permission denied"
    ),
    "auth": DAEMON + 'Head "https://nvcr.io/v2/team/app/manifests/1": unauthorized: authentication required',
    "denied": (
        DAEMON + "pull access denied for team/app, repository does not exist or may require 'docker login': "
        "denied: requested access to the resource is denied"
    ),
    "unknown": DAEMON + "manifest for nvcr.io/team/app:1 not found: manifest unknown: manifest unknown",
    "platform": "no matching manifest for linux/arm64/v8 in the manifest list entries",
    "digest": DAEMON + "manifest verification failed for digest sha256:11",
    "podman_digest": "Error: writing blob: Digest did not match, expected sha256:11, got sha256:22",
    "podman_denied": (
        "Error: initializing source docker://nvcr.io/team/app:1: reading manifest 1 in nvcr.io/team/app: errors:\n"
        "denied: requested access to the resource is denied\nunauthorized: authentication required"
    ),
    "podman_platform": (
        "Error: choosing an image from manifest list docker://nvcr.io/team/app:1: "
        'no image found in image index for architecture arm64, variant "v8", OS linux'
    ),
    "unreachable": DAEMON + 'Get "https://nvcr.io/v2/": dial tcp: lookup nvcr.io on 10.0.0.2:53: no such host',
    "timeout": (
        DAEMON + 'Get "https://nvcr.io/v2/": net/http: request canceled while waiting for connection '
        "(Client.Timeout exceeded while awaiting headers)"
    ),
    "certificate": DAEMON + 'Get "https://nvcr.io/v2/": x509: certificate signed by unknown authority',
    "http": DAEMON + 'Get "https://nvcr.io/v2/": http: server gave HTTP response to HTTPS client',
    "space": "failed to register layer: write /usr/lib/libcuda.so: no space left on device",
    "ratelimit": DAEMON + "toomanyrequests: You have reached your pull rate limit.",
    "other": DAEMON + "something that nobody has seen",
}  # fmt: skip


class ScriptedEngine:
    """Clients of these kinds in a folder that the collection finds them in, and their state."""

    def __init__(self, folder, monkeypatch, kinds=("docker",)):
        import shutil  # not in the clients, which start often

        from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import paths as host_paths

        self.bin = folder / "engine-bin"
        self.file = folder / "engine.json"
        self.calls = folder / "engine-calls"
        self.bin.mkdir()
        self.write(
            images={}, registry={}, containers=[], errors={}, live_restore=False, held=None, version="20.10.24",
            info={}, python={},
        )  # fmt: skip
        for tool in ("mv", "rm"):
            (self.bin / tool).symlink_to(shutil.which(tool))
        for kind in kinds:
            start = '#!/bin/sh\nexec %s -I -S %s %s %s %s "$@"\n'
            (self.bin / kind).write_text(start % (sys.executable, __file__, self.file, self.calls, kind))
            (self.bin / kind).chmod(0o755)
        monkeypatch.setattr(host_paths, "PATH", str(self.bin))

    def read(self):
        return json.loads(self.file.read_text())

    def write(self, **changes):
        state = self.read() if self.file.exists() else {}
        self.file.write_text(json.dumps(dict(state, **changes)))

    def called(self, word):
        """Calls [{argv, environment, login}] whose argv has the word; login: what an authentication file held."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [call for call in map(json.loads, lines) if word in call["argv"]]


def image(ident, *digests, architecture=None):
    return {"id": "sha256:" + ident * 64, "digests": list(digests), "architecture": architecture}


def _fail(words, status=1):
    sys.stderr.write(words + "\n")
    raise SystemExit(status)


def _client(file, calls, kind, argv):
    with open(file, encoding="utf-8") as stream:
        state = json.load(stream)
    login = None
    for variable, name in (("DOCKER_CONFIG", "config.json"), ("REGISTRY_AUTH_FILE", "")):
        path = os.path.join(os.environ.get(variable, "/nonexistent"), name).rstrip("/")
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as stream:
                login = {"mode": oct(os.stat(path).st_mode & 0o777), "auths": json.load(stream)["auths"]}
    with open(calls, "a", encoding="utf-8") as stream:
        stream.write(json.dumps({"argv": [kind, *argv], "environment": dict(os.environ), "login": login}) + "\n")
    if argv[0] in ("--host", "--url"):
        argv = argv[2:]
    verb, rest = argv[0], argv[1:]
    for key in ("*", verb):
        if key in state["errors"]:
            _fail(ERRORS.get(state["errors"][key], state["errors"][key]))
    images = state["images"]
    if verb == "image":
        found = images.get(rest[-1]) or next((one for one in images.values() if one["id"] == rest[-1]), None)
        if found is None:
            _fail("Error: No such image: " + rest[-1])
        sys.stdout.write(json.dumps([{"Id": found["id"], "RepoDigests": found["digests"],
                                      "Architecture": found.get("architecture")}]))  # fmt: skip
    elif verb == "container":
        found = next((one for one in state["containers"] if rest[-1] in (one["name"], one["id"])), None)
        if found is None:
            _fail("Error: No such container: " + rest[-1])
        sys.stdout.write(json.dumps([{"Id": found["id"], "Config": {"Labels": found["labels"]},
                                      "Image": found.get("image"), "HostConfig": found.get("host")}]))  # fmt: skip
    elif verb == "ps":
        labels = [one.split('"')[1] for one in rest[-1].replace("{{json", "").split("{{") if '"' in one]
        for one in state["containers"]:
            if rest[-1] == "{{.Names}}":
                if one["state"] == "running":
                    sys.stdout.write(one["name"] + "\n")
            elif "inference.fleet.server" in one["labels"]:
                fields = [one["id"], one["name"], one["state"], one.get("ports", "")]
                sys.stdout.write("\x1f".join(fields + [one["labels"].get(label, "") for label in labels]) + "\n")
    elif verb in ("stop", "rm"):
        state["containers"] = [one for one in state["containers"] if one["id"] not in rest or one.get("immortal")]
    elif verb == "pull":
        sys.stdout.write("1: Pulling from team/app\naaaaaaaaaaaa: Pulling fs layer\naaaaaaaaaaaa: Pull complete\n")
        sys.stdout.flush()
        while state["held"] and os.path.exists(state["held"]):
            time.sleep(0.02)
        if rest[0] not in state["registry"]:
            _fail(ERRORS["unknown"])
        sys.stdout.write("bbbbbbbbbbbb: Pull complete\n")
        images[rest[0]] = state["registry"][rest[0]]
    elif verb == "run" and "-c" in rest:  # an image's Python, with its modules
        import subprocess

        program = rest[rest.index("-c") :]
        sys.stdout.flush()
        done = subprocess.run([sys.executable, *program], env={**os.environ, **state["python"]}, check=False)
        raise SystemExit(done.returncode)
    elif verb == "rmi":
        if rest[0] not in images:
            _fail("Error: No such image: " + rest[0])
        del images[rest[0]]
    elif verb == "tag":
        found = next(one for one in images.values() if one["id"] == rest[0])
        images[rest[1]] = found
    elif verb == "info" and rest[-1] == "{{json .}}":
        known = {"ServerVersion": state["version"], "LiveRestoreEnabled": state["live_restore"], **state["info"]}
        sys.stdout.write(json.dumps(known))
    elif verb in ("version", "info"):
        sys.stdout.write(state["version"] + "\n")
    else:
        _fail("unknown command: %s" % verb, 125)
    if verb in ("stop", "rm", "pull", "rmi", "tag"):
        with open(file, encoding="utf-8") as stream:
            state = dict(json.load(stream), images=images, containers=state["containers"])
        with open(file, "w", encoding="utf-8") as stream:
            json.dump(state, stream)


if __name__ == "__main__":
    _client(*sys.argv[1:4], sys.argv[4:])

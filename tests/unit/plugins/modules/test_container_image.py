# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images on a node, with a stand-in for the engines' clients: what is pulled from where, what is said of failures."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers import images as container_images
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.containers.engine import (
    EngineError,
    pinned_reference,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.jobs import DetachedJob
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import containers as guard_containers
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.engines.scripted_docker import ERRORS, ScriptedEngine, image
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.node_helpers import script
from ansible_collections.inference.fleet.tests.unit.operating import four_steps, operate

D1, D2 = "sha256:" + "1" * 64, "sha256:" + "2" * 64
PROXY = {"HTTPS_PROXY": "http://proxy:3128"}
NAME = "nvcr.io/team/app"
PINNED = "%s@%s" % (NAME, D1)
KEPT1 = "%s:%s" % (NAME, D1.replace(":", "-"))
A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


@pytest.fixture
def engine(tmp_path, monkeypatch):
    return ScriptedEngine(tmp_path, monkeypatch)


@pytest.fixture
def pull(tmp_path):
    def call(check_mode=False, **arguments):
        arguments = {"image": NAME + ":1", "root": str(tmp_path / "root"), **arguments}
        return operate("container_image", check_mode, **arguments)

    return call


def sources(engine):
    return [call["argv"][-1] for call in engine.called("pull")]


@pytest.mark.parametrize(("mirror", "source"), [
    ("", NAME + ":1"), ("mirror.example:5000", "mirror.example:5000/team/app:1"),
])  # fmt: skip
def test_by_tag_and_through_a_mirror_under_its_own_name(engine, tmp_path, mirror, source):
    engine.write(registry={source: image("a", source.replace(":1", "@" + D1))})
    check, applied = four_steps("container_image", image=NAME + ":1", mirror=mirror, root=str(tmp_path))
    assert check["diff"] == applied["diff"] == {"before": "", "after": "image %s:1\n" % NAME}
    assert (check["image"], applied["image"], sources(engine)) == (None, NAME + ":1", [source])


def test_by_digest_and_a_tag_of_it_is_put_on_it_and_right_without_a_network(engine, pull, tmp_path):
    engine.write(registry={PINNED: image("a", PINNED)})
    four_steps("container_image", image=NAME + ":1", digest=D1, root=str(tmp_path))
    assert sources(engine) == [PINNED]
    assert {name: one["id"] for name, one in engine.read()["images"].items()} == {PINNED: A, KEPT1: A}
    one, wrong = image("a", PINNED), image("b")
    engine.write(images={PINNED: one, NAME + ":1": image("c"), KEPT1: wrong})
    for check_mode in (True, False):
        result = pull(check_mode, digest=D1)
        assert result["diff"] == {"before": "tag %s: %s\n" % (KEPT1, wrong["id"]), "after": "tag %s: %s\n" % (KEPT1, A)}
    assert not pull(digest=D1)["changed"]
    assert sources(engine) == [PINNED]
    assert engine.read()["images"] == {PINNED: one, KEPT1: one, NAME + ":1": image("c")}  # which others go by


@pytest.mark.parametrize(
    ("mirror", "name", "source"),
    [
        ("mirror.example:5000", "nvcr.io/team/app:1", "mirror.example:5000/team/app:1"),
        ("mirror.example/hub/", "redis:7", "mirror.example/hub/library/redis:7"),
        ({"nvcr.io": "mirror.example/nvcr"}, "nvcr.io/team/app:1", "mirror.example/nvcr/team/app:1"),
        ({"nvcr.io": "mirror.example/nvcr"}, "quay.io/team/app:1", "quay.io/team/app:1"),
        ({"docker.io": "mirror.example"}, "team/app:1", "mirror.example/team/app:1"),
        ("", "localhost:5000/app:1", "localhost:5000/app:1"),
        (None, "app", "docker.io/library/app"),  # podman would search its own registries
        ({"nvcr.io": "mirror.example"}, "team/app:1", "docker.io/team/app:1"),
    ],
)
def test_what_is_pulled_through_a_mirror(mirror, name, source):
    assert container_images.mirrored(name, mirror) == source


@pytest.mark.parametrize(
    ("mirror", "shown"),
    [
        *((good, None) for good in ("Mirror.example:5000/a/b_c.d-e/", "localhost/hub", "[::1]:5000", "", None, {},
          {"docker.io": "m.example/hub", "nvcr.io": "", "127.0.0.1:5000": None})),
        ("me:s3cret@mirror.example", "'me:********@mirror.example'"),
        ("mirror/hub", "'mirror/hub'"),
        ("mirror.example/Hub", "'mirror.example/Hub'"),
        ("mirror.example:x", "'mirror.example:x'"),
        (["mirror.example"], "['mirror.example']"),
        ({"nvcr.io": "http://mirror.example"}, "'http://mirror.example'"),
        ({"https://nvcr.io": "mirror.example"}, "'https://nvcr.io'"),
    ],
)  # fmt: skip
def test_a_mirror_that_no_image_can_be_pulled_from(mirror, shown):
    if shown is None:
        container_images.check_mirror(mirror)
        return
    failed = plans.error(container_images.mirrored, "app:1", mirror)
    assert (failed.code, failed.values[1]) == ("images.setting-invalid", shown)


@pytest.mark.parametrize("tagged", [False, True])
def test_a_new_digest_leaves_the_image_that_runs(engine, pull, monkeypatch, tagged):
    """Between prepare and serve the old server may start again; and one tag may have two digests for good. The engine
    knows no nvcr.io/team/app@sha256:1…"""
    first, second = ("mirror.example/team/app@" + digest for digest in (D1, D2))
    engine.write(registry={first: image("a", first), second: image("b", second)},
                 images={NAME + ":1": image("a", first)} if tagged else {})  # fmt: skip
    assert [pull(digest=digest, mirror="mirror.example")["changed"] for digest in (D1, D2, D1, D2)] == [
        True, True, False, False,
    ]  # fmt: skip
    assert pull(digest=D1, mirror="other.example")["image"] == A
    assert sources(engine) == ([] if tagged else [first]) + [second]
    for digest, ident in ((D1, A), (D2, B)):
        entry = {"container": {"engine": "docker", "image": NAME + ":1", "digest": digest}, "command": ["serve"],
                 "launch": ["docker", "run", pinned_reference(NAME + ":1", digest), "serve"], "hash": "1"}  # fmt: skip
        argv = guard_containers.launch_command(entry, "")
        assert argv == ["docker", "run", "--label=inference.fleet.hash=1", ident, "serve"]


LOGINS = {"nvcr.io": {"username": "team", "password": "pa:ss"}, "docker.io": {"username": "usr", "password": "pwd"}}


@pytest.mark.parametrize(("kind", "option"), [("docker", "--host"), ("podman", "--url")])
def test_logins_are_in_a_file_of_this_pull_alone(tmp_path, monkeypatch, pull, kind, option):
    engine = ScriptedEngine(tmp_path, monkeypatch, kinds=[kind])
    engine.write(registry={NAME + ":1": image("a")})
    result = pull(engine=kind, auth=LOGINS, environment=PROXY, address="unix:///run/other.sock")
    assert result["image"] == NAME + ":1"  # a username is no secret: `team` is not masked
    (call,) = engine.called("pull")
    assert call["login"] == {
        "mode": "0o600",
        "auths": {
            "nvcr.io": {"auth": base64.b64encode(b"team:pa:ss").decode()},
            "https://index.docker.io/v1/": {"auth": base64.b64encode(b"usr:pwd").decode()},
        },
    }
    assert call["argv"][1:3] == [option, "unix:///run/other.sock"]
    assert call["environment"]["HTTPS_PROXY"] == PROXY["HTTPS_PROXY"]
    assert "pa:ss" not in str(call["argv"]) + str(call["environment"]) + str(result)
    assert [name for _folder, _folders, names in os.walk(tmp_path / "root") for name in names if "config" in name] == []
    assert not (engine.called("image")[0]["login"] or [one for one in engine.called("ps") if one["login"]])


def test_a_pull_goes_on_without_its_caller(engine, pull, tmp_path):
    held = tmp_path / "held"  # what is printed is there, the rest comes when this is gone
    held.touch()
    engine.write(registry={NAME + ":1": image("a")}, held=str(held))
    first = pull(wait_s=0, auth=LOGINS)
    assert (first["changed"], first["finished"], first["image"]) == (True, False, None)
    printed = wait_until(lambda: re.search(r"app:1 \((.+)\)", pull(wait_s=0)["progress"]["file"]))
    assert "layer" in printed[1] or "Pull" in printed[1]
    folder = folder_of_pull(tmp_path)
    held.unlink()
    wait_until((folder / "status").exists)
    assert not (folder / "login").exists()  # though nobody has asked since
    last = pull(wait_s=300)
    assert (last["finished"], last["image"]) == (True, NAME + ":1")
    assert len(sources(engine)) == 1
    assert not folder.exists()


# ---- pulls that nobody asked about since: what they say of themselves is not what is so now


def folder_of_pull(tmp_path):
    (folder,) = (tmp_path / "root/var/lib/inference-fleet/jobs").glob("image-*[0-9a-f]")
    return folder


def begun(engine, pull, tmp_path, errors=(), **arguments):
    """The folder of a pull that nobody waits for; its status file is there, too, unless the pull is held."""
    engine.write(registry={NAME + ":1": image("a")}, errors=dict(errors), **arguments)
    assert not pull(wait_s=0, auth=LOGINS)["finished"]
    folder = folder_of_pull(tmp_path)
    wait_until((folder / "status").exists if not arguments else lambda: sources(engine))
    engine.write(errors={})
    return folder


def test_a_failure_is_told_once_and_of_long_ago_not_at_all(engine, pull, tmp_path):
    begun(engine, pull, tmp_path, {"pull": "auth"})
    assert pull(auth=LOGINS)["code"] == "images.login-refused"
    assert len(sources(engine)) == 1
    status = begun(engine, pull, tmp_path, {"pull": "auth"}) / "status"
    os.utime(status, (time.time() - 3600,) * 2)
    assert (pull(auth=LOGINS)["finished"], len(sources(engine))) == (True, 3)


def test_a_success_whose_image_is_gone(engine, pull, tmp_path):
    begun(engine, pull, tmp_path)
    engine.write(images={})
    assert (pull(auth=LOGINS)["finished"], len(sources(engine))) == (True, 2)


def test_as_long_as_its_client_lives_a_pull_is_one_and_then_its_login_goes_with_any_call(engine, pull, tmp_path):
    folder = begun(engine, pull, tmp_path, held=str(engine.file))
    shell = int((folder / "pid").read_text())
    os.kill(shell, signal.SIGKILL)
    engine.write(images={"other:1": image("b")}, held=None)
    assert pull(image="other:1")["finished"] and (folder / "login").exists()
    assert not pull(wait_s=0, auth=LOGINS)["finished"] and len(sources(engine)) == 1
    os.killpg(shell, signal.SIGKILL)
    wait_until(lambda: not DetachedJob(str(folder)).alive())
    assert (folder / "login").exists()
    assert pull(image="other:1")["finished"] and not folder.exists()
    assert (pull(auth=LOGINS)["finished"], len(sources(engine))) == (True, 2)


def test_a_process_that_the_client_leaves_is_no_pull(engine, pull, tmp_path):
    engine.write(registry={NAME + ":1": image("a")})
    client, left = engine.bin / "docker", tmp_path / "left"
    real = client.rename(engine.bin / "real")
    sleep = shutil.which("sleep")
    script(client, '[ $1 != pull ] || { %s 600 & echo $! >%s; }\n%s "$@"\n' % (sleep, left, real))
    try:
        assert pull(wait_s=60)["finished"]
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)


PULLS = {
    "auth": "login-refused", "denied": "login-refused", "podman_denied": "login-refused", "unknown": "not-found",
    "platform": "not-found", "podman_platform": "not-found", "digest": "digest-differs",
    "podman_digest": "digest-differs", "unreachable": "registry-unreachable", "timeout": "registry-unreachable",
    "certificate": "certificate-unknown", "http": "no-tls", "space": "no-space", "ratelimit": "rate-limited",
    "other": "pull-failed",
}  # fmt: skip


def test_a_failed_pull_has_its_remedy_and_can_be_repeated(engine, pull):
    for scripted, code in PULLS.items():
        failed = container_images.pull_failure(None, NAME + ":1", EngineError.of(ERRORS[scripted]), False)
        assert (failed.code, failed.values[:2]) == ("images." + code, (NAME + ":1", "nvcr.io"))
    engine.write(registry={NAME + ":1": image("a")}, errors={"pull": "http"})
    assert pull()["code"] == "images.no-tls"
    engine.write(errors={})
    assert pull()["finished"]


def test_an_engine_that_cannot_be_used(engine, pull):
    engine.write(errors={"*": "down"})
    assert pull()["code"] == "containers.engine-problem"
    (engine.bin / "docker").unlink()
    assert pull()["code"] == "containers.engine-problem"
    assert pull(check_mode=True)["changed"]  # an earlier task would have installed it


@pytest.mark.parametrize("arguments", [
    {"image": PINNED}, {"digest": "1234"}, {"mirror": "mirror/hub"}, {"auth": {"nvcr.io": {"username": "somebody"}}},
])  # fmt: skip
def test_bad_input(engine, pull, arguments):
    for check_mode in (True, False):
        assert pull(check_mode, **arguments)["code"] == "images.setting-invalid"
    assert not engine.calls.exists()


def test_an_image_of_another_architecture_is_refused_as_it_comes_and_where_it_is(engine, pull, monkeypatch):
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "n", "6.1", "1", "aarch64")))
    engine.write(registry={PINNED: image("a", PINNED, architecture="amd64")})
    for check_mode in (False, True):
        assert pull(check_mode, digest=D1)["code"] == "containers.image-architecture"
        assert len(sources(engine)) == 1  # where it is, nothing is pulled again
    assert KEPT1 not in engine.read()["images"]  # a digest's tag is of what servers can run
    engine.write(images={}, registry={PINNED: image("a", PINNED, architecture="arm64")})
    assert pull(digest=D1)["changed"]


def test_an_image_that_is_not_what_was_asked_for(engine, pull):
    source = "mirror.example/team/app@" + D1
    engine.write(registry={source: image("a", "mirror.example/team/app@" + D2)})
    failed = pull(digest=D1, mirror="mirror.example")
    assert failed["code"] == "images.pull-failed" and "does not list the image" in failed["msg"]
    assert list(engine.read()["images"]) == [source]


def test_an_image_goes_by_its_tag_too(engine):
    through = "mirror.example/team/app@" + D1
    one = image("a", through)
    engine.write(images={NAME + ":1": one, through: one})
    arguments = {"image": NAME + ":1", "digest": D1, "state": "absent"}
    assert operate("container_image", **arguments)["diff"]["before"] == "image %s:1\n" % NAME
    engine.write(images={NAME + ":1": image("b"), KEPT1: one, through: one})  # another digest's
    assert operate("container_image", **arguments)["diff"]["before"] == "image %s\n" % KEPT1
    assert list(engine.read()["images"]) == [NAME + ":1", through]


def test_an_image_goes_by_all_the_names_that_a_pull_gave_it(engine, tmp_path):
    through = "mirror.example/team/app@" + D1
    one = image("a", through, "other.example/app@" + D1)
    engine.write(registry={through: one}, images={"other.example/app:1": one})
    arguments = {"image": NAME + ":1", "digest": D1, "mirror": "mirror.example", "root": str(tmp_path)}
    four_steps("container_image", **arguments)
    check, applied = four_steps("container_image", state="absent", **arguments)
    assert check["diff"] == applied["diff"] == {"before": "image %s\nimage %s\n" % (KEPT1, through), "after": ""}
    assert list(engine.read()["images"]) == ["other.example/app:1"]  # somebody else's name for it
    engine.write(images={PINNED: image("a", PINNED)}, errors={"rmi": "conflict: container 1 is using its image"})
    message = operate("container_image", state="absent", **arguments)["msg"]
    assert "conflict: container 1 is using its image" in message
    # podman's answer to a second digest of an image that others named as well
    engine.write(errors={"rmi": "Error: nvcr.io/team/app@%s: tag not known" % D2})
    assert operate("container_image", state="absent", **arguments)["changed"]
    (engine.bin / "docker").unlink()
    assert not operate("container_image", state="absent", **arguments)["changed"]

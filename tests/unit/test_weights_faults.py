# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights from a simulated hub that fails: the run ends with the exact bytes of the hub, or with the error.

Never with success and a bad file, never with half of a checkpoint that a server could load. Each case runs with both
kinds of hub under `make soak`, and one of each fault always.
"""

from __future__ import annotations

import dataclasses
import os
import time

import pytest
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import Repository, gpt_oss_files, safetensors
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.weights_node import REPO, SHARD, HubWeights

CLIENTS = HF, MS = ("huggingface", "modelscope")
OTHER = "model-00010-of-00014.safetensors"
BYTES = 9_000_000  # of SHARD
# What a client holds back until it writes, and so loses with a connection, of each open file.
PIECE = 1 << 20
AGAIN = ("config.json", "model.safetensors.index.json")  # each run starts with them


class Node(HubWeights):
    """Runs with two more attempts."""

    def __init__(self, folder, hub, source):
        super().__init__(folder, hub, source, retries=2)

    def brought(self, **changes):
        """A run that ends well, with the bytes of the hub."""
        result = self.run(**changes)
        assert not result.get("failed"), result["msg"]
        assert result["finished"], result
        assert self.found() == self.wanted()
        assert os.listdir(self.models) == ["small"]
        return result

    def lost(self):
        """Bytes that the hub has sent and that are not in the staging folder."""
        return {path: self.hub.sent(REPO, path) - self.kept(path) for path in self.wanted()}

    def come_to(self, held, short=2 * PIECE):
        """Whether all has come that can while the hub holds {path: byte}, except `short` bytes of each of those."""
        return all(
            self.kept(path) >= (held[path] - short if path in held else content.size)
            for path, content in self.contents().items()
        )


@pytest.fixture(scope="module")
def content():
    """{path: Content}, made once, as checksums are kept: one large shard, a middling one and small ones."""
    files = Repository(REPO, gpt_oss_files(90_000, seed=5)).files
    for path, size in ((SHARD, BYTES), (OTHER, 2_500_000)):
        files[path] = safetensors("model.layers.%d.weight" % int(path[6:11]), size, seed=size)
    return files


@pytest.fixture
def hub(content):
    with Hub([Repository(REPO, content)]) as running:
        yield running


@pytest.fixture
def node(tmp_path, hub, request):
    return Node(tmp_path, hub, request.param)


each_client = pytest.mark.parametrize("node", [HF, pytest.param(MS, marks=pytest.mark.soak)], indirect=True)


@dataclasses.dataclass
class Case:
    """Faults, and how the run ends: with the error `code`, whose message contains `said`, or None: with the bytes.

    always: the client of the normal run.
    """

    name: str
    faults: list
    code: str | None = None
    said: tuple = ()
    always: str = dataclasses.field(kw_only=True)
    times: int = 1  # how often the whole shard may be sent
    resumes: bool = False  # whether it goes on where it was: every further request costs a piece, not the shard
    more: dict = dataclasses.field(default_factory=dict)


def fault(action, path=SHARD, **more):
    return {"action": action, "path": path, **more}


DOWN, WRONG, MISSING = "hub.unavailable", "weights.wrong-data", "hub.not-found"
GHOST = "model-00099-of-00014.safetensors"
AT = 5_300_000
# Where a stall is met, time has to pass. A slow machine may run into these too: by the retries it does not matter, and
# the error of the last attempt is always the stall's.
IMPATIENT = {"timeout_s": 2, "retries": 20}
HOPELESS = {"timeout_s": 2, "retries": 1}
TWICE = {"retries": 1}
CASES = [
    Case("429 with Retry-After", [fault("status", status=429, retry_after=1, count=2)], always=HF),
    Case("forbidden by the CDN once", [fault("status", status=403, count=1)], always=HF),
    Case("a connection that is too slow", [fault("slow", rate=100_000, count=1)], always=HF, resumes=True,
         more={"min_rate": 1_000_000, "timeout_s": 1, "retries": 20}),
    Case("503 for the listing", [fault("status", "*", status=503, count=1, on=["info", "list"])], always=MS),
    Case("cut at the first byte", [fault("cut", at=0, count=1)], always=MS, resumes=True),
    Case("reset at a byte", [fault("cut", at=AT, count=1, reset=True)], always=MS),
    Case("cut again and again", [fault("cut", at=at, count=1) for at in range(2_000_000, BYTES, 2_000_000)], always=HF,
         resumes=True),
    Case("a byte is wrong once", [fault("flip", count=1)], always=MS, times=2),
    Case("too long once", [fault("length", by=10, count=1)], always=MS),
    Case("stalls once", [fault("stall", at=AT, count=1)], always=HF, resumes=True, more=IMPATIENT),
    Case("no ranges, and a wrong byte where it was right before",
         [fault("cut", at=AT, count=1), fault("no_range", count=1), fault("flip", at=5000, count=1, skip=1)],
         always=HF, times=2),
    Case("no such range after a break",
         [fault("cut", at=AT, count=1), fault("length", by=AT - BYTES - PIECE, count=1, skip=1)], always=HF, times=2),
    Case("many at once",
         [fault("status", "*1-of*", status=429, retry_after=1, count=1), fault("cut", "*2-of*", at=5000, count=1),
          fault("flip", "*3-of*", count=1), fault("stall", "*4-of*", at=5000, count=1),
          fault("length", "*5-of*", by=-7, count=1)], always=HF, more=IMPATIENT),
    # For ever:
    Case("500 for ever", [fault("status", status=500)], DOWN, ("HTTP 500, 2 attempts", SHARD), always=MS,
         more=TWICE),
    Case("a listing that stalls for ever", [fault("stall", "*", at=0, on="list")], DOWN, ("no response within 2 s",),
         always=HF, more=HOPELESS),
    Case("wrong for ever", [fault("flip")], WRONG, (SHARD, "of sha256"), always=HF),
    Case("a page for a listing", [fault("page", "*", on=["list", "info"])], "hub.response-invalid", ("no JSON",),
         always=MS),
    Case("not authorized", [fault("status", status=401, code="GatedRepo", on=["get", "redirect"])], "hub.access",
         ("HTTP 401",), always=HF),
    Case("forbidden by the CDN", [fault("status", status=403)], "hub.access", ("HTTP 403",), always=HF,
         more=TWICE),
    Case("a file is gone", [fault("status", status=404, code="EntryNotFound", on=["get", "redirect"])], MISSING,
         (SHARD,), always=MS),
    Case("a listing with another size", [fault("listing", "*", sizes={SHARD: 99})], WRONG,
         (SHARD, "9000000 bytes long, listed are 99"), always=MS),
    Case("a listing with another sha256", [fault("listing", "*", sha256={SHARD: "a" * 64})], WRONG, (SHARD, "a" * 64),
         always=HF),
    Case("a listing without a shard", [fault("listing", "*", drop=[SHARD])], "hub.response-invalid", (SHARD,),
         always=MS),
    Case("a listing with a shard too many", [fault("listing", "*", add={GHOST: 90_000})], MISSING, (GHOST,), always=HF),
    Case("unknown repository", [], MISSING, ("no/such",), always=HF, more={"repo": "no/such"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("node", "case"),
    [
        pytest.param(
            client,
            case,
            marks=[] if client == case.always else [pytest.mark.soak],
            id="%s-%s" % (client, case.name.replace(" ", "_")),
        )
        for case in CASES
        for client in CLIENTS
    ],
    indirect=["node"],
)
def test_a_fault(node, case):
    faults = [node.hub.fault(**description) for description in case.faults]
    if case.code is None:
        node.brought(**case.more)
    else:
        node.refused(case.code, *case.said, check_too=False, **case.more)
    assert all(one.happened for one in faults), [one for one in faults if not one.happened]
    if case.times > 1 or case.resumes:
        further = (node.hub.asked(REPO, SHARD) - case.times) * PIECE if case.resumes else 0
        assert node.hub.sent(REPO, SHARD) <= case.times * BYTES + further


@each_client
def test_a_killed_download_goes_on(node):
    """kill -9 of the worker, twice, with two files that are begun, then a run to the end.

    The hub holds those files at some bytes, and the kill comes when all but `short` bytes of each is there: a run can
    be as quick or as slow as it likes. Only the missing bytes come again: what the hub sent in all is the size of the
    files, and what was in flight at each kill.
    """
    short, lost = PIECE + (64 << 10), []
    total = sum(node.size(path) for path in node.wanted())
    for places in ({SHARD: 4_500_000, OTHER: 1_500_000}, {SHARD: 7_500_000, OTHER: 2_400_000}):
        for path, at in places.items():
            node.hub.fault("hold", path=path, at=at)
        node.begin()
        wait_until(lambda places=places: node.come_to(places, short), 300)
        came = time.time()  # a job that dies again and again before it has told of any progress is an error
        wait_until(lambda came=came: node.job_state().get("updated", 0) > came)
        assert node.job_state()["progress"]["phase"] == "downloading"
        node.kill()
        in_flight = node.lost()
        lost.append(sum(in_flight.values()) - sum(lost))
        assert lost[-1] >= 0 and max(in_flight.values()) <= short * len(lost)
    node.brought()
    assert node.hub.sent(REPO) - total == sum(lost) + sum(map(node.size, AGAIN))


@each_client
def test_a_hub_that_goes_away_and_comes_back(node):
    """Away for longer than the run is patient: an error; later it goes on where it was."""
    node.hub.fault("hold", path=SHARD, at=AT)
    node.begin(retries=1)
    wait_until(lambda: node.come_to({SHARD: AT}))
    node.hub.stop()
    node.refused("hub.unavailable", node.hub.endpoint, check_too=False, retries=1)
    assert not node.destination.exists()
    wait_until(node.hub.quiet)
    lost = sum(node.lost().values())
    assert lost <= 2 * PIECE
    node.hub.mend()
    node.hub.start()
    node.brought()
    assert node.hub.sent(REPO) - sum(map(node.size, node.wanted())) == lost + sum(map(node.size, AGAIN))

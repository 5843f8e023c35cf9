# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""model_weights against `hf download`: the same files from the same simulated hub, round by round in one run.

    python tools/run.py python tools/bench_weights.py --shard-mb 64 --rounds 5

Times are medians of the rounds. "process" is from the start of a program to its end, with Python and its imports:
`hf`, and the module as Ansible starts it. "call" is what snapshot_download() and the module do when all that is there
already. The floor of a process is an Ansible module that does nothing, in the same rounds. The exit status is 1 where a
promise is not kept: a first download within 0.6 times the time of `hf download`; where nothing changed a call within a
quarter of snapshot_download's, and a process within the floor and a quarter of `hf download`'s; and sha256 at four
fifths of what all cores can do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPO = "made-up/gpt-oss-bench"
FIRST_LIMIT, AGAIN_LIMIT, HASH_LIMIT = 0.6, 0.25, 0.8
# The module as Ansible runs it, but for the connection: a process that reads its arguments and prints its result.
RUN = (
    "import sys; from ansible.module_utils import basic; basic._ANSIBLE_ARGS = sys.stdin.buffer.read(); "
    "from ansible_collections.inference.fleet.tests.unit.operating import Operation; Operation('model_weights').main()"
)
FLOOR = "from ansible.module_utils.basic import AnsibleModule; AnsibleModule({}).exit_json(changed=False)"
# Both without Python's start and imports; the seconds are printed.
HF_CALL = """
import json, sys, time
from huggingface_hub import snapshot_download
arguments = json.load(sys.stdin)
began = time.perf_counter()
snapshot_download(**arguments)
print(time.perf_counter() - began)
"""
OUR_CALL = """
import contextlib, io, json, sys, time
from ansible.module_utils import basic
from ansible_collections.inference.fleet.tests.unit.operating import Operation
basic._ANSIBLE_ARGS = sys.stdin.buffer.read()
began = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
    Operation("model_weights").main()
seconds = time.perf_counter() - began
assert json.loads(output.getvalue())["changed"] is False, output.getvalue()
print(seconds)
"""


class Bench:
    """A hub of its own process and a folder to download to."""

    def __init__(self, folder, shard_bytes):
        self.folder = Path(folder)
        self.hub = subprocess.Popen(
            [sys.executable, "-m", "tests.hubs", "--repo", REPO, "--shard-bytes", str(shard_bytes),
             "--parent", str(os.getpid())],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.endpoint = json.loads(self.hub.stdout.readline())["endpoint"]
        foreign = ("HF_", "MODELSCOPE_", "PYTHONDONTWRITEBYTECODE")  # both shall have their bytecode
        clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self.environment = {
            **clean, "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"), "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(self.folder / "home"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "no_proxy": "*", "NO_PROXY": "*",
        }  # fmt: skip

    def timed(self, command, **more):
        """(seconds, standard output) of a command that must succeed."""
        os.sync()  # what the one before has written is not this one's to wait for
        started = time.monotonic()
        done = subprocess.run(
            command, env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False, **more
        )
        seconds = time.monotonic() - started
        if done.returncode:
            raise SystemExit("%s failed:\n%s%s" % (command[0], done.stdout[-2000:], done.stderr[-2000:]))
        return seconds, done.stdout

    def hf(self):
        """Seconds of hf download to out-hf."""
        hf = str(Path(sys.executable).parent / "hf")
        return self.timed([hf, "download", REPO, "--exclude", "original/*", "--exclude", "metal/*", "--local-dir",
                           str(self.folder / "out-hf")])[0]  # fmt: skip

    def hf_call(self):
        """Seconds of snapshot_download() where everything is there."""
        arguments = {"repo_id": REPO, "ignore_patterns": ["original/*", "metal/*"],
                     "local_dir": str(self.folder / "out-hf")}  # fmt: skip
        return float(self.timed([sys.executable, "-c", HF_CALL], input=json.dumps(arguments))[1])

    def our_call(self):
        """Seconds of the module where everything is there."""
        return float(self.timed([sys.executable, "-c", OUR_CALL], input=self.arguments())[1])

    def arguments(self, **changes):
        """As Ansible's own wrapper gives them."""
        arguments = {
            "source": "huggingface", "repo": REPO, "revision": "main", "endpoint": self.endpoint, "wait_s": 3600,
            "destination": str(self.folder / "out-ours"), "root": str(self.folder / "root"),
            **changes,
        }  # fmt: skip
        return json.dumps({"ANSIBLE_MODULE_ARGS": arguments})

    def ours(self, **changes):
        """(seconds, result) of model_weights to out-ours."""
        seconds, output = self.timed([sys.executable, "-c", RUN], input=self.arguments(**changes))
        result = json.loads(output)
        if not result.get("finished", True):
            raise SystemExit("model_weights did not end: %s" % result)
        return seconds, result

    def floor(self):
        """Seconds of a module that does nothing."""
        return self.timed([sys.executable, "-c", FLOOR], input=json.dumps({"ANSIBLE_MODULE_ARGS": {}}))[0]

    def forget(self):
        for name in ("out-hf", "out-ours", "home"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def close(self):
        self.hub.terminate()
        self.hub.wait()


def hash_speed(seconds=1.0):
    """Bytes a second that all cores together take sha256 of, from memory."""
    block, count = os.urandom(1 << 20), os.cpu_count() or 1

    def one(_number):
        digest, done, end = hashlib.sha256(), 0, time.monotonic() + seconds
        while time.monotonic() < end:
            digest.update(block)
            done += len(block)
        return done

    started = time.monotonic()
    with ThreadPoolExecutor(count) as pool:
        done = sum(pool.map(one, range(count)))
    return done / (time.monotonic() - started)


def full_check_seconds(folder):
    """Seconds in which this machine reads every byte of a checkpoint that it has, by the code of verify: full."""
    from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as weight_manifest

    recorded = weight_manifest.read_manifest(str(folder))["files"]
    started = time.monotonic()
    wrong, _hashed = weight_manifest.compare(str(folder), recorded, full=True)
    seconds = time.monotonic() - started
    assert not wrong, wrong
    return seconds


def same_files(one, other):
    """Whether two folders hold the same bytes, but for what the clients put beside them."""
    found = []
    for folder in (one, other):
        names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        names = {name for name in names if not name.startswith((".cache/", ".inference-fleet"))}
        found.append({name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names})
    return found[0] == found[1]


def measure(bench, rounds):
    """{what: [seconds]} and the bytes of the checkpoint."""
    times = {}
    for number in range(rounds):
        bench.forget()
        order = [("hf first", bench.hf), ("ours first", lambda: bench.ours()[0])]
        for name, call in order if number % 2 else reversed(order):
            times.setdefault(name, []).append(call())
        if number == 0 and not same_files(bench.folder / "out-hf", bench.folder / "out-ours"):
            raise SystemExit("The two downloads differ.")
        times.setdefault("hf again", []).append(bench.hf())
        seconds, result = bench.ours()
        assert not result["changed"], result
        times.setdefault("ours again", []).append(seconds)
        times.setdefault("floor", []).append(bench.floor())
        times.setdefault("hf call", []).append(bench.hf_call())
        times.setdefault("ours call", []).append(bench.our_call())
        seconds, result = bench.ours(verify="full")
        assert not result["changed"], result
        times.setdefault("ours full", []).append(seconds)
        times.setdefault("hash", []).append(full_check_seconds(bench.folder / "out-ours"))
        times.setdefault("speed", []).append(hash_speed())
        print("round %d of %d" % (number + 1, rounds), file=sys.stderr, flush=True)
    size = sum(path.stat().st_size for path in (bench.folder / "out-ours").iterdir() if path.is_file())
    return times, size


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shard-mb", type=float, default=64, help="size of a shard; there are 15")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where to download to; a temporary folder by default")
    options = parser.parse_args()
    if options.rounds < 1 or options.shard_mb <= 0:
        parser.error("--rounds and --shard-mb must be positive")
    with tempfile.TemporaryDirectory(prefix="bench-weights-", dir=options.folder) as folder:
        bench = Bench(folder, int(options.shard_mb * 1e6))
        try:
            for call in (bench.hf, bench.ours):  # bytecode, the hub's checksums: nobody's merit
                call()
            times, size = measure(bench, options.rounds)
        finally:
            bench.close()
    median = {name: statistics.median(values) for name, values in times.items()}
    rate = size / median["hash"]
    rows = [
        ("first download, process, s", "hf first", "ours first", 0.0, FIRST_LIMIT),
        ("nothing changed, process, s", "hf again", "ours again", median["floor"], AGAIN_LIMIT),
        ("an Ansible module that does nothing, process, s", "hf again", "floor", 0.0, None),
        ("nothing changed, call, s", "hf call", "ours call", 0.0, AGAIN_LIMIT),
        ("nothing changed, verify: full, process, s", None, "ours full", 0.0, None),
    ]
    print("%d bytes in 26 files, %d rounds, %d cores, medians" % (size, options.rounds, os.cpu_count() or 1))
    print("%-48s %8s %8s %6s  %s" % ("", "hf", "ours", "ratio", "promise"))
    kept = []
    for name, theirs, ours, floor, limit in rows:
        theirs, ours = median.get(theirs), median[ours]
        ratio = ours / theirs if theirs else None
        kept.append(limit is None or ours <= floor + limit * theirs)
        promise = "<= %s%.2f" % ("%.2f + " % (floor / theirs) if floor else "", limit) if limit else ""
        print(line(name, theirs, ours, ratio, promise, kept[-1]))
    hashing = rate / median["speed"]
    kept.append(hashing >= HASH_LIMIT)
    print("%-48s %8s %8s" % ("", "cores", "ours"))
    print(
        line("sha256 of all files, GB/s", median["speed"] / 1e9, rate / 1e9, hashing, ">= %.2f" % HASH_LIMIT, kept[-1])
    )
    sys.exit(0 if all(kept) else 1)


def line(name, theirs, ours, ratio, promise, kept):
    cells = ["%8.3f" % value if value is not None else " " * 8 for value in (theirs, ours)]
    words = "%s %s" % (promise, "kept" if kept else "BROKEN") if promise else ""
    return ("%-48s %s %s %6s  %s" % (name, *cells, "" if ratio is None else "%.2f" % ratio, words)).rstrip()


if __name__ == "__main__":
    main()

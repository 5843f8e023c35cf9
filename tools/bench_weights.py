# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compares model_weights with `hf download`: the same files from the same simulated hub, in rounds of one run.

    python tools/run.py python tools/bench_weights.py --shard-mb 64 --rounds 5

Times are medians of the rounds, of downloads from the start of a process to its end. The exit status is 1 unless a
first download takes at most 0.6 times as long as `hf download`, and verify: full at most 1.2 times as long as hashlib
on all cores.
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

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.run import Run
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.wanted import Wanted

ROOT = Path(__file__).resolve().parent.parent
REPO = "made-up/gpt-oss-bench"
FIRST_LIMIT, FULL_LIMIT = 0.6, 1.2
# The operation as Ansible runs it, except for the connection: a process that reads its arguments and prints its result.
RUN = (
    "import sys; from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import program; "
    "program._place = lambda: sys.argv[1]; "
    "from ansible.module_utils import basic; basic._ANSIBLE_ARGS = sys.stdin.buffer.read(); "
    "from ansible_collections.inference.fleet.tests.unit.operating import Operation; Operation('model_weights').main()"
)


class Bench:
    """A hub in a separate process and a folder to download to."""

    def __init__(self, folder, shard_bytes):
        self.folder = Path(folder)
        self.hub = subprocess.Popen(
            [sys.executable, "-m", "tests.hubs", "--repo", REPO, "--shard-bytes", str(shard_bytes)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.endpoint = json.loads(self.hub.stdout.readline())["endpoint"]
        program = self.folder / "program"  # jobs start from it
        program.mkdir()
        (program / "fleet_node").symlink_to(ROOT / "plugins" / "module_utils" / "fleet_node")
        (program / "__main__.py").symlink_to(program / "fleet_node" / "__main__.py")
        foreign = ("HF_", "MODELSCOPE_", "PYTHONDONTWRITEBYTECODE")  # both clients use bytecode
        clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self.environment = {
            **clean, "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"), "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(self.folder / "home"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "no_proxy": "*", "NO_PROXY": "*",
        }  # fmt: skip

    def timed(self, command, **more):
        """Return (seconds, standard output) of a command. Raises SystemExit if it fails."""
        os.sync()  # exclude the time for writing the previous command's files
        started = time.monotonic()
        done = subprocess.run(
            command, env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False, **more
        )
        seconds = time.monotonic() - started
        if done.returncode:
            raise SystemExit("%s failed:\n%s%s" % (command[0], done.stdout[-2000:], done.stderr[-2000:]))
        return seconds, done.stdout

    def hf(self):
        """Return the seconds of hf download to out-hf."""
        hf = str(Path(sys.executable).parent / "hf")
        return self.timed([hf, "download", REPO, "--exclude", "original/*", "--exclude", "metal/*", "--local-dir",
                           str(self.folder / "out-hf")])[0]  # fmt: skip

    def ours(self):
        """Return (seconds, result) of model_weights to out-ours."""
        arguments = {
            "source": "huggingface", "repo": REPO, "revision": "main", "endpoint": self.endpoint, "wait_s": 3600,
            "destination": str(self.folder / "out-ours"), "root": str(self.folder / "root"),
        }  # fmt: skip
        command = [sys.executable, "-c", RUN, str(self.folder / "program")]
        seconds, output = self.timed(command, input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}))
        result = json.loads(output)
        if not result.get("finished"):
            raise SystemExit("model_weights did not end: %s" % result)
        return seconds, result

    def full(self):
        """Return the seconds in which the operation lists, compares and hashes an installed checkpoint."""
        exclude, folder = ("original/*", "metal/*"), str(self.folder / "out-ours")
        wanted = Wanted("huggingface", REPO, "main", folder, endpoint=self.endpoint, exclude=exclude, verify="full")
        started = time.monotonic()
        result = Run(wanted).run()
        seconds = time.monotonic() - started
        assert not result["changed"], result
        return seconds

    def hashlib(self):
        """Return the seconds in which hashlib hashes the same files on all cores."""
        paths = sorted((self.folder / "out-ours").iterdir(), key=lambda path: -path.stat().st_size)
        started = time.monotonic()
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(sha256, paths))
        return time.monotonic() - started

    def forget(self):
        for name in ("out-hf", "out-ours", "home"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def close(self):
        self.hub.terminate()
        self.hub.wait()


def sha256(path):
    """Return the digest of a file, read in the blocks of hashlib.file_digest."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def same_files(one, other):
    """Return whether two folders contain the same bytes, apart from the clients' own files."""
    found = []
    for folder in (one, other):
        names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        names = {name for name in names if not name.startswith((".cache/", ".inference-fleet"))}
        found.append({name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names})
    return found[0] == found[1]


def measure(bench, rounds):
    """Return {name: [seconds]} and the bytes of the checkpoint."""
    times = {}
    for number in range(rounds):
        bench.forget()
        order = [("hf", bench.hf), ("first", lambda: bench.ours()[0])]
        for name, call in order if number % 2 else reversed(order):
            times.setdefault(name, []).append(call())
        if number == 0 and not same_files(bench.folder / "out-hf", bench.folder / "out-ours"):
            raise SystemExit("The two downloads differ.")
        times.setdefault("hf again", []).append(bench.hf())
        seconds, result = bench.ours()
        assert not result["changed"], result
        times.setdefault("again", []).append(seconds)
        times.setdefault("full", []).append(bench.full())
        times.setdefault("hashlib", []).append(bench.hashlib())
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
            for call in (bench.hf, bench.ours):  # bytecode, and the hub's checksums
                call()
            times, size = measure(bench, options.rounds)
        finally:
            bench.close()
    median = {name: statistics.median(values) for name, values in times.items()}
    rows = [
        ("first download", "hf download", "hf", "first", FIRST_LIMIT),
        ("nothing changed", "hf download", "hf again", "again", None),
        ("verify: full", "hashlib", "hashlib", "full", FULL_LIMIT),
    ]
    print("%d bytes in 26 files, %d rounds, %d cores, medians in s" % (size, options.rounds, os.cpu_count() or 1))
    kept = True
    for what, other, theirs, ours, limit in rows:
        ratio = median[ours] / median[theirs]
        kept = kept and (limit is None or ratio <= limit)
        aim = "" if limit is None else "  (aim: at most %.1f)" % limit
        print("%-16s %-12s %8.3f  ours %8.3f  ratio %.2f%s" % (what, other, median[theirs], median[ours], ratio, aim))
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()

# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role benchmark brings a source that the operator names, with its patches. The source here is a stand-in."""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile

import pytest
from ansible_collections.inference.fleet.tests.runs import play

PLAY = [
    {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "tasks": [
            {
                "name": "Source",
                "ansible.builtin.include_role": {"name": "inference.fleet.benchmark", "tasks_from": "llmperf.yml"},
            }
        ],
    }
]
PATCH = "--- a/token_benchmark_ray.py\n+++ b/token_benchmark_ray.py\n@@ -1 +1 @@\n-%s\n+%s\n"


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Source:
    """An archive, two patches for it, and the variables that name them."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "token_benchmark_ray.py").write_text("one\n")
        with tarfile.open(folder / "source.tar.gz", "w:gz") as archive:
            archive.add(folder / "token_benchmark_ray.py", "llmperf-f1d6bed/token_benchmark_ray.py")
        for name, change in (("first", ("one", "two")), ("second", ("two", "three"))):
            (folder / name).write_text(PATCH % change)
        self.playbook = folder / "play.yml"
        self.playbook.write_text(json.dumps(PLAY))
        self.root = folder / "root"
        self.variables = {
            "ansible_python_interpreter": sys.executable,
            "benchmark_root": str(self.root),
            "benchmark_llmperf_source": str(folder / "source.tar.gz"),
            "benchmark_llmperf_checksum": sha256(folder / "source.tar.gz"),
            "benchmark_llmperf_patches": [
                {"source": str(folder / name), "checksum": sha256(folder / name)} for name in ("first", "second")
            ],
        }

    def play(self, **more):
        return play(str(self.playbook), "localhost,", variables={**self.variables, **more})

    @property
    def script(self):
        path = self.root / "var/lib/inference-fleet/venvs/llmperf-f1d6bed-source/token_benchmark_ray.py"
        return path.read_text() if path.exists() else None


@pytest.fixture
def source(tmp_path):
    return Source(tmp_path)


def test_a_named_source_is_unpacked_and_patched_once(source):
    source.play().ok()
    assert source.script == "three\n"
    assert source.play().ok().count("changed") == 0
    fewer = source.variables["benchmark_llmperf_patches"][:1]
    source.play(benchmark_llmperf_patches=fewer).ok()
    assert source.script == "two\n"


def test_another_file_than_the_named_one_is_refused(source):
    known = sha256(source.folder / "second")
    (source.folder / "second").write_text("x")
    output = source.play().failed().output
    for word in (source.folder / "second", sha256(source.folder / "second"), known, "benchmark_llmperf_patches"):
        assert str(word) in output
    assert source.script is None


def test_a_source_that_is_not_named_is_one_error(source):
    words = (
        "The tool llmperf requires its source, which is not in a package: set benchmark_llmperf_source to an archive"
    )
    assert words in " ".join(source.play(benchmark_llmperf_source="").failed().output.split())
    assert not source.root.exists()

# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TensorRT-LLM's fields: any key and value on any version, and the same data read by something else."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.engines import trtllm
from ansible_collections.inference.fleet.tests.nodes import trtllm_llmapi
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

FIELDS = trtllm.ENGINE.fields
RECORDED = FIELDS.data["recorded"]
WHERE = "server 'server-0'"


def refused_paths(content, version):
    try:
        FIELDS.check_file(WHERE, content, version and Version(version))
    except FleetError as found:
        problems = getattr(found, "errors", None) or [found]
        return [one.message for one in problems]
    return []


NAMES = st.sampled_from(sorted(FIELDS.data["models"][""])) | st.text("abc_", min_size=1, max_size=8)
PLAIN = st.none() | st.booleans() | st.integers(-2, 200) | st.sampled_from(["", "AUTO", "UCX", "8", 0.5, 1.5, [], [1]])
TABLES = {name.split(".")[-1]: name for name in FIELDS.data["models"] if name and "." not in name and name != "--"}
BLOCKS = st.sampled_from(sorted(TABLES)).flatmap(
    lambda table: st.dictionaries(
        st.sampled_from(sorted(FIELDS.data["models"][TABLES[table]])) | st.just("nonsense"), PLAIN, max_size=3
    ).map(lambda content: {table: content})
)


@given(st.dictionaries(NAMES, PLAIN, max_size=2), BLOCKS, st.sampled_from(RECORDED))
def test_nothing_is_refused_that_a_strict_reader_takes(content, blocks, version):
    """The stand-in for TensorRT-LLM's own models, which the images of test nodes have, is written apart from this."""
    content = {**content, **blocks}
    refused = refused_paths(content, version)
    found = trtllm_llmapi.problems(version, content)
    for message in "\n".join(refused).splitlines():
        if any(word in message for word in ("is true; allowed", "is false; allowed")):
            continue  # pydantic takes true for 1, which nobody means
        assert any(all(part in message for part in path) for path, *_rest in found), message
    if not set(FIELDS.data["open"].get(version, ())) & set(content):
        assert bool(found) <= bool(refused)

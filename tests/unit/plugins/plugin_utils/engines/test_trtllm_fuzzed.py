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


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**6) | st.floats(allow_nan=False)
    | st.sampled_from(["", "AUTO", "8"]),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from(sorted(FIELDS.data["models"]["kv_cache_config"])) | st.text(max_size=5), inner,
                      max_size=2),
    max_leaves=4,
)  # fmt: skip
NAMES = st.sampled_from(sorted(FIELDS.data["models"][""])) | st.text("abc_", min_size=1, max_size=8)
KEYS = NAMES | st.text(max_size=8)
VERSIONS = st.none() | st.builds(
    "{}.{}.{}{}".format,
    st.integers(0, 2),
    st.integers(0, 4),
    st.integers(0, 2),
    st.sampled_from(["", "rc1", "rc27.post2"]),
).map(Version)


@given(st.dictionaries(KEYS, VALUES, max_size=4), VERSIONS)
def test_nothing_but_an_error_or_warnings(content, version):
    try:
        found = FIELDS.check_file(WHERE, content, version)
    except FleetError as problem:
        assert all(line.startswith(WHERE) for line in problem.message.splitlines())
        assert problem.code == "several" or problem.code.startswith("plan.config-")
        return
    assert all(isinstance(one, str) and one.endswith("refuse it.") for one in found)


@given(st.sampled_from(sorted(FIELDS.data["models"][""])), st.sampled_from(RECORDED))
def test_a_key_is_taken_as_recorded(key, version):
    """On a recorded release a key is refused for being there if and only if the data has it not."""
    history = FIELDS.data["models"][""][key]
    since = [one for one in history if Version(one) <= Version(version)]
    taken = bool(since) and history[max(since, key=Version)] is not None
    about = [one for one in refused_paths({key: None}, version) if "does not take" in one]
    assert bool(about) is not taken


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


def test_the_strict_reader_prints_what_pydantic_does():
    content = {"enable_mixed_sampler": True, "stream_interval": 0}
    assert trtllm_llmapi.report("1.2.1", content).splitlines()[:3] == [
        "2 validation errors for TorchLlmArgs",
        "enable_mixed_sampler",
        "  Extra inputs are not permitted [type=extra_forbidden, input_value=True, input_type=bool]",
    ]
    assert trtllm_llmapi.report("1.0.0", {"enable_mixed_sampler": True}) == ""

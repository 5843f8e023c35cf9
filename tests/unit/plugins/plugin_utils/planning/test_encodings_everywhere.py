# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds for every recipe with each of its overlays."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS
from ansible_collections.inference.fleet.tests.unit.engines import plans

FOLDER = "/var/lib/inference-fleet/encodings"
UNRECORDED = ("config.", "The release of TensorRT-LLM")  # notes on settings of other releases


@pytest.mark.parametrize(("name", "overlay"), plans.EACH)
def test_each_recipe(name, overlay):
    """It runs only recorded releases. Its containers have the encodings: without them each chat is an error though
    /health says 200."""
    found = plans.each(name, overlay)
    warnings = [one for item in found.capacity for one in item["warnings"]]
    assert found.entries
    assert [one for one in warnings if "on record" in one and not one.startswith(UNRECORDED)] == []
    if found.recipe["model"].get("family"):
        return
    for entry in (one for one in found.entries if one["container"]):
        assert entry["environment"]["TIKTOKEN_ENCODINGS_BASE"] == FOLDER
        assert {"source": FOLDER, "target": FOLDER, "read_only": True} in entry["container"]["mounts"]
        assert "--mount=type=bind,source=%s,target=%s,readonly" % (FOLDER, FOLDER) in entry["launch"]


def test_no_platform_with_containers_is_left_out():
    found = {plans.OWN[name]["platform"] for name, own in plans.OWN.items() if own.get("container")}
    assert found == {name for name, platform in PLATFORMS.items() if platform.container}

# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the clients use of the hubs' libraries, promised or not, is there in the pinned releases."""

from __future__ import annotations

import importlib
import re

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.hub import HubProblem, private

every = pytest.mark.parametrize(
    ("source", "module", "name"),
    [(source, module, name) for source, names in private.NAMES.items() for module in names for name in names[module]],
)


@pytest.mark.parametrize("source", sorted(private.NAMES))
def test_the_installed_release_has_all_of_them(source):
    assert private.missing(source) == []
    private.check(source)


@every
def test_a_release_without_one_is_named(monkeypatch, source, module, name):
    parts = name.partition("(")[0].split(".")
    owner = importlib.import_module(module)
    for part in parts[:-1]:
        owner = getattr(owner, part)
    monkeypatch.delattr(owner, parts[-1])
    absent = [one for one in private.NAMES[source][module] if one.startswith(name.partition("(")[0])]
    assert private.missing(source) == ["%s.%s" % (module, one) for one in absent]
    with pytest.raises(HubProblem, match=re.escape("the installed release has no %s." % module)):
        private.check(source)


def test_a_function_that_is_another_now_is_named(monkeypatch):
    from modelscope_hub import _download

    monkeypatch.setattr(_download, "_incomplete_path", lambda name: name)
    assert private.missing("modelscope") == ["modelscope_hub._download._incomplete_path(target: Path)"]

# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a file has come; modules/model_weights_hub runs whole ones."""

from __future__ import annotations

import os

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.hub import transfer


def test_a_file_that_is_moved_on_while_it_is_looked_for_keeps_its_size(tmp_path, monkeypatch):
    """Else the progress would go back."""
    places = [str(tmp_path / name) for name in ("done", "partial", "incomplete")]
    real = os.stat

    def stat(path, *arguments, **options):
        try:
            return real(path, *arguments, **options)
        except OSError:
            for before, after in zip(places[1:], places):
                if os.path.lexists(before):
                    os.rename(before, after)
                    break
            raise

    for start in (1, 2):
        with open(places[start], "wb") as stream:
            stream.write(b"x" * 70)
        with monkeypatch.context() as patched:
            patched.setattr(os, "stat", stat)
            assert transfer.size_of(places) == 70
        assert transfer.size_of(places) == 70
        for path in places:
            if os.path.exists(path):
                os.unlink(path)
    assert transfer.size_of(places) == 0

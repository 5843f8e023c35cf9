# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Words that must arrive at an engine as they are planned, whoever starts it."""

from __future__ import annotations

from hypothesis import strategies as st

TEXT = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=30)
NASTY = ['%n %% $HOME ${HOME} $$ " \' \\ \\x41 \t\n; # {"a": [1]} é 漢 \U0001f600', "", " ", "-", "--", "--env=A=b",
         "=", "a=b", "\r\n", "\x7f", "*", "~", "|", "@file", "a,b", 'a"b,"c', "\n", "\ufeff", "x" * 5000,
         "{{ 1 + 1 }}", "{% raw %}", "`id` $(id)", "%h%i%%", "\\", "'"]  # fmt: skip
SLEEP = ["/usr/bin/python3", "-I", "-S", "-c", "import time; time.sleep(900)"]

# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The documentation of modules, plugins and roles as a site, build/docs/html; a warning fails.

.venv/bin/python tools/run.py python tools/docs_site.py
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent / "build" / "docs"
SETTINGS = {
    "extensions": "sphinx_antsibull_ext",
    "project": "inference.fleet",
    "root_doc": "index",
    "highlight_language": "YAML+Jinja",
    "suppress_warnings": "ref.ref",  # links into Ansible's own documentation; `make lint` checks the collection's links
}


def main():
    shutil.rmtree(BUILD, ignore_errors=True)
    rst = BUILD / "rst"
    rst.mkdir(parents=True, mode=0o755)
    BUILD.chmod(0o755)
    subprocess.run(
        ["antsibull-docs", "collection", "--use-current", "--squash-hierarchy", "--no-add-antsibull-docs-version",
         "--fail-on-error", "--dest-dir", str(rst), "inference.fleet"],
        check=True,
    )  # fmt: skip
    words = [word for key, value in SETTINGS.items() for word in ("-D", "%s=%s" % (key, value))]
    html = BUILD / "html"
    subprocess.run(["sphinx-build", "-C", "-q", "-W", "--keep-going", *words, str(rst), str(html)], check=True)
    print("The site is %s." % (html / "index.html"))


if __name__ == "__main__":
    main()

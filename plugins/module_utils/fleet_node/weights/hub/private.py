# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the clients use of the hubs' libraries that those do not promise to keep; all of it is listed here.

A release that lacks one of these is named in the error, and in a unit test when the pins in hub.PACKAGES are raised.
"""

from __future__ import annotations

import importlib
import inspect

from . import HubProblem

# {source: {module: names}}; NAME.NAME is an attribute, NAME(TEXT) a function that has this in its source.
NAMES = {
    "huggingface": {
        "huggingface_hub.constants": ("DOWNLOAD_CHUNK_SIZE",),
        "huggingface_hub.file_download": ("http_get(resume_size: int)", "http_get(_nb_retries: int)"),
        "huggingface_hub.utils._http": ("default_client_factory", "_http_backoff_base(max_retries: int)"),
    },
    "modelscope": {
        "modelscope_hub._download": ("_incomplete_path(target: Path)",),
        "modelscope_hub._download_control": ("_DownloadTooSlowError",),
        "modelscope_hub._legacy_api": ("LegacyClient.list_repo_files(self._read_state.listing_incomplete = )",),
    },
}


def missing(source):
    """[names] of these that the installed library of a source lacks."""
    absent = []
    for module, names in NAMES[source].items():
        for name in names:
            attribute, _bracket, text = name.rstrip(")").partition("(")
            try:
                value = importlib.import_module(module)
                for part in attribute.split("."):
                    value = getattr(value, part)
                found = not text or text in inspect.getsource(value)
            except (ImportError, AttributeError):
                found = False
            if not found:
                absent.append("%s.%s" % (module, name))
    return absent


def check(source):
    """Raise HubProblem where the library lacks one of them."""
    absent = missing(source)
    if absent:
        raise HubProblem("client", "the installed release has no %s" % ", ".join(absent))

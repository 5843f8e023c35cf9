# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Environment variables of a worker, and what else a job is given beside the weights that it fetches."""

from __future__ import annotations

import os

from ...errors import FleetError
from . import TOKENS

# What a worker must not take over from whoever starts it: other accounts, other caches, other Python.
FOREIGN = ("HF_", "HUGGING", "MODELSCOPE_", "PYTHON", "ANSIBLE_")


def own():
    """The variables of this process, without what is foreign to a worker."""
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


def of_worker(home, wanted, token, extra, ca_bundle):
    """The variables of a worker: this process's own without what is foreign to it, the proxies, the token.

    extra: {name: value} such as proxies, which stand in both cases. ca_bundle: path or None. home: a folder for what
    the clients want to keep.
    """
    environment = own()
    for name, value in (extra or {}).items():
        for spelling in {name, name.lower(), name.upper()} if name.lower().endswith("_proxy") else {name}:
            environment[spelling] = str(value)
    if ca_bundle:
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            environment[name] = ca_bundle
    environment.update(
        HOME=home,
        TMPDIR=home,  # what a job that is ended leaves behind goes with its folder
        TQDM_DISABLE="1",
        HF_HOME=os.path.join(home, "huggingface"),
        HF_HUB_DISABLE_XET="1",  # goes to other hosts, and cannot go on in the middle of a file
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_DISABLE_UPDATE_CHECK="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        HF_HUB_DISABLE_IMPLICIT_TOKEN="1",
        HF_HUB_DOWNLOAD_TIMEOUT=str(wanted.timeout_s),
        HF_HUB_ETAG_TIMEOUT=str(wanted.timeout_s),
        MODELSCOPE_CACHE=os.path.join(home, "modelscope"),
        MODELSCOPE_DOWNLOAD_TIMEOUT=str(wanted.timeout_s),
        MODELSCOPE_API_TIMEOUT=str(wanted.timeout_s),
        MODELSCOPE_REPO_TREE_PAGE_TIMEOUT_SECONDS=str(wanted.timeout_s),
        MODELSCOPE_DOWNLOAD_TOTAL_TIMEOUT=str(7 * 24 * 3600),  # of one file; its own is one hour
        MODELSCOPE_DOWNLOAD_MIN_BYTES_PER_SECOND=str(wanted.min_rate),
        MODELSCOPE_DOWNLOAD_LOW_SPEED_WINDOW_SECONDS=str(wanted.min_rate_window_s),
        MODELSCOPE_DOWNLOAD_MAX_RETRIES="0",  # the worker tries again, and knows when that is of use
        MODELSCOPE_REPO_TREE_PAGE_MAX_ATTEMPTS="1",
        MODELSCOPE_DOWNLOAD_FILE_LOCK="false",  # the job has its own
    )
    if token:
        environment[TOKENS[wanted.source]] = token
    return environment


def check_certificates(path):
    """Raise FleetError unless this file holds certificates to trust: a client reports it as if the hub were away, or
    not at all."""
    import ssl  # takes as long as all else that a quick look imports

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cafile=path)
        why = "" if context.cert_store_stats()["x509"] else "it holds none"
    except ssl.SSLError as error:
        why = error.reason.lower().replace("_", " ") if error.reason else str(error)
    except OSError as error:
        why = error.strerror
    if why or not os.path.isabs(path):
        raise FleetError(
            "weights.ca-bundle-unreadable",
            "ca_bundle is %s, which is no file with certificates (PEM) on this node: %s. Give the absolute path of one "
            "(in a play: fleet_ca_bundle), or none for the system's own.",
            (path, why or "it is relative"),
        )


def settings(wanted, token, extra, ca_bundle):
    """What is no part of the weights, and may decide whether a job gets them (JSON). It holds secrets; only a
    fingerprint of it is kept."""
    proxies = sorted((name.lower(), str(value)) for name, value in (extra or {}).items())
    numbers = [wanted.workers, wanted.retries, wanted.timeout_s, wanted.min_rate, wanted.min_rate_window_s]
    return [wanted.endpoint, token, proxies, _file(ca_bundle), *numbers]


def _file(path):
    """A path with what tells whether the file was changed; None for none."""
    if not path:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return [path]
    return [path, status.st_size, status.st_mtime_ns]

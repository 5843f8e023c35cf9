# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a tiktoken encoding from the vocabulary that oss-harmony carries inside: an offline source.

A stand-alone script for the Python of an engine's virtual environment, where oss-harmony (imported as openai_harmony)
is installed as a dependency of the engine:

    python encodings_worker.py o200k_base /path/to/o200k_base.tiktoken

It writes one line of JSON, {"name", "path", "size", "sha256"}, to standard output. Exit statuses: 0 written, 2 wrong
usage, 3 the encoding is not to be had from this environment, 4 it was read but is not the published file. Every
failure is one line on standard error.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys

try:
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding
except ImportError:  # the controller and ansible-test's import sanity do without it
    HarmonyEncodingName = load_harmony_encoding = None

# The published o200k_base.tiktoken: 199,998 ranks, one line of `base64 rank` each.
O200K_RANKS = 199998
O200K_SIZE = 3613922
O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


class EncodingsError(ValueError):
    """An encoding that cannot be written; `status` is the exit status that says why."""

    def __init__(self, message, status=3):
        super().__init__(message)
        self.status = status


def o200k_base():
    """The bytes of o200k_base.tiktoken, read out of oss-harmony.

    Raises EncodingsError where oss-harmony is missing, hides its vocabulary, or carries another one.
    """
    if load_harmony_encoding is None:
        raise EncodingsError(
            "oss-harmony is not installed in {}; run this with the Python of the engine's virtual environment, "
            "or provide o200k_base.tiktoken as a file".format(sys.prefix)
        )
    # A TIKTOKEN_ENCODINGS_BASE that points nowhere makes the library look for the very file that is to be written.
    os.environ.pop("TIKTOKEN_ENCODINGS_BASE", None)
    try:
        encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    except Exception as exc:  # the library raises its own error type, which this script must not depend on
        raise EncodingsError(
            "oss-harmony in {} cannot load its vocabulary offline ({}); versions from 0.0.10 carry it inside: "
            "update oss-harmony or provide o200k_base.tiktoken as a file".format(sys.prefix, " ".join(str(exc).split()))
        ) from exc
    # decode() replaces bytes that are not valid UTF-8; only the inner object gives a token's own bytes.
    decode_bytes = getattr(getattr(encoding, "_inner", None), "decode_bytes", None)
    if decode_bytes is None:
        raise EncodingsError(
            "oss-harmony in {} does not give out the bytes of its tokens; provide o200k_base.tiktoken as a file".format(
                sys.prefix
            )
        )
    lines = [base64.b64encode(bytes(decode_bytes([rank]))) + b" %d\n" % rank for rank in range(O200K_RANKS)]
    return b"".join(lines)


def write(name, path):
    """Write the encoding `name` to `path`, atomically, mode 0644; return {"name", "path", "size", "sha256"}.

    Raises EncodingsError for an encoding that this source does not have or one that came out wrong.
    """
    if name == "cl100k_base":
        raise EncodingsError(
            "cl100k_base is not carried by oss-harmony; gpt-oss does not need it: provide "
            "cl100k_base.tiktoken as a file where an engine asks for it"
        )
    if name != "o200k_base":
        raise EncodingsError("{} is not an encoding that can be written; o200k_base is the only one".format(name))
    content = o200k_base()
    digest = hashlib.sha256(content).hexdigest()
    if digest != O200K_SHA256 or len(content) != O200K_SIZE:
        raise EncodingsError(
            "o200k_base as carried by oss-harmony in {} has sha256 {}, expected {}; provide the published "
            "o200k_base.tiktoken as a file".format(sys.prefix, digest, O200K_SHA256),
            status=4,
        )
    partial = path + ".partial"
    with open(partial, "wb") as stream:
        stream.write(content)
    os.chmod(partial, 0o644)
    os.replace(partial, path)
    return {"name": name, "path": path, "size": len(content), "sha256": digest}


def main(argv):
    """Run the command line `NAME OUT`; return the exit status."""
    if len(argv) != 2:
        sys.stderr.write("usage: encodings_worker.py o200k_base OUT\n")
        return 2
    try:
        written = write(argv[0], argv[1])
    except EncodingsError as exc:
        sys.stderr.write("{}\n".format(exc))
        return exc.status
    except OSError as exc:
        sys.stderr.write("{} cannot be written: {}\n".format(argv[1], exc.strerror or exc))
        return 3
    sys.stdout.write(json.dumps(written, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

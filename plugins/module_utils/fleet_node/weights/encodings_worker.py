# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write o200k_base.tiktoken from the vocabulary that oss-harmony carries: a source that needs no network.

A script for the Python of an engine's environment, where oss-harmony (imported as openai_harmony) is installed:

    python encodings_worker.py o200k_base /path/to/o200k_base.tiktoken

A failure is one line on standard error. The caller compares the written file with the published checksum.
"""

from __future__ import annotations

import base64
import os
import sys

try:
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding
except ImportError:  # the control node and ansible-test's import sanity do not need it
    HarmonyEncodingName = load_harmony_encoding = None

RANKS = 199998  # of the published o200k_base.tiktoken: one line of `base64 rank` each


def o200k_base():
    """The bytes of o200k_base.tiktoken. Exits if oss-harmony is missing, or does not return its vocabulary."""
    if load_harmony_encoding is None:
        raise SystemExit("oss-harmony is not installed in {}".format(sys.prefix))
    # With a TIKTOKEN_ENCODINGS_BASE that points nowhere, the library would look for the very file that is written here.
    os.environ.pop("TIKTOKEN_ENCODINGS_BASE", None)
    try:
        encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    except Exception as error:  # the library's own error type, on which this script must not depend
        text = "oss-harmony in {} cannot load its vocabulary offline ({}); versions from 0.0.10 carry it inside"
        raise SystemExit(text.format(sys.prefix, " ".join(str(error).split()))) from error
    # decode() replaces bytes that are not valid UTF-8; only the inner object returns a token's own bytes.
    decode_bytes = getattr(getattr(encoding, "_inner", None), "decode_bytes", None)
    if decode_bytes is None:
        raise SystemExit("oss-harmony in {} does not give out the bytes of its tokens".format(sys.prefix))
    return b"".join(base64.b64encode(bytes(decode_bytes([rank]))) + b" %d\n" % rank for rank in range(RANKS))


def main(name, path):
    """Write the encoding `name` to `path`."""
    if name != "o200k_base":
        raise SystemExit("{} is not carried by oss-harmony; gpt-oss does not need it".format(name))
    content = o200k_base()
    with open(path, "wb") as stream:
        stream.write(content)


if __name__ == "__main__":
    main(*sys.argv[1:])

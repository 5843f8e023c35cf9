# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The texts of a container engine's configuration files, and what differs between two of them. Pure."""

from __future__ import annotations

import json
import re

from ..errors import FleetError
from ..node.redact import url_secrets
from .merged_settings import merge

DAEMON_JSON = "/etc/docker/daemon.json"
WRITTEN = "# Written by inference.fleet; the next run overwrites it.\n"
ABSENT = object()
MASK = "********"
SECRET_KEY = re.compile(r"(?i)token|passw|secret|credential")


def daemon_settings(text, settings, notes=()):
    """(text of daemon.json with `settings` merged into it, None for no file; keys that change; notes of what was set).

    notes: of the call before; see merged_settings. FleetError where the text is no JSON mapping.
    """
    blank = not (text and text.strip())
    try:
        before = {} if blank else json.loads(text)
        if not isinstance(before, dict):
            raise ValueError("it holds no mapping")
    except ValueError as error:
        raise FleetError(
            "containers.daemon-json-invalid",
            "%s is no valid JSON (%s), so nothing is merged into it. Repair or remove it; docker itself does not "
            "start with it.",
            (DAEMON_JSON, error),
        ) from error
    # the file is a setting of its own, so that one which the fleet made goes with the last of its keys
    after, kept = merge({} if blank else {"file": before}, {"file": settings} if settings else {}, notes)
    after = after.get("file")
    keys = sorted(key for key in {*before, *(after or {})}
                  if (key in before, before.get(key)) != (key in (after or {}), (after or {}).get(key)))  # fmt: skip
    if after is None:
        return None if notes else text, keys, kept
    return json.dumps(after, indent=4, ensure_ascii=False) + "\n" if keys else text, keys, kept


def proxy_file(environment):
    """The text of a systemd EnvironmentFile: systemd.exec(5). Not in the unit, which everybody may read."""
    lines = []
    for key, value in sorted(environment.items()):
        value = str(value)
        if not re.match(r"^[A-Za-z_][A-Za-z0-9_]*$", key) or set(value) & set("\r\n\0"):
            raise FleetError(
                "containers.proxy-variable-invalid",
                "fleet_proxy_env: %s cannot be set: its name or value has a character that no variable has.",
                (key,),
            )
        lines.append('%s="%s"\n' % (key, value.replace("\\", "\\\\").replace('"', '\\"')))
    return "".join(lines)


def podman_registries(mirrors, insecure):
    """The text of a registries.conf(5) drop-in: mirrors of Docker Hub, and registries without TLS."""
    lines = []
    if mirrors:
        lines += ["[[registry]]", 'prefix = "docker.io"', 'location = "docker.io"']
        for mirror in mirrors:
            host = re.sub(r"^[a-z]+://", "", mirror).rstrip("/")
            lines += ["[[registry.mirror]]", "location = %s" % json.dumps(host)]
            lines += ["insecure = true"] if mirror.startswith("http://") or host in insecure else []
    for registry in insecure:
        lines += ["[[registry]]", "location = %s" % json.dumps(registry), "insecure = true"]
    return WRITTEN + "".join(line + "\n" for line in lines)


def hosts_with_tls(mirrors):
    """HOST or HOST:PORT of mirrors' URLs, which is what both engines look certificates up by."""
    return [re.sub(r"^[a-z]+://", "", mirror).partition("/")[0] for mirror in mirrors if "http://" not in mirror]


def json_changes(before, after, path=()):
    """(lines of `before`, lines of `after`): where two JSON values differ, and nothing else of them, since others'
    settings may hold secrets. Those in URLs, and values whose key says that they are secret, are masked."""
    if isinstance(before, dict) and isinstance(after, dict):
        pairs = [json_changes(before.get(key, ABSENT), after.get(key, ABSENT), (*path, key))
                 for key in sorted({*before, *after})]  # fmt: skip
        return [line for pair in pairs for line in pair[0]], [line for pair in pairs for line in pair[1]]
    if before == after and type(before) is type(after):
        return [], []
    if isinstance(before, list) and isinstance(after, list) and before and after:
        gone = [item for item in before if item not in after]
        before, after = gone, [item for item in after if item not in before]
    return _json_line(path, before), _json_line(path, after)


def _json_line(path, value):
    if value is ABSENT:
        return []
    secret = any(SECRET_KEY.search(key) for key in path)
    text = json.dumps(MASK if secret else _masked(value), ensure_ascii=False, sort_keys=True)
    for found in url_secrets(value):
        text = text.replace(json.dumps(found, ensure_ascii=False)[1:-1], MASK)
    return ["  %s: %s" % (".".join(path), text)]


def _masked(value):
    if isinstance(value, dict):
        return {key: MASK if SECRET_KEY.search(key) else _masked(one) for key, one in value.items()}
    return [_masked(one) for one in value] if isinstance(value, list) else value

# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What breaks on a converged node, what status.yml and the next run report, and what proves the repair."""

from __future__ import annotations

import dataclasses
from pathlib import Path

LIB, ETC, RUN = "/var/lib/inference-fleet", "/etc/inference-fleet", "/run/inference-fleet"
SYSTEMD = "/etc/systemd/system"
TOOLKIT, VENV, MODEL = LIB + "/toolkit", LIB + "/venvs/engine", LIB + "/models/gpt-oss-tiny-standin"
SITE = VENV + "/lib/python3*/site-packages"
ENCODING = LIB + "/encodings/o200k_base.tiktoken"
SHARD = MODEL + "/model-00001-of-00001.safetensors"
MARKER = ".inference-fleet.json"
MANIFEST = MODEL + "/.inference-fleet-manifest.json"
ENTRY, SECRETS = ETC + "/servers/server-0.json", ETC + "/secrets/server-0.json"
UNIT, SECOND = "inference-fleet-server-0.service", "inference-fleet-server-1.service"
NOT_ENABLED = "not enabled"
ENCODING_SUM = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
PID = "$(systemctl show --property=MainPID --value %s)" % UNIT

# proofs, in addition to a run that changes nothing and a verdict
ACTIVE = "systemctl is-active --quiet " + UNIT
ENABLED = "systemctl is-enabled --quiet " + UNIT
ENCODED = "echo %s %s | sha256sum --check --status" % (ENCODING_SUM, ENCODING)
WAIT = "for i in $(seq 600); do %s && break; sleep .1; done"
HEALTHY = "python3 -c \"import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=5)\" 2> /dev/null"
SETTLED = WAIT % HEALTHY  # after a restart by systemd


@dataclasses.dataclass(frozen=True)
class Breakage:
    """One fault.

    step: the step that repairs it. how: a shell command of root; reboot: whether the node is rebooted after it. says:
    strings that the output of the next run contains. proof: a command that succeeds after the repair. release: removes
    what only somebody else can remove; until then the run fails and says `says`. status: a string that the output of
    status.yml contains, if this is tested.
    """

    step: str
    name: str
    how: str
    says: tuple
    proof: str
    release: str = ""
    status: str = ""
    reboot: bool = False


def flip(path, offset=100):
    """A command that changes one byte of a file and not its size."""
    return "printf '\\377' | dd of=%s bs=1 seek=%d conv=notrunc status=none" % (path, offset)


BREAKAGES = [
    # ---- prepare
    Breakage("prepare", "the account is deleted, and a server killed",
             "userdel --force inference-fleet; groupdel inference-fleet; kill -9 {}; {}".format(
                 PID, WAIT % ("test $(systemctl show --property=ExecMainStatus --value %s) = 217" % UNIT)),
             ("user inference-fleet",), "id inference-fleet && " + SETTLED,
             status="the account inference-fleet"),
    Breakage("prepare", "a shared directory is closed to others", "chmod 0700 %s" % LIB,
             ("%s has mode 0700" % LIB,), "test $(stat -c %%a %s) = 755" % LIB),
    Breakage("prepare", "the toolkit is deleted", "rm -r " + TOOLKIT,
             (TOOLKIT,), "test -x %s/bin/uv" % TOOLKIT),
    Breakage("prepare", "the toolkit's marker is lost", "rm %s/%s" % (TOOLKIT, MARKER),
             (TOOLKIT, "marker"), "test -s %s/%s" % (TOOLKIT, MARKER)),
    Breakage("prepare", "a package of the environment is deleted", "rm -r %s/supervisor*" % SITE,
             ("supervisor",), "ls -d %s/supervisor-4*.dist-info" % SITE),
    Breakage("prepare", "the environment is deleted", "rm -r " + VENV,
             (VENV,), "%s/bin/python -c ''" % VENV),
    # ---- weights
    Breakage("weights", "the encoding is lost", "rm " + ENCODING,
             ("o200k_base",), ENCODED),
    Breakage("weights", "a byte of the encoding is corrupt", flip(ENCODING), ("o200k_base",), ENCODED),
    Breakage("weights", "the checkpoint's tensors are cut off", "truncate --size=1M " + SHARD,
             ("model-00001-of-00001.safetensors",), "test $(stat -c %%s %s) -gt 2000000" % SHARD),
    Breakage("weights", "a byte of the checkpoint's tensors is corrupt", flip(SHARD, 5000000),
             ("model-00001-of-00001.safetensors",),
             "grep -q $(sha256sum {} | cut -c1-64) {}".format(SHARD, MANIFEST)),
    Breakage("weights", "the checkpoint's config.json is edited", "echo ' ' >> %s/config.json" % MODEL,
             ("config.json",), "! tail -c 2 %s/config.json | grep -q ' '" % MODEL),
    Breakage("weights", "the checkpoint's manifest is lost", "rm " + MANIFEST, (MODEL,),
             "test -s " + MANIFEST),
    Breakage("weights", "no account may read the checkpoint's directory", "chmod 0000 " + MODEL, (MODEL,),
             "runuser -u inference-fleet -- test -r %s/config.json" % MODEL),
    Breakage("weights", "the checkpoint is deleted", "rm -r " + MODEL, (MODEL,), "test -s " + MANIFEST),
    # ---- serve: files
    Breakage("serve", "the unit is edited", "sed -i s/^LimitNOFILE=.*/LimitNOFILE=2048/ %s/%s" % (SYSTEMD, UNIT),
             ("service definition differs",), "grep -q LimitNOFILE=1048576 %s/%s" % (SYSTEMD, UNIT),
             status="service definition differs"),
    Breakage("serve", "the unit is deleted", "rm %s/%s" % (SYSTEMD, UNIT), ("server-0",), ENABLED),
    Breakage("serve", "the unit of the second server is disabled", "systemctl disable --quiet " + SECOND,
             (NOT_ENABLED,), "systemctl is-enabled --quiet " + SECOND, status=NOT_ENABLED),
    Breakage("serve", "the unit is masked", "rm {0} && ln -s /dev/null {0} && systemctl daemon-reload"
             .format(SYSTEMD + "/" + UNIT), ("%s is masked" % UNIT,), "%s && %s" % (ENABLED, ACTIVE),
             release="systemctl unmask " + UNIT),
    Breakage("serve", "the deployed entry is lost", "rm " + ENTRY,
             ("server-0", "not deployed"), "test -s " + ENTRY),
    Breakage("serve", "the deployed entry is edited", "sed -i 's/\"max-num-seqs\": 8/\"max-num-seqs\": 9/' " + ENTRY,
             ("max-num-seqs",), "grep -q '\"max-num-seqs\": 8' " + ENTRY),
    Breakage("serve", "every account may read the secrets", "chmod 0644 " + SECRETS, ("0644 instead of 0600",),
             "test $(stat -c %%a %s) = 600" % SECRETS, status="0644 instead of 0600"),
    Breakage("serve", "the program is deleted", "rm -r %s/program" % LIB, ("%s/program" % LIB,),
             "test -s %s/program/current/__main__.py" % LIB),
    Breakage("serve", "the link to Python is lost", "rm %s/lib/python3" % LIB, ("%s/lib/python3: to " % LIB,),
             "%s/lib/python3 -c ''" % LIB),
    Breakage("serve", "the engine's configuration file is edited",
             "echo '# edited' >> %s/config/server-0.yml" % ETC, ("server-0",),
             "! grep -q '# edited' %s/config/server-0.yml" % ETC),
    Breakage("serve", "a server that is not planned has a unit and an entry",
             "cd {} && sed s/server-0/server-9/g {} > inference-fleet-server-9.service && "
             "sed 's/server-0/server-9/g; s/8000/8009/g' {} > {}/servers/server-9.json && systemctl daemon-reload && "
             "systemctl enable --quiet --now inference-fleet-server-9".format(SYSTEMD, UNIT, ENTRY, ETC),
             ("server-9", "not in the plan"),
             "! ls %s/*server-9* %s/servers/server-9.json 2> /dev/null" % (SYSTEMD, ETC)),
    # ---- serve: processes
    Breakage("serve", "the server is stopped", "systemctl stop " + UNIT,
             ("service manager",), ACTIVE),
    Breakage("serve", "its process hangs", "kill -STOP %s" % PID,
             ("does not answer", "stopped by a signal"), HEALTHY),
    Breakage("serve", "it runs without its service manager",
             "command=$(sed -n 's/^ExecStart=//p' {0}/{1}); systemctl stop {1}; "
             "setsid sh -c \"exec runuser -u inference-fleet -- $command\" > /dev/null 2>&1 < /dev/null & {2}"
             .format(SYSTEMD, UNIT, SETTLED), ("without its service manager",), ACTIVE,
             status="without its service manager"),
    Breakage("serve", "the record of its start is lost", "rm %s/servers/server-0.json" % RUN,
             ("record of its start",), "test -s %s/servers/server-0.json" % RUN),
    Breakage("serve", "no account may read the directory of entries", "chmod 0000 %s/servers" % ETC,
             ("%s/servers" % ETC,), "test $(stat -c %%a %s/servers) != 0" % ETC),
    Breakage("serve", "its port is taken by another program",
             "systemctl stop {}; setsid python3 -m http.server --bind 127.0.0.1 8000 > /dev/null 2>&1 < /dev/null & "
             "echo $! > /tmp/taker; {}".format(UNIT, WAIT % "ss -Hltn 'sport = :8000' | grep -q ."),
             ("8000", "http.server"), ACTIVE, release="kill $(cat /tmp/taker)",
             status="http.server"),
    Breakage("serve", "the watchdog is stopped",
             "systemctl disable --now --quiet inference-fleet-watchdog.service",
             ("watchdog",), "systemctl is-active --quiet inference-fleet-watchdog.service && "
             "systemctl is-enabled --quiet inference-fleet-watchdog.service"),
    Breakage("serve", "the node is rebooted while a unit is disabled", "systemctl disable --quiet " + UNIT,
             ("server-0",), "%s && %s" % (ENABLED, ACTIVE), reboot=True),
    Breakage("serve", "the node is rebooted without the program", "rm -r %s/program" % LIB,
             ("%s/program" % LIB,), ACTIVE, reboot=True),
]  # fmt: skip

PROGRAM = LIB + "/program/current/fleet_node/cli.py"
# Changes that restart no server and need no repair by a step: (what happens, how, a command that succeeds after a run).
HARMLESS = [
    ("the program is edited", "echo >> " + PROGRAM,
     "test -n \"$(tail -n 1 %s)\"" % PROGRAM),
    ("the encoding is touched", "touch " + ENCODING, ENCODED),
    ("the encoding is restored from a backup",
     "cp {0} /tmp/backup && {1} && cp /tmp/backup {0}".format(ENCODING, flip(ENCODING)), ENCODED),
    ("a drop-in is added to the unit",
     "mkdir -p {0}/{1}.d && printf '[Service]\\nSuccessExitStatus=7\\n' > {0}/{1}.d/override.conf && "
     "systemctl daemon-reload".format(SYSTEMD, UNIT), "true"),
]  # fmt: skip

PAGE = Path(__file__).resolve().parents[2] / "docs" / "developing" / "breakages.md"
HEAD = """# Breakages

Faults on a converged node. The next `site.yml` reports the quoted words and repairs the fault; the run after it
changes nothing. `tests/nodes/test_breakages.py` tests one of each class with `make test` and all with `make soak`.
Generated by `.venv/bin/python tests/nodes/breakages.py`.

| Step | Fault | The run reports |
| --- | --- | --- |
"""
FOOT = """After these faults a run changes nothing and restarts no server; its first call repairs the program:

"""


def page():
    """Returns docs/developing/breakages.md."""
    rows = []
    for one in BREAKAGES:
        said = ", ".join("`%s`" % text.strip() for text in one.says)
        what = one.name + ("; runs fail until it is removed" if one.release else "")
        rows.append("| %s | %s | %s |" % (one.step, what, said))
    harmless = "\n".join("- " + what for what, _how, _proof in HARMLESS)
    return HEAD + "\n".join(rows) + "\n\n" + FOOT + harmless + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())

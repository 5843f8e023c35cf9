# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What somebody breaks on a converged node, what the next run says of it, and what proves that it is repaired."""

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
UNIT = "inference-fleet-server-0.service"
ENCODING_SUM = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
PID = "$(systemctl show --property=MainPID --value %s)" % UNIT

# proofs, beside a run that changes nothing and a verdict
ACTIVE = "systemctl is-active --quiet " + UNIT
ENABLED = "systemctl is-enabled --quiet " + UNIT
ENCODED = "echo %s %s | sha256sum --check --status" % (ENCODING_SUM, ENCODING)
WAIT = "for i in $(seq 600); do %s && break; sleep .1; done"
HEALTHY = "python3 -c \"import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=5)\" 2> /dev/null"
SETTLED = WAIT % HEALTHY  # after a restart by systemd


@dataclasses.dataclass(frozen=True)
class Breakage:
    """One thing that is broken.

    step: what repairs it; how: a shell command of root; reboot: whether the node is rebooted then; says: what the next
    run's screen must have; proof: a command that ends with 0 once it is repaired. release: takes away what only
    somebody else can; until then the run fails and says `says`. alone: nothing else is broken with it.
    """

    step: str
    name: str
    how: str
    says: tuple
    proof: str
    release: str = ""
    alone: bool = False
    reboot: bool = False


def flip(path, offset=100):
    """A command that changes one byte of a file and not its size."""
    return "printf '\\377' | dd of=%s bs=1 seek=%d conv=notrunc status=none" % (path, offset)


def as_started_with(setting):
    """A command after which the process runs with another setting than its unit has."""
    folder = "/run/systemd/system/%s.d" % UNIT
    return ("mkdir -p {0} && printf '[Service]\\n{1}\\n' > {0}/other.conf && systemctl daemon-reload && "
            "systemctl restart {2} && {3} && rm -r {0} && systemctl daemon-reload").format(
                folder, setting, UNIT, SETTLED)  # fmt: skip


BREAKAGES = [
    # ---- prepare
    Breakage("prepare", "the account is gone", "userdel --force inference-fleet; groupdel inference-fleet; true",
             ("Make the account and the folders", "user inference-fleet"), "id inference-fleet", alone=True),
    Breakage("prepare", "a shared folder is gone", "rm -r /var/log/inference-fleet",
             ("directory /var/log/inference-fleet",), "test -d /var/log/inference-fleet"),
    Breakage("prepare", "a shared folder is closed to others", "chmod 0700 %s" % LIB,
             ("%s: mode 0755" % LIB,), "test $(stat -c %%a %s) = 755" % LIB),
    Breakage("prepare", "the folder of a server is closed", "chmod 0 %s/servers/server-0" % LIB,
             ("%s/servers/server-0: mode 0755" % LIB,), "test $(stat -c %%a %s/servers/server-0) = 755" % LIB),
    Breakage("prepare", "the folder of the checkpoint is closed", "chmod 0 " + MODEL,
             ("%s: mode 0755" % MODEL,), "test $(stat -c %%a %s) = 755" % MODEL),
    Breakage("prepare", "the toolkit's marker is gone", "rm %s/%s" % (TOOLKIT, MARKER),
             ("it has no valid marker file",), "test -s %s/%s" % (TOOLKIT, MARKER)),
    Breakage("prepare", "the toolkit is gone", "rm -r " + TOOLKIT,
             ("it does not exist",), "test -x %s/bin/uv" % TOOLKIT),
    Breakage("prepare", "a package of the environment is gone", "rm -r %s/supervisor*" % SITE,
             ("supervisor", "is missing"), "ls -d %s/supervisor-4*.dist-info" % SITE),
    Breakage("prepare", "the environment's interpreter is gone", "rm %s/bin/python*" % VENV,
             ("its Python interpreter is missing",), "%s/bin/python -c ''" % VENV),
    Breakage("prepare", "the environment is gone", "rm -r " + VENV,
             ("it does not exist",), "%s/bin/python -c ''" % VENV),
    # ---- weights
    Breakage("weights", "the encoding is gone", "rm " + ENCODING,
             ("Place the encodings", "placed o200k_base"), ENCODED),
    Breakage("weights", "a byte of the encoding is another", flip(ENCODING), ("placed o200k_base",), ENCODED),
    Breakage("weights", "the encoding is closed to others", "chmod 0600 " + ENCODING, ("placed o200k_base",),
             "test $(stat -c %%a %s) = 644" % ENCODING),
    Breakage("weights", "the checkpoint's tensors are gone", "rm " + SHARD,
             ("copy the weights", "model-00001-of-00001.safetensors"), "test -s " + SHARD),
    Breakage("weights", "the checkpoint's tensors are cut off", "truncate --size=1M " + SHARD,
             ("model-00001-of-00001.safetensors",), "test $(stat -c %%s %s) -gt 2000000" % SHARD),
    Breakage("weights", "a byte of the checkpoint's tensors is another", flip(SHARD, 5000000),
             ("model-00001-of-00001.safetensors",),
             "grep -q $(sha256sum {} | cut -c1-64) {}".format(SHARD, MANIFEST)),
    Breakage("weights", "the checkpoint's config.json is another", "echo ' ' >> %s/config.json" % MODEL,
             ("config.json is",), "! tail -c 2 %s/config.json | grep -q ' '" % MODEL),
    Breakage("weights", "the checkpoint's tokenizer is gone", "rm %s/tokenizer.json" % MODEL,
             ("tokenizer.json is missing",), "test -s %s/tokenizer.json" % MODEL),
    Breakage("weights", "the checkpoint's manifest is gone", "rm " + MANIFEST, ("copy the weights",),
             "test -s " + MANIFEST),
    Breakage("weights", "the checkpoint is gone", "rm -r " + MODEL, ("copy the weights",), "test -s " + MANIFEST),
    # ---- serve: what is on disk
    Breakage("serve", "the unit is edited", "sed -i s/^LimitNOFILE=.*/LimitNOFILE=2048/ %s/%s" % (SYSTEMD, UNIT),
             ("its service definition differs",), "grep -q LimitNOFILE=1048576 %s/%s" % (SYSTEMD, UNIT)),
    Breakage("serve", "the unit is gone", "rm %s/%s" % (SYSTEMD, UNIT), ("server-0",), ENABLED),
    Breakage("serve", "the unit is disabled", "systemctl disable --quiet " + UNIT,
             ("its unit is not enabled, so a reboot would not start it",), ENABLED),
    Breakage("serve", "the unit is masked", "rm {0} && ln -s /dev/null {0} && systemctl daemon-reload"
             .format(SYSTEMD + "/" + UNIT), ("its unit %s is masked" % UNIT,), "%s && %s" % (ENABLED, ACTIVE),
             release="systemctl unmask " + UNIT, alone=True),
    Breakage("serve", "the deployed entry is gone", "rm " + ENTRY,
             ("server-0", "it is not deployed"), "test -s " + ENTRY),
    Breakage("serve", "the deployed entry is edited", "sed -i 's/\"max-num-seqs\": 8/\"max-num-seqs\": 9/' " + ENTRY,
             ("max-num-seqs",), "grep -q '\"max-num-seqs\": 8' " + ENTRY),
    Breakage("serve", "the file of secrets is gone", "rm " + SECRETS, ("secret",), "test -s " + SECRETS),
    Breakage("serve", "everybody may read the secrets", "chmod 0644 " + SECRETS, ("mode 0644 instead of 0600",),
             "test $(stat -c %%a %s) = 600" % SECRETS),
    Breakage("serve", "a secret is another", "sed -i s/hf_breakage/hf_other/ " + SECRETS, ("secret",),
             "grep -q hf_breakage " + SECRETS),
    Breakage("serve", "the guard is gone", "rm -r %s/program" % LIB, ("as this collection has it",),
             "test -s %s/program/current/__main__.py" % LIB),
    Breakage("serve", "the link to Python is gone", "rm %s/lib/python3" % LIB, ("%s/lib/python3: to " % LIB,),
             "%s/lib/python3 -c ''" % LIB),
    Breakage("serve", "the engine's configuration file is edited",
             "echo '# edited' >> %s/config/server-0.yml" % ETC, ("server-0",),
             "! grep -q '# edited' %s/config/server-0.yml" % ETC),
    Breakage("serve", "a working directory is gone", "rm -r %s/servers/server-0/work" % LIB,
             ("its directory %s/servers/server-0/work is missing" % LIB,),
             "test -d %s/servers/server-0/work" % LIB),
    Breakage("serve", "a server that is not planned has a unit and an entry",
             "cd {} && sed s/server-0/server-9/g {} > inference-fleet-server-9.service && "
             "sed 's/server-0/server-9/g; s/8000/8009/g' {} > {}/servers/server-9.json && systemctl daemon-reload && "
             "systemctl enable --quiet --now inference-fleet-server-9".format(SYSTEMD, UNIT, ENTRY, ETC),
             ("server-9", "it is not in the plan"),
             "! ls %s/*server-9* %s/servers/server-9.json 2> /dev/null" % (SYSTEMD, ETC)),
    # ---- serve: what runs
    Breakage("serve", "the server is stopped", "systemctl stop " + UNIT,
             ("its service manager does not run it",), ACTIVE),
    Breakage("serve", "its process is stopped by a signal", "kill -STOP %s" % PID,
             ("it was ready and does not answer any more", "is stopped by a signal"), HEALTHY, alone=True),
    Breakage("serve", "its process runs as another user", as_started_with("User=root"),
             ("it runs as root instead of inference-fleet",), "test $(stat -c %%U /proc/%s) = inference-fleet" % PID),
    Breakage("serve", "it runs without its service manager",
             "command=$(sed -n 's/^ExecStart=//p' {0}/{1}); systemctl stop {1}; "
             "setsid sh -c \"exec runuser -u inference-fleet -- $command\" > /dev/null 2>&1 < /dev/null & {2}"
             .format(SYSTEMD, UNIT, SETTLED), ("it runs without its service manager",), ACTIVE),
    Breakage("serve", "the record of its start is gone", "rm %s/servers/server-0.json" % RUN,
             ("the record of its start is gone",), "test -s %s/servers/server-0.json" % RUN),
    Breakage("serve", "its port is taken by another program",
             "systemctl stop {}; setsid python3 -m http.server --bind 127.0.0.1 8000 > /dev/null 2>&1 < /dev/null & "
             "echo $! > /tmp/taker; {}".format(UNIT, WAIT % "ss -Hltn 'sport = :8000' | grep -q ."),
             ("8000", "http.server"), ACTIVE, release="kill $(cat /tmp/taker)", alone=True),
    Breakage("serve", "the watchdog's timer is stopped",
             "systemctl disable --now --quiet inference-fleet-watchdog.timer",
             ("watchdog",), "systemctl is-active --quiet inference-fleet-watchdog.timer && "
             "systemctl is-enabled --quiet inference-fleet-watchdog.timer"),
    Breakage("serve", "the watchdog's units are gone",
             "rm %s/inference-fleet-watchdog.*" % SYSTEMD, ("watchdog",),
             "systemctl is-enabled --quiet inference-fleet-watchdog.timer"),
    Breakage("serve", "the node is rebooted while a unit is disabled", "systemctl disable --quiet " + UNIT,
             ("server-0",), "%s && %s" % (ENABLED, ACTIVE), reboot=True, alone=True),
    Breakage("serve", "the record of the start is JSON of another type", "echo [] > %s/servers/server-0.json" % RUN,
             ("the record of its start is gone",), "grep -q pid %s/servers/server-0.json" % RUN, alone=True),
    Breakage("serve", "the node is rebooted without its guard", "rm -r %s/program" % LIB,
             ("as this collection has it",), ACTIVE, reboot=True, alone=True),
]  # fmt: skip

# What looks like a change and is none: (what is done, how).
HARMLESS = [
    ("the program is edited, which the first call mends", "echo >> %s/program/current/fleet_node/cli.py" % LIB),
    ("the program is closed, which the first call mends", "chmod 0 %s/program/current/fleet_node/cli.py" % LIB),
    ("the encoding is touched", "touch " + ENCODING),
    ("the encoding is restored from a backup",
     "cp {0} /tmp/backup && rm {0} && cp /tmp/backup {0}".format(ENCODING)),
    ("a byte of the encoding is another for a while",
     "cp {0} /tmp/backup && {1} && cp /tmp/backup {0}".format(ENCODING, flip(ENCODING))),
]  # fmt: skip

PAGE = Path(__file__).resolve().parents[2] / "docs" / "developing" / "breakages.md"
HEAD = """# Breakages

What somebody may do to a converged node. The next `site.yml` says what is quoted here and repairs it, and the run
after that changes nothing. `tests/nodes/test_breakages.py` does it on a test node: one of each class with `make
test`, all with `make soak`. Written by `.venv/bin/python tests/nodes/breakages.py`.

| | Step | What is broken | The run says |
| --- | --- | --- | --- |
"""


def page():
    """The text of docs/developing/breakages.md."""
    rows = []
    for number, one in enumerate(BREAKAGES, 1):
        said = ", ".join("`%s`" % text.strip() for text in one.says)
        what = one.name + ("; the run fails until that is gone" if one.release else "")
        rows.append("| %d | %s | %s | %s |" % (number, one.step, what, said))
    harmless = "Nothing is changed, and no server restarted, where %s." % ", ".join(what for what, _how in HARMLESS)
    return HEAD + "\n".join(rows) + "\n\n" + harmless + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())

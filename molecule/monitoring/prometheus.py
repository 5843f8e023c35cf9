# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks the Prometheus of this node: queries | alerts | firing ALERT SERVER | quiet. Needs the standard library only."""

from __future__ import annotations

import glob
import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request

FOLDER = "/etc/prometheus/inference-fleet"
VENDORS = re.compile(
    r"DCGM_|npu_|hardware_ecc|execution_errors|sglang:|trtllm|dynamo_|gpu_cache|_limit:|group_left|time_per_output_token_seconds"
)
METRIC = re.compile(r"\b(?:up|[a-z]+[:_][a-z:_0-9]+)(?=[{\[\s)]|$)|DCGM_\w+")
# alert: (series with a fault and then none, minutes after which it fires). Every series has the labels of L.
L = 'host="n",server="s",recipe="r"'
ECC = 'hardware_ecc_events_total{job="accelerators",event_type="%s",%%s}'
ALERTS = {
    "FleetServerDown": ({'up{job="engines",%s}': "0x9 1x9"}, 2),
    "FleetServerNotVerified": ({"fleet_server_verified{%s}": "0x9 1x9"}, 1),
    "FleetServerNotConverged": ({"fleet_server_converged{%s}": "0x19 1x9"}, 16),
    "FleetServerSilent": ({"fleet_server_answers{%s}": "0x9 1x9"}, 3),
    "FleetServerStalled": ({"vllm:num_requests_running{%s}": "3x19",
                            "vllm:generation_tokens_total{%s}": "7x12 8+9x7"}, 9),
    "FleetServerRestarts": ({'process_start_time_seconds{job="engines",%s}': "1+1x5 6x90"}, 5),
    "FleetQueueGrows": ({"vllm:num_requests_waiting{%s}": "6+1x15 0x30"}, 12),
    "FleetKvCacheFull": ({"vllm:kv_cache_usage_perc{%s}": "0.99x9 0.5x9"}, 7),
    "FleetTtftOverLimit": ({'vllm:time_to_first_token_seconds_bucket{le="1",%s}': "0x9 0+9x20",
                            'vllm:time_to_first_token_seconds_bucket{le="+Inf",%s}': "0+9x30",
                            'fleet:ttft_limit:seconds{recipe="r"}': "0.99x30"}, 9),
    "FleetTpotOverLimit": ({'vllm:request_time_per_output_token_seconds_bucket{le="1",%s}': "0x9 0+9x20",
                            'vllm:request_time_per_output_token_seconds_bucket{le="+Inf",%s}': "0+9x30",
                            'fleet:tpot_limit:seconds{recipe="r"}': "0.99x30"}, 9),
    "FleetKeyOld": ({"fleet_server_key_timestamp_seconds{%s}": "-31536001x9 60+60x9"}, 1),
    "FleetEndpointDown": ({'up{job="endpoint",%s}': "0x9 1x9"}, 2),
    "FleetModelWithoutServer": ({'haproxy_backend_active_servers{proxy="model.m",%s}': "0x9 1x9"}, 2),
    "FleetEtcdWithoutQuorum": ({"etcd_server_has_leader{%s}": "0x9 1x9"}, 2),
    "FleetServiceDown": ({"probe_success{%s}": "0x9 1x9"}, 2),
    "FleetCertificateExpires": ({"probe_ssl_earliest_cert_expiry{%s}": "1000x9 9999999x9"}, 1),
    "FleetNodeDown": ({'up{job="nodes",%s}': "0x9 1x9"}, 3),
    "FleetDiskFull": ({'node_filesystem_avail_bytes{mountpoint="/",%s}': "4x9 9x9",
                       'node_filesystem_size_bytes{mountpoint="/",%s}': "100x18"}, 6),
    "FleetGpuXid": ({"DCGM_FI_DEV_XID_ERRORS{%s}": "79x9 0x9"}, 1),
    "FleetGpuEcc": ({"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{%s}": "0x5 1x90"}, 7),
    "FleetNeuronErrors": ({ECC % "mem_ecc_uncorrected": "0x5 1x90", ECC % "mem_ecc_corrected": "0+1x99"}, 7),
    "FleetNpuUnhealthy": ({"npu_chip_info_health_status{%s}": "0x9 1x9"}, 1),
}  # fmt: skip
# two of three members are away
ALERTS["FleetEtcdWithoutQuorum "] = (
    {'up{job="etcd",host="a"}': "0x9 1x9", 'up{job="etcd",host="b"}': "0x9 1x9", 'up{job="etcd",host="c"}': "1x18"},
    2,
)


def query(expression):
    """The result of an expression now."""
    url = "http://127.0.0.1:9090/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]["result"]


def wait(check, seconds, what):
    """Wait until check() is true."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            sys.exit("after %d s: %s" % (seconds, what()))
        time.sleep(1)


def expressions():
    """All queries: of the dashboards, of the recording rules, and the metrics of the alerts."""
    found = []
    for path in glob.glob(FOLDER + "/dashboards/*.json"):
        with open(path) as stream:
            panels = json.load(stream)["panels"]
        found += [
            one["expr"].replace("$host", ".*").replace("$server", ".*") for panel in panels for one in panel["targets"]
        ]
    rules = rule_groups()
    found += [one["name"] for one in rules if one["type"] == "recording"]
    for one in rules:
        found += METRIC.findall(one["query"])
    return sorted({one for one in found if one.startswith("vllm:request_time") or not VENDORS.search(one)})


def rule_groups():
    """The rules that Prometheus has loaded."""
    with urllib.request.urlopen("http://127.0.0.1:9090/api/v1/rules", timeout=10) as answer:
        return [rule for group in json.load(answer)["data"]["groups"] for rule in group["rules"]]


def queries():
    """Every query returns data."""
    asked = expressions()
    if len(asked) < 40:
        sys.exit("only %d queries: %s" % (len(asked), asked))

    def empty():
        return [one for one in asked if not query(one)]

    wait(lambda: not empty(), 60, lambda: "no data for %s" % empty())


def alerts():
    """Every alert fires on its fault and ends without it; a test of promtool for each."""
    named = {one["name"] for one in rule_groups() if one["type"] == "alerting"}
    if named != {name.strip() for name in ALERTS}:
        sys.exit("alerts without a test, or tests without an alert: %s" % (named ^ {name.strip() for name in ALERTS}))
    tests = []
    for name, (series, minutes) in ALERTS.items():
        firing = 'count(ALERTS{alertname="%s",alertstate="firing"})' % name.strip()
        tests.append({
            "interval": "1m",
            "input_series": [{"series": one.replace("%s", L), "values": values} for one, values in series.items()],
            "promql_expr_test": [
                {"expr": firing, "eval_time": "%dm" % minutes,
                 "exp_samples": [{"value": 2 if name.endswith(" ") else 1}]},
                {"expr": firing, "eval_time": "%dm" % (minutes + 80 if "x90" in str(series) else minutes + 15)},
            ],
        })  # fmt: skip
    with open("/root/alerts.yml", "w") as stream:
        json.dump({"rule_files": [FOLDER + "/rules.yml"], "evaluation_interval": "1m", "tests": tests}, stream)
    done = subprocess.run(
        ["promtool", "test", "rules", "/root/alerts.yml"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def firing(alert, server):
    """The alert fires for the server."""
    state = 'ALERTS{alertname="%s",alertstate="firing",server="%s"}' % (alert, server)
    wait(lambda: query(state), 120, lambda: query("ALERTS"))


def quiet():
    """No alert fires."""
    wait(lambda: not query('ALERTS{alertstate="firing"}'), 60, lambda: query("ALERTS"))


if __name__ == "__main__":
    if sys.argv[1] == "firing":
        firing(*sys.argv[2:])
    for word in sys.argv[1:]:
        {"queries": queries, "alerts": alerts, "quiet": quiet}.get(word, lambda: None)()

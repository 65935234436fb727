"""RDMA throughput by perftest as a test of pscheduler.

Needs nothing but Python 3.9: pscheduler's own library is not used, so that the tool can be tried on
a machine without pscheduler.
"""

import configparser
import datetime
import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass

# Schema of the specification of throughput tests up to which options are known.
SCHEMA_MAX = 7
CONFIGURATION = "/etc/pscheduler/tool/longhaul.conf"
# Another file of settings, for tests.
CONFIGURATION_VARIABLE = "LONGHAUL_PSCHEDULER_CONF"
DURATION_DEFAULT_S = 10
# Time that the client gives the server to start, and both to connect and to end.
SERVER_HEAD_START_S = 2
SETUP_S = 5
# Round trips of connecting, registering and ending.
SETUP_ROUND_TRIPS = 20

OPTIONS = {
    "schema", "source", "source-node", "dest", "dest-node", "duration", "buffer-length", "ip-tos",
    "ip-version", "link-rtt", "parallel", "reverse",
}


def read_input():
    """The JSON object that pscheduler passes on standard input."""
    try:
        document = json.load(sys.stdin)
    except ValueError as error:
        fail(f"the input is not JSON: {error}")
    if not isinstance(document, dict):
        fail("the input is not a JSON object")
    return document


def answer(document):
    print(json.dumps(document))
    sys.exit(0)


def fail(reason):
    print(reason, file=sys.stderr)
    sys.exit(1)


@dataclass
class Settings:
    """Settings of this machine, from an INI file with a section [longhaul]."""

    # Words before the program: 'longhaul exec --' runs it on Longhaul's device.
    prefix: list
    # Verbs device, GID index and further options of perftest.
    device: str
    gid_index: str
    options: list
    # The server's TCP port.
    port: int
    # Size of messages unless the test has a buffer length, and work requests in flight.
    message_bytes: int
    tx_depth: int

    @staticmethod
    def read():
        path = os.environ.get(CONFIGURATION_VARIABLE, CONFIGURATION)
        parser = configparser.ConfigParser()
        try:
            parser.read(path)
            section = parser["longhaul"] if parser.has_section("longhaul") else {}
            return Settings(
                prefix=shlex.split(section.get("prefix", "")),
                device=section.get("device", ""),
                gid_index=section.get("gid-index", ""),
                options=shlex.split(section.get("options", "")),
                port=int(section.get("port", "18515")),
                message_bytes=int(section.get("message-bytes", "65536")),
                tx_depth=int(section.get("tx-depth", "128")),
            )
        except (configparser.Error, ValueError) as error:
            fail(f"{path}: {error}")


def obstacles(test):
    """Why the tool cannot run a test."""
    if test.get("type") != "throughput":
        return ["only tests of the type throughput"]
    spec = test.get("spec")
    if not isinstance(spec, dict):
        return ["no specification"]
    schema = spec.get("schema", 1)
    if not isinstance(schema, int) or schema > SCHEMA_MAX:
        return [f"schema {schema} of the specification is newer than {SCHEMA_MAX}"]
    unknown = sorted(set(spec) - OPTIONS)
    reasons = [f"the option {option} has no counterpart in perftest" for option in unknown]
    try:
        seconds(spec.get("duration", "PT1S"))
        seconds(spec.get("link-rtt", "PT0S"))
    except ValueError as error:
        reasons.append(str(error))
    return reasons


def seconds(duration):
    """Seconds of an ISO 8601 duration without years and months."""
    match = re.fullmatch(
        r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", str(duration)
    )
    if match is None or not any(match.groups()):
        raise ValueError(f"{duration} is not a duration as PT30S")
    factors = (604_800, 86_400, 3600, 60, 1)
    return sum(float(number or 0) * factor for number, factor in zip(match.groups(), factors))


def measured_seconds(spec):
    """Seconds of the measurement; perftest has whole ones."""
    return max(1, math.ceil(seconds(spec.get("duration", f"PT{DURATION_DEFAULT_S}S"))))


def whole_seconds(spec):
    """Seconds of a run."""
    round_trips = SETUP_ROUND_TRIPS * seconds(spec.get("link-rtt", "PT0S"))
    return measured_seconds(spec) + math.ceil(SERVER_HEAD_START_S + SETUP_S + round_trips)


def command(spec, settings, port):
    """The words that both ends have in common."""
    # With 'reverse' the data flow from the destination to the source.
    program = "ib_read_bw" if spec.get("reverse") else "ib_write_bw"
    words = settings.prefix + [program, "-F", "--report_gbits", "-p", str(port)]
    words += ["-D", str(measured_seconds(spec)), "-q", str(spec.get("parallel", 1))]
    words += ["-s", str(spec.get("buffer-length", settings.message_bytes))]
    words += ["-t", str(settings.tx_depth)]
    if settings.device:
        words += ["-d", settings.device]
    if settings.gid_index:
        words += ["-x", settings.gid_index]
    if "ip-tos" in spec:
        words += ["-R", "-T", str(spec["ip-tos"])]
    return words + settings.options


def wait_until(start):
    """Sleeps until an ISO 8601 time, UTC unless it has a zone."""
    at = datetime.datetime.fromisoformat(re.sub(r"Z$", "+00:00", start))
    if at.tzinfo is None:
        at = at.replace(tzinfo=datetime.timezone.utc)
    time.sleep(max(0.0, (at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()))


def run(given):
    """Runs an end, and returns its result in the schema of throughput tests."""
    try:
        participant, spec = given["participant"], given["test"]["spec"]
        port = given["participant-data"][1]["server-port"]
        start = given["schedule"]["start"]
        words = command(spec, Settings.read(), port)
        if participant == 0:
            words.append(spec["dest"])
    except (KeyError, IndexError, TypeError) as error:
        fail(f"the input lacks {error}")
    try:
        wait_until(start)
    except ValueError as error:
        fail(f"schedule.start: {error}")
    if participant == 0:
        time.sleep(SERVER_HEAD_START_S)
    line = shlex.join(words)
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=whole_seconds(spec)
        )
    except subprocess.TimeoutExpired:
        return failed(line, f"{words[0]} did not end within {whole_seconds(spec)} s")
    except OSError as error:
        return failed(line, f"cannot run {words[0]}: {error.strerror}")
    diags = "\n".join([line, done.stdout, done.stderr])
    if done.returncode != 0:
        return failed(diags, f"the program ended with {done.returncode}")
    if participant == 1:
        return result(diags, True, None)
    gbits = goodput(done.stdout)
    if gbits is None:
        return failed(diags, "the program printed no result")
    bits = gbits * 1e9
    total = {
        "stream-id": 1,
        "start": 0,
        "end": measured_seconds(spec),
        "throughput-bits": bits,
        "throughput-bytes": bits / 8,
    }
    return result(diags, True, total)


def goodput(text):
    """The mean bandwidth of perftest's last row, in Gbit/s."""
    row = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$", re.MULTILINE)
    found = row.findall(text)
    return float(found[-1]) if found else None


def result(diags, succeeded, total):
    """A result of schema 1; all streams have the same connection, so they are one."""
    summary = {"streams": [total], "summary": total} if total else {"streams": [], "summary": {}}
    return {"succeeded": succeeded, "diags": diags, "intervals": [], "summary": summary}


def failed(diags, reason):
    return {**result(diags, False, None), "error": reason}


def merge(results):
    """The client's result, with the output of both ends."""
    if not isinstance(results, list) or len(results) != 2:
        fail("a throughput test has the results of two participants")
    absent = "no result of participant {}"
    ends = [end or failed("", absent.format(number)) for number, end in enumerate(results)]
    merged = dict(ends[0])
    merged["diags"] = "\n".join(
        f"Participant {number}:\n{end.get('diags', '')}" for number, end in enumerate(ends)
    )
    return merged

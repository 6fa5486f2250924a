# SPDX-License-Identifier: Apache-2.0
"""The outcome of a program's run: its files, its figures, and checks of them as TAP."""
import os
import sys
from collections import namedtuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
import ledger  # noqa: E402
import without_rule  # noqa: E402
from state_page import read_facts  # noqa: E402

MIB = 1 << 20
SLACK_BYTES = 64 * MIB
# The settings of a run with the shim. default: those of a user who sets nothing. patient: settling and impatience would make
# the peak depend on how fast this machine is: with two cores and eight ranks no stream is idle within the usual 20 ms.
SETTINGS = {"patient": {"METASHARD_SETTLE_MS": "0", "METASHARD_IDLE_MS": "5000"}, "default": {}}
# In a dump, of kind 11 (something was not deferred): a stream was busy, or work was queued that had not been examined, for
# longer than METASHARD_IDLE_MS.
FALLBACK, IMPATIENT, TRIES = 11, (8, 24), 5

# seen: from outside (ledger.py).
Result = namedtuple("Result", "status skip error seconds out stats dump folder seen")


def read_json(path):
    try:
        return read_facts(path)
    except (OSError, ValueError):
        return {}


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"


def was_impatient(result):
    """A machine with fewer cores than busy processes is slower than a device: nothing to be compared with."""
    return any(cause["kind"] == FALLBACK and cause["reason"] in IMPATIENT for cause in result.dump.get("causes", []))


class Report:
    def __init__(self):
        self.number = self.failed = 0
        self.skipped = []  # (name, reason)

    def check(self, good, name, *why):
        self.number += 1
        self.failed += not good
        print(f"{'ok' if good else 'not ok'} {self.number} {name}")
        if not good:
            for line in why:
                print("# " + str(line).replace("\n", "\n# "))
        sys.stdout.flush()

    def skip(self, name, reason):
        self.number += 1
        self.skipped.append((name, reason))
        print(f"ok {self.number} {name} # SKIP {reason}", flush=True)


def figures(result, shim):
    """The figures of one run; None where nobody counted."""
    stats, dump = result.stats, result.dump
    peak = stats.get("physical_bytes_peak")
    if peak is None:
        # A real device: memory behind deferred allocations, or what the caching allocator took.
        peak = dump.get("backed_bytes_peak") if shim else result.out.get("reserved_bytes_peak")
    return {**ledger.measured(stats, result.seen), "peak_bytes": peak,
            "h2d_bytes": stats.get("h2d_bytes", dump.get("h2d_bytes")), "file_bytes": dump.get("file_read_bytes"), "seconds": round(result.seconds, 2),
            "without_rule": without_rule.met(dump),
            "simulated": stats, "shim": {name: value for name, value in dump.items() if not isinstance(value, list)}}


def everything_for_a_copy(dump):
    """In words, if a small copy of the program's own brought everything that was deferred into memory; else None."""
    count = dump.get("payload_seals")
    return f"{count} small copies that may point to deferred memory brought all of it into memory" if count else None


def shard_bytes(out):
    """Bytes of the rank's tensors, and of the largest; tied ones are one."""
    owners = {tensor["storage"]: tensor["bytes"] for tensor in out.get("tensors", {}).values()}
    return sum(owners.values()), max(owners.values(), default=0)


def differences(alone, under):
    before, after = alone.out.get("tensors", {}), under.out.get("tensors", {})
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def mib(value):
    return "-" if value is None else f"{value / MIB:.1f}"

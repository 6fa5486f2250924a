# SPDX-License-Identifier: Apache-2.0
"""For step_time.py and load_time.py: the same program in processes without and with the shim, by turns."""
import json
import os
import statistics
import sys
import tempfile
import time

from part_script import failure_of
from run_tools import counters_of, last_line, run_limited, under_shim, without_shim, write_json

MODES = ("without", "with")


class Turns:
    """Runs programs by turns until the time is up; writes what there is after each."""

    def __init__(self, options, result):
        self.options, self.result = options, result
        self.deadline = time.monotonic() + options.seconds
        self.lasted = {}
        result["complete"] = False

    def write(self):
        write_json(self.options.out, self.result)

    def time_left(self, what):
        """Whether there is time for one more, judged by how long the last one took."""
        return time.monotonic() + 1.2 * self.lasted.get(what, 0) < self.deadline

    def once(self, what, arguments, mode):
        """The JSON that a child printed last, with the process's own seconds; {"error"} if there is none."""
        with tempfile.TemporaryDirectory() as folder:
            dump = os.path.join(folder, "dump")
            environment = under_shim(self.options.shim, dump) if mode == "with" else without_shim()
            done = run_limited([sys.executable, *arguments], self.deadline - time.monotonic(), environment)
            counters = counters_of(dump)
        self.lasted[what] = max(done.seconds, self.lasted.get(what, 0))
        try:
            record = failure_of(done) or json.loads(done.out.splitlines()[-1])
        except (ValueError, IndexError):
            record = {"error": "no JSON: " + last_line(done.out)}
        record["process_seconds"] = round(done.seconds, 3)
        if mode == "with":
            record["shim"] = counters
            record["said"] = done.error.splitlines()[-5:]
        return record

    def round(self, what, arguments, into, wanted=MODES):
        """One process in each mode, appended to into[mode]; False when there was no time, or no success."""
        for mode in wanted:
            if not self.time_left(what):
                return False
            record = self.once(what, arguments, mode)
            into.setdefault(mode, []).append(record)
            self.write()
            if "error" in record:
                return False
        return True

    def finish(self, complete):
        self.result["complete"] = complete
        self.write()


def median(runs, key):
    """Over the runs of one mode that have it."""
    values = [record[key] for record in runs if record.get(key) is not None]
    return round(statistics.median(values), 4) if values else None


def medians(by_mode, keys):
    """{key: {"without", "with", "ratio"}}."""
    table = {}
    for key in keys:
        without, under = (median(by_mode.get(mode, []), key) for mode in MODES)
        table[key] = {"without": without, "with": under,
                      "ratio": round(under / without, 4) if without and under else None}
    return table

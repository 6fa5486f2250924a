# SPDX-License-Identifier: Apache-2.0
"""For step_time.py and load_time.py: the same program in processes without and with the shim, by turns."""
import json
import statistics
import time

from part_script import Measurement, failure_of, run_python
from run_tools import last_line

MODES = ("without", "with")


class Turns(Measurement):
    """Runs programs by turns until the time is up; writes what there is after each."""

    def __init__(self, options, form, **result):
        super().__init__(options, form, **result)
        self.lasted = {}

    def time_left(self, what):
        """Whether there is time for one more, judged by how long the last one took."""
        return time.monotonic() + 1.2 * self.lasted.get(what, 0) < self.deadline

    def once(self, what, arguments, mode):
        """The JSON that a child printed last, with the process's own seconds; {"error"} if there is none."""
        done, counters = run_python(self.options.shim if mode == "with" else None, arguments, self.left())
        self.lasted[what] = max(done.seconds, self.lasted.get(what, 0))
        try:
            record = failure_of(done) or json.loads(done.out.splitlines()[-1])
        except (ValueError, IndexError):
            record = {"error": "no JSON: " + last_line(done.out)}
        record["process_seconds"] = round(done.seconds, 3)
        return record | ({"shim": counters, "said": done.error.splitlines()[-5:]} if mode == "with" else {})

    def round(self, what, arguments, into):
        """One process in each mode, appended to into[mode]; False when there was no time, or no success."""
        for mode in MODES:
            if not self.time_left(what):
                return False
            record = self.once(what, arguments, mode)
            into.setdefault(mode, []).append(record)
            self.write()
            if "error" in record:
                return False
        return True


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

# SPDX-License-Identifier: Apache-2.0
"""For the scripts that are parts of tests/gpu/run: their options, their result, and why a process of theirs failed."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from run_tools import counters_of, last_line, run_limited, under_shim, without_shim, write_json

SMI = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
BUILD_ROW = "--build", None, {"required": True, "type": os.path.abspath}


def failure_of(done):
    """{"error": why}, or {}."""
    if done.timed_out:
        return {"error": "no time left"}
    return {"error": f"exit status {done.status}: {last_line(done.error)}"} if done.status != 0 else {}


def free_on_device():
    """Bytes; None where PyTorch has no device."""
    done = run_limited([sys.executable, "-c", "import torch; print(torch.cuda.mem_get_info()[0])"], 60, without_shim())
    return int(done.out.split()[-1]) if done.status == 0 else None


def device_mib():
    """In use, of all processes; None without nvidia-smi."""
    try:
        return int(subprocess.run(SMI, capture_output=True, text=True, check=True).stdout.split()[0])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None


def run_python(shim, arguments, limit, **more):
    """A process of Python's, under the shim, or without it where that is None; and the shim's counters."""
    with tempfile.TemporaryDirectory() as folder:
        dump = os.path.join(folder, "dump")
        environment = without_shim(**more) if shim is None else under_shim(shim, dump, **more)
        return run_limited([sys.executable, *arguments], limit, environment), counters_of(dump)


class Measurement:
    """A result that is written after each step, and the time for it."""

    def __init__(self, options, form, **result):
        self.options, self.deadline = options, time.monotonic() + options.seconds
        self.result = {"format": form, "complete": False, **result}

    def left(self):
        return self.deadline - time.monotonic()

    def write(self):
        write_json(self.options.out, self.result)

    def finish(self, complete):
        self.result["complete"] = complete
        self.write()
        return self.result


# --- the same program in processes without and with the shim, by turns

MODES = ("without", "with")


class Turns(Measurement):
    """Runs programs by turns until the time is up; writes what there is after each."""

    def __init__(self, options, form, **result):
        super().__init__(options, form, **result)
        self.lasted = {}

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
            if self.left() < 1.2 * self.lasted.get(what, 0):  # judged by how long the last one took
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


# --- options


def options_of(doc, seconds, *rows):
    """Rows are (name, default, what else argparse is told); a default says of which type an option is."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    for name, default, *more in [("--out", None), ("--seconds", float(seconds), {"help": "for all"}), *rows]:
        kind = {"action": "store_true"} if default is False else {"default": default, "type": type(default or "")}
        parser.add_argument(name, **kind | dict(*more))
    return parser.parse_args()


def run_part(doc, measure, seconds, *rows, children=None, told=lambda result: result):
    """Measures, and writes the result, which is also printed. Children are processes of the part's own: {option: function},
    whose answer is the last line that they print."""
    hidden = {"help": argparse.SUPPRESS}
    options = options_of(doc, seconds, ("--shim", None, {"type": os.path.abspath}), ("--device", "cuda"), *rows,
                         *((name, None, {"nargs": "*", **hidden}) for name in children or {}))
    for name, function in (children or {}).items():
        arguments = getattr(options, name[2:].replace("-", "_"))
        if arguments is not None:
            print(json.dumps(function(*arguments, options)), flush=True)
            return
    if options.shim is None or not os.path.exists(options.shim):
        sys.exit(f"{os.path.basename(sys.argv[0])}: --shim names no file")
    result = measure(options)
    write_json(options.out, result)
    print(json.dumps(told(result), indent=1))

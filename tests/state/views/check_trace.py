#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_trace.py TOOL MAKE_PAGE IN_PLACE PRELOAD: metashard-dump show --trace against Chrome's trace event format
(the document "Trace Event Format") and against --json. TAP."""
import json
import os
import sys
import tempfile
from decimal import Decimal

import views
from tap import check, end
from views import HOSTILE, Page, dump, dump_json, processes_of, same, shift_of

COMMON = {"ph": str, "ts": (int, Decimal), "pid": int, "tid": int, "name": str, "args": dict}
METADATA = {"process_name": "name", "process_labels": "labels", "process_sort_index": "sort_index",
            "thread_name": "name"}
COUNTERS = {"requested": "live_bytes", "deferred": "deferred_bytes", "backed": "backed_bytes",
            "copied to the device": "h2d_bytes"}


def fault_of(event):
    """The first thing in the event that the format does not allow, or None."""
    for key, kind in COMMON.items():
        if not isinstance(event.get(key), kind) or isinstance(event.get(key), bool):
            return f"{key} is {event.get(key)!r}"
    if event["ts"] < 0 or not 0 <= event["pid"] < 2**31 or not 0 <= event["tid"] < 2**32:
        return "a number is out of range"
    known = {"X": {"dur", "cat"}, "i": {"s", "cat"}, "C": {"cat"}, "M": set()}
    if event["ph"] not in known:
        return f"ph is {event['ph']!r}"
    if set(event) != set(COMMON) | known[event["ph"]]:
        return f"its fields are {sorted(event)}"
    if event["ph"] == "X" and not event["dur"] > 0:
        return f"dur is {event['dur']}"
    if event["ph"] == "i" and event["s"] not in ("g", "p", "t"):
        return f"s is {event['s']!r}"
    if event["ph"] == "C" and not all(isinstance(value, int) for value in event["args"].values()):
        return "a counter that is no number"
    if event["ph"] == "M" and METADATA.get(event["name"]) not in event["args"]:
        return "metadata without its argument"
    return None


def ns_of(event, key):
    """As the file has it, to the nanosecond."""
    return int(event[key] * 1000)


def overlap_of(events):
    """Two slices of a thread of which one is not inside of the other, or None."""
    stacks = {}
    for event in events:
        if event["ph"] != "X":
            continue
        begin, end = ns_of(event, "ts"), ns_of(event, "ts") + ns_of(event, "dur")
        stack = stacks.setdefault((event["pid"], event["tid"]), [])
        while stack and stack[-1] <= begin:
            stack.pop()
        if stack and stack[-1] < end:
            return event
        stack.append(end)
    return None


def tensor_of(process, event):
    """The name of the block, or of the part of one, that the event's bytes begin in."""
    at, found = int(event["address"], 16), ""
    for block in process["blocks"]:
        begin = int(block["address"], 16)
        if block["id"] == event["block"] and begin <= at < begin + block["bytes"] and (
                block["kind"] == "part" or not found):
            found = block.get("name", "")
    return found


def name_of(event, tensor):
    what = ", ".join(dict.fromkeys(word for word in (tensor, event["text"]) if word))
    return f"{what} ({event['kind']})" if what else event["kind"]


def expected_of(group, pids):
    """Per process: what the events and the samples of the JSON are in the trace."""
    events, counters = [], []
    for pid, process in zip(pids, group):
        shift = shift_of(group, process)
        for event in process["events"]:
            args = {"number": event["number"], "bytes": event["bytes"], "block": event["block"],
                    "address": event["address"]}
            tensor = tensor_of(process, event)
            for key, value in (("cause", event["reason"]), ("call", event["call"]), ("text", event["text"]),
                               ("tensor", tensor)):
                if value:
                    args[key] = value
            events.append((event["time_ns"] - event["duration_ns"] + shift, event["duration_ns"], pid,
                           event["thread"], name_of(event, tensor), event["kind"], json.dumps(args, sort_keys=True)))
        for sample in process["samples"]:
            counters += [(sample["time_ns"] + shift, pid, name, sample[key]) for name, key in COUNTERS.items()]
    return sorted(events), sorted(counters)


def check_trace(tool, name, paths, folder):
    out = os.path.join(folder, "trace.json")
    done = dump(tool, "show", *paths, "--trace", out)
    check(f"{name}: is written", done.returncode == 0 and done.stdout == done.stderr == "", done.stderr)
    with open(out, encoding="utf-8") as file:
        trace = json.load(file, parse_float=Decimal)
    group = processes_of(dump_json(tool, paths))
    events = trace["traceEvents"]
    faults = [f"{fault_of(event)}: {event}" for event in events if fault_of(event)]
    check(f"{name}: all events are as the format has them", events and not faults, "\n".join(faults[:5]))
    check(f"{name}: what else is there is as the format has it", set(trace) ==
          {"displayTimeUnit", "traceEvents", "otherData"} and trace["displayTimeUnit"] in ("ms", "ns") and
          all(isinstance(value, str) for value in trace["otherData"].values()), trace["otherData"])
    times = [event["ts"] for event in events]
    same(f"{name}: in the order of time", times, sorted(times))
    check(f"{name}: slices of a thread are inside of each other", overlap_of(events) is None, overlap_of(events))
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    check(f"{name}: each process has a name", len(names) == len(group), names)
    for pid, process in zip(names, group):
        label = names[pid]
        check(f"{name}: its rank and number are in it", f"process {process['pid']}" in label and
              (process["rank"] is None or f"rank {process['rank']}" in label), label)
    threads = [(event["pid"], event["tid"], event["args"]["name"]) for event in events if event["name"] == "thread_name"]
    same(f"{name}: the main threads have names", threads,
         [(pid, process["pid"], "main thread") for pid, process in zip(names, group)])
    wanted_events, wanted_counters = expected_of(group, list(names))
    same(f"{name}: the events of the page", sorted(
        (ns_of(event, "ts"), ns_of(event, "dur") if event["ph"] == "X" else 0, event["pid"], event["tid"],
         event["name"], event["cat"], json.dumps(event["args"], sort_keys=True)) for event in events if event["ph"] in "Xi"),
        wanted_events)
    same(f"{name}: the samples of the page", sorted(
        (ns_of(event, "ts"), event["pid"], event["name"], event["args"]["bytes"]) for event in events
        if event["ph"] == "C"), wanted_counters)
    start = min(process["started_unix_ns"] for process in group)
    same(f"{name}: when it began", trace["otherData"]["started_unix_ns"], str(start))
    return names


def check_slices(tool, job, folder):
    out = os.path.join(folder, "slices.json")
    dump(tool, "show", job[0], "--trace", out)
    with open(out, encoding="utf-8") as file:
        names = {event["name"] for event in json.load(file)["traceEvents"]}
    wanted = {"layers.1.weight, bytes of a file (record)", "layers.2.weight (allocate)"}
    check("a job under the shim: slices are named by tensors and what was done", wanted <= names, sorted(names))


def main():
    tool, make_page, in_place, preload = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        pages = [Page(make_page, os.path.join(folder, "pages"), HOSTILE, rank, 2).end() for rank in (1, 0)]
        check_trace(tool, "hostile names", pages[:1], folder)
        names = check_trace(tool, "two ranks", pages, folder)
        check("two ranks: by rank", [name.split(",")[0] for name in names.values()] == ["rank 0", "rank 1"], names)
        # A thread cannot be in two places; so here its slices are told apart by their process alone.
        twice = check_trace(tool, "the same process twice", [pages[0], pages[0]], folder)
        check("the same process twice: they are told apart", len(twice) == 2, twice)
        killed = Page(make_page, os.path.join(folder, "killed"), []).kill()
        check_trace(tool, "a killed process without a rank", [killed], folder)
        job = views.run_program(in_place, folder, 2, preload)
        check_trace(tool, "a job under the shim", job, folder)
        check_slices(tool, job, folder)
        done = dump(tool, "show", job[0], "--trace", "/dev/full")
        check("a full disk is one line", done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr)
    return end()


if __name__ == "__main__":
    sys.exit(main())

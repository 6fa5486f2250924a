#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_dump.py DUMP JOB KERNELS PRELOAD SCHEMA: metashard-dump, on pages of processes that run, have ended and were
killed, and on files that are no good pages. TAP."""
import errno
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

import make_page

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from tap import check, end, equal, skip  # noqa: E402

DUMP, JOB, KERNELS, PRELOAD, SCHEMA = sys.argv[1:]
MIB = 1 << 20
RULE_CLASSES = ["write-only", "in-place", "from-other", "from-first", "concatenate", "each"]
# Characters that a terminal obeys instead of showing them: Unicode's Cc but for the end of a line, Zl, Zp and Bidi_Control.
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
OBEYED_NAME = "a\x1b[2J\x9b31m\u202egnp.\u2066b"
NOBODY = 65534


def dump(*arguments, **settings):
    environment = dict(os.environ, **settings)
    done = subprocess.run([DUMP, *arguments], capture_output=True, text=True, env=environment, timeout=60)
    return done.returncode, done.stdout, done.stderr


def job_environment(folder, **settings):
    return dict(os.environ, LD_PRELOAD=PRELOAD, METASHARD_STATE_DIR=folder, **settings)


def start_job(folder, data, *arguments, **settings):
    job = subprocess.Popen([JOB, data, KERNELS, "wait", *arguments], env=job_environment(folder, **settings),
                           stdout=subprocess.PIPE, text=True)
    assert job.stdout.readline() == "ready\n"
    return job


def page_of(folder, job):
    return os.path.join(folder, f"metashard-{job.pid}.state")


def kill(job):
    job.send_signal(signal.SIGKILL)
    job.wait()
    job.stdout.close()


def checkpoint_header():
    """The header of two tensors of 8 MiB, 4096 bytes long."""
    header = json.dumps({f"{name}.weight": {"dtype": "U8", "shape": [8 * MIB], "data_offsets": [begin, begin + 8 * MIB]}
                         for name, begin in (("first", 0), ("second", 8 * MIB))}).encode()
    return struct.pack("<Q", 4088) + header.ljust(4088)


# --- one process

def check_running(folder, job):
    status, out, errors = dump("show", str(job.pid), METASHARD_STATE_DIR=folder)
    equal("a process that runs is shown by its id", (status, errors), (0, ""))
    seen = dump("metrics", "--job", "4711", METASHARD_STATE_DIR=folder)[1].splitlines()
    labels = f'pid="{job.pid}",rank="1",device="0",host="{os.uname().nodename}",metashard_job="4711"'
    check("its figures are metrics", f"metashard_live_peak_bytes{{{labels}}} {23 << 20}" in seen, seen)
    check("its process is a metric, too", len([line for line in seen if re.fullmatch(
        r"metashard_process_info\{" + re.escape(labels) + r',version="\d[^"]*",command=".*job.*"\} 1', line)]) == 1, seen)
    equal("each with a type and a help, bytes with their unit, and an end",
          (*(len([line for line in seen if line.startswith(f"# {word} ")]) for word in ("TYPE", "HELP", "UNIT")), len(seen), seen[-1]),
          (11, 11, 9, 43, "# EOF"))
    names = {word: {line.split()[2] for line in seen if line.startswith(f"# {word} ")} for word in ("TYPE", "UNIT")}
    equal("a name ends with its unit", {name for name in names["TYPE"] if name.endswith("_bytes")}, names["UNIT"])
    check("and said to run", out.startswith(f"process {job.pid}, rank 1 of 2: running for "))
    status, out, errors = dump("list", METASHARD_STATE_DIR=folder)
    check("the process is in the list, with its age and its folder",
          re.search(rf"^ *{job.pid} +1 running +\d+ (s|min) .* 23\.0 MiB  job 4711: .*/job .* \({re.escape(os.getcwd())}\)$",
                    out, re.M) is not None, out)
    narrow = dump("list", "--width", "80", METASHARD_STATE_DIR=folder)[1]
    check("its command has a line of its own on a narrow terminal, with the end of the folder", re.search(
        rf"^ *{job.pid} +1 running .* 23\.0 MiB\n +job 4711: \S.*{re.escape(os.path.basename(os.getcwd()))}\)$", narrow,
        re.M) is not None, narrow)


def check_killed(folder, job):
    status, out, errors = dump("show", page_of(folder, job))
    equal("a killed process is shown", (status, errors), (0, ""))
    check("and said to be killed",
          out.startswith(f"process {job.pid}, rank 1 of 2: killed, last change after "))
    check("the kernel that ended loading is no alarm", "brought in more than was read" not in out, out)
    for name, wanted in {
            "what was requested": r"^  requested +28\.0 MiB   in 5 allocations",
            "what is deferred": r"^  deferred +17\.0 MiB ", "what is backed": r"^  backed +6\.0 MiB ",
            "what it was worth, first": r"^  in .*\n\n  peak 6\.0 MiB instead of 23\.0 MiB \(-74 %\), of these allocations$",
            "causes before the tables": r"(?s)^What brought bytes into memory\n.*^Blocks by size\n",
            "what was saved": r"^  saved +17\.0 MiB ", "what was skipped": r"^  skipped +14\.0 MiB ",
            "the job": r"^  in .*, job 4711, MetaShard ",
            "the command": r"^  \S+/job .* wait$", "the time": r"^  time +[\d.]+ [mu]?s ",
            "a block that was not touched": r"^  3 .* 8\.0 MiB +0 B +8\.0 MiB  deferred  second\.weight  file$",
            "a tensor by its name": r"^Tensors by name\n.*\n +8\.0 MiB +6\.0 MiB +2\.0 MiB  first\.weight$",
            "why a block has memory": r"^  4 .* resident  +resident  backed for cuLaunchKernel of fill32: a kernel "
                                      r"without a rule$",
            "the cause with the most bytes": r"^What brought bytes into memory\n.*\n +4\.0 MiB +1 .* fallback +cuLaunchKernel, fill32: ",
            "what can be done about it": r"fill32\s+used\s+these\s+tensors[^\"]*launch\s+it\s+after\s+the\s+weights\s+are\s+sharded",
            "the last event": r"record +3\.0 MiB +5  cuMemsetD8_v2, a fill\n\Z"}.items():
        check(f"show tells of it: {name}", re.search(wanted, out, re.M) is not None, out)


def check_json(folder, job):
    status, out, errors = dump("show", page_of(folder, job), "--json")
    equal("as JSON", (status, errors), (0, ""))
    page = json.loads(out)
    equal("process", (page["pid"], page["rank"], page["world_size"], page["job"], page["state"]),
          (job.pid, 1, 2, "4711", "killed"))
    equal("figures", {name: page[name] for name in (
        "requested_bytes", "deferred_bytes", "backed_bytes", "backed_bytes_peak", "h2d_bytes", "live_bytes",
        "fallbacks", "skipped_bytes", "saved_bytes", "torn_records", "device_bytes")},
        {"requested_bytes": 28 * MIB, "deferred_bytes": 17 * MIB, "backed_bytes": 6 * MIB,
         "backed_bytes_peak": 6 * MIB, "h2d_bytes": 2 * MIB, "live_bytes": 23 * MIB, "fallbacks": 1,
         "skipped_bytes": 14 * MIB, "saved_bytes": 17 * MIB, "torn_records": 0,
         "device_bytes": 512 * MIB})
    equal("blocks by size", [(block["bytes"], block["deferred_bytes"], block["state"]) for block in page["blocks"]],
          [(8 * MIB, 6 * MIB, "partly"), (8 * MIB, 8 * MIB, "deferred"), (4 * MIB, 0, "resident"),
           (3 * MIB, 3 * MIB, "deferred")])
    equal("blocks tell where their bytes come from", [block["lineage_bytes"] for block in page["blocks"]],
          [{"file": 8 * MIB}, {"file": 8 * MIB}, {"resident": 4 * MIB}, {"fill": 3 * MIB}])
    equal("blocks tell from which file", [(block["file"], block["file_offset"]) for block in page["blocks"][:2]],
          [(os.path.join(folder, "data"), 4096), (os.path.join(folder, "data"), 4096 + 8 * MIB)])
    equal("the page tells of which tensors", [(tensor["name"], tensor["bytes"], tensor["file_bytes"]) for tensor in page["tensors"]],
          [("first.weight", 8 * MIB, 8 * MIB), ("second.weight", 8 * MIB, 8 * MIB)])
    equal("sums are those of the blocks", (sum(block["deferred_bytes"] for block in page["blocks"]),
                                           sum(block["backed_bytes"] for block in page["blocks"])),
          (page["deferred_bytes"], page["backed_bytes"]))
    equal("the picture ends with the figures",
          [page["samples"][-1][name] for name in ("live_bytes", "deferred_bytes", "backed_bytes")],
          [page["live_bytes"], page["deferred_bytes"], page["backed_bytes"]])
    equal("events", [event["kind"] for event in page["events"]],
          ["allocate", "free"] + ["allocate"] * 3 + ["record"] * 3 + ["materialise", "pin"] + ["materialise"] * 2 + ["fallback", "allocate", "record"])
    equal("an event's call and kernel", [(event["call"], event["text"], event["bytes"]) for event in page["events"]
                                         if event["kind"] == "fallback"], [("cuLaunchKernel", "fill32", 4 * MIB)])
    equal("settings", page["options"]["METASHARD_STATE_DIR"], folder)
    equal("device", page["devices"], ["Simulated CUDA device"])
    # A sanitizer may leave the shim no far addresses.
    checks = [dict(one, unmet=[fact for fact in one["unmet"] if not fact.startswith("hint: ")]) for one in page["self_checks"]]
    equal("its self-check", checks, [{"state": "run", "steps_aside": False, "unmet": []}])
    check_schema(page, "one process")
    status, out, errors = dump("show", page_of(folder, job), "--events")
    equal("events alone", (status, len(re.findall(r"^ +\d+\.\d{6} ", out, re.M)), "Blocks" in out), (0, 15, False))


def check_schema(page, what):
    try:
        import jsonschema
    except ImportError:
        print("# not compared with the schema: the Python package jsonschema is not there")
        return
    with open(SCHEMA) as file:
        schema = json.load(file)
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    equal(f"the schema takes {what}", [fault.message for fault in validator(schema).iter_errors(page)][:3], [])
    equal(f"and not {what} without a figure", validator(schema).is_valid(
        {name: value for name, value in page.items() if name not in ("backed_bytes_peak", "worst")}), False)


def check_sealed(folder, data):
    done = subprocess.run([JOB, data, KERNELS], env=job_environment(folder, JOB_SEALS="1", METASHARD_EXPLAIN="1"),
                          capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if " explain: " in line]
    equal("METASHARD_EXPLAIN tells each once", (done.returncode, len(lines)), (0, 2))
    check("in the form of the log", all(re.match(r"metashard\[pid \d+\] explain: ", line) for line in lines))
    check("the explanation names the call", any("cuMemcpy3DPeer is not modelled" in line for line in lines))
    check("the explanation names the kernel, and where rules are described", any(
        "kernel fill32" in line and "kernel-rules.txt" in line for line in lines))
    equal("no rule is offered for a kernel that may reduce", any(offer in done.stderr for offer in RULE_CLASSES), False)
    done = subprocess.run([JOB, data, KERNELS], capture_output=True, text=True,
                          env=job_environment("", JOB_SEALS="1", METASHARD_EXPLAIN="1"))
    equal("and without a page too", done.stderr.count(" explain: "), 2)
    done = subprocess.run([JOB, data, KERNELS], capture_output=True, text=True,
                          env=job_environment(folder, JOB_SEALS="1"))
    equal("unasked nothing is said", done.stderr, "")


def check_explained_ranks(folder, data):
    """As long for eight ranks as for one: the last that ends has the sums."""
    own = os.path.join(folder, "explained")
    os.mkdir(own, 0o700)
    for run in range(2):  # what an earlier run left does not count
        jobs = [subprocess.Popen([JOB, data, KERNELS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, env=job_environment(own, JOB_SEALS="1", JOB_HOLDS="1", METASHARD_EXPLAIN="1",
                                                                RANK=str(rank), WORLD_SIZE="8")) for rank in range(8)]
        for job in jobs:
            assert job.stdout.readline() == "ready\n"
        jobs[3].kill()
        jobs[3].wait()
        for job in jobs:
            job.stdin.close()
        lines = [line for job in jobs for line in job.stderr.read().splitlines()]
        for job in jobs:
            job.wait()
            job.stdout.close()
            job.stderr.close()
        said = [line.split(": ", 1)[1] for line in lines if " explain: " in line]
        equal(f"METASHARD_EXPLAIN of eight ranks, one killed: run {run}",
              (len(said), ["(8 times, 136.0 MiB, on 8 ranks)" in said[0], "(8 times, 32.0 MiB, on 8 ranks)" in said[-1]]),
              (2, [True, True]))
        equal("and once what to run next", len([line for line in lines if "for more, run: metashard-dump show" in line]), 1)


# --- several processes

def check_json_merged(view):
    """The lists of all processes, against those of each."""
    def rows(what):
        return [row for process in view["processes"] for row in process[what]]
    causes, tensors = {}, {}
    for cause in rows("causes"):
        causes.setdefault((cause["kind"], cause["reason"], cause["call"], cause["text"]), []).append(cause)
    equal("as JSON: causes", {(cause["kind"], cause["reason"], cause["call"], cause["text"]):
                              (cause["bytes"], cause["count"], cause["duration_ns"]) for cause in view["causes"]},
          {key: (sum(row["bytes"] for row in group), sum(row["count"] for row in group),
                 max(row["duration_ns"] for row in group)) for key, group in causes.items()})
    for tensor in rows("tensors"):
        tensors[tensor["name"]] = max(tensors.get(tensor["name"], 0), tensor["bytes"])
    equal("as JSON: tensors", {tensor["name"]: tensor["bytes"] for tensor in view["tensors"]}, tensors)
    worst = max(view["processes"], key=lambda process: process["backed_bytes_peak"])
    totals = set(view["largest"])
    equal("as JSON: the worst process, with its figures", view["worst"],
          {key: worst[key] for key in {"pid", "rank", "job", *totals}})
    equal("as JSON: the largest of each figure", view["largest"],
          {key: max(process[key] for process in view["processes"]) for key in totals})
    equal("as JSON: memory over time is that of the worst process", view["samples"], worst["samples"])


def check_json_runs(folder):
    """Two runs of one folder, one after the other: nothing is their sum."""
    runs = os.path.join(folder, "two-runs")
    make_run(runs, "x", 600, 10**18, (3, 4))
    make_run(runs, "y", 610, 10**18 + 10**15, (7, 5))
    paths = [os.path.join(runs, name) for name in sorted(os.listdir(runs))]
    view = json.loads(dump("show", *paths, "--json")[1])
    check_schema(view, "two runs")
    equal("as JSON: two runs, of which the worst process is named", (view["runs"], view["worst"]["pid"], view["worst"]["job"],
          view["worst"]["backed_bytes_peak"], view["worst"]["live_bytes_peak"]), (2, 610, "y", 7 * MIB, 100 * MIB))
    equal("as JSON: no figure of memory stands for all of them", {key for key in view if key.endswith(("_bytes", "_peak"))}, set())
    equal("as text: the same", re.match(r"4 processes of 2 runs\n(?:.*\n)*?  peak 7\.0 MiB .* in process 610, the worst\n",
                                        dump("show", *paths)[1]) is not None, True)


def check_merged(folder, data):
    jobs = [start_job(folder, data, RANK=str(rank), WORLD_SIZE="3", SLURM_JOB_ID="4712") for rank in (2, 0, 1)]
    pages = [page_of(folder, job) for job in jobs]
    for job in jobs:
        kill(job)
    status, out, errors = dump("show", *pages)
    equal("several processes are one view", (status, errors), (0, ""))
    rows = re.findall(r"^ +(\d) +(\d+) killed +6\.0 MiB +23\.0 MiB +17\.0 MiB ", out, re.M)
    equal("with a row for each rank, in their order", rows, [(str(rank), str(jobs[(1, 2, 0)[rank]].pid))
                                                            for rank in range(3)])
    check("and the most of each column, which is no sum", re.search(r"^ +most +6\.0 MiB +23\.0 MiB ", out, re.M) is not None)
    check("first the number of runs, and the worst process", re.match(
        r"3 processes of 1 run\n(?:.*\n)*?  peak 6\.0 MiB instead of 23\.0 MiB \(-74 %\), of these allocations, in process \d+, the worst$", out, re.M)
          is not None, out[:400])
    check("causes are added up", re.search(r"^ +12\.0 MiB +3 .* fallback +cuLaunchKernel, fill32", out, re.M) is not None)
    status, out, errors = dump("show", *pages, "--json")
    view = json.loads(out)
    equal("as JSON", (view["pid"], view["rank"], view["runs"], view["largest"]["requested_bytes"], view["largest"]["backed_bytes"],
                      [process["rank"] for process in view["processes"]]), (None, None, 1, 28 * MIB, 6 * MIB, [0, 1, 2]))
    check_schema(view, "several processes")
    check_json_merged(view)
    status, out, errors = dump("list", METASHARD_STATE_DIR=folder)
    check("the list has them all", len(re.findall(r" killed .* 23\.0 MiB  ", out)) >= 3)
    status, out, errors = dump("list", "--json", METASHARD_STATE_DIR=folder)
    listed = json.loads(out)
    killed = [process for process in listed["processes"]
              if (process["state"], process["requested_bytes"]) == ("killed", 28 * MIB) and "blocks" not in process]
    equal("the list as JSON has them all, and nothing long", (status, errors, listed["format"], len(killed) >= 3),
          (0, "", "metashard-list/1", True))


def check_jobs(folder, data):
    """The page has a launcher's name of the job: the first that is there, but for torchrun's "none", as far as it fits."""
    none = {name: "" for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")}
    for given, wanted in (({"PBS_JOBID": "12.server", "TORCHELASTIC_RUN_ID": "7f"}, "12.server"), ({"LSB_JOBID": "8"}, "8"),
                          ({"TORCHELASTIC_RUN_ID": "none"}, None), ({"TORCHELASTIC_RUN_ID": "\x1b" + "x" * 40}, "?" + "x" * 22)):
        job = start_job(folder, data, **{**none, **given})
        kill(job)
        equal(f"the job of {given}", json.loads(dump("show", page_of(folder, job), "--json")[1])["job"], wanted)


def check_diff(folder, data):
    job = start_job(folder, data)
    copy = os.path.join(folder, "copy")
    with open(page_of(folder, job), "rb") as page, open(copy, "wb") as out:
        out.write(page.read())
    kill(job)
    ended = subprocess.Popen([JOB, data, KERNELS], env=job_environment(folder, JOB_SEALS="1"),
                             stdout=subprocess.PIPE)
    ended.communicate()
    status, out, errors = dump("diff", copy, page_of(folder, job))
    equal("two copies of one page", (status, errors, "nothing differs" in out), (0, "", True))
    status, out, errors = dump("diff", page_of(folder, job), page_of(folder, ended))
    equal("two processes", (status, errors), (0, ""))
    check("figures that differ", re.search(r"^  backed_bytes +6\.0 MiB +24\.0 MiB \+18\.0 MiB$", out, re.M) is not None)
    equal("figures that do not differ are left out", "requested_bytes" in out, False)
    status, document, errors = dump("diff", page_of(folder, job), page_of(folder, ended), "--json")
    told = json.loads(document)
    equal("as JSON", (status, errors, [one["pid"] for one in told["processes"]], [row for row in told["figures"] if row["name"] == "backed_bytes"]),
          (0, "", [job.pid, ended.pid], [{"name": "backed_bytes", "a": 6 * MIB, "b": 24 * MIB}]))
    equal("with the causes", [row for row in told["causes"] if row["name"].startswith("fallback ")], [
        {"name": "fallback for a call that is not modelled, cuMemcpy3DPeer", "a": None, "b": {"count": 1, "bytes": 17 * MIB}}])
    told = json.loads(dump("diff", copy, page_of(folder, job), "--json")[1])
    equal("and nothing, of two copies", [told[kind] for kind in ("options", "figures", "blocks", "causes")], [[], [], [], []])
    check("causes that differ", re.search(r"fallback for a call that is not modelled, cuMemcpy3DPeer: 0 times, 0 B; 1 times, 17\.0 MiB$", out, re.M)
          is not None)


# --- terminals

def check_settled(folder):
    path = os.path.join(folder, "settled")
    parts = make_page.records()
    parts["figures"] += [struct.pack("<Q", value) for value in (3, 14)]
    parts["names"] += [make_page.text(name, 48) for name in ("settles", "settled_allocations")]
    parts["causes"] += [make_page.cause(kind=12, reason=13, call="", what=why, size=size) for why, size in
                        (("the program has moved on", 3 * MIB), ("a capture begins", 2 * MIB))]
    with open(path, "wb") as file:
        file.write(make_page.page(parts))
    lines = [" ".join(line.split()) for line in dump("show", path)[1].splitlines()]
    at = lines.index("ending 5.0 MiB of 14 allocations, 3 times")
    equal("show tells what was loaded when loading ended, when and why", lines[at + 1:at + 3],
          ["3.0 MiB last after 0.0 us: the program has moved on", "2.0 MiB last after 0.0 us: a capture begins"])


def make_run(folder, job, first_pid, started, peaks, loaded=None, without=None, unit=MIB):
    """A page of each rank, with the peak of its memory, in MiB; without the shim 100. Its causes are in `unit`."""
    os.makedirs(folder, exist_ok=True)
    for rank, peak in enumerate(peaks):
        parts = make_page.records()
        parts["process"] = [make_page.process(pid=first_pid + rank, rank=rank, world=len(peaks), started_ns=started + rank, ended=9,
                                              job=job)] * 2
        figures = {"backed_bytes_peak": peak, "live_bytes_peak": without[rank] if without else 100,
                   **({"loaded_backed_bytes_peak": loaded[rank], "loaded_live_bytes_peak": 80, "loaded_ns": 1} if loaded else {})}
        parts["figures"] = [struct.pack("<Q", value * MIB) for value in figures.values()]
        parts["names"] = [make_page.text(name, 48) for name in figures]
        parts["causes"] = [make_page.cause(kind=kind, reason=2, what=what, size=size * unit, loaded=(3, size * unit, 7)) for kind, what, size in (
            (5, "_Z11replay_onlyPf", 9), (11, "_ZN2at6native13reduce_kernelILi512ENS0_8ReduceOpIdEEEEvT1_", 3),
            (11, "_ZN2at6native13reduce_kernelILi128ENS0_8ReduceOpIdEEEEvT1_", 2))]
        parts["causes"].append(make_page.cause(kind=11, reason=2, what="_Z5trainPf", size=50 * MIB, first_ns=2 * MIB))
        with open(os.path.join(folder, f"metashard-{first_pid + rank}.state"), "wb") as file:
            file.write(make_page.page(parts))


def check_runs(folder):
    """Which run is meant, and what it was worth."""
    pages = os.path.join(folder, "runs")
    make_run(pages, "", 100, 10**18, (1, 2))
    make_run(pages, "", 110, 10**18 + 10, (3, 4))
    seen = [line.split()[:2] for line in dump("show", METASHARD_STATE_DIR=pages)[1].splitlines()[3:5]]
    equal("show without a process: the last run, of which each rank is there once", seen, [["0", "110"], ["1", "111"]])
    make_run(pages, "a", 200, 10**18 + 20, (40, 60), loaded=(35, 30))
    make_run(pages, "b", 300, 10**18 + 30, (5,))
    check("or the newest job", dump("show", METASHARD_STATE_DIR=pages)[1].startswith("process 300, rank 0 of 1"))
    seen = [line.split()[:2] for line in dump("show", "--job", "a", METASHARD_STATE_DIR=pages)[1].splitlines()[3:5]]
    equal("or the job that is named", seen, [["0", "200"], ["1", "201"]])
    seen = [line.split()[0] for line in dump("list", "--job", "a", METASHARD_STATE_DIR=pages)[1].splitlines()[1:]]
    equal("whose processes are listed alone", seen, ["201", "200"])
    status, out, errors = dump("show", "--job", "c", METASHARD_STATE_DIR=pages)
    equal("a job without pages", (status, out, errors), (1, "", f"metashard-dump: no process of job c has a state page in {pages}\n"))
    equal("in short: the worst rank, its loading beside all, and what was brought in whole while it loaded",
          dump("show", "--brief", "--job", "a", METASHARD_STATE_DIR=pages)[1].splitlines(),
          ["peak of device memory while it loaded of rank 0, the worst of 2 processes: 35.0 MiB instead of 80.0 MiB (-56 %)",
           "peak of device memory in all, of what was deferred, of rank 1, the worst of 2 processes: 60.0 MiB instead of 100.0 MiB (-40 %)",
           "could not stay deferred: 10.0 MiB, 12 times, for cuLaunchKernel of reduce_kernel<ReduceOp> (a kernel without a rule)"])
    make_run(pages, "launched", 400, 10**18 + 40, (7, 0), without=(100, 0))
    equal("a launcher, which has no memory, is none of the processes", dump("show", "--brief", "--job", "launched",
          METASHARD_STATE_DIR=pages)[1].splitlines()[0], "peak of device memory: 7.0 MiB instead of 100.0 MiB (-93 %)")
    make_run(pages, "unused", 410, 10**18 + 50, (40,), loaded=(45,), unit=1024)
    equal("memory that was never used does not count, and less than a granule is not worth a line", dump("show", "--brief", "--job", "unused", METASHARD_STATE_DIR=pages)[1]
          .splitlines(), ["peak of device memory while it loaded: 40.0 MiB instead of 80.0 MiB (-50 %)"])
    os.unlink(os.path.join(pages, "metashard-410.state"))
    os.unlink(os.path.join(pages, "metashard-400.state"))
    os.unlink(os.path.join(pages, "metashard-401.state"))
    equal("the brief line of a process that has not loaded", dump("show", "--brief", METASHARD_STATE_DIR=pages)[1].splitlines(),
          ["peak of device memory: 5.0 MiB instead of 100.0 MiB (-95 %)",
           "could not stay deferred: 50.0 MiB, 3 times, for cuLaunchKernel of train (a kernel without a rule)"])
    make_run(pages, "part", 500, 10**18 + 15, (1,) * 8)
    for rank in (0, 2, 3, 4, 5, 7):
        os.unlink(os.path.join(pages, f"metashard-{500 + rank}.state"))
    wanted = "no state page of rank 0, 2, 3, 4 and 2 more: it was removed, or is on another machine"
    equal("ranks without a page are named", [wanted in dump("show", *options, "--job", "part", METASHARD_STATE_DIR=pages)[1].splitlines()
                                             for options in ([], ["--brief"])], [True, True])
    for rank in (1, 6):
        os.unlink(os.path.join(pages, f"metashard-{500 + rank}.state"))
    out = dump("show", "--job", "a", METASHARD_STATE_DIR=pages)[1]
    equal("kernels of one short name are one cause, which is explained once, and what was replayed for it is none",
          (out.count("10.0 MiB      12"), out.count("Do this."), "replay_only" in out), (1, 1, False))
    equal("loading and the program's work are two chapters, and what a kernel of its work uses is explained by nothing",
          [" ".join(row.split()) for row in out.split("What brought bytes into memory")[2].strip().splitlines()][:3],
          ["after it had loaded, for its work", "bytes times longest kind call: why",
           "100.0 MiB 6 0.0 us used cuLaunchKernel, train"])
    causes = json.loads(dump("show", "--json", METASHARD_STATE_DIR=pages)[1])["causes"]
    equal("for programs names are whole", sum(cause["text"].startswith("_ZN2at6native13reduce_kernel") for cause in causes), 2)
    check("show of one process tells the peak while it loaded", re.search(r"^  while it loaded: peak 30\.0 MiB instead of 80\.0 MiB$", dump(
        "show", os.path.join(pages, "metashard-201.state"))[1], re.M) is not None)


def check_names(folder):
    """Tensors differ at the end of their names."""
    path = os.path.join(folder, "names")
    parts = make_page.records()
    names = [f"model.language_model.model.layers.{i}.self_attn.q_proj.weight" for i in (7, 8)]
    parts["blocks"] = [make_page.block(i, 1000, name=name) for i, name in enumerate(names, 1)]
    parts["events"] = [make_page.event(0, kind=10, what=names[0])]
    with open(path, "wb") as file:
        file.write(make_page.page(parts))
    out = dump("show", path, "--width", "80")[1]
    for name in names:
        equal("a narrow terminal has the end of a tensor's name, in blocks and in tensors",
              (len(re.findall("…\\S*" + re.escape(name[-26:]) + "$", out, re.M)), name in out), (2, False))
    check("and in events", re.search(r"out-of-plan read .* …\S*proj\.weight$", out, re.M) is not None, out)


def on_terminal(page, **settings):
    """The output on a terminal of 60 characters."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 60, 0, 0))
    shown = subprocess.Popen([DUMP, "show", page], stdout=follower, stderr=follower, env=dict(os.environ, **settings))
    os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError as error: # the other end is closed
            assert error.errno == errno.EIO
            break
        if not part:
            break
        seen += part
    os.close(leader)
    return shown.wait(), seen


def check_terminal(page):
    plain = dump("show", page)[1]
    equal("plain when piped", "\033" in plain, False)
    check("coloured when asked to", "\033[31mprocess" in dump("show", page, "--color", "always")[1])
    for width in (50, 80, 120):
        lines = dump("show", page, "--width", str(width))[1].splitlines()
        equal(f"cut to {width} characters, and what is cut ends with an ellipsis",
              (max(map(len, lines)), {len(line) for line in lines if line.endswith("…")}), (width, {width}))
    status, _, errors = dump("show", page, "--width", "wide")
    equal("a width that is none", (status, "expected a number" in errors), (2, True))
    status, seen = on_terminal(page, NO_COLOR="")
    equal("on a terminal", status, 0)
    lines = re.sub(r"\033\[\d*m", "", seen.decode()).splitlines()
    equal("coloured there, and as wide as it is", (b"\033[31m" in seen, max(map(len, lines))), (True, 60))
    equal("a terminal with NO_COLOR gets no colours", b"\033" in on_terminal(page, NO_COLOR="1")[1], False)
    explained = dump("--help")[1].split("\n\n", 1)
    taken, told = (set(re.findall(r"--\w+", text)) for text in explained)
    check("--help explains each option", taken <= told, taken - told)


# --- bad files

def check_bad(folder, good_page):
    path = os.path.join(folder, "bad")
    with open(good_page, "rb") as file:
        real = file.read()
    good = make_page.page()
    torn = make_page.records()
    torn["process"] = [make_page.process(sequence=3), make_page.process(sequence=5)]
    rows = {
        "an empty file": (b"", "byte 0: expected 296 more bytes, found the end of the file"),
        "a file that is too short for a header": (good[:100], "byte 100: expected 196 more bytes"),
        "another file": (b"\x7fELF" + bytes(8000), "byte 0: expected \"metashrd\""),
        "a later version": (make_page.page(version=4), "byte 8: expected a state page of version 3, found version 4"),
        "another order of bytes": (make_page.page(mark=0x04030201), "byte 12: expected 0x01020304, found 0x04030201"),
        "a file that was cut": (real[:-4096], f"byte 16: expected the size of the file, {len(real) - 4096}, "
                                              f"found {len(real)}"),
        "a file that has grown": (good + b"x", "byte 16: expected the size of the file"),
        "another number of sections": (good[:24] + struct.pack("<Q", 12) + good[32:], "byte 24: expected 11 sections"),
        "records of another size": (good[:48] + struct.pack("<Q", 1520) + good[56:],
                                    "byte 48: process: expected records of 1512 bytes, found 1520"),
        "a section beyond the end": (good[:32 + 24 * 10] + struct.pack("<QQ", 1 << 40, 5) + good[48 + 24 * 10:],
                                     "byte 272: events: expected a place in order within"),
        "more records than there is room": (good[:40 + 24 * 10] + struct.pack("<Q", 1 << 60) + good[48 + 24 * 10:],
                                            "byte 272: events: expected a place in order within"),
        "a section within another": (good[:32 + 24 * 3] + struct.pack("<Q", 304) + good[40 + 24 * 3:],
                                     "byte 104: figures: expected a place in order within"),
        "a process that is half written": (make_page.page(torn), "byte 296: expected a process"),
    }
    for name, (data, wanted) in rows.items():
        with open(path, "wb") as file:
            file.write(data)
        status, out, errors = dump("show", path)
        lines = errors.splitlines()
        equal(f"{name}: one line", (status, out, len(lines), errors.startswith(path + ": "), wanted in errors),
              (1, "", 1, True, True))
    fifo = os.path.join(folder, "fifo")
    os.mkfifo(fifo)
    for name in (folder, fifo, "/dev/zero", os.path.join(folder, "nothing"), "999999999"):
        status, out, errors = dump("show", name, METASHARD_STATE_DIR=folder)
        equal(f"{os.path.basename(name) or name}: one line", (status, out, len(errors.splitlines())), (1, "", 1))
    with open(os.path.join(folder, "metashard-1.state"), "wb") as file:
        file.write(b"nonsense")
    status, out, errors = dump("list", METASHARD_STATE_DIR=folder)
    equal("a bad page does not hide the others in the list", (status, len(errors.splitlines()), "killed" in out),
          (1, 1, True))
    os.unlink(os.path.join(folder, "metashard-1.state"))


def check_hostile(folder):
    """Good in form, and bad in content."""
    path = os.path.join(folder, "hostile")
    parts = make_page.records()
    parts["process"] = [make_page.process(sequence=2)[:136 + 96] + b"\x1b]0;owned\x07\xff\xc2\x9b" + OBEYED_NAME.encode() +
                        bytes(900)]
    parts["process"][0] = parts["process"][0].ljust(1512, b"A")
    parts["process"] = parts["process"] * 2
    parts["names"] = [make_page.text("pid", 48)] * len(parts["names"])
    parts["blocks"] = [make_page.block(2**64 - 1, 2**64 - 1 >> 24, flags=2**32 - 1, of_file=2**32 - 1)] * 4
    parts["blocks"] += [make_page.block(1, 100, name=OBEYED_NAME, of_file=1)]
    parts["events"] = [make_page.event(2**62, kind=2**32 - 1, what=OBEYED_NAME)] * 4
    for name, make in {"files": make_page.file, "devices": make_page.device,
                       "causes": lambda text: make_page.cause(what=text, sentence=text),
                       "options": lambda text: make_page.option(text, text)}.items():
        parts[name] = [make(OBEYED_NAME)] * 2
    with open(path, "wb") as file:
        file.write(make_page.page(parts))
    for arguments in (["show"], ["show", "--json"], ["show", "--events"], ["show", "--html", "-"], ["show", "--trace", "-"],
                      ["diff", path]):
        status, out, errors = dump(arguments[0], path, *arguments[1:])
        clean = not OBEYED.search(out) and ("a?[2J??31m???gnp.???b" in out or "show" not in arguments)
        equal(f"hostile content: {' '.join(arguments[:2])[:12]}", (status, errors, clean), (0, "", True))
        if arguments == ["show", "--json"]:
            pairs = json.loads(out, object_pairs_hook=lambda pairs: pairs)
            equal("no key is there twice", len({key for key, _ in pairs}), len(pairs))


def opens(path, action):
    """Whether somebody opens the FIFO for reading while the action runs."""
    writer = threading.Thread(target=lambda: os.close(os.open(path, os.O_WRONLY)), daemon=True)
    writer.start()
    result = action()
    writer.join(0.2)
    is_opened = not writer.is_alive()
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    writer.join()
    return is_opened, result


def check_paths(folder, data):
    """A page names files, and the tool takes names of tensors from them. It opens nothing else than files, and no file for
    another user."""
    path, fifo = os.path.join(folder, "paths"), os.path.join(folder, "named")
    os.mkfifo(fifo)

    def write(named):
        parts = make_page.records()
        parts["files"] = [make_page.file(named)]
        parts["blocks"] = [make_page.block(1, 8 << 20, of_file=1, file_offset=4096)]
        with open(path, "wb") as file:
            file.write(make_page.page(parts))
    write(fifo)
    for what, shown, wanted in (("a FIFO instead of a page", fifo, 1), ("a FIFO that a page names", path, 0)):
        is_opened, seen = opens(fifo, lambda shown=shown: dump("show", shown, "--json"))
        equal(f"{what} is not opened", (is_opened, seen[0]), (False, wanted))
    for named in ("/dev/ptmx", "/dev/zero", folder + "/nothing", "relative"):
        write(named)
        equal(f"a page that names {os.path.basename(named)} is shown", dump("show", path)[0], 0)
    write(data)
    check("tensors of a page's checkpoint have names", "first.weight" in dump("show", path)[1])
    if os.getuid() == 0:
        os.chown(path, NOBODY, NOBODY)
        status, out, _ = dump("show", path)
        equal("but not for another user's page", (status, "first.weight" in out), (0, False))


def check_secrets(folder, data):
    """They are nowhere: not in the page, and so in nothing that is made of it."""
    job = start_job(folder, data, "--hf-token=hush-1", "--password", "hush-2", "HF_TOKEN=hush-3", "ghp_hush4hush4",
                    "https://me:hush-5@host", "--lr=1")
    kill(job)
    with open(page_of(folder, job), "rb") as file:
        seen = {"page": file.read().decode(errors="replace")}
    for option in ([], ["--json"], ["--html", "-"], ["--trace", "-"], ["--events"]):
        seen[" ".join(option) or "show"] = dump("show", page_of(folder, job), *option)[1]
    seen["list"] = dump("list", METASHARD_STATE_DIR=folder)[1]
    for name, out in seen.items():
        equal(f"no secret of the command line: {name}", "hush" in out, False)
        if name != "--events":
            check(f"words that are no secret stay: {name}", re.search(
                r"--hf-token=\*\*\* --password \*\*\* HF_TOKEN=\*\*\* \*\*\* https://\*\*\*@host --lr=1", out) is not None)
    job = start_job(folder, data, "--plain-argument", METASHARD_STATE_COMMAND="off")
    kill(job)
    with open(page_of(folder, job), "rb") as file:
        equal("the command line can be left out", b"--plain-argument" in file.read(), False)
    equal("and the page is shown", dump("show", page_of(folder, job))[0], 0)


def check_usage():
    for arguments in ([], ["show", "--job"], ["frobnicate"], ["list", "x"], ["diff", "x"], ["show", "x", "--job", "a"], ["show", "x", "--nonsense"],
                      ["list", "--events"]):
        status, out, errors = dump(*arguments)
        equal(f"metashard-dump {' '.join(arguments)}: usage", (status, out, errors.count("\n") == 1 or arguments == []),
              (2, "", True))
    status, out, errors = dump("--help")
    equal("help", (status, errors, out.startswith("usage: "), "Exit status: 0 " in out), (0, "", True, True))
    for command, wanted in (("list", ["job", "json", "color", "width", "help", "version"]), ("diff", ["json", "color", "width", "help", "version"])):
        out = dump(command, "--help")[1]
        equal(f"help of {command}", (re.findall(r"^  (?:-\w, )?--(\w+)", out, re.M), out.count("metashard-dump ")), (wanted, 1))
    with open("/dev/full", "w") as full:
        done = subprocess.run([DUMP, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    equal("output that cannot be written", (done.returncode, "cannot be written" in done.stderr), (1, True))


# --- file systems and places

def check_full(folder, data):
    """A file system without room, in a mount namespace of its own."""
    script = 'mount -t tmpfs -o size=256k,mode=700 none "$1" && shift && exec "$@"'
    target = os.path.join(folder, "full")
    os.mkdir(target, 0o700)
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", target, "true"], capture_output=True)
    if done.returncode != 0:
        skip("a full file system", "no file system may be mounted here")
        return
    # LD_PRELOAD for the job alone: a mount is no business of the shim's.
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", target, "env", f"LD_PRELOAD={PRELOAD}",
                           f"METASHARD_STATE_DIR={target}", JOB, data, KERNELS], capture_output=True, text=True)
    equal("on a full file system the program runs", (done.returncode, done.stdout), (0, "ready\n"))
    equal("and one line says that there is no page", re.findall(r"no state page is kept: .*", done.stderr),
          ["no state page is kept: cannot reserve its size: No space left on device"])


def write_large(path):
    """More blocks and events than a reader keeps: some 210 MiB. Returns how many there are."""
    records = make_page.records()
    records["figures"].append(bytes(8))
    records["names"].append(make_page.text("blocks_left_out", 48))
    counts = {"blocks": 400000, "events": 300000}
    header = make_page.page({**records, **{name: [] for name in counts}})
    block, event, rest = bytearray(make_page.block(1, 1)), bytearray(make_page.event(0)), bytearray(header)
    sizes = dict(zip(make_page.SECTIONS, make_page.RECORD_BYTES))
    at = len(header)
    for name, count in counts.items():  # the last two sections
        place = make_page.HEADER.size + 24 * make_page.SECTIONS.index(name)
        struct.pack_into("<QQQ", rest, place, at, count, sizes[name])
        at += count * sizes[name]
    struct.pack_into("<Q", rest, 16, at)
    with open(path, "wb") as out:
        out.write(rest)
        for i in range(counts["blocks"]):  # in no order of their sizes
            struct.pack_into("<QQQ", block, 8, i + 1, i << 24, (i * 7919) % counts["blocks"] + 1)
            out.write(block)
        for i in range(counts["events"]):
            struct.pack_into("<QQ", event, 0, 2 * i + 2, i + 1)
            out.write(event)
    return counts["blocks"], counts["events"]


def measure(*arguments):
    """The exit status, bytes of memory at its peak, and the output."""
    with tempfile.TemporaryFile() as out:
        job = subprocess.Popen([DUMP, *arguments], stdout=out)
        _, status, usage = os.wait4(job.pid, 0)
        job.returncode = status
        out.seek(0)
        return status, usage.ru_maxrss << 10, out.read().decode()


def check_large(folder):
    """A page of 1 GiB has as many of them kept, and besides 128 MiB of samples, which are kept whole."""
    page, html = os.path.join(folder, "large.state"), os.path.join(folder, "large.html")
    blocks, events = write_large(page)
    texts = []
    for arguments in ([], ["--events"], ["--html", html]):
        status, peak, text = measure("show", page, *arguments)
        equal("a large page is shown", status, 0)
        # ThreadSanitizer's own memory is several times the program's.
        equal("in memory that its size does not tell", "libtsan" in PRELOAD or peak <= 320 * MIB or peak, True)
        texts.append(text)
    equal("the smallest blocks are left out", f"{blocks - 128 * MIB // 376} smaller blocks" in texts[0], True)
    equal("and the first events", f"{events - 64 * MIB // 256} older events" in texts[1], True)
    equal("its HTML is cut", os.path.getsize(html) <= 20 * MIB, True)
    os.unlink(page)


def check_default(folder, data):
    run = os.path.join(folder, "run")
    os.mkdir(run, 0o700)
    environment = dict(os.environ, LD_PRELOAD=PRELOAD, XDG_RUNTIME_DIR=run)
    environment.pop("METASHARD_STATE_DIR", None)
    job = subprocess.Popen([JOB, data, KERNELS], env=environment, stdout=subprocess.PIPE)
    job.communicate()
    pages = [name for name in os.listdir(os.path.join(run, "metashard")) if not name.startswith(".selfcheck-")]
    equal("the default is the user's runtime directory", pages, [f"metashard-{job.pid}.state"])
    status, out, _ = dump("show", str(job.pid), XDG_RUNTIME_DIR=run)
    equal("the page there is found by its id", (status, out.startswith(f"process {job.pid}: ended after")), (0, True))


def main():
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "data")
        with open(data, "wb") as file:
            file.write(checkpoint_header() + os.urandom(16 * MIB))
        time.sleep(0.05) # a file that was changed just now is not trusted yet
        job = start_job(folder, data, RANK="1", WORLD_SIZE="2", SLURM_JOB_ID="4711", SIMCUDA_MEMORY_MIB="512")
        check_running(folder, job)
        kill(job)
        check_killed(folder, job)
        check_json(folder, job)
        check_terminal(page_of(folder, job))
        check_settled(folder)
        check_runs(folder)
        check_json_runs(folder)
        check_names(folder)
        check_bad(folder, page_of(folder, job))
        check_hostile(folder)
        check_paths(folder, data)
        check_secrets(folder, data)
        check_sealed(folder, data)
        check_explained_ranks(folder, data)
        check_merged(folder, data)
        check_jobs(folder, data)
        check_diff(folder, data)
        check_usage()
        check_full(folder, data)
        check_default(folder, data)
        check_large(folder)
    return end()


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""report.py PROGRAM BUSY PRELOAD: what a process says of itself: the dump, the summary, complaints."""
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from state_page import read_dump  # noqa: E402
from tap import end, equal  # noqa: E402

MIB = 1 << 20

# Lines are counted here, and where the shim gets no far addresses, as under ThreadSanitizer, that is one.
os.environ["METASHARD_SELFCHECK"] = "off"


def run(program, preload, folder, *more, **settings):
    data = os.path.join(folder, "data")
    with open(data, "wb") as file:
        file.write(bytes(range(256)) * (8 * MIB // 256))
    environment = dict(os.environ, LD_PRELOAD=preload, **settings)
    done = subprocess.run([program, data, *more], env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr.splitlines()


def check_dump(program, preload, folder):
    status, out, errors = run(program, preload, folder, METASHARD_DUMP=f"{folder}/dump-%p.state")
    equal("at the default level nothing is said", (status, out, errors), (0, "", []))
    names = [name for name in os.listdir(folder) if name.startswith("dump-")]
    dump = read_dump(os.path.join(folder, names[0]))
    equal("%p is the process id", names, [f"dump-{dump['pid']}.state"])
    equal("allocations", (dump["deferred_allocations"], dump["deferred_frees"]), (4, 1))
    equal("requested bytes", dump["requested_bytes"], 31 * MIB)
    equal("recorded bytes", (dump["recorded_file_bytes"], dump["recorded_fill_bytes"],
                             dump["recorded_snapshot_bytes"]), (8 * MIB, 5 * MIB, 2 * MIB))
    equal("backed bytes", (dump["backed_bytes"], dump["backed_bytes_peak"]), (2 * MIB, 2 * MIB))
    equal("copied and read bytes", (dump["h2d_bytes"], dump["file_read_bytes"]), (2 * MIB, 2 * MIB))  # one byte's granule
    equal("snapshots held", dump["snapshot_bytes"], 2 * MIB)
    equal("deferred bytes", dump["deferred_bytes"], 13 * MIB)
    blocks = {block["bytes"]: block for block in dump["blocks"]}
    equal("blocks", sorted(blocks), [3 * MIB, 4 * MIB, 8 * MIB])
    loaded = blocks[8 * MIB]
    equal("lineage of a file", (loaded["kinds"], loaded["cached_bytes"], loaded["file"]),
          ({"file": 8 * MIB}, 2 * MIB, os.path.join(folder, "data")))
    equal("lineage of a fill", blocks[4 * MIB]["kinds"], {"fill": 4 * MIB})
    equal("lineage of heap memory, and of zeros in it", blocks[3 * MIB]["kinds"], {"snapshot": 2 * MIB, "fill": MIB})
    without = run(program, preload, folder, METASHARD_DUMP=f"{folder}/alone", METASHARD_STATE_DIR="")
    alone = read_dump(f"{folder}/alone")
    equal("a dump needs no page beside it", (without[0], without[2], alone["requested_bytes"], len(alone["blocks"])),
          (0, [], 31 * MIB, 3))


def check_pieces(program, preload, folder):
    run(program, preload, folder, "pieces", METASHARD_DUMP=f"{folder}/pieces")
    lineages = {block["bytes"]: block["kinds"] for block in read_dump(os.path.join(folder, "pieces"))["blocks"]}
    for how, size in (("set", 5 * MIB), ("copied", 6 * MIB)):
        equal(f"a block {how} in many pieces costs no endless list", lineages[size],
              {"resident": size})


def said(lines):
    return [line.split(": ", 1)[1] for line in lines]


def check_no_plan(program, preload, folder):
    _, _, errors = run(program, preload, folder, METASHARD_PLAN="no/plan.json")
    place = os.path.join(os.getcwd(), "no/plan.json")
    equal("a plan that never came is one line", said(errors), [
        f"METASHARD_PLAN: no plan was read from {place} before the process ended: No such file or directory"])


def check_messages(program, preload, folder):
    _, _, errors = run(program, preload, folder, METASHARD_LOG="info", RANK="5")
    equal("the log has a line at the start, the summary, and what to run next", len(errors), 3)
    equal("they tell rank and pid", all(line.startswith("metashard[rank 5 pid ") for line in errors), True)
    equal("version, device and driver", re.search(
        r"info: MetaShard [\d.]+ on device 0, Simulated CUDA device, driver of CUDA \d+\.\d+$", errors[0]) is not None, True)
    equal("the summary tells what was deferred", "4 allocations of 31.0 MiB deferred" in errors[1], True)
    equal("the last line tells where the page is", re.search(r"metashard-dump show \S+/metashard-\d+\.state$", errors[2]) is not None, True)
    _, _, errors = run(program, preload, folder, METASHARD_MIN_BYTES="many")
    equal("a wrong value is one line", [line.split(": ", 1)[1] for line in errors],
          ["METASHARD_MIN_BYTES=many is not understood: expected a number of bytes such as 65536, "
           "512K, 2M or 1G; using 2M"])
    _, _, errors = run(program, preload, folder, METASHARD_SHARDS="7")
    equal("an unknown name is one line", [line.split(": ", 1)[1] for line in errors],
          ["METASHARD_SHARDS is not a variable of MetaShard and is ignored"])
    log = os.path.join(folder, "log")
    _, _, errors = run(program, preload, folder, METASHARD_LOG=f"info:{log}")
    with open(log) as file:
        equal("messages go to a file", (errors, len(file.readlines())), ([], 3))
    _, _, errors = run(program, preload, folder, METASHARD_DUMP="/nowhere/dump")
    equal("a dump that cannot be written is one line", len(errors), 1)
    _, _, errors = run(program, preload, folder, METASHARD="off", METASHARD_LOG="trace",
                       METASHARD_DUMP=os.path.join(folder, "off"))
    equal("switched off it says nothing and leaves nothing",
          (errors, os.path.exists(os.path.join(folder, "off"))), ([], False))


def check_deaf(program, preload, folder):
    """Nobody reads what it says, or there is no more room for it: that ends no program."""
    ends = os.pipe()
    os.close(ends[0])
    data = os.path.join(folder, "data")
    environment = dict(os.environ, LD_PRELOAD=preload, METASHARD_LOG="debug")
    done = subprocess.run([program, data], env=environment, stderr=ends[1])
    os.close(ends[1])
    equal("lines to a pipe that nobody reads do not end it", done.returncode, 0)

    dump = os.path.join(folder, "cut")
    environment.update(METASHARD_LOG=f"info:{folder}/cut.log", METASHARD_DUMP=dump)
    done = subprocess.run([program, data, "limited"], env=environment)
    equal("nor do files that may not grow", (done.returncode, os.path.getsize(f"{folder}/cut.log"), os.path.getsize(dump)),
          (0, 100, 100))


def run_busy(program, preload, folder, *arguments, **settings):
    dump = os.path.join(folder, "busy")
    environment = dict(os.environ, LD_PRELOAD=preload, METASHARD_DUMP=dump, **settings)
    try:
        done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return "it does not end", [], []
    return done.returncode, done.stderr.splitlines(), [block["kinds"] for block in read_dump(dump)["blocks"]]


def check_busy(program, preload, folder):
    status, errors, seen = run_busy(program, preload, folder)
    equal("a process ends while a thread has an allocation for ever", (status, errors), (0, []))
    equal("the dump tells what was known of that", seen, [{"fill": 4 * MIB}, {"fill": 4 * MIB}])
    status, errors, seen = run_busy(program, preload, folder, "free")
    equal("and while one is freed", (status, errors), (0, []))
    plan = os.path.join(folder, "plan.json")
    status, errors, seen = run_busy(program, preload, folder, plan, METASHARD_PLAN=plan)
    equal("a process ends while the thread for plans waits for that one", status, 0)
    equal("a line says that the thread for plans waits", len([line for line in errors if "the thread for plans waits" in line]), 1)


def main():
    program, busy, preload = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        check_dump(program, preload, folder)
        check_pieces(program, preload, folder)
        check_messages(program, preload, folder)
        check_deaf(program, preload, folder)
        check_busy(busy, preload, folder)
        check_no_plan(program, preload, folder)
    return end()


if __name__ == "__main__":
    sys.exit(main())

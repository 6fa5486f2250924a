#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_blocks.py RECORDER SHIM: PyTorch reports exactly the blocks of its allocator. TAP.

First by the parts of tests/gpu/probe_torch.py, under a recorder of the reports; then under the shim, whose
dump must have seen them.
"""
import json
import os
import subprocess
import sys
import tempfile

from check_wheel import Tap

HERE = os.path.dirname(os.path.abspath(__file__))
PROBE = os.path.join(HERE, "..", "gpu", "probe_torch.py")
PROGRAM = """
import threading, torch
def work():
    return [torch.empty(20 << 20, dtype=torch.uint8, device="cuda").fill_(7) for _ in range(4)]
kept = work()
thread = threading.Thread(target=lambda: kept.extend(work()))
thread.start()
thread.join()
del kept[::2]
print([int(t[5].cpu()) for t in kept], torch.cuda.memory_allocated())
"""


def run(command, preload, **settings):
    environment = dict(os.environ, **settings)
    environment["LD_PRELOAD"] = ":".join(filter(None, [preload, os.environ.get("LD_PRELOAD")]))
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


# The simulated driver refuses every call that may wait during a capture; whether a real one refuses to map
# memory then is a question of tests/gpu (capture).
MAPS_IN_CAPTURE = ("expandable segments", "private_pool")


def check_reports(tap, recorder, title, part, allocator):
    done = run([sys.executable, PROBE, "--recorder", recorder, "--part", part], recorder,
               PYTORCH_ALLOC_CONF=allocator)
    try:
        blocks = json.loads(done.stdout[done.stdout.index("{"):])
    except ValueError:
        tap.check(f"{title}: runs", False, done.stderr[-800:])
        return
    for when in ("after_alloc", "after_free", "second_thread", "private_pool", "after_empty_cache"):
        seen = blocks.get(when, {})
        if (title, when) == MAPS_IN_CAPTURE and "error" in seen:
            tap.check(f"{title}, {when} # SKIP memory is mapped during a capture", True)
            continue
        good = (seen.get("missing_in_reports") == 0 and seen.get("sizes_differ") == 0 and
                seen.get("only_in_reports") == seen.get("only_in_reports_but_pending") and
                not seen.get("odd") and seen.get("active_in_snapshot", 0) > 0)
        tap.check(f"{title}, {when}: reports and snapshot are the same", good, seen)
    tap.check(f"{title}: on every thread", blocks["second_thread"].get("threads_seen") == 2,
              blocks["second_thread"])
    stream = blocks["other_stream"]
    tap.check(f"{title}: a block that another stream uses is not missing",
              stream.get("missing_in_reports") == 0, stream)


def check_shim(tap, shim, allocator, wanted):
    with tempfile.TemporaryDirectory() as folder:
        dump = os.path.join(folder, "dump")
        alone = run([sys.executable, "-c", PROGRAM], "", PYTORCH_ALLOC_CONF=allocator)
        seen = run([sys.executable, "-c", PROGRAM], shim, PYTORCH_ALLOC_CONF=allocator, METASHARD_DUMP=dump)
        tap.check(f"under the shim, {allocator}: same output", alone.returncode == 0 and
                  (alone.returncode, alone.stdout) == (seen.returncode, seen.stdout),
                  alone.stdout + seen.stdout + seen.stderr[-800:])
        with open(dump, encoding="utf-8") as file:
            facts = json.load(file)
        tap.check(f"under the shim, {allocator}: {wanted} blocks seen", facts["observed_blocks"] == wanted,
                  facts)
        tap.check("and nothing was said", seen.stderr == alone.stderr, seen.stderr)


def main():
    recorder, shim = map(os.path.abspath, sys.argv[1:3])
    tap = Tap()
    check_reports(tap, recorder, "default", "blocks", "")
    check_reports(tap, recorder, "expandable segments", "blocks", "expandable_segments:True")
    check_shim(tap, shim, "", 8)
    check_shim(tap, shim, "expandable_segments:True", 0)
    tap.end()


if __name__ == "__main__":
    main()

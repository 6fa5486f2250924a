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

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from state_page import read_dump  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
PROBE = os.path.join(HERE, "..", "..", "gpu", "probe_torch.py")
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
# More than the device has, but never at a time: what was freed has to come back. The comparison is no copy,
# so it needs all of its tensor.
PRESSURE = """
import torch
def used(mib):
    tensor = torch.empty(mib << 20, dtype=torch.uint8, device="cuda").fill_(3)
    (tensor > 100).any().cpu()
    return tensor
for _ in range(3):
    small = [used(20) for _ in range(9)]
    del small
    large = used(150)
    print(int(large.cpu().sum()))
    del large
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


def both(tap, shim, title, program, **settings):
    """Runs it without and with the shim; the dump."""
    with tempfile.TemporaryDirectory() as folder:
        dump = os.path.join(folder, "dump")
        alone = run([sys.executable, "-c", program], "", **settings)
        seen = run([sys.executable, "-c", program], shim, METASHARD_DUMP=dump, **settings)
        tap.check(f"{title}: same output", alone.returncode == 0 and
                  (alone.returncode, alone.stdout) == (seen.returncode, seen.stdout),
                  alone.stdout + seen.stdout + seen.stderr[-800:])
        tap.check("and nothing was said", seen.stderr == alone.stderr, seen.stderr)
        return read_dump(dump)


BY_CALL = """
import torch
torch.cuda.memory._set_allocator_settings("expandable_segments:True")
"""
# Segments of both kinds side by side.
BY_CALL_LATER = """
import torch
early = torch.empty(24 << 20, dtype=torch.uint8, device="cuda").fill_(9)
torch.cuda.memory._set_allocator_settings("expandable_segments:True")
"""


def check_shim(tap, shim):
    for title, program, settings, wanted in (
            ("default", PROGRAM, {}, 8),
            ("expandable segments", PROGRAM, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, 8),
            ("expandable segments, old spelling", PROGRAM,
             {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, 8),
            ("expandable segments by a call", BY_CALL + PROGRAM, {}, 8),
            ("expandable segments by a later call", BY_CALL_LATER + PROGRAM, {}, 9)):
        title = "under the shim, " + title
        dump = both(tap, shim, title, program, **settings)
        tap.check(f"{title}: {wanted} blocks seen", dump["observed_blocks"] == wanted, dump)
        tap.check(f"{title}: not all of it had memory", 0 < dump["backed_bytes_peak"] <= 100 << 20, dump)
    dump = both(tap, shim, "under the shim, little memory", PRESSURE, SIMCUDA_MEMORY_MIB="384",
                METASHARD_LOG="warn")
    tap.check("memory of dead blocks came back", dump["evicted_bytes"] > 0, dump)


def main():
    recorder, shim = map(os.path.abspath, sys.argv[1:3])
    tap = Tap()
    check_reports(tap, recorder, "default", "blocks", "")
    check_reports(tap, recorder, "expandable segments", "blocks", "expandable_segments:True")
    check_shim(tap, shim)
    tap.end()


if __name__ == "__main__":
    main()

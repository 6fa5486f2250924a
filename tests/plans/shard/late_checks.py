# SPDX-License-Identifier: Apache-2.0
"""Plans that come late, at a bad moment: while their file is being written, and when the program is about to end."""
import json
import os
import time

from workplace import Control, Run, check_memory, expect, ranges_of, wait_until

RANK, WORLD = 1, 4


def check_slow_writer(place, checkpoint, made):
    """A file that is written bit by bit is not taken before it is whole, nor refused when its writer pauses."""
    path, text = place.path("slow-plan.json"), json.dumps(made)
    ranges = ranges_of(made, checkpoint, RANK)
    run = Run(place, checkpoint, RANK, WORLD, ["--wait", "--ranges", place.write_ranges(ranges)],
              METASHARD_PLAN=path, METASHARD_LOG="info").until_ready()
    with open(path, "w") as file:
        for at in range(0, len(text), -(-len(text) // 12)):
            file.write(text[at:at + -(-len(text) // 12)])
            file.flush()
            time.sleep(1.5 if at == 0 else 0.1)
    wait_until(lambda: "plan 1, of rank" in run.stderr(), f"the plan is not read: {run.said}")
    run.finish().values()
    expect(not any(" error: " in line for line in run.lines), f"it was read before it was whole: {run.lines}")
    check_memory(run, ranges)


def check_end(place, checkpoint, made):
    """The program ends while the plan is being followed: it is given up, and nothing hangs or breaks."""
    pattern = place.path("end-%p")
    run = Run(place, checkpoint, RANK, WORLD, ["--wait"], METASHARD_CONTROL=pattern, METASHARD_STAGING_BYTES="256K",
              METASHARD_LOG="info", SIMCUDA_DELAY_US=400000).until_ready()
    control = Control(pattern.replace("%p", str(run.process.pid)), 60)
    text = json.dumps(made).encode()
    control.send(b"plan %d\n" % len(text) + text)
    wait_until(lambda: "plan 1, of rank" in run.stderr(), f"the plan is not taken: {run.said}")
    run.finish()
    control.close()
    expect(any("not everything that the plan gives" in line for line in run.lines),
           f"all of it was followed to its end, or nothing said: {run.lines}")
    expect(not os.path.lexists(pattern.replace("%p", str(run.process.pid))), "the socket is still there")


TESTS = [("a slow writer", check_slow_writer), ("the end of the program", check_end)]

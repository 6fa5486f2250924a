#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_kill.py --build DIR [--runs N] [--seed S]: SIGKILL at any moment, and then the same again.

A flow is killed at a random moment, in one of its processes, and run again with the same folder for its state page and the
same socket: that run must be right, say nothing, and leave nothing but state pages. TAP.
"""
import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from tap import end, report, skip  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import flows  # noqa: E402


def killed(flow, dice, folder, seconds):
    """One run that is ended somewhere between its start and its end: (whether it was, how long the next may take)."""
    process = subprocess.Popen(flow.command(folder), env=flow.environment(None, 0, folder), cwd=folder,
                               stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(dice.random() * seconds)
        seconds /= 2  # what `seconds` comes from was a slow run
    except subprocess.TimeoutExpired:
        seconds *= 1.2
        process.kill()
    process.stdin.close()
    return process.wait() == -9, seconds


def again(flow, folder):
    """The fault of a sound run in a folder that a killed run has left, or None."""
    for name in ("stats", "dump"):
        if os.path.exists(os.path.join(folder, name)):
            os.remove(os.path.join(folder, name))
    done = flow.run(None, 0, folder)
    hidden = [name for name in os.listdir(os.path.join(folder, "state")) if name.startswith(".")]
    # A hidden file goes when it is an hour old: another process may be about to fill it.
    for name in hidden:
        os.remove(os.path.join(folder, "state", name))
    wrong = done.broken() or (flow.judge_sound(done) or "") or ("" if not done.error else "it says something")
    if not wrong and hasattr(flow, "judge"):
        outcome, wrong = flow.judge(done, None)
        wrong = wrong or ("" if outcome == "right" else "the program was told of an error")
    return (f"{wrong}\n{done.last()}" if wrong else ""), len(hidden)


def check_flow(flow, options, dice):
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=flow.place.folder) as folder:
        flow.run(None, 0, folder)
    seconds = 1.2 * (time.monotonic() - began)
    ended = hidden = 0
    with tempfile.TemporaryDirectory(dir=flow.place.folder) as folder:
        for _ in range(options.runs):
            for _ in range(3):  # several that were killed, and one that was not
                was_killed, seconds = killed(flow, dice, folder, seconds)
                ended += was_killed
            wrong, left = again(flow, folder)
            hidden += left
            if wrong:
                return wrong
        pages = [name for name in os.listdir(os.path.join(folder, "state")) if re.match(r"metashard-\d+\.state", name)]
        if len(pages) > 20:
            return f"{len(pages)} state pages are kept"
    print(f"# {flow.name}: {ended} of {3 * options.runs} were killed before their end, {hidden} of them half way through "
          f"making a state page")
    return "" if ended > 0 else "none was killed"


def check_ranks(flow, options, dice):
    """One rank is killed: the others end, with an error, and the next run is right."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=flow.place.folder) as folder:
        flow.run(None, 0, folder)
    seconds = time.monotonic() - began
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory(dir=flow.place.folder) as folder:
            plan = flows.running.make_plan(flow.options, folder, flow.case, flow.model, flow.ranks)
            ranks = [flow.start(None, 0, folder, rank, plan) for rank in range(flow.ranks)]
            while not os.path.exists(os.path.join(folder, "id")):  # the program itself waits for that for a minute
                time.sleep(0.002)
            time.sleep(dice.random() * seconds / 2)
            victim = dice.choice(ranks)
            victim.kill()
            for rank in ranks:
                try:
                    rank.communicate(timeout=60)
                except subprocess.TimeoutExpired:
                    for other in ranks:
                        other.kill()
                    return "a rank waits for one that was killed"
                if rank is not victim and rank.returncode not in (0, 1):
                    return f"a rank ended with {rank.returncode} after another was killed"
        with tempfile.TemporaryDirectory(dir=flow.place.folder) as folder:
            done = flow.run(None, 0, folder)
            if flow.judge_sound(done):
                return f"{flow.judge_sound(done)}\n{done.last()}"
    return ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--sanitizer", default="")
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--seed", default=str(time.time_ns()))
    options = parser.parse_args()
    dice = random.Random(options.seed)
    print(f"# --seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="metashard-kill-") as folder:
        for flow in flows.make(options, folder):
            if flow.name in ("main job", "plan", "plan by socket", "goes on", "NCCL FSDP1 rank 0"):
                why, check = flow.prepare(), check_ranks if flow.name.startswith("NCCL") else check_flow
                if why:
                    skip(f"SIGKILL, {flow.name}", why)
                else:
                    report(f"SIGKILL, {flow.name}", check(flow, options, dice))
    return end()


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Plans for tensors that are in no file: named by the program, or told by their size and order."""
import json
import os
import subprocess
import sys

from workplace import FORMAT, GRANULE, LAUNCHERS, expect, read_dump

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "no_files.py")
KIB = 1 << 10
F32_ROWS = [512, 512]  # 1 MiB, 2 KiB a row


def run(place, plan, wanted, mode="advise", **settings):
    """(what it printed, its dump, its lines), after the same without the preload."""
    environment = {name: value for name, value in os.environ.items()
                   if name not in LAUNCHERS and not name.startswith(("METASHARD", "SIMCUDA_"))}
    environment.update(RANK="1", WORLD_SIZE="4", SIMCUDA_GRANULE_KIB=str(GRANULE >> 10), SIMCUDA_POISON="2",
                       **place.without)
    dump = place.path("no-files.json")
    for preload in (False, True):
        if preload:
            environment.update(LD_PRELOAD=place.preload, METASHARD_DUMP=dump, METASHARD_MIN_BYTES=str(GRANULE),
                               METASHARD_PLAN=place.write(plan), METASHARD_PLAN_MODE=mode, **settings)
        done = subprocess.run([sys.executable, PROGRAM], input=json.dumps(wanted), env=environment,
                              capture_output=True, text=True, timeout=60)
        expect(done.returncode == 0, f"exit status {done.returncode}\n{done.stderr[-1000:]}")
        out = json.loads(done.stdout)
        if mode == "advise" or not preload:
            expect(all(read == [0, True] for read in out["reads"]),
                   f"reads {out['reads']}, expected the right bytes {'with' if preload else 'without'} the preload")
    return out, read_dump(dump), done.stderr.splitlines()


def backed(out, dump):
    """Bytes in memory of each block of the program."""
    seen = {int(block["address"], 16): block["backed_bytes"] for block in dump["blocks"]}
    return [seen.get(address) for address in out["addresses"]]


def plan_of(*entries):
    return {"format": FORMAT, "mesh": {"dp": 4}, "tensors": list(entries)}


def declared(name, shape, placements, dtype="F32"):
    return {"name": name, "dtype": dtype, "shape": shape, "placements": placements}


SHARD0, SHARD1 = [{"shard": 0}], [{"shard": 1}]


def check_named(place):
    """A quarter of each, in another dimension; one that has no name is not the plan's."""
    blocks = [{"bytes": 1 << 20, "name": "a", "dtype": "F32", "shape": F32_ROWS},
              {"bytes": 1 << 20, "name": "b", "dtype": "F32", "shape": [2, 8, 16384]}, {"bytes": 1 << 20}]
    plan = plan_of({"name": "a", "placements": SHARD0}, {"name": "b", "placements": SHARD1})
    out, dump, lines = run(place, plan, {"blocks": blocks, "reads": [[0, 256 * KIB, 512 * KIB]]})
    expect(out["names"] == [[0, ""]] * 2 and out["materialise"] == 0, f"{out}: expected that all succeeds")
    wanted = [256 * KIB, 256 * KIB]  # b: two times 2 of 8, 64 KiB each
    expect(backed(out, dump)[:2] == wanted, f"in memory: {backed(out, dump)}, expected {wanted} of the first two")
    seen = dump["plan"]
    for key, value in (("tensors", 2), ("planned_bytes", 2 << 20), ("owned_bytes", 512 * KIB), ("unmatched", []),
                       ("ambiguous", []), ("remote_reads", 0)):
        expect(seen[key] == value, f"plan.{key} is {seen[key]}, expected {value}")
    expect(lines == [], f"expected no message, found {lines}")


def check_named_enforced(place):
    """A part of an allocation is a tensor; what is around it is the program's own."""
    plan = plan_of({"name": "a", "placements": SHARD0})
    wanted = {"blocks": [{"bytes": 2 << 20}], "names": [[0, 512 * KIB, 1 << 20, "a", "F32", F32_ROWS]],
              "reads": [[0, 0, 512 * KIB], [0, 768 * KIB, 1024 * KIB], [0, 1536 * KIB, 2048 * KIB],
                        [0, 512 * KIB, 512 * KIB + 1], [0, 1535 * KIB, 1536 * KIB], [0, 0, 2048 * KIB]]}
    out, dump, lines = run(place, plan, wanted, "enforce")
    expect(out["reads"] == [[0, True]] * 3 + [[800, False]] * 3,
           f"reads {out['reads']}: expected three that succeed and three with CUDA error 800")
    expect(len(lines) == 3 and all(" a" in line for line in lines), f"expected three lines with 'a', found {lines}")


def check_unnamed(place):
    """Bytes that have no name any more are the program's own again, and only those."""
    plan = plan_of({"name": "a", "placements": SHARD0}, {"name": "b", "placements": SHARD0})
    wanted = {"blocks": [{"bytes": 2 << 20}],
              "names": [[0, 0, 1 << 20, "a", "F32", F32_ROWS], [0, 1 << 20, 1 << 20, "b", "F32", F32_ROWS]],
              "unnames": [[0, 0, 4096], [0, 0, 1 << 30]],
              "reads": [[0, 0, 1 << 20], [0, 2047 * KIB, 2048 * KIB]]}
    out, dump, lines = run(place, plan, wanted, "enforce")
    expect(out["names"] == [[0, ""]] * 2 and out["unnames"] == [0, -1], f"{out}: expected that all but the last succeeds")
    expect(out["reads"] == [[0, True], [800, False]], f"reads {out['reads']}: expected one that succeeds")
    expect(dump["plan"]["tensors"] == 1, f"plan.tensors is {dump['plan']['tensors']}, expected 1")


def check_wrong_names(place):
    """Wrong names are errors that say why, and do nothing."""
    plan = plan_of({"name": "a", "placements": SHARD0})
    good = [0, 0, 1 << 20, "a", "F32", F32_ROWS]
    bad = [[0, 0, 1 << 20, "a", "F32", [512, 513]], [0, 0, 1 << 20, "a", "F33", F32_ROWS],
           [0, 0, 1 << 20, None, "F32", F32_ROWS], [0, 0, 1 << 20, "a", None, F32_ROWS],
           [0, 0, 1 << 20, "a", "F32", [1] * 7 + F32_ROWS], [0, 4096, 1 << 20, "a", "F32", F32_ROWS],
           [0, 1 << 40, 1 << 20, "a", "F32", F32_ROWS], [0, 0, 0, "", "F32", [0]],
           [0, 0, 1 << 20, "a", "F32", [1 << 63, 1 << 63]]]
    out, dump, lines = run(place, plan, {"blocks": [{"bytes": 1 << 20}], "names": [*bad, good], "reads": [[0, 0, 99]]})
    for call, (result, error) in zip(bad, out["names"]):
        expect(result != 0 and error != "", f"metashard_name{tuple(call)}: {result} {error!r}, expected an error")
    expect(out["names"][-1] == [0, ""], f"metashard_name{tuple(good)}: {out['names'][-1]}")
    expect(dump["plan"]["tensors"] == 1, f"plan.tensors is {dump['plan']['tensors']}, expected 1")
    expect(len(lines) <= len(bad), f"{len(lines)} lines for {len(bad)} errors")


def check_by_size(place):
    """A declared tensor is the one block of its size; two blocks, or two tensors, are ambiguous."""
    plan = plan_of(declared("one", F32_ROWS, SHARD0), declared("two", [256, 512], SHARD0),
                   declared("three", [1024, 512], SHARD0), declared("four", [2048, 256], SHARD0),
                   declared("none", [77, 512], SHARD0))
    blocks = [{"bytes": 1 << 20}, {"bytes": 512 * KIB}, {"bytes": 512 * KIB}, {"bytes": 2 << 20}]
    out, dump, lines = run(place, plan, {"blocks": blocks, "reads": [[0, 256 * KIB, 512 * KIB]]})
    seen = dump["plan"]
    expect(seen["tensors"] == 1 and seen["owned_bytes"] == 256 * KIB, f"{seen}: expected one tensor")
    expect(sorted(seen["ambiguous"]) == ["four", "three", "two"], f"ambiguous: {seen['ambiguous']}")
    expect(seen["unmatched"] == ["none"], f"unmatched: {seen['unmatched']}")
    expect(backed(out, dump)[0] == 256 * KIB, f"in memory: {backed(out, dump)}, expected 256 KiB of the first")


def check_by_order(place):
    """Entries without a name: by size, by order, by both."""
    plan = plan_of({"order": 2, "placements": []}, {"size": 1 << 20, "placements": SHARD0},
                   {"order": 1, "size": 4, "placements": SHARD0})
    blocks = [{"bytes": 1 << 20}, {"bytes": 512 * KIB}, {"bytes": 1 << 20}, {"bytes": 1 << 20}]
    out, dump, lines = run(place, plan, {"blocks": blocks, "reads": [[3, 256 * KIB, 512 * KIB]]})
    seen = backed(out, dump)
    expect(seen[0] == seen[3] == 256 * KIB and seen[2] == 1 << 20,
           f"in memory: {seen}, expected 256 KiB of the first and the last, and all of the third")
    expect(dump["plan"]["tensors"] == 3, f"plan.tensors is {dump['plan']['tensors']}, expected 3")


def check_narrow_columns(place):
    """A tensor cut into a very large number of pieces in one granule takes time with their number, not with its square."""
    plan = plan_of({"name": "a", "placements": SHARD1})
    blocks = [{"bytes": 256 * KIB, "name": "a", "dtype": "U8", "shape": [16 * KIB, 16]}]
    out, _, lines = run(place, plan, {"blocks": blocks, "reads": [[0, 4, 8], [0, 16, 64 * KIB]]},
                        SIMCUDA_GRANULE_KIB="2048")
    expect(out["names"] == [[0, ""]] and out["materialise"] == 0 and lines == [], f"{out}, {lines}: expected no fault")


TESTS = [("named by the program", check_named), ("a named part, enforced", check_named_enforced), ("without a name again", check_unnamed),
         ("wrong names", check_wrong_names), ("by size", check_by_size), ("by order", check_by_order),
         ("narrow columns", check_narrow_columns)]

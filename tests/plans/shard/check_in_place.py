#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_in_place.py --client PROGRAM --kernels LIBRARY --preload VALUE [--seeds N [--first SEED]] [--only WORD]

Plans at work (METASHARD_PLAN, METASHARD_CONTROL and the C API), on the simulated driver. The client (in_place.c)
shards nothing; what each rank owns comes from tests/plans/plan/oracle.py, and is compared with the same program without
the preload, with the memory and the counters of the dump, and with what the driver saw. TAP.
"""
import argparse
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile

from workplace import (GRANULE, MIN_BYTES, PAGE, TENSORS, Checkpoint, Control, Place, Run, Wrong,
                       at_most_in_block, check_memory, check_plan_report, expect, is_ok, make_checkpoints,
                       ranges_of, read_dump, tensors_in, touched, wait_until_quiet)
import tap  # noqa: E402  (workplace knows where these are)
from oracle import Tensor, entry_of, in_place, mesh_of, placements_of  # noqa: E402
import late_checks
import no_files_checks
import script_checks
import socket_checks
from kinds import KINDS, plan, random_case

HERE = os.path.dirname(os.path.abspath(__file__))
OUTSIDE_ERROR, ILLEGAL_ADDRESS, OPERATING_SYSTEM = 800, 700, 304
SHARD0 = plan({"dp": 4}, ("*.weight", [{"shard": 0}]), ("*", []))


def with_rank(made, rank):
    return {**made, "rank": rank}


# --- values and memory, for every kind of placement


def check_rank(place, checkpoint, made, rank, mode="advise", options=(), reads=True, granule=GRANULE,
               min_bytes=MIN_BYTES, but=None):
    """With and without: the same values; with, once the program has asked for its part: nothing in memory but the
    rank's ranges."""
    world = math.prod(mesh_of(made).values())
    ranges = ranges_of(made, checkpoint, rank)
    listed = ["--ranges", place.write_ranges(ranges)] if reads else []
    settings = {"SIMCUDA_GRANULE_KIB": granule >> 10, "METASHARD_MIN_BYTES": min_bytes}
    run = place.run(checkpoint, rank, world, [*listed, *options, "--materialise"], METASHARD_PLAN=place.write(made),
                    METASHARD_PLAN_MODE=mode, **settings)
    values = run.values()
    if reads:
        without = place.run(checkpoint, rank, world, [*listed, *options], preload=False, **settings)
        expect(values == without.values(), f"other values than without the preload\n{run.said}")
    deferred = check_memory(run, ranges, granule, min_bytes)
    check_plan_report(run, made, ranges, mode, rank, deferred, checkpoint=checkpoint)
    run.is_silent(but)
    return run


def check_kind(place, checkpoints, number, made):
    """Every rank; ways of loading and reading in turn."""
    kernel = ["--kernel", place.kernels]
    ways = [("advise", []), ("enforce", []), ("enforce", kernel), ("advise", ["--carve"]),
            ("enforce", ["--pieces", 3]), ("advise", ["--twice"]), ("enforce", ["--carve", *kernel])]
    for rank in range(math.prod(mesh_of(made).values())):
        mode, options = ways[(number + rank) % len(ways)]
        checkpoint = checkpoints["one file" if (number + rank) % 2 else "three files"]
        check_rank(place, checkpoint, made, rank, mode, options)


def check_without_reading(place, checkpoints):
    """The ranges are there when the program has asked for them, before anything is read."""
    for checkpoint in checkpoints.values():
        for options in ([], ["--carve"], ["--pieces", 3]):
            check_rank(place, checkpoint, SHARD0, 1, options=options, reads=False)


def check_nothing_fetched(place, checkpoints):
    """A plan fetches nothing by itself, of any kind, however often everything is loaded: the program may still cut its
    tensors down, or never use them."""
    for mode, (_, made) in zip(["advise", "enforce"] * len(KINDS), KINDS):
        for options in ([], ["--carve"], ["--pieces", 3], ["--reload"], ["--twice"]):
            run = place.run(checkpoints["three files"], 0, math.prod(mesh_of(made).values()), options,
                            METASHARD_PLAN=place.write(made), METASHARD_PLAN_MODE=mode)
            expect(run.dump["plan"]["tensors"] > 0, f"no tensor was found\n{run.said}")
            seen = [block["backed_bytes"] for block in run.dump["blocks"]]
            expect(set(seen) == {0} and run.dump["h2d_bytes"] == 0,
                   f"in memory: {seen}, expected nothing\n{run.said}")


def check_never_more(place, checkpoints):
    """A plan never costs: neither memory nor bytes over the bus, whatever the program does with its tensors."""
    kernel, settle = ["--kernel", place.kernels], ["--settle", place.kernels]
    row = ["--slice", "embed.weight", 0, 65536]
    ways = [kernel, row, settle, [*row, *settle], ["--carve", *kernel], ["--twice", *kernel], ["--reload", *settle],
            ["--materialise"]]
    for number, (name, made) in enumerate(KINDS):
        world = math.prod(mesh_of(made).values())
        rank, checkpoint = number % world, checkpoints["three files"]
        ranges = ["--ranges", place.write_ranges(ranges_of(made, checkpoint, rank))]
        for options in (ways[number % len(ways)], ways[(number + 3) % len(ways)]):
            reads = ranges if "--kernel" in options else []
            runs = [place.run(checkpoint, rank, world, [*reads, *options], METASHARD_SETTLE_MS=20, METASHARD_PLAN=plan)
                    for plan in (None, place.write(made))]
            expect(runs[0].values() == runs[1].values(), f"{name}: other values than without the plan")
            for figure in ("physical_bytes_peak", "h2d_bytes"):
                without, with_ = (run.stats[figure] for run in runs)
                expect(with_ <= without, f"{name}, {options}: {figure} is {with_}, without the plan {without}")


def check_everything_deferred(place, checkpoints):
    """Tensors of any size, when nothing is too small to be deferred."""
    made = plan({"dp": 3}, ("scalar", []), ("*", [{"shard": 0}]))
    for rank in range(3):
        check_rank(place, checkpoints["three files"], made, rank, "enforce" if rank == 2 else "advise", min_bytes=1)


def check_short_ends(place, checkpoints):
    """Copies of a fixed size, the last of each tensor shorter, as loaders with a buffer make them."""
    for reads in (False, True):
        check_rank(place, checkpoints["one file"], SHARD0, 1, options=["--chunk", 100000], reads=reads)


def declared(made, tensors):
    """The same plan, with the tensors declared: their order is the plan's, whatever becomes known first."""
    entries = [{"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape),
                "placements": dict(placements_of(made, entry_of(made, order, tensor)))}
               for order, tensor in enumerate(tensors)]
    return {**made, "tensors": entries}


def check_no_index(place):
    """Files of which nothing says that they belong together, with a unit whose tensors are in several of them."""
    checkpoint = Checkpoint(place.path("no-index"), {f"part-{i}.safetensors": TENSORS[i::3] for i in range(3)}, False,
                            4)
    units = dict(KINDS)["fsdp1 units"]
    for made in (SHARD0, declared(SHARD0, checkpoint.tensors), declared(units, checkpoint.tensors),
                 declared(units, TENSORS)):
        for rank in (0, 2):
            check_rank(place, checkpoint, made, rank, "enforce")


def check_big_granules(place):
    """The granules of real devices, and the smallest size that is deferred there."""
    granule = 2 << 20
    tensors = [Tensor("a.weight", "F32", (1001, 8192)), Tensor("b.weight", "F32", (4, 6, 1 << 18))]
    checkpoint = Checkpoint(place.path("big"), {"model.safetensors": tensors}, False, 3)
    made = plan({"dp": 3}, ("a.*", [{"shard": 0}]), ("b.*", [{"shard": 1}]))
    check_rank(place, checkpoint, made, 1, granule=granule, min_bytes=granule)
    run = check_rank(place, checkpoint, made, 2, mode="enforce", options=["--kernel", place.kernels], granule=granule,
                     min_bytes=granule)
    promised, _ = in_place(tensors, [ranges_of(made, checkpoint, 2)[tensor.name] for tensor in tensors])
    backed = sum(block["backed_bytes"] for block in run.dump["blocks"] if tensors_in(block, run.out))
    expect(promised <= backed <= 1.05 * promised + granule,
           f"{backed} bytes are in memory, metashard-plan check says {promised}")


def check_small_device(place, checkpoints):
    """A device that has room for the shards, and not for the tensors."""
    checkpoint, rank = checkpoints["one file"], 2
    ranges = ranges_of(SHARD0, checkpoint, rank)
    listed = ["--ranges", place.write_ranges(ranges)]
    whole = sum(tensor.bytes() for tensor in checkpoint.tensors)
    expect(whole > 6 << 20, "the tensors fit")
    run = place.run(checkpoint, rank, 4, listed, METASHARD_PLAN=place.write(SHARD0), SIMCUDA_MEMORY_MIB=4)
    run.values()
    check_memory(run, ranges)


def check_more(place, checkpoints):
    """A program that computes, with more than the device: what the plan gives to others is not in the way of more."""
    for more, result in ((1 << 20, 0), (3 << 20, 2)):
        run = place.run(checkpoints["one file"], 1, 4, ["--settle", place.kernels, "--more", more],
                        METASHARD_PLAN=place.write(SHARD0), METASHARD_SETTLE_MS=20, SIMCUDA_MEMORY_MIB=4)
        expect(run.out["more"] == result, f"{more} more bytes: CUDA error {run.out['more']}\n{run.said}")
        run.is_silent()


# --- when a plan comes


def check_settling(place, checkpoints):
    """A program that never loads one of the tensors: the rank's ranges are there when it settles, the rest stays away."""
    checkpoint = checkpoints["three files"]
    ranges = ranges_of(SHARD0, checkpoint, 1)
    for skip in ([], ["--skip", "layers.0.q.weight"]):
        run = place.run(checkpoint, 1, 4, ["--settle", place.kernels, *skip], METASHARD_PLAN=place.write(SHARD0),
                        METASHARD_SETTLE_MS=20)
        run.is_silent()
        check_memory(run, ranges)


def check_plan_comes(place, checkpoints, how):
    """A plan that comes when everything is loaded: put into place, sent to the socket, by the C API."""
    checkpoint, rank = checkpoints["three files"], 1
    ranges = ranges_of(SHARD0, checkpoint, rank)
    path, settings = place.path(f"late-{how}.json"), {"METASHARD_PLAN_MODE": "enforce"}
    log, control = place.path(f"late-{how}.log"), place.path(f"late-{how}.%p")
    for options in ([], ["--ranges", place.write_ranges(ranges)]):
        for name in (path, log):
            if os.path.exists(name):
                os.unlink(name)
        if how == "file":
            settings["METASHARD_PLAN"] = path
        if how == "socket":
            settings["METASHARD_CONTROL"] = control
        if how in ("api", "text"):
            options = [*options, f"--{how}", place.write(SHARD0, path)]
        if how in ("file", "socket"):
            options = [*options, "--wait"]
        run = Run(place, checkpoint, rank, 4, options, SIMCUDA_LOG=log, **settings)
        if how == "file":
            run.until_ready()
            begin = os.path.getsize(log)
            place.write(SHARD0, path)
            wait_until_quiet(log, begin, "cuMemMap")
        if how == "socket":
            run.until_ready()
            answer = Control(control.replace("%p", str(run.process.pid))).plan(SHARD0)
            expect(is_ok(answer), f"expected 'ok ...', found {answer!r}")
        run.finish()
        run.values()
        run.is_silent()
        if how in ("api", "text"):
            expect(run.out["api"]["result"] == 0, f"metashard_plan_{how}: {run.out['api']}, expected 0")
        check_memory(run, ranges)
        check_plan_report(run, SHARD0, ranges, "enforce", rank)


def check_replaced(place, checkpoints, how):
    """Two plans that come when everything is loaded, for one rank and another: the ranges of the second are there,
    the memory of the first ones is not."""
    checkpoint = checkpoints["one file"]
    wanted = plan({"dp": 4}, ("*.weight", [{"shard": 0}]), ("*", [{"shard": 0}]))
    wanted["tensors"].insert(0, {"name": "scalar"})
    old, new = ranges_of(wanted, checkpoint, 0), ranges_of(wanted, checkpoint, 2)
    path, log = place.path(f"replaced-{how}.json"), place.path(f"replaced-{how}.log")
    control = place.path(f"replaced-{how}.socket")
    for options in ([], ["--ranges", place.write_ranges(new)]):
        for name in (path, log):
            if os.path.exists(name):
                os.unlink(name)
        first = ["--api", place.write(with_rank(wanted, 0))]
        run = Run(place, checkpoint, 3, 4, [*first, "--wait", *options], METASHARD_PLAN=path if how == "file" else None,
                  METASHARD_CONTROL=control, SIMCUDA_LOG=log).until_ready()
        if how == "file":
            begin = os.path.getsize(log)
            place.write(with_rank(wanted, 2), path)
            wait_until_quiet(log, begin, "cuMemMap")
        else:
            answer = Control(control).plan(with_rank(wanted, 2))
            expect(is_ok(answer), f"expected 'ok ...', found {answer!r}")
        run.finish()
        run.values()
        run.is_silent()
        check_replaced_memory(run, old, new)
        check_plan_report(run, wanted, new, "advise", 2)


def check_replaced_memory(run, old, new):
    """No granule that only the old ranges touch; as the ranks are two shards apart, none of them is in a handle
    of the new ranges."""
    sent = 0
    for block in run.dump["blocks"]:
        for name, offset, _ in tensors_in(block, run.out):
            most = len(touched(new[name], GRANULE)) * GRANULE
            both = len(touched(new[name], GRANULE) | touched(old[name], GRANULE)) * GRANULE
            expect(block["backed_bytes"] <= most,
                   f"{name}: {block['backed_bytes']} bytes are in memory, expected at most {most} for the new plan "
                   f"({both} with the old one's)\n{run.said}")
            owned = sum(end - begin for begin, end in new[name])
            expect(block["backed_bytes"] >= owned, f"{name}: {block['backed_bytes']} bytes are in memory, the rank "
                   f"owns {owned}\n{run.said}")
            sent += owned + sum(end - begin for begin, end in old[name])
    expect(sent <= run.dump["h2d_bytes"] <= sent + 64 * PAGE,
           f"h2d_bytes is {run.dump['h2d_bytes']}, expected {sent}: both plans' ranges\n{run.said}")


def check_another_kind(place, checkpoints, seed):
    """A second plan that has little to do with the first: its ranges can be read, and no granule is in memory that
    neither of the two touches."""
    dice = random.Random(seed)
    checkpoint = dice.choice(list(checkpoints.values()))
    (_, first), (_, second) = dice.sample(KINDS, 2)
    first, second = [with_rank(made, dice.randrange(math.prod(mesh_of(made).values()))) for made in (first, second)]
    ranges = {name: ranges_of(made, checkpoint, made["rank"]) for name, made in (("old", first), ("new", second))}
    kernel, mode = ["--kernel", place.kernels], dice.choice(["advise", "enforce"])
    options = dice.choice([[], ["--carve"], ["--pieces", 3], ["--twice"], ["--reload"], ["--settle", place.kernels]]
                          + [kernel, ["--carve", *kernel]] * (mode == "enforce"))
    run = place.run(checkpoint, 0, 1, ["--api", place.write(second), "--ranges", place.write_ranges(ranges["new"]),
                                       *options],
                    RANK=None, WORLD_SIZE=None, METASHARD_PLAN=place.write(first), METASHARD_PLAN_MODE=mode,
                    METASHARD_SETTLE_MS=20)
    run.values()
    expect(run.out["api"]["result"] == 0, f"metashard_plan_file: {run.out['api']}, expected 0")
    for block in run.dump["blocks"]:
        inside = tensors_in(block, run.out)
        both = [part for kept in ranges.values() for part in at_most_in_block(inside, kept)]
        most = len(touched(both, GRANULE)) * GRANULE
        expect(not inside or block["backed_bytes"] <= most,
               f"{inside}: {block['backed_bytes']} bytes are in memory, expected at most {most}\n{run.said}")


# --- reading what is not in the plan


def remote_reads(ranges):
    """(tensor, begin, end, bytes of it that are outside)"""
    begin, end = ranges["embed.weight"][0]
    other = ranges["layers.0.wide.weight"][0]
    return [("embed.weight", end + 300000, end + 300004, 4), ("embed.weight", begin - 1, begin, 1),
            ("embed.weight", end, end + 1, 1), ("layers.0.wide.weight", other[0] - 10, other[1] + 10, 20),
            ("layers.0.wide.weight", other[1] + 10, other[1] + 100000, 99990),
            ("embed.weight", 0, 1001 * 1024, 1001 * 1024 - (end - begin))]


def outside_options(reads):
    return [word for name, begin, end, _ in reads for word in ("--outside", name, begin, end)]


def check_enforced(place, checkpoints, carve):
    """Fails with CUDA_ERROR_NOT_PERMITTED, one line each; the rank's own bytes can still be read after that."""
    checkpoint, rank = checkpoints["three files"], 1
    ranges = ranges_of(SHARD0, checkpoint, rank)
    reads = remote_reads(ranges)
    begin, end = ranges["embed.weight"][0]
    inside = [("embed.weight", begin, end, 0), ("embed.weight", begin + 1, end - 1, 0)]
    run = place.run(checkpoint, rank, 4,
                    ["--ranges", place.write_ranges(ranges), *carve, *outside_options(reads + inside)],
                    METASHARD_PLAN=place.write(SHARD0), METASHARD_PLAN_MODE="enforce")
    run.values()
    for row in run.out["outside"][:len(reads)]:
        expect(row["result"] == OUTSIDE_ERROR, f"{row}: expected CUDA error {OUTSIDE_ERROR}\n{run.said}")
    for row in run.out["outside"][len(reads):]:
        expect(row["result"] == 0 and row["hash"] == row["file_hash"], f"{row}: expected the bytes of the file")
    expect(len(run.lines) == len(reads), f"expected {len(reads)} lines, one for each refused read, found\n"
           + "\n".join(run.lines))
    for line, (name, begin, end, _) in zip(run.lines, reads):
        words = line.replace(",", " ").replace("[", " ").replace(")", " ").split()
        expect(name in line and "cuMemcpyDtoH" in line and (f"rank {rank}" in line or f"{rank} of 4" in line),
               f"{line!r}: expected the tensor {name}, the call and rank {rank}")
        numbers = [int(word) for word in words if word.isdigit()]
        expect(any(begin <= number <= end for number in numbers),
               f"{line!r}: expected the byte range, of what was asked for, {begin} to {end}")
    check_memory(run, ranges)
    seen = check_plan_report(run, SHARD0, ranges, "enforce", rank, outside=True)
    expect(seen["remote_reads"] == len(reads), f"remote_reads: {seen['remote_reads']}, expected {len(reads)}")


def check_file_opened(place, checkpoints):
    """The rank's ranges are brought in before the file may change; those of others are lost, loudly."""
    checkpoint, rank = checkpoints["one file"], 1
    ranges = ranges_of(SHARD0, checkpoint, rank)
    begin = ranges["embed.weight"][0][0]
    options = ["--ranges", place.write_ranges(ranges), "--open", os.path.join(checkpoint.folder, "model.safetensors"),
               "--outside", "embed.weight", begin - 4096, begin]
    run = place.run(checkpoint, rank, 4, options, METASHARD_PLAN=place.write(SHARD0))
    run.values()
    check_memory(run, ranges)
    expect(run.out["outside"][0]["result"] == OPERATING_SYSTEM, f"{run.out['outside']}: expected {OPERATING_SYSTEM}")
    expect(any("opened for writing" in line for line in run.lines), f"no line says why: {run.lines}")
    # Tensors that are copied again are there.
    run = place.run(checkpoint, rank, 4, [*options, "--reload"], METASHARD_PLAN=place.write(SHARD0))
    run.values()
    row = run.out["outside"][0]
    expect(row["result"] == 0 and row["hash"] == row["file_hash"], f"{row}: expected the bytes of the file")


def check_advised(place, checkpoints, carve):
    """The right bytes, and who asked for them."""
    checkpoint, rank = checkpoints["one file"], 1
    ranges = ranges_of(SHARD0, checkpoint, rank)
    reads = remote_reads(ranges)[:-1]
    run = place.run(checkpoint, rank, 4, ["--ranges", place.write_ranges(ranges), *carve, *outside_options(reads)],
                    METASHARD_PLAN=place.write(SHARD0))
    run.values()
    for row in run.out["outside"]:
        expect(row["result"] == 0 and row["hash"] == row["file_hash"], f"{row}: expected the bytes of the file")
    seen = check_plan_report(run, SHARD0, ranges, "advise", rank, outside=True)
    expect(seen["remote_reads"] == len(reads), f"remote_reads: {seen['remote_reads']}, expected {len(reads)}")
    least = sum(count for _, _, _, count in reads)
    expect(seen["remote_read_bytes"] == least, f"remote_read_bytes: {seen['remote_read_bytes']}, expected {least}")
    counts = {}
    for remote_reader in seen["remote_readers"]:
        expect(remote_reader["call"].startswith("cuMemcpyDtoH"), f"{remote_reader}: expected the call cuMemcpyDtoH")
        counts[remote_reader["tensor"]] = counts.get(remote_reader["tensor"], 0) + remote_reader["count"]
    wanted = {"embed.weight": 3, "layers.0.wide.weight": 2}
    expect(counts == wanted, f"remote_readers {seen['remote_readers']}, expected counts {wanted}")
    expect(sum(remote_reader["bytes"] for remote_reader in seen["remote_readers"]) == seen["remote_read_bytes"],
           f"remote_readers {seen['remote_readers']}: expected {seen['remote_read_bytes']} bytes together")


def check_kernels(place, checkpoints):
    """A kernel that goes outside: a fault when the plan is enforced, the right bytes when not."""
    checkpoint, rank = checkpoints["one file"], 1
    ranges = ranges_of(SHARD0, checkpoint, rank)
    outside = ["--kernel", place.kernels, "--outside", "embed.weight", 800 * 1024, 801 * 1024]
    listed = ["--ranges", place.write_ranges({"embed.weight": ranges["embed.weight"]})]
    for mode, result in (("advise", 0), ("enforce", ILLEGAL_ADDRESS)):
        run = place.run(checkpoint, rank, 4, [*listed, *outside], METASHARD_PLAN=place.write(SHARD0),
                        METASHARD_PLAN_MODE=mode)
        run.values()
        row = run.out["outside"][0]
        expect(row["result"] == result, f"{mode}: {row}: expected CUDA error {result}\n{run.said}")
        expect(result != 0 or row["hash"] == row["file_hash"], f"{mode}: {row}: other bytes than in the file")
        if mode == "advise":
            seen = run.dump["plan"]
            expect(any(remote_reader["call"].startswith("cuLaunchKernel") and remote_reader["tensor"] == "embed.weight"
                       for remote_reader in seen["remote_readers"]), f"remote_readers {seen['remote_readers']}: expected cuLaunchKernel")


def check_recorded_kernels(place, checkpoints):
    """A kernel that could be recorded reads other ranks' bytes: enforced, it is not put off until nobody asks any more."""
    checkpoint, rank = checkpoints["one file"], 1
    rules = place.path("rules.txt")
    with open(rules, "w") as file:
        file.write("from-other copy32\n")
    outside = ["--kernel", place.kernels, "--outside", "embed.weight", 800 * 1024, 801 * 1024]
    for mode, result in (("advise", 0), ("enforce", ILLEGAL_ADDRESS)):
        run = place.run(checkpoint, rank, 4, outside, METASHARD_PLAN=place.write(SHARD0), METASHARD_PLAN_MODE=mode,
                        METASHARD_KERNEL_RULES=rules, METASHARD_MIN_BYTES=1)
        row = run.out["outside"][0]
        expect(row["result"] == result, f"{mode}: {row}: expected CUDA error {result}\n{run.said}")
        expect(result != 0 or row["hash"] == row["file_hash"], f"{mode}: {row}: other bytes than in the file")


def check_edges(place, checkpoints):
    """Next to the rank's bytes, in their granule, an enforced kernel finds the right ones: never a part of a granule."""
    checkpoint, rank = checkpoints["one file"], 1
    (begin, end), = ranges_of(SHARD0, checkpoint, rank)["embed.weight"]
    expect(begin % GRANULE >= 4096 and end % GRANULE <= GRANULE - 4096, f"{begin} {end}: expected edges inside of granules")
    outside = ["--outside", "embed.weight", begin - 4096, begin, "--outside", "embed.weight", end, end + 4096]
    run = place.run(checkpoint, rank, 4, ["--kernel", place.kernels, *outside], METASHARD_PLAN=place.write(SHARD0),
                    METASHARD_PLAN_MODE="enforce", SIMCUDA_POISON=1)
    for row in run.out["outside"]:
        expect(row["result"] == 0 and row["hash"] == row["file_hash"], f"{row}: expected the bytes of the file\n{run.said}")


def check_slices(place, checkpoints):
    """Enforced: what is copied out of a tensor, and what is written over it."""
    checkpoint, rank = checkpoints["three files"], 1
    ranges = ranges_of(SHARD0, checkpoint, rank)
    begin, end = ranges["embed.weight"][0]
    path = place.write(SHARD0)

    def run(*options, preload=True):
        return place.run(checkpoint, rank, 4, options, preload=preload, METASHARD_PLAN=path,
                         METASHARD_PLAN_MODE="enforce")
    row = run("--slice", "embed.weight", begin, end).out["ranges"][0]
    expect(row["result"] == 0 and row["hash"] == row["file_hash"], f"a slice of the rank's own: {row}")
    try:
        row = run("--slice", "embed.weight", end, end + 100000).out["ranges"][0]
        expect(row["result"] == OUTSIDE_ERROR, f"a slice of another rank's: {row}, expected CUDA error {OUTSIDE_ERROR}")
    except Wrong as fault:
        expect("CUDA error 800" in str(fault), f"a slice of another rank's: {fault}")
    scribbled = ["--scribble", "embed.weight", end, end + 100000, "--outside", "embed.weight", end, end + 100000]
    with_, without = [run(*scribbled, preload=preload).out["outside"] for preload in (True, False)]
    expect(with_ == without, f"bytes that the program has written itself: {with_}, expected {without}")


def check_kernel_then_copy(place, checkpoints):
    """Enforced: after a kernel, the granules at the edges of the rank's ranges are filled whole. A copy of the other
    ranks' bytes there is refused, or right; one from a granule that has nothing of the rank's is refused."""
    checkpoint, rank = checkpoints["one file"], 1
    ranges = ranges_of(SHARD0, checkpoint, rank)
    begin, end = ranges["embed.weight"][0]
    reads = [("embed.weight", begin - 1, begin, 1), ("embed.weight", end, end + 1, 1),
             ("embed.weight", end + GRANULE, end + GRANULE + 1, 1)]
    run = place.run(checkpoint, rank, 4, ["--ranges", place.write_ranges(ranges), "--kernel", place.kernels,
                                          "--copy-outside", *outside_options(reads)],
                    METASHARD_PLAN=place.write(SHARD0), METASHARD_PLAN_MODE="enforce")
    run.values()
    for row in run.out["outside"]:
        expect(row["result"] == OUTSIDE_ERROR or row["result"] == 0 and row["hash"] == row["file_hash"],
               f"{row}: expected CUDA error {OUTSIDE_ERROR}, or the bytes of the file\n{run.said}")
    expect(row["result"] == OUTSIDE_ERROR, f"{row}: expected CUDA error {OUTSIDE_ERROR}\n{run.said}")


# --- programs that do more


def check_other_programs(place, checkpoints):
    """Advise: whatever the program does with the tensors, the values are those without."""
    checkpoint, rank = checkpoints["three files"], 2
    ranges = ranges_of(SHARD0, checkpoint, rank)
    listed = ["--ranges", place.write_ranges(ranges)]
    wide = 4 * 10 * 65536
    for options in (["--reload"], ["--staged"], ["--free", "embed.weight"], ["--fork"],
                    ["--scribble", "embed.weight", 100, 900000],
                    ["--scribble", "layers.0.wide.weight", 0, wide, "--slice", "layers.0.wide.weight", 5, wide],
                    ["--slice", "layers.0.wide.weight", 100000, 2000000], ["--carve", "--twice", "--reload"],
                    ["--carve", "--slice", "embed.weight", 1, 1000000]):
        with_, without = [place.run(checkpoint, rank, 4, [*listed, *options, "--outside", "layers.1.few.weight", 0, 99],
                                    preload=preload, METASHARD_PLAN=place.write(SHARD0)) for preload in (True, False)]
        with_.is_silent()
        for key in ("ranges", "outside"):
            expect(with_.out[key] == without.out[key], f"other values than without\n{with_.said}")
        if options[0] in ("--reload", "--staged", "--fork"):
            seen = with_.dump["plan"]
            expect(seen["remote_reads"] == 1, f"remote_reads: {seen['remote_reads']}, expected 1\n{with_.said}")


FAULTS = {"cuMemCreate": 2, "cuMemMap": 999, "cuMemSetAccess": 999, "cuMemUnmap": 999, "cuMemRelease": 999,
          "cuMemcpyHtoDAsync_v2": 999, "cuStreamCreate": 2, "cuStreamSynchronize": 999, "cuCtxSynchronize": 999}


def check_failing_calls(place, checkpoints):
    """A driver call that fails once: the program sees an error, or the right bytes."""
    checkpoint, rank = checkpoints["one file"], 1
    listed = ["--ranges", place.write_ranges(ranges_of(SHARD0, checkpoint, rank))]
    failed = 0
    for function, code in FAULTS.items():
        for call in (1, 2, 5, 11):
            run = Run(place, checkpoint, rank, 4, listed, METASHARD_PLAN=place.write(SHARD0),
                      METASHARD_PLAN_MODE="enforce", METASHARD_SELFCHECK="off",
                      SIMCUDA_FAULTS=f"{function}:{call}={code}")
            status, text = run.end()
            expect(status == 0 or status == 1 and "CUDA error" in run.stderr(),
                   f"exit status {status}\n{run.said}\n{run.stderr()[-1000:]}")
            rows = json.loads(text)["ranges"] if status == 0 else []
            for row in rows:
                expect(row["hash"] == row["file_hash"], f"{row}: other bytes than in the file\n{run.said}")
            failed += status != 0 or any(row["result"] for row in rows)
    expect(failed > 2, f"{failed} of the faults reached the program")


# --- plans that are wrong, and such that fit only in part


def bad_plans():
    good = SHARD0["tensors"]
    return [("not JSON", b"{\"format\": ", {}), ("empty", b"", {}), ("binary", bytes(range(256)), {}),
            ("another format", {**SHARD0, "format": "metashard-plan/2"}, {}),
            ("an unknown key", {**SHARD0, "tensors": [{"nmae": "*"}]}, {}),
            ("another world", SHARD0, {"WORLD_SIZE": 5}), ("no rank", SHARD0, {"RANK": None, "WORLD_SIZE": None}),
            ("a rank beyond", SHARD0, {"RANK": 4, "WORLD_SIZE": None}),
            ("another dtype", {**SHARD0, "tensors": [
                {"name": "embed.weight", "dtype": "F16", "shape": [1001, 256]}, *good]}, {}),
            ("another shape", {**SHARD0, "tensors": [
                {"name": "layers.*.q.weight", "dtype": "BF16", "shape": [512, 513]}, *good]}, {}),
            ("ranges beyond the tensor", {**SHARD0, "tensors": [
                {"name": "embed.weight", "ranges": [[[0, 1001 * 1024 + 1]], [], [], []]}, *good]}, {}),
            ("a dimension that is not there", plan({"dp": 4}, ("*", [{"shard": 3}])), {})]


def check_bad(place, checkpoints, content, settings):
    """One line that says which plan; the values are those without, and the program goes on."""
    checkpoint = checkpoints["three files"]
    everything = {tensor.name: [[0, tensor.bytes()]] for tensor in checkpoint.tensors if tensor.bytes()}
    listed = ["--ranges", place.write_ranges(everything)]
    for mode in ("advise", "enforce"):
        path = place.write(content)
        run = place.run(checkpoint, 1, 4, listed, METASHARD_PLAN=path, METASHARD_PLAN_MODE=mode, **settings)
        run.values()
        expect(len(run.lines) == 1, f"{mode}: expected one line, found {run.lines}\n{run.said}")
        expect(path in run.lines[0] or "METASHARD_PLAN" in run.lines[0],
               f"{run.lines[0]!r}: expected the name of the file, or of the variable\n{run.said}")


def check_bad_settings(place, checkpoints):
    checkpoint = checkpoints["one file"]
    ranges = ranges_of(SHARD0, checkpoint, 1)
    listed = ["--ranges", place.write_ranges(ranges)]
    for settings, lines in (({"METASHARD_PLAN": place.write(SHARD0), "METASHARD_PLAN_MODE": "force"}, 1),
                            ({"METASHARD_PLAN": place.path("never-there.json")}, 1),
                            ({"METASHARD_PLAN": place.path("no-folder/plan.json")}, None),
                            ({"METASHARD_PLAN": place.folder}, None)):
        run = place.run(checkpoint, 1, 4, listed, **settings)
        run.values()
        expect(len(run.lines) <= 1 if lines is None else len(run.lines) == lines,
               f"expected {lines} lines, found {run.lines}\n{run.said}")


def check_bad_later(place, checkpoints):
    """A bad plan by the C API and as a file that is replaced: an error, and the program does not notice."""
    checkpoint = checkpoints["one file"]
    ranges = ranges_of(SHARD0, checkpoint, 1)
    listed = ["--ranges", place.write_ranges(ranges)]
    for content in (b"{", b"", {**SHARD0, "tensors": [{"nmae": "*"}]}):
        for option in ("--api", "--text"):
            run = place.run(checkpoint, 1, 4, [*listed, option, place.write(content)])
            run.values()
            said = run.out["api"]
            expect(said["result"] not in (0, None) and said["error"] != "",
                   f"{option}: {said}, expected an error and why\n{run.said}")
            expect(len(run.lines) <= 1, f"expected at most one line, found {run.lines}")
    run = place.run(checkpoint, 1, 4, [*listed, "--api", place.path("never-there.json")])
    run.values()
    expect(run.out["api"]["result"] not in (0, None), f"a missing file: {run.out['api']}, expected an error")


def check_unmatched(place, checkpoints):
    """Entries that fit no tensor are named, the others work."""
    made = {**SHARD0, "tensors": [{"name": "model.nowhere.*", "placements": [{"shard": 0}]}, {"name": "not.there"},
                                  {"name": "declared", "dtype": "F32", "shape": [64, 1024],
                                   "placements": [{"shard": 0}]}, *SHARD0["tensors"]]}
    checkpoint = checkpoints["three files"]
    ranges = ranges_of(SHARD0, checkpoint, 3)
    run = place.run(checkpoint, 3, 4, ["--ranges", place.write_ranges(ranges), "--materialise"],
                    METASHARD_PLAN=place.write(made))
    run.values()
    check_memory(run, ranges)
    seen = run.dump["plan"]["unmatched"]
    expect(sorted(seen) == ["declared", "model.nowhere.*", "not.there"], f"unmatched: {seen}\n{run.said}")
    expect(len(run.lines) <= 2, f"expected a line for each at most, found {run.lines}")


def run_example(place, rank, world, preload):
    """(its lines, the dump)"""
    example = os.path.join(HERE, "..", "..", "..", "docs", "examples", "plan_ctypes.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("METASHARD")}
    environment.update(place.without)
    dump = place.path("example-dump")
    if preload:
        environment.update(LD_PRELOAD=place.preload, METASHARD_DUMP=dump)
    done = subprocess.run([sys.executable, example, "--rank", str(rank), "--world", str(world)], env=environment,
                          capture_output=True, text=True, timeout=60)
    expect(done.returncode == 0 and done.stderr == "", f"exit status {done.returncode}\n{done.stderr}")
    return done.stdout.splitlines(), read_dump(dump) if preload else None


def check_example(place):
    """docs/examples/plan_ctypes.py: tensors that are in no file, two of 8 MiB, on granules of 2 MiB or of a setup's size."""
    granule = re.search(r"SIMCUDA_GRANULE_KIB=(\d+)", os.environ.get("SIM_SETTINGS", ""))
    granule = int(granule[1]) << 10 if granule else 2 << 20
    for rank, world in ((1, 4), (2, 3)):
        without, _ = run_example(place, rank, world, False)
        lines, dump = run_example(place, rank, world, True)
        expect(without[0] == "without MetaShard" and lines[0] == "with MetaShard", f"{without[0]}; {lines[0]}")
        expect(lines[1] == without[1], f"other values: {without[1]!r} without, {lines[1]!r} with")
        rows = min(-(-1024 // world), 1024 - rank * -(-1024 // world))
        owned = 2 * rows * 8192
        begin = rank * -(-1024 // world) * 8192
        backed = -(-(begin + rows * 8192) // granule) * granule - begin // granule * granule
        seen = [block["backed_bytes"] for block in dump["blocks"]]
        expect(seen == [backed] * 2, f"rank {rank} of {world}: {seen} bytes are in memory, expected {backed} of each")
        expect(owned <= dump["h2d_bytes"] <= owned + 4 * PAGE, f"h2d_bytes is {dump['h2d_bytes']}, expected {owned}")
        wanted = {"tensors": 2, "planned_bytes": 16 << 20, "owned_bytes": owned, "rank": rank, "world_size": world,
                  "remote_reads": 0, "unmatched": [], "ambiguous": []}
        expect({key: dump["plan"].get(key) for key in wanted} == wanted, f"plan: {dump['plan']}, expected {wanted}")


# --- all of it


def check_client(place, checkpoints):
    """Without the preload: what all the others are compared with."""
    checkpoint, made = checkpoints["three files"], KINDS[-1][1]
    listed = ["--ranges", place.write_ranges(ranges_of(made, checkpoint, 0))]
    for options in ([], ["--carve"], ["--pieces", 7], ["--staged"], ["--twice"], ["--reload"],
                    ["--kernel", place.kernels], ["--slice", "embed.weight", 7, 9999]):
        run = place.run(checkpoint, 0, 4, [*listed, *options], preload=False)
        run.values()
        run.is_silent()
    everything = sum(tensor.bytes() for tensor in checkpoint.tensors)
    expect(place.run(checkpoint, 0, 4, preload=False).stats["h2d_bytes"] == everything, "not all was copied")
    scribbled = place.run(checkpoint, 0, 4, ["--scribble", "embed.weight", 0, 9, "--outside", "embed.weight", 0, 20],
                          preload=False).out["outside"][0]
    expect(scribbled["hash"] != scribbled["file_hash"], "the hash does not tell other bytes")


def check_random(place, seed):
    """--seeds: random tensors, plans, ways."""
    dice = random.Random(seed)
    checkpoint, made = random_case(seed, place.folder)
    for rank in range(math.prod(mesh_of(made).values())):
        options = dice.choice([[], ["--carve"], ["--twice"], ["--kernel", place.kernels]])
        if any(tensor.bytes() % 4 for tensor in checkpoint.tensors) and "--kernel" in options:
            options = []  # the kernel reads words
        mode = "enforce" if "--kernel" in options else dice.choice(["advise", "enforce"])
        min_bytes = 1 if "--carve" in options else dice.choice([1, 4096, MIN_BYTES])
        # A declared tensor without elements may be in a file that nothing is copied from.
        check_rank(place, checkpoint, made, rank, mode, options, min_bytes=min_bytes,
                   but="match no tensor of the program")


def tests_of(place, checkpoints, arguments):
    if arguments.seeds:
        return [test for seed in range(arguments.first, arguments.first + arguments.seeds) for test in (
            (f"random plan, seed {seed}", lambda seed=seed: check_random(place, seed)),
            (f"a second plan, of another kind, seed {seed}",
             lambda seed=seed: check_another_kind(place, checkpoints, seed)))]
    tests = [("the client, without the preload", lambda: check_client(place, checkpoints))]
    for number, (name, made) in enumerate(KINDS):
        tests.append((f"every rank: {name}",
                      lambda number=number, made=made: check_kind(place, checkpoints, number, made)))
    tests += [("the ranges are there before anything is read", lambda: check_without_reading(place, checkpoints)),
              ("a plan fetches nothing by itself", lambda: check_nothing_fetched(place, checkpoints)),
              ("never more than without a plan", lambda: check_never_more(place, checkpoints)),
              ("tensors of any size", lambda: check_everything_deferred(place, checkpoints)),
              ("copies with short ends", lambda: check_short_ends(place, checkpoints)),
              ("files without an index", lambda: check_no_index(place)),
              ("granules of 2 MiB", lambda: check_big_granules(place)),
              ("a device with room for the shards alone", lambda: check_small_device(place, checkpoints)),
              ("more, on a device with room for the shards", lambda: check_more(place, checkpoints)),
              ("settling", lambda: check_settling(place, checkpoints))]
    for how in ("file", "socket", "api", "text"):
        tests.append((f"a plan that comes late: {how}", lambda how=how: check_plan_comes(place, checkpoints, how)))
    for how in ("file", "socket"):
        tests.append((f"a second plan: {how}", lambda how=how: check_replaced(place, checkpoints, how)))
    for seed in range(6):
        tests.append((f"a second plan, of another kind, seed {seed}",
                      lambda seed=seed: check_another_kind(place, checkpoints, seed)))
    for carve in ([], ["--carve"]):
        name = "in one allocation" if carve else "tensor by tensor"
        tests.append((f"enforced: {name}", lambda carve=carve: check_enforced(place, checkpoints, carve)))
        tests.append((f"advised: {name}", lambda carve=carve: check_advised(place, checkpoints, carve)))
    tests += [("a file that is opened for writing", lambda: check_file_opened(place, checkpoints)),
              ("slices and new bytes, enforced", lambda: check_slices(place, checkpoints)),
              ("a copy after a kernel, enforced", lambda: check_kernel_then_copy(place, checkpoints)),
              ("kernels that go outside", lambda: check_kernels(place, checkpoints)),
              ("kernels that could be recorded", lambda: check_recorded_kernels(place, checkpoints)),
              ("kernels at the edges of the ranges", lambda: check_edges(place, checkpoints)),
              ("programs that do more", lambda: check_other_programs(place, checkpoints)),
              ("failing driver calls", lambda: check_failing_calls(place, checkpoints))]
    tests += [(f"a bad plan: {name}", lambda content=content, settings=settings:
               check_bad(place, checkpoints, content, settings)) for name, content, settings in bad_plans()]
    tests += [("bad settings", lambda: check_bad_settings(place, checkpoints)),
              ("bad plans that come late", lambda: check_bad_later(place, checkpoints)),
              ("entries that fit no tensor", lambda: check_unmatched(place, checkpoints)),
              ("the example of the C API", lambda: check_example(place))]
    tests += [(f"no files: {name}", lambda test=test: test(place)) for name, test in no_files_checks.TESTS]
    tests += [(f"a script: {name}", lambda test=test: test(place)) for name, test in script_checks.TESTS]
    tests += [(f"a plan comes late: {name}", lambda test=test: test(place, checkpoints["one file"], SHARD0))
              for name, test in late_checks.TESTS]
    tests += [(f"socket: {name}", lambda test=test: test(place, checkpoints["one file"], SHARD0))
              for name, test in socket_checks.TESTS]
    return tests


def main():
    parser = argparse.ArgumentParser()
    for option in ("--client", "--kernels", "--preload"):
        parser.add_argument(option, required=True)
    parser.add_argument("--seeds", type=int, default=0, help="instead: so many random plans")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--only", default="", help="tests with this in their name")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="metashard-shard-") as folder:
        place = Place(os.path.abspath(arguments.client), os.path.abspath(arguments.kernels), arguments.preload,
                      folder)
        checkpoints = make_checkpoints(folder)
        for name, test in tests_of(place, checkpoints, arguments):
            if arguments.only not in name:
                continue
            tap.run(name, test)
            place.clean()
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())

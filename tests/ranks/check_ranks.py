#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_ranks.py --preload VALUE --torch LIBRARY: ranks as processes, with the simulated NCCL (NCCL_LIBRARY). TAP.

A plan that waits for a communicator to say which rank this is; ranks that nobody agrees on; broadcasts into deferred
memory, which every rank finds as without the preload; and an NCCL that cannot be hooked, which is said.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import tap  # noqa: E402
from state_page import read_dump  # noqa: E402
from tap import Wrong, expect  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "..", "plans", "shard", "script.py")
WORLD, GRANULE, ROWS, ROW = 4, 64 << 10, 512, 2048
SIZE, OWN = ROWS * ROW, ROWS * ROW // 4


options = argparse.Namespace()


def make_checkpoint(folder):
    header = json.dumps({"a": {"dtype": "F32", "shape": [ROWS, ROW // 4], "data_offsets": [0, SIZE]}}).encode()
    path = os.path.join(folder, "model.safetensors")
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + os.urandom(SIZE))
    os.utime(path, (1e9, 1e9))
    return path, 8 + len(header)


def run(folder, name, steps_of, preload, plan=None, ranks_told=None, level=None, settings=None):
    """[(results, dump, lines)] of all ranks. steps_of(rank, path of the id); ranks_told: rank -> RANK, or none."""
    path = os.path.join(folder, "model.safetensors")
    started, identity = [], os.path.join(folder, name + ".id")
    for rank in range(WORLD):
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("METASHARD", "SIMCUDA_", "RANK", "WORLD_SIZE", "OMPI_", "SLURM_", "PMI_"))}
        environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        dump = os.path.join(folder, f"{name}-{rank}.json")
        environment.update(SIMCUDA_GRANULE_KIB=str(GRANULE >> 10), SIMCUDA_POISON="2")
        if ranks_told is not None:
            environment.update(RANK=str(ranks_told(rank)), WORLD_SIZE=str(WORLD))
        environment["LD_PRELOAD"] = ":".join(options.preload.split(":")[:-1])  # a sanitizer's, or nothing
        if preload:
            environment.update(LD_PRELOAD=preload, METASHARD_DUMP=dump, METASHARD_MIN_BYTES=str(GRANULE))
            if plan is not None:
                environment["METASHARD_PLAN"] = plan
            if level is not None:
                environment["METASHARD_LOG"] = level
            environment.update(settings(rank) if callable(settings) else settings or {})
        process = subprocess.Popen([sys.executable, PROGRAM], env=environment, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdin.write(json.dumps({"file": path, "steps": steps_of(rank, identity)}))
        process.stdin.close()
        process.stdin = None
        started.append((process, dump))
    ended = []
    for process, dump in started:
        try:
            out, error = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            for other, _ in started:
                other.kill()
            raise Wrong(f"{name}: hangs") from None
        expect(process.returncode == 0, f"{name}: exit status {process.returncode}\n{error[-900:]}")
        facts = None
        if os.path.exists(dump):
            facts = read_dump(dump)
            os.unlink(dump)
        ended.append((json.loads(out), facts, [line for line in error.splitlines() if "metashard" in line]))
    return ended


def plan_file(folder):
    path = os.path.join(folder, "plan.json")
    with open(path, "w") as file:
        json.dump({"format": "metashard-plan/1", "mesh": {"dp": WORLD},
                   "tensors": [{"name": "*", "placements": [{"shard": 0}]}]}, file)
    return path


def check_waits(folder, preload, start):
    """Before and behind what is loaded: the communicator tells the rank, and the rank's rows are there when they are
    asked for."""
    for number, before in enumerate((True, False)):
        def steps(rank, identity):
            made, load = ["communicator", WORLD, rank, identity], ["load", start, start + SIZE]
            return [*([made, load] if before else [load, made]), ["materialise"]]
        for rank, (results, dump, lines) in enumerate(run(folder, f"waits{number}", steps, preload, plan_file(folder))):
            expect(all(result == [0, None] for result in results), f"rank {rank}: {results}")
            seen = dump.get("plan", {})
            expect(seen.get("rank") == rank and seen.get("tensors") == 1, f"rank {rank}: {seen}\n{lines}")
            kept = [block["backed_bytes"] for block in dump["blocks"]]
            expect(kept == [OWN], f"rank {rank}: in memory {kept}, expected {OWN}")
            block = dump["blocks"][0]
            expect(block["bytes"] - block["remote_bytes"] == OWN, f"rank {rank}: {block}")
            expect(lines == [], f"rank {rank}: {lines}")


def check_disagreement(folder, preload, start):
    """RANK says another rank than the communicator: it is followed, and told."""
    def steps(rank, identity):
        return [["load", start, start + SIZE], ["communicator", WORLD, rank, identity]]
    ended = run(folder, "disagree", steps, preload, plan_file(folder), lambda rank: (rank + 1) % WORLD)
    for rank, (_, dump, lines) in enumerate(ended):
        expect(dump["plan"]["rank"] == (rank + 1) % WORLD, f"rank {rank}: {dump['plan']}")
        expect(len(lines) == 1 and f"is rank {rank} in a communicator" in lines[0], f"rank {rank}: {lines}")
    ended = run(folder, "agree", steps, preload, plan_file(folder), lambda rank: rank)
    expect(all(lines == [] for _, _, lines in ended), f"{[lines for _, _, lines in ended]}: expected no message")


def mesh_plan(folder, mesh):
    path = os.path.join(folder, "plan-" + "-".join(mesh) + ".json")
    with open(path, "w") as file:
        json.dump({"format": "metashard-plan/1", "mesh": mesh,
                   "tensors": [{"name": "*", "placements": {list(mesh)[-1]: {"shard": 0}}}]}, file)
    return path


def check_groups(folder, preload, start):
    """A plan for a part of the ranks, which is split off; for groups along its dimensions; and a group that is along none."""
    def halves(rank, identity):
        return [["communicator", WORLD, rank, identity], ["split", rank // 2, rank], ["load", start, start + SIZE]]
    for rank, (_, dump, _) in enumerate(run(folder, "halves", halves, preload, mesh_plan(folder, {"dp": 2}))):
        expect(dump.get("plan", {}).get("rank") == rank % 2, f"rank {rank}: {dump.get('plan')}")

    # 2 x 3 = 6 ranks, of which 4 run: groups of 2 and of 3 that tell coordinates.
    def groups(rank, identity):
        pair, triple = ["split", rank // 2, rank], ["split", 0 if rank < 3 else -1, rank]
        return [["communicator", WORLD, rank, identity], pair, triple, ["load", start, start + SIZE]]
    for rank, (_, dump, lines) in enumerate(run(folder, "groups", groups, preload,
                                                mesh_plan(folder, {"dp": 2, "shard": 3}))):
        seen = dump.get("plan", {}).get("rank") if dump.get("plan") else None
        expect(seen == (rank % 2 * 3 + rank if rank < 3 else None), f"rank {rank}: {dump.get('plan')}, {lines}")

    def odd(rank, identity):
        return [["communicator", WORLD, rank, identity], ["split", rank % 2, -rank]]
    ended = run(folder, "odd", odd, preload, mesh_plan(folder, {"dp": 2, "shard": 2}), lambda rank: rank, "info")
    said = [[line for line in lines if "coordinate in no mesh dimension" in line] for _, _, lines in ended]
    # Backwards along dp: rank 0 of the plan is rank 1 there, and its coordinates are 0 and 0.
    expect([len(lines) for lines in said] == [1, 0, 0, 1], f"{said}")


def check_broadcast(folder, preload, start):
    """The root's block is a file's, the others' were never written: only what NCCL needs is in memory."""
    def steps(rank, identity):
        mine = ["load", start, start + SIZE] if rank == 0 else ["reserve", SIZE]
        return [["communicator", WORLD, rank, identity], mine, ["reserve", SIZE], ["broadcast", 0, 0, SIZE // 2, 0],
                ["synchronise"], ["read", 0, 0, SIZE // 2]]
    with_ = run(folder, "broadcast", steps, preload)
    without = run(folder, "broadcast-without", steps, None)
    for rank in range(WORLD):
        expect(with_[rank][0] == without[rank][0], f"rank {rank}: {with_[rank][0]}, expected {without[rank][0]}")
        kept = [block["backed_bytes"] for block in with_[rank][1]["blocks"]]
        expect(kept == [SIZE // 2, 0], f"rank {rank}: in memory {kept}, expected {SIZE // 2} and nothing")
        read = with_[rank][1]["file_read_bytes"]
        expect(read == (SIZE // 2 if rank == 0 else 0), f"rank {rank}: file_read_bytes is {read}")


def check_register(folder, preload, start):
    """PyTorch registers all its memory with every communicator: it stays deferred, unless the user wants otherwise."""
    def steps(rank, identity):
        mine = ["load", start, start + SIZE] if rank == 0 else ["reserve", SIZE]
        return [["communicator", WORLD, rank, identity], mine, ["register", 0, SIZE],
                ["broadcast", 0, 0, SIZE // 2, 0], ["synchronise"], ["read", 0, 0, SIZE // 2], ["deregister"]]
    without = run(folder, "register-without", steps, None)
    for wanted, settings in ((SIZE // 2, {}), (SIZE, {"METASHARD_NCCL_REGISTER": "on"})):
        for rank, (results, dump, _) in enumerate(run(folder, f"register{wanted}", steps, preload,
                                                                  settings=settings)):
            expect(results == without[rank][0], f"rank {rank}: {results}, expected {without[rank][0]}")
            kept = [block["backed_bytes"] for block in dump["blocks"]]
            expect(kept == [wanted], f"rank {rank}, {settings}: in memory {kept}, expected {wanted}")


def declared_plan(folder, dimension=0, shape=(ROWS, ROW // 4)):
    path = os.path.join(folder, f"declared-{dimension}-{len(shape)}.json")
    with open(path, "w") as file:
        json.dump({"format": "metashard-plan/1", "mesh": {"dp": WORLD},
                   "tensors": [{"name": "a", "dtype": "F32", "shape": shape,
                                "placements": [{"shard": dimension}]}]}, file)
    return path


def check_parts(folder, preload, start):
    """A broadcast of a tensor of the plan: the rank's rows are there and right, the others are refused."""
    def steps(rank, identity):
        mine = ["load", start, start + SIZE] if rank == 0 else ["reserve", SIZE]
        return [["communicator", WORLD, rank, identity], mine, ["broadcast", 0, 0, SIZE, 0], ["synchronise"],
                ["read", 0, rank * OWN, (rank + 1) * OWN], ["read", 0, (rank + 1) % WORLD * OWN, (rank + 1) % WORLD * OWN + OWN], ["read", 0, 0, SIZE],
                ["fill", 0, 0, SIZE, 7], ["read", 0, 0, SIZE]]
    refused = 800  # CUDA_ERROR_NOT_PERMITTED
    plan, rank_of = declared_plan(folder), lambda rank: rank
    without = run(folder, "parts-without", steps, None)
    for name, settings in (("parts", {}), ("whole", {"METASHARD_RECEIVE_PARTS": "off"})):
        ended = run(folder, name, steps, preload, plan, rank_of, settings=settings)
        for rank, (results, dump, lines) in enumerate(ended):
            expected = list(without[rank][0])
            if rank > 0 and name != "whole":
                expected[5] = expected[6] = [refused, None]
                expect(len(lines) == 2 and all("was received for other ranks only" in line for line in lines), lines)
                expect(dump["backed_bytes_peak"] <= SIZE + OWN, dump["backed_bytes_peak"])
            expect(results == expected, f"{name}, rank {rank}: {results}, expected {expected}")
            expect(dump["received_unkept_bytes"] == (SIZE - OWN if rank > 0 and name == "parts" else 0),
                   f"{name}, rank {rank}: received_unkept_bytes is {dump['received_unkept_bytes']}")


def check_columns(folder, preload, start):
    """A tensor that is cut by columns is received whole, since every granule has some of each rank's: its columns are
    copied out of it, and kernels compute with it, as without the preload."""
    width, pitch = ROW // WORLD, ROW
    late = {"METASHARD_RECEIVE_MS": "0", "SIMNCCL_DELAY_US": "300000"}  # the calls return before it has run
    plan = declared_plan(folder, 1)

    def received(rank, identity):
        mine = ["load", start, start + SIZE] if rank == 0 else ["reserve", SIZE]
        return [["communicator", WORLD, rank, identity], mine, ["reserve", OWN], ["reserve", OWN],
                ["broadcast", 0, 0, SIZE, 0], ["columns", 1, 0, rank * width, width, pitch, ROWS]]

    def steps(rank, identity):
        other = (rank + 1) % WORLD * width
        return [*received(rank, identity), ["columns", 2, 0, other, width, pitch, ROWS], ["read", 0, 0, SIZE],
                ["read", 2, 0, OWN], ["read", 1, 0, OWN], ["fill", 1, 5, 9, 3], ["read", 1, 0, OWN]]

    def steps_in_place(rank, identity):
        return [*received(rank, identity), ["rows", 0, rank * width, width, pitch, ROWS], ["free", 0],
                ["read", 1, 0, OWN]]

    def steps_of_kernels(rank, identity):
        return [*received(rank, identity), ["reserve", SIZE], ["multiply", 3, 0, 0, SIZE // 4],
                ["multiply", 1, 1, 0, OWN // 4], ["read", 3, 0, SIZE], ["read", 1, 0, OWN]]
    for name, steps_of, settings in (("columns", steps, {}), ("columns-in-place", steps_in_place, {}),
                                     ("columns-kernels", steps_of_kernels, {}), ("columns-late", steps_in_place, late)):
        without = run(folder, name + "-without", steps_of, None)
        ended = run(folder, name, steps_of, preload, plan, lambda rank: rank, settings=settings)
        for rank, (results, dump, lines) in enumerate(ended):
            expected = without[rank][0]
            expect(results == expected, f"{name}, rank {rank}: {results}, expected {expected}\n{lines}")
            expect(dump["received_unkept_bytes"] == 0, f"{name}, rank {rank}: {dump['received_unkept_bytes']}")


def check_copied_back(folder, preload, start):
    """As PyTorch does it: copied to a bucket, broadcast there, and copied back. Bytes that are absent there are absent here; and
    the calls find their streams idle, however long the broadcast takes to begin."""
    def steps(rank, identity):
        mine = ["load", start, start + SIZE] if rank == 0 else ["reserve", SIZE]
        other = (rank + 1) % WORLD * OWN
        # From the first read on, a copy is recorded on an idle stream only.
        return [["communicator", WORLD, rank, identity], ["new", 16, 1], ["read", 0, 0, 16],
                mine, mine, ["reserve", SIZE], ["reserve", SIZE],
                ["copy", 3, 0, 1, 0, SIZE], ["broadcast", 3, 0, SIZE, 0],
                ["copy", 4, 0, 2, 0, SIZE], ["broadcast", 4, 0, SIZE, 0],
                ["copy", 1, 0, 3, 0, SIZE], ["copy", 2, 0, 4, 0, SIZE],
                ["read", 1, rank * OWN, (rank + 1) * OWN], ["read", 2, other, other + OWN]]
    refused = 800  # CUDA_ERROR_NOT_PERMITTED
    plan, settings = declared_plan(folder), {"SIMNCCL_DELAY_US": "200000"}
    without = run(folder, "back-without", steps, None)
    for rank, (results, dump, lines) in enumerate(run(folder, "back", steps, preload, plan, lambda rank: rank,
                                                      settings=settings)):
        expected = list(without[rank][0])
        if rank > 0:
            expected[-1] = [refused, None]
            # The parts twice, in whole granules: in the bucket and copied back.
            expect(dump["backed_bytes_peak"] <= 4 * OWN, f"rank {rank}: {dump['backed_bytes_peak']}")
        expect(results == expected, f"rank {rank}: {results}, expected {expected}\n{lines}")


def check_edges(folder, preload, start):
    """A tensor that begins and ends within a granule: what is not kept there takes no memory, and what its neighbours have
    there is as it was, also when it is read before the broadcast has run."""
    half, refused = GRANULE // 2, 800  # CUDA_ERROR_NOT_PERMITTED
    plan, rank_of = declared_plan(folder), lambda rank: rank
    late = {"METASHARD_RECEIVE_MS": "0", "SIMNCCL_DELAY_US": "200000"}

    def steps(reads_neighbours):
        def steps_of(rank, identity):
            at, mine = (0, ["load", start, start + SIZE]) if rank == 0 else (half, ["reserve", SIZE + GRANULE])
            around = [] if rank == 0 else [["fill", 0, 0, half, 7], ["fill", 0, half + SIZE, half, 9]]
            read = [["read", 0, 0, half], ["read", 0, half + SIZE, SIZE + GRANULE]] if rank > 0 and reads_neighbours else []
            other = at + (rank + 1) % WORLD * OWN
            return [["communicator", WORLD, rank, identity], mine, *around, ["broadcast", 0, at, SIZE, 0], *read,
                    ["read", 0, at + rank * OWN, at + (rank + 1) * OWN], ["read", 0, other, other + OWN]]
        return steps_of
    for reads_neighbours, settings in ((False, {}), (True, late)):
        name = f"edges{reads_neighbours}"
        without = run(folder, name + "-without", steps(reads_neighbours), None)
        ended = run(folder, name, steps(reads_neighbours), preload, plan, rank_of, settings=settings)
        for rank, (results, dump, lines) in enumerate(ended):
            expected = list(without[rank][0])
            if rank > 0:
                expected[-1] = [refused, None]
                kept = sum(block["backed_bytes"] for block in dump["blocks"])
                read = (2 if rank < WORLD - 1 else 1) * GRANULE if reads_neighbours else 0  # the last's part ends with one
                expect(kept == OWN + GRANULE + read, f"{name}, rank {rank}: in memory {kept}")
            expect(results == expected, f"{name}, rank {rank}: {results}, expected {expected}\n{lines}")


def check_passes(folder, preload, start):
    """As FSDP2 does it: in each pass the shard is copied between the others' places, and gathered there. It is sent to the
    device once, whatever the number of passes."""
    part = OWN - 12

    def steps_of(passes):
        def steps(rank, identity):
            gathered = [step for block in range(1, passes + 1) for step in
                        (["reserve", WORLD * part], ["copy", block, rank * part, 0, 0, part], ["gather", block, rank, part],
                         ["read", block, 0, WORLD * part], ["free", block])]
            return [["communicator", WORLD, rank, identity], ["load", start + rank * part, start + (rank + 1) * part],
                    *gathered, ["read", 0, 0, part]]
        return steps
    for passes in (1, 3):
        without = run(folder, f"passes{passes}-without", steps_of(passes), None)
        for rank, (results, dump, lines) in enumerate(run(folder, f"passes{passes}", steps_of(passes), preload)):
            expect(results == without[rank][0], f"rank {rank}: {results}, expected {without[rank][0]}\n{lines}")
            expect(dump["h2d_bytes"] == part, f"{passes} passes, rank {rank}: {dump['h2d_bytes']} sent, expected {part}")


def check_linked_in(folder, preload, start):
    """A PyTorch (LIBRARY stands for it) in a process without libnccl has it linked in."""
    def steps(with_nccl):
        def steps_of(rank, identity):
            made = [["communicator", WORLD, rank, identity]] if with_nccl else []
            return [["open", options.torch], *made, *[["reserve", GRANULE]] * 20]
        return steps_of
    for with_nccl in (False, True):
        for rank, (_, _, lines) in enumerate(run(folder, f"linked{with_nccl}", steps(with_nccl), preload)):
            said = [line for line in lines if "NCCL linked into it" in line]
            expect(len(said) == (not with_nccl) and lines == said, f"rank {rank}, with libnccl {with_nccl}: {lines}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--preload", required=True)
    parser.add_argument("--torch", required=True)
    parser.add_argument("--kernels", required=True)
    parser.parse_args(namespace=options)
    os.environ["TORCH_KERNELS"] = options.kernels
    preload = options.preload
    tests = [("a plan that waits for a communicator", check_waits), ("ranks that disagree", check_disagreement),
             ("groups", check_groups), ("broadcasts", check_broadcast), ("registered buffers", check_register),
             ("parts of broadcasts", check_parts), ("columns", check_columns),
             ("parts of what is copied back", check_copied_back),
             ("a tensor's first and last granule", check_edges), ("a shard that is gathered again and again", check_passes), ("an NCCL that is linked in", check_linked_in)]
    with tempfile.TemporaryDirectory(prefix="metashard-ranks-") as folder:
        _, start = make_checkpoint(folder)
        for name, test in tests:
            tap.run(name, test, folder, preload, start)
    return tap.end()


if __name__ == "__main__":
    sys.exit(main())

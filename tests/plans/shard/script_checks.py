# SPDX-License-Identifier: Apache-2.0
"""Plans and copies within the device, rows, and plans that come in the middle of loading: programs of script.py."""
import json
import os
import subprocess
import sys

from workplace import FORMAT, GRANULE, LAUNCHERS, PAGE, expect, read_dump

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "script.py")
KIB = 1 << 10
ROWS, ROW = 512, 2 * KIB  # of each of two tensors: 1 MiB
SIZE, OWN = ROWS * ROW, ROWS * ROW // 4
RANK = 1
NAMES = ["a", "b"]


def make(place, name="script", shape=(ROWS, ROW // 4)):
    """(path, [begin, end) of the tensors in the file)"""
    header = json.dumps({name: {"dtype": "F32", "shape": shape, "data_offsets": [i * SIZE, (i + 1) * SIZE]}
                         for i, name in enumerate(NAMES)}).encode()
    path, start = place.path(name + ".safetensors"), 8 + len(header)
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header + os.urandom(2 * SIZE))
        os.utime(path, (1e9, 1e9))
    return path, [(start + i * SIZE, start + (i + 1) * SIZE) for i in range(2)]


def run(place, steps, placements, mode="advise", late=False, **settings):
    """(results with the preload, without, dump, lines)"""
    path, _ = make(place)
    environment = {name: value for name, value in os.environ.items()
                   if name not in LAUNCHERS and not name.startswith(("METASHARD", "SIMCUDA_"))}
    environment.update(RANK=str(RANK), WORLD_SIZE="4", SIMCUDA_GRANULE_KIB=str(GRANULE >> 10), SIMCUDA_POISON="2",
                       SIMCUDA_DEVICES="2", **place.without)
    plan = {"format": FORMAT, "mesh": {"dp": 4}, "tensors": [{"name": "*", "placements": placements}]}
    wanted = json.dumps({"file": path, "plan": plan, "steps": steps})
    dump, outputs = place.path("script.json"), []
    for preload in (False, True):
        if preload:
            environment.update(LD_PRELOAD=place.preload, METASHARD_DUMP=dump, METASHARD_MIN_BYTES=str(GRANULE),
                               METASHARD_PLAN_MODE=mode, **settings)
            if not late:
                environment["METASHARD_PLAN"] = place.write(plan)
        done = subprocess.run([sys.executable, PROGRAM], input=wanted, env=environment, capture_output=True, text=True,
                              timeout=60)
        expect(done.returncode == 0, f"exit status {done.returncode}\n{done.stderr[-1000:]}")
        outputs.append(json.loads(done.stdout))
    return outputs[1], outputs[0], read_dump(dump), done.stderr.splitlines()


def own(begin=RANK * OWN):
    return begin, begin + OWN


def check_midway(place):
    """The plan comes when one of two tensors is loaded: its range comes at once, that of the second when it is asked
    for."""
    _, (a, b) = make(place)
    _, _, dump, _ = run(place, [["load", *a], ["plan"], ["load", *b]], [{"shard": 0}], late=True)
    seen = [block["backed_bytes"] for block in dump["blocks"]]
    expect(seen == [OWN, 0], f"in memory: {seen}, expected {OWN} of the first")
    steps = [["load", *a], ["plan"], ["load", *b], ["materialise"]]
    with_, without, dump, _ = run(place, steps, [{"shard": 0}], late=True)
    expect(with_ == without, f"{with_}, expected {without}")
    seen = [block["backed_bytes"] for block in dump["blocks"]]
    expect(seen == [OWN, OWN], f"in memory: {seen}, expected {OWN} of each")


def check_late(place):
    """A plan that comes when everything was read: what other ranks keep goes, this rank's range stays, and all of it can
    be read again. Bytes that the program may have written stay, and a line says so."""
    _, (a, b) = make(place)
    load = [["load", *a], ["load", *b]]
    reads = [["read", 0, 0, SIZE], ["read", 1, 0, SIZE]]
    for placement, kept in (({"shard": 0}, OWN), ({"shard": 1}, SIZE)):
        with_, without, dump, lines = run(place, [*load, *reads, ["plan"]], [placement], late=True)
        seen = [block["backed_bytes"] for block in dump["blocks"]]
        expect(with_ == without and seen == [kept, kept] and lines == [],
               f"{placement}: in memory: {seen}, expected {kept} of each; {lines}")
        with_, without, dump, _ = run(place, [*load, *reads, ["plan"], *reads], [placement], late=True)
        expect(with_ == without, f"{placement}: {with_}, expected {without}")
    written = [*load, *reads, ["fill", 0, 0, PAGE, 7], ["fill", 1, SIZE - 1, 1, 7], ["plan"]]
    with_, without, dump, lines = run(place, [*written, *reads], [{"shard": 0}], late=True)
    seen = [block["backed_bytes"] for block in dump["blocks"]]
    expect(with_ == without and seen == [SIZE, SIZE], f"{with_}, expected {without}; in memory: {seen}")
    expect(len(lines) == 1 and f"0 bytes of memory were given back, {2 * SIZE} stay" in lines[0], f"{lines}")


def check_late_and_resident(place):
    """A plan that comes when the program has settled: in mode enforce what other ranks keep goes where it is equal to its
    file; in mode advise a line says that it stays."""
    _, (a, b) = make(place)
    load = [["load", *a], ["load", *b], ["materialise"]]
    reads = [["read", 0, *own()], ["read", 1, *own()]]
    for placement, kept in (({"shard": 0}, OWN), ({"shard": 1}, SIZE)):
        with_, without, dump, lines = run(place, [*load, ["plan"], *reads], [placement], "enforce", late=True)
        seen = [block["backed_bytes"] for block in dump["blocks"]]
        expect(with_ == without and seen == [kept, kept],
               f"{placement}: in memory: {seen}, expected {kept} of each; {with_}, expected {without}; {lines}")
        expect(dump["plan_freed_bytes"] == (2 * SIZE if kept < SIZE else 0), f"freed: {dump['plan_freed_bytes']}")
    again = [["plan"], ["read", 0, 0, PAGE]]
    with_, without, _, lines = run(place, [*load, *again], [{"shard": 0}], "enforce", late=True)
    expect(with_[-1][0] != 0 and any("other ranks" in line for line in lines), f"{with_}, {lines}")
    changes = [["fill", 0, OWN - 1, 1, 7], ["fill", 1, 0, PAGE, 7]]
    with_, without, dump, lines = run(place, [*load, *changes, ["plan"], *reads], [{"shard": 0}], "enforce", late=True)
    seen = [block["backed_bytes"] for block in dump["blocks"]]
    expect(with_ == without and seen == [SIZE, SIZE],
           f"{with_}, expected {without}; in memory: {seen}, expected {SIZE} of each; {lines}")
    expect(len(lines) == 1 and f"{2 * SIZE} stay" in lines[0], f"{lines}")
    with_, without, dump, lines = run(place, [*load, ["plan"], *reads], [{"shard": 0}], late=True)
    seen = [block["backed_bytes"] for block in dump["blocks"]]
    expect(with_ == without and seen == [SIZE, SIZE], f"{with_}, expected {without}; in memory: {seen}")
    expect(len(lines) == 1 and f"0 bytes of memory were given back, {2 * SIZE} stay" in lines[0] and
           "METASHARD_PLAN_MODE=enforce" in lines[0], f"{lines}")


def check_again(place):
    """A program that loads everything a second time, to other memory: its ranges are there as well."""
    _, (a, b) = make(place)
    steps = [["load", *a], ["load", *b], ["materialise"], ["load", *a], ["load", *b], ["materialise"]]
    with_, without, dump, _ = run(place, steps, [{"shard": 0}])
    expect(with_ == without, f"{with_}, expected {without}")
    seen = [block["backed_bytes"] for block in dump["blocks"]]
    expect(seen == [OWN] * 4, f"in memory: {seen}, expected {OWN} of each")


def check_second_file(place):
    """A second checkpoint with tensors of the same names and other shapes: of two rows rank 1 has the second."""
    _, (a, b) = make(place)
    other, (c, d) = make(place, "other", (2, SIZE // 8))
    half = SIZE // 2
    steps = [["load", *a], ["load", *b], ["file", other], ["load", *c], ["load", *d]]
    reads = [["read", 0, *own()], ["read", 1, *own()], ["read", 2, half, SIZE], ["read", 3, half, SIZE]]
    with_, without, dump, lines = run(place, steps + reads, [{"shard": 0}], "enforce")
    expect(with_ == without, f"{with_}, expected {without}; {lines}")
    seen = [block["backed_bytes"] for block in dump["blocks"]]
    expect(sorted(seen) == [OWN, OWN, half, half], f"in memory: {seen}, expected {OWN} and {half}")


def check_second_device(place):
    """A program that loads to two devices: the plan is the rank's, whichever device its tensors are on."""
    _, (a, b) = make(place)
    steps = [["load", *a], ["device", 1], ["load", *a], ["load", *b], ["read", 2, *own()], ["device", 0],
             ["read", 0, *own()], ["read", 1, *own()]]
    with_, without, dump, lines = run(place, steps, [{"shard": 0}], "enforce")
    expect(with_ == without, f"{with_}, expected {without}; {lines}")
    seen = [(block["device"], block["backed_bytes"]) for block in dump["blocks"]]
    expect(sorted(seen) == [(0, OWN), (1, OWN), (1, OWN)], f"in memory: {seen}, expected {OWN} of each")


def check_handles(place):
    """Granules that touch get one handle: a column shard, of which all granules are needed, one for each tensor."""
    _, (a, b) = make(place)
    log = place.path("script.log")
    run(place, [["load", *a], ["load", *b], ["materialise"]], [{"shard": 1}], SIMCUDA_LOG=log, METASHARD_SELFCHECK="off")
    with open(log) as file:
        made = [line for line in file if "cuMemCreate" in line]
    expect(len(made) == 2, f"expected two calls of cuMemCreate, found {made}")


def check_copies_out(place):
    """A program that copies its rows out: they take memory once, and the file is read once."""
    _, (a, b) = make(place)
    begin, end = own()
    steps = [["load", *a], ["load", *b], ["new", OWN, 0], ["new", OWN, 0], ["copy", 2, 0, 0, begin, end],
             ["copy", 3, 0, 1, begin, end], ["free", 0], ["free", 1], ["read", 2, 0, OWN], ["read", 3, 0, OWN]]
    with_, without, dump, _ = run(place, steps, [{"shard": 0}])
    expect(with_ == without, f"{with_}, expected {without}")
    expect(2 * OWN <= dump["file_read_bytes"] <= 2 * OWN + 4 * PAGE,
           f"file_read_bytes is {dump['file_read_bytes']}, expected {2 * OWN}")
    peak = dump["backed_bytes_peak"]
    expect(peak == 2 * OWN, f"{peak} bytes were in memory at most, expected {2 * OWN}")


def check_copies_refused(place):
    """Enforced: a copy of other ranks' bytes fails, to memory that is deferred and to memory that is there."""
    _, (a, b) = make(place)
    begin, end = own()
    for touched in (False, True):
        steps = [["load", *a], ["load", *b], ["new", OWN, 7], ["new", OWN, 8]] + [["read", 3, 0, OWN]] * touched + [
            ["copy", 2, 0, 0, begin, end], ["copy", 3, 0, 0, end, end + OWN], ["read", 2, 0, OWN]]
        with_, without, dump, lines = run(place, steps, [{"shard": 0}], "enforce")
        expect(with_[-2] == [800, None], f"the copy: {with_[-2]}, expected CUDA error 800")
        expect(with_[:-2] == without[:-2], f"{with_}, expected {without}")
        expect(len(lines) == 1 and "cuMemcpyDtoD" in lines[0] and " a" in lines[0],
               f"expected one line that names the call and the tensor, found {lines}")


def check_copies_counted(place):
    """Advised: they are right, and counted when they are read."""
    _, (a, b) = make(place)
    _, end = own()
    steps = [["load", *a], ["load", *b], ["new", OWN, 7], ["read", 2, 0, OWN], ["copy", 2, 0, 0, end, end + OWN],
             ["read", 2, 0, OWN]]
    with_, without, dump, _ = run(place, steps, [{"shard": 0}])
    expect(with_ == without, f"{with_}, expected {without}")
    remote_readers = [(remote_reader["call"], remote_reader["tensor"], remote_reader["bytes"]) for remote_reader in dump["plan"]["remote_readers"]]
    expect([(call[:12], tensor, size) for call, tensor, size in remote_readers] == [("cuMemcpyDtoD", "a", OWN)],
           f"remote_readers {remote_readers}, expected cuMemcpyDtoD of a, {OWN} bytes")


def check_rows(place):
    """A column shard, read by a copy of rows: no other column is read; and other columns are refused, or counted."""
    _, (a, b) = make(place)
    width = ROW // 4
    rows = [["load", *a], ["load", *b], ["rows", 0, RANK * width, width, ROW, ROWS]]
    for mode in ("advise", "enforce"):
        with_, without, dump, lines = run(place, rows, [{"shard": 1}], mode)
        expect(with_ == without and lines == [], f"{mode}: {with_}, expected {without}; {lines}")
        expect(dump["plan"]["remote_reads"] == 0, f"{mode}: remote_reads is {dump['plan']['remote_reads']}")
    others = rows[:2] + [["rows", 0, 2 * width, width, ROW, ROWS]]
    with_, without, dump, lines = run(place, others, [{"shard": 1}], "enforce")
    expect(with_[-1] == [800, None] and len(lines) == 1, f"other columns: {with_[-1]}, expected CUDA error 800; {lines}")
    with_, without, dump, _ = run(place, others, [{"shard": 1}])
    expect(with_ == without and dump["plan"]["remote_read_bytes"] == width * ROWS,
           f"other columns: {with_}, expected {without}; remote_read_bytes is {dump['plan']['remote_read_bytes']}")


def check_names_go(place):
    """A name goes with its block: what comes to lie there later is not that tensor."""
    part = 256 * KIB
    steps = [["reserve", 4 * part], ["report", 0, 0, part], ["name", 0, 0, part, "a", "F32", [128, ROW // 4]],
             ["fill", 0, 0, part, 1], ["report", 0, 0, -part], ["report", 0, 0, part], ["fill", 0, 0, part, 2],
             ["materialise"], ["read", 0, 0, part]]
    with_, without, dump, lines = run(place, steps, [{"shard": 0}], "enforce")
    expect(with_ == without, f"{with_}, expected {without}; {lines}")


TESTS = [("a plan in the middle of loading", check_midway), ("a plan when everything was read", check_late),
         ("a plan when everything is resident", check_late_and_resident),
         ("loading again", check_again),
         ("a second checkpoint", check_second_file), ("a second device", check_second_device), ("handles", check_handles), ("rows copied out", check_copies_out),
         ("copies refused", check_copies_refused), ("copies counted", check_copies_counted),
         ("columns by rows", check_rows),
         ("names of blocks that are returned", check_names_go)]

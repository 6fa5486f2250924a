#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_ledger.py --build DIR --preload VALUE: the ledger (tests/harness/ledger.py) tells what it should, of figures that are
made up and of programs that do too much; and each rank of the main job keeps it."""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import ledger  # noqa: E402
from ledger import MIB, QUANTITIES, Kept, Known, compare  # noqa: E402
from state_page import read_facts  # noqa: E402
from tap import check, end, equal, report  # noqa: E402

BESIDE = {"peak_bytes": 16 * MIB, "h2d_bytes": 0}
PLAIN = {quantity.name: 1000 * quantity.unit for quantity in QUANTITIES}


@contextlib.contextmanager
def known(*rows):
    ledger.KNOWN[:], before = rows, list(ledger.KNOWN)
    yield
    ledger.KNOWN[:] = before


def wrongs(under, without=None, **more):
    return compare("a flow", without or PLAIN, under, **more).wrong


def check_tolerances():
    for quantity in QUANTITIES:
        most = quantity.factor * PLAIN[quantity.name] + quantity.more
        at_most, above = (PLAIN | {quantity.name: figure} for figure in (most, most + quantity.unit / 8))
        equal(f"{quantity.words}: as much as the table says", wrongs(at_most), [])
        check(f"{quantity.words}: more", len(wrongs(above)) == 1 and quantity.words in wrongs(above)[0], wrongs(above))
        check(f"{quantity.words}: has a reason", len(quantity.reason) > 20)
        equal(f"{quantity.words}: more that the runner allows", wrongs(above, more={quantity.name: quantity.unit}), [])
        equal(f"{quantity.words}: without tolerance", len(wrongs(at_most, exact=(quantity.name,))), int(most > PLAIN[quantity.name]))


def check_parts():
    for name in (*BESIDE, "disk_bytes"):
        kept, part = Kept(100 * MIB, {name: MIB}), ledger.BY_NAME[name].part * 100 * MIB + MIB
        equal(f"{name}: the part", wrongs(PLAIN | {name: part}, kept=kept), [])
        equal(f"{name}: more than the part", len(wrongs(PLAIN | {name: part + MIB}, kept=kept)), 1)
        equal(f"{name}: a part of all is no more than all", len(wrongs(PLAIN | {name: 2000 * MIB}, kept=Kept(3000 * MIB, {name: MIB}))), 1)
        equal(f"{name}: a part that nobody counted", len(wrongs(PLAIN | {name: None}, kept=kept)), 1)


def check_known():
    row = Known("a flow", "h2d_bytes", 2000 * MIB, "a cause")
    sent = [PLAIN | {"h2d_bytes": bytes_} for bytes_ in (1000 * MIB, 1700 * MIB, 2000 * MIB, 2300 * MIB)]
    with known(row):
        found = compare("a flow", PLAIN, sent[2])
        check("a known difference is told, and not wrong", not found.wrong and "a cause" in found.known[0], found)
        equal("another flow is not known", len(compare("another", PLAIN, sent[2]).wrong), 1)
        for what, figures in (("holds", sent[0]), ("is better", sent[1]), ("is worse", sent[3])):
            equal(f"a known difference that {what} is wrong", len(wrongs(figures)), 1)
        equal("a known difference of one quantity is not of others", len(wrongs(sent[2] | {"peak_bytes": 2000 * MIB})), 1)


def check_brought():
    equal("of two ranks that gather 10 bytes each gets 5", ledger.brought_bytes([5, 5], 0), 5)
    equal("of three ranks that gather 12 bytes each gets 8", ledger.brought_bytes([8, 8, 8], 2), 8)
    equal("what rank 0 sends to three others, each gets", ledger.brought_bytes([21, 0, 0, 0], 1), 7)
    equal("and rank 0 brings it to each", ledger.brought_bytes([21, 0, 0, 0], 0), 7)
    for words, sent in (("a rank alone", [0]), ("ranks that send nothing", [0, 0]), ("ranks of which nobody counted", [None, None])):
        equal(f"{words}: nothing is brought", ledger.brought_bytes(sent, 0), 0)
    equal("calls for what is brought", ledger.collective_calls(10 * ledger.GRANULE), {"memory_calls": 10 * ledger.COLLECTIVE_CALLS})


def check_nothing():
    equal("a flow that nobody has counted is wrong", wrongs({}), ["nobody counted anything"])
    equal("a quantity that nobody can count is left out", wrongs(PLAIN | {"opens": None}), [])


EATS = """
import sys
hold = bytearray(int(sys.argv[1]) << 20)
for path in sys.argv[2:]:
    open(path, "rb").read()
import time; time.sleep(0.1)
"""


KEEPS_OPEN = """
import sys
import os
kept = [os.open(sys.argv[1], os.O_RDONLY) for i in range(200)]
"""


def check_watch(folder):
    path = os.path.join(folder, "file")
    with open(path, "wb") as file:
        file.write(bytes(MIB))
    small, large = (ledger.run([sys.executable, "-c", EATS, *words], dict(os.environ), [path])[1]
                    for words in (["1", path], ["65", path, path, path]))
    equal("opens are counted", (small["opens"], large["opens"]), (1, 3))
    kept = ledger.run([sys.executable, "-c", KEEPS_OPEN, path], dict(os.environ), [path])[1]
    equal("opens with nothing in between are counted", kept["opens"], 200)
    more = (large["host_peak_bytes"] - small["host_peak_bytes"]) / MIB
    check("host memory is seen", 60 <= more <= 68, more)
    done, _ = ledger.run([sys.executable, "-c", "import time; time.sleep(60)"], dict(os.environ), timeout=0.5)
    check("a flow that does not end is ended", done.returncode != 0 and "no end" in done.stderr, done)


def run_rank(arguments, folder, rank, ranks, is_cold, with_preload):
    """Cold: no file is in the page cache. Then opens are not counted: each thread that reads past the cache may open each file."""
    stats, checkpoint = os.path.join(folder, "stats"), os.path.join(folder, "checkpoint")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("METASHARD", "SIMCUDA"))}
    environment.update({"SIMCUDA_STATS": stats, "LD_LIBRARY_PATH": os.path.join(arguments.build, "tools", "simcuda"),
                        "LD_PRELOAD": arguments.preload if with_preload else ""})
    files = ledger.files_under(checkpoint)
    if is_cold:
        ledger.forget(files)
    client = os.path.join(arguments.build, "tests", "demo", "client")
    done, seen = ledger.run([client, str(rank), str(ranks), checkpoint], environment, [] if is_cold else files)
    return done, ledger.measured(read_facts(stats), seen)


def read_ahead_bytes(folder):
    """The read-ahead of the folder's disk; no bound if the disk says nothing."""
    device = os.stat(folder).st_dev
    try:
        path = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
        with open(path, encoding="ascii") as file:
            return int(file.read()) << 10
    except OSError:
        return 1 << 40


def check_job(arguments, folder):
    checkpoint = os.path.join(folder, "checkpoint")
    os.makedirs(checkpoint)
    make = os.path.join(arguments.build, "tests", "demo", "make_checkpoint")
    subprocess.run([make, checkpoint, "256", "3"], check=True, capture_output=True)
    for rank, ranks, is_cold in ((0, 1, True), (2, 3, False), (2, 3, True)):
        (before, without), (after, under) = (run_rank(arguments, folder, rank, ranks, is_cold, way) for way in (False, True))
        name = f"main job, rank {rank} of {ranks}{', cold' * is_cold}"
        equal(f"{name}: the same", (before.returncode, after.stdout, after.stderr), (0, before.stdout, ""))
        said = json.loads(before.stdout)
        # The program reads its rows of each tensor through its own mapping, where the kernel reads ahead, up to two windows.
        kept = Kept(said["shard_bytes"], BESIDE | {"disk_bytes": 2 * said["tensors"] * read_ahead_bytes(folder)})
        report(f"{name}: the ledger", "\n".join(compare(name, without, under, kept).wrong))
        print("# " + ledger.line(without, under))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--preload", required=True)
    arguments = parser.parse_args()
    check_tolerances()
    check_parts()
    check_known()
    check_brought()
    check_nothing()
    # Not in a file system in memory, where nothing is read from a disk.
    with tempfile.TemporaryDirectory(dir=arguments.build) as folder:
        check_watch(folder)
        check_job(arguments, folder)
    return end()


if __name__ == "__main__":
    sys.exit(main())

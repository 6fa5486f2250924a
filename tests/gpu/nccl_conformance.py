#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the simulated NCCL's own tests on it, on the real NCCL, and on that under the shim; compares what they saw.

    nccl_conformance.py --build DIR --ranks 1|4 [--python PYTHON] [--simulated [NAME=VALUE]] [--only PATTERN] [--out FILE]

As conformance.py does for the driver. Communicators have at most so many ranks: one, or several processes on one GPU
(nccl_tools.py tells how); tests that need more are not run. With --simulated the simulated NCCL, with this
setting, takes the real one's place.
"""
import fnmatch
import os
import sys

import build_all
from conformance import Comparison, Side, compare, record_of, show, tests_of
from conformance_rows import NCCL_NOT_COMPARED as NOT_COMPARED
from nccl_tools import NO_NCCL, PYTHON_ROW, Library, library_of, nccl_environment, refuse_simulated, ways_of
from part_script import BUILD_ROW, options_of
from run_tools import write_json

# The subjects that one rank shows best are first.
SUBJECTS = ["alone", "collectives", "groups", "comms", "registration", "numbers"]


class NcclSide(Side):
    """A driver with an NCCL; with `shim` under it."""

    def __init__(self, options, simulated, library, settings=(), shim=None):
        super().__init__(options.build, simulated, settings)
        self.shim = shim
        driver = os.path.join(options.build, "tools", "simcuda") if simulated else None
        self.environment.update(nccl_environment(library, driver), RANKS_MOST=str(options.ranks))
        if options.ranks > 1:
            way = ways_of(library)["hosts"]
            self.environment.update(way[0], RANKS_HOSTS="1")
        if shim is not None:
            before = self.environment.get("LD_PRELOAD")
            self.environment.update(LD_PRELOAD=":".join(filter(None, [shim, before])), METASHARD_MIN_BYTES="1",
                                    METASHARD_NCCL_REGISTER="on", METASHARD_LOG="error")

    def read(self, lines, done, limit):
        for kind, *fields in lines:
            if kind == "nccl":
                refuse_simulated(Library(fields[0], 0), self.build, self.simulated)
        return super().read([line for line in lines if line[0] != "nccl"], done, limit)


def names_of(options, side):
    names = [name for subject in SUBJECTS for name in tests_of(options.build, "nccl_" + subject, side.environment)]
    left_out = [name for name in names for tests, _, _ in NOT_COMPARED if fnmatch.fnmatchcase(name, tests)]
    wanted = [name for name in names if name not in left_out and fnmatch.fnmatchcase(name, options.only)]
    return names, [name for name in wanted if options.ranks == 1 or not name.startswith("nccl_alone.")], left_out


def measure(options, library, real):
    shim = os.path.join(options.build, build_all.SHIM)
    if not os.path.exists(shim):
        sys.exit(f"{shim} is not there")
    sides = (NcclSide(options, True, library),
             NcclSide(options, options.simulated is not None, real, filter(None, [options.simulated])),
             NcclSide(options, options.simulated is not None, real, filter(None, [options.simulated]), shim))
    names, wanted, left_out = names_of(options, sides[0])
    comparison = Comparison(options, "metashard-nccl-conformance-1", NOT_COMPARED, nccl=real._asdict(), ranks=options.ranks,
                            needs_more_ranks=[],
                            stale_rows=[tests for tests, _, _ in NOT_COMPARED if not fnmatch.filter(names, tests)])
    result = comparison.result
    for name in comparison.tests_in_time(wanted):
        simulated = sides[0].run(name, options.limit)
        # The places of ranks.c are in every test; one that was not run has no others.
        if all(place.startswith("ranks.c") for place, _ in simulated.checks):
            result["needs_more_ranks"].append(name)
            continue
        seen, under_shim = (side.run(name, options.limit) for side in sides[1:])
        record = record_of(name, simulated, seen)
        record["shim_differences"] = compare(name, seen, under_shim)
        result["tests"].append(record)
        comparison.count(different_under_the_shim=sum(bool(one["shim_differences"]) for one in result["tests"]), not_run=0,
                         needs_more_ranks=len(result["needs_more_ranks"]), not_compared=len(left_out))
    return comparison.end()


def main():
    options = options_of(__doc__, 300, BUILD_ROW, PYTHON_ROW, ("--ranks", 1, {"help": "at most so many"}),
                         ("--simulated", None, {"nargs": "?", "const": "", "metavar": "NAME=VALUE"}),
                         ("--only", "*", {"help": "tests, as nccl_alone.*"}),
                         ("--limit", 30.0, {"help": "seconds for one test"}))
    library, real = library_of(options, True), library_of(options, options.simulated is not None)
    if real is None:
        write_json(options.out, NO_NCCL)
        return
    show(measure(options, library, real))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""silent.py PROGRAM KERNELS SHIM: how far that goes which docs/limits.md says can be silently different."""
from scenarios import SMALL, main


def lines(run):
    return dict(line.split(": ", 1) for line in run.stdout.splitlines() if ": " in line)


def after_a_free(test):
    """Without the shim each of the two is an illegal access."""
    seen, _ = test.run("after_a_free")
    said = lines(seen)
    test.check("a kernel reads what a delayed free has left, and a graph writes there",
               (said.get("a kernel"), said.get("a graph")) == ("0 01010101", "0 0"), seen.stdout + seen.stderr)
    test.check("nobody else has that memory", said.get("elsewhere") == "1", seen.stdout)
    whole = [said.get(name) for name in ("allocated meanwhile", "beside")]
    alone, _ = test.run("others_alone")
    test.check("and what others have is as they left it", whole == list(lines(alone).values()), f"{whole} {alone.stdout}")
    test.check("when the memory has gone back it is an illegal access",
               said.get("a kernel when no stream is captured", "").startswith("700 "), seen.stdout)


def hidden_address(test):
    """An address that no call shows. Without the shim the kernel reads what is there."""
    wanted, _ = test.run("hidden_beside_memory", with_shim=False)
    seen, _ = test.run("hidden_beside_memory")
    test.check("a kernel that has an address which no call shows is not refused beside bytes that are in memory",
               seen.stdout.splitlines()[0] == wanted.stdout.splitlines()[0] == "0", seen.stdout + seen.stderr)
    test.check("and the bytes of the block are right afterwards",
               seen.stdout.splitlines()[-1] == wanted.stdout.splitlines()[-1], seen.stdout)
    seen, _ = test.run("hidden_elsewhere")
    test.check("in another granule it is an illegal access", seen.stdout.splitlines() == ["700"], seen.stdout)


def hidden_write(test):
    """A kernel writes by such an address over bytes that can be had again, and no call tells that they differ now."""
    for scenario, settings in (("hidden_write_and_no_memory", SMALL), ("hidden_write_and_suspension", {})):
        wanted, _ = test.run(scenario, with_shim=False)
        seen, _ = test.run(scenario, settings)
        found, expected = lines(seen), lines(wanted)
        test.check(f"{scenario}: the write is there, until MetaShard frees the memory",
                   (seen.returncode, found.pop("later", "")) == (0, expected.get("before")) and expected.pop("later") == expected["written"] and
                   found == expected, seen.stdout + seen.stderr)


def silent(test):
    after_a_free(test)
    test.both("after_a_stream_free")
    hidden_address(test)
    hidden_write(test)
    test.both("long_texture")


main(silent)

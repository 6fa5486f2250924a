# SPDX-License-Identifier: Apache-2.0
"""Never more than without the shim, on any rank: neither device memory at its peak, nor bytes over the bus; and with a plan
never more than with the shim alone. What does not hold yet is in KNOWN, with the reason.

KNOWN may only shrink: a row of it that holds in a run is a failure, until it is taken out.
"""
from collections import namedtuple

MIB = 1 << 20
GRANULE = 2 * MIB

# What a run may have more than the one that it is compared with. peak_bytes: two granules, because what is small enough to
# share a granule shares it with other things in the two runs. h2d_bytes: a quarter of a MiB, because the parameters and
# numbers that a program sends beside its tensors may go one by one or together.
Figure = namedtuple("Figure", "name words allowance")
FIGURES = (Figure("peak_bytes", "memory", 2 * GRANULE), Figure("h2d_bytes", "bytes over the bus", MIB // 4))

# row, world: as the program that runs it names them. way, base: which run has more than which. ranks: "0", "others".
# scales: of the model, at which it is known.
Known = namedtuple("Known", "row world way base ranks figure scales reason")
KNOWN = []


def bases(way):
    return ("without", "with") if way == "plan" else ("without",)


def known(row, world, way, base, ranks, figure, scale):
    return [entry for entry in KNOWN if scale in entry.scales and
            (row, world, way, base, ranks, figure) == entry[:6]]


class Above:
    """wrong: what is more, in words; excused: the same, with the reason; stale: rows of KNOWN that hold now."""

    def __init__(self):
        self.wrong, self.excused, self.stale = [], [], []

    def __bool__(self):
        return bool(self.wrong or self.stale)

    def lines(self):
        return [*self.wrong, *(f"holds now, take it out of KNOWN: {entry}" for entry in self.stale)]


def above(row, world, scale, way, ways):
    """ways: for each way to run it the figures of its ranks, by rank."""
    found = Above()
    for base in bases(way):
        for figure in FIGURES:
            for kind in ("0", "others"):
                ranks = [rank for rank in ways[way] if (rank == 0) == (kind == "0")]
                more = [(rank, ways[way][rank][figure.name], ways[base][rank][figure.name]) for rank in ranks
                        if is_more(ways[way][rank], ways[base][rank], figure)]
                entries = known(row, world, way, base, kind, figure.name, scale)
                words = [f"rank {rank}: {figure.words}: {after / MIB:.1f} MiB, {before / MIB:.1f} {base}"
                         for rank, after, before in more]
                if entries and not more and ranks:
                    found.stale += entries
                elif entries:
                    found.excused += [f"{line}: {entries[0].reason}" for line in words]
                else:
                    found.wrong += words
    return found


def everything_for_a_copy(dump):
    """In words, if a small copy of the program's own brought everything that was deferred into memory; else None."""
    count = dump.get("payload_seals")
    return f"{count} small copies that may point to deferred memory brought all of it into memory" if count else None


def is_more(after, before, figure):
    counted = after[figure.name] is not None and before[figure.name] is not None
    return counted and after[figure.name] > before[figure.name] + figure.allowance

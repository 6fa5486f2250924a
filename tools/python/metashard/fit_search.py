# SPDX-License-Identifier: Apache-2.0
"""Which values of what may change fit, by few runs. The values of a parameter stand from the one with which a rank needs the
least memory to the one with which it needs the most, and the last that fits is the best; of an earlier parameter before a later
one. Each search halves. Where the measured peaks are not in that order, all values are run."""
from __future__ import annotations

import itertools
from typing import Callable, Optional, Sequence

from .dry_run import CANNOT_SAY, FITS

Place = tuple[int, ...]  # of a value, for each parameter
NEAR = 1.02  # peaks of one size differ by so much


class Unordered(Exception):
    """The peaks are not in the order of the values."""


class Unsaid(Exception):
    """A run had no answer."""


class Search:
    """`run` is the dry run of a place, `tried` the answers, in their order."""

    def __init__(self, lengths: Sequence[int], run: Callable[[Place], dict]):
        self.lengths, self.run = lengths, run
        self.tried: dict[Place, dict] = {}
        self.is_ordered = True

    def find(self) -> Optional[Place]:
        """The best that fits, if any does."""
        try:
            return self._halve()
        except Unordered:
            self.is_ordered = False
        places = itertools.product(*map(range, self.lengths))
        return max((place for place in places if self._fits(place)), default=None)

    def most_runs(self) -> int:
        """That are still to come, at most, where peaks are in order."""
        all_ = sum(length.bit_length() if number == 0 else (length - 1).bit_length() for number, length in enumerate(self.lengths))
        return max(all_ - len(self.tried), 1)

    def _halve(self) -> Optional[Place]:
        best = [0] * len(self.lengths)
        for number, length in enumerate(self.lengths):
            low, high = -1 if number == 0 else 0, length  # the one fits, the other does not
            while high - low > 1:
                best[number] = (low + high) // 2
                low, high = (best[number], high) if self._fits(tuple(best)) else (low, best[number])
            if low < 0:
                return self._find_nothing()
            best[number] = low
        return tuple(best)

    def _find_nothing(self) -> None:
        """If the values stand the wrong way round, the last ones need the least."""
        if self._fits(tuple(length - 1 for length in self.lengths)):
            raise Unordered

    def _fits(self, place: Place) -> bool:
        if place not in self.tried:
            self.tried[place] = self.run(place)
            if self.tried[place]["status"] == CANNOT_SAY:
                raise Unsaid
            if self.is_ordered and any(self._contradict(place, other) or self._contradict(other, place) for other in self.tried):
                raise Unordered
        return self.tried[place]["status"] == FITS

    def _contradict(self, less: Place, more: Place) -> bool:
        """Has the one that needs less been seen to need more?"""
        if less == more or any(one > other for one, other in zip(less, more)):
            return False
        one, other = self.tried[less], self.tried[more]
        return other["status"] == FITS and (one["status"] != FITS or one["peak_reserved"] > NEAR * other["peak_reserved"])

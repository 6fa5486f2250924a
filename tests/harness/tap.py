# SPDX-License-Identifier: Apache-2.0
"""TAP: a line for each test of a program, behind it what is wrong, and at the end how many there were."""
import sys
import time
import traceback

MOST = 4000  # characters of what is wrong
results = []


def _tell(name, holds, detail):
    results.append(bool(holds))
    print(f"{'ok' if holds else 'not ok'} {len(results)} {name}")
    if detail:
        print("\n".join("# " + line for line in detail.splitlines()))
    sys.stdout.flush()


def check(name, holds, detail=""):
    _tell(name, holds, "" if holds else str(detail)[-MOST:])


def equal(name, seen, wanted):
    check(name, seen == wanted, f"{str(seen)[:MOST // 2]!r}\nexpected {str(wanted)[:MOST // 4]!r}")


def report(name, wrong):
    """wrong: what is, or nothing."""
    check(name, not wrong, wrong)


def skip(name, why):
    _tell(f"{name} # SKIP {why}", True, "")


def skip_all(why):
    print(f"1..0 # SKIP {why}")
    sys.exit(0)


class Wrong(Exception):
    """A fault that a test finds."""


def expect(holds, what):
    if not holds:
        raise Wrong(what)


def run(name, test, *arguments):
    """A test that raises what is wrong."""
    begin = time.monotonic()
    try:
        test(*arguments)
    except Exception as fault:  # the other tests still tell something
        check(name, False, fault if isinstance(fault, Wrong) else traceback.format_exc())
    else:
        check(f"{name} # {time.monotonic() - begin:.1f} s", True)


def end():
    """The exit status."""
    print(f"1..{len(results)}")
    return 0 if results and all(results) else 1

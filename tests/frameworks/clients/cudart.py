# SPDX-License-Identifier: Apache-2.0
"""The start of the real CUDA runtime 13.0, dynamic or static, without and with the shim.

    cudart.py program names.txt

The runtime does not start on a simulated driver, and nothing here tries to make it. Until it
gives up it has asked for all its functions: the driver must see the same calls in both runs, and
the shim must have had every one of the requests in its hands.
"""
import re
import sys

from client import Run, Tap, skip, skip_under_sanitizers

REQUEST = re.compile(r"^cuGetProcAddress(?:_v2)? (.*) (\d+) (\d+)$")


def requests_of(log):
    return [match.groups() for match in map(REQUEST.match, log) if match]


def expected_requests(path):
    with open(path, encoding="utf-8") as names:
        return [re.match(r"(\S*) ver=(\d+) flags=(\d+)$", line).groups() for line in names]


def main():
    if len(sys.argv) != 3:
        skip("the CUDA runtime was not found when this was built")
    program, names = sys.argv[1:]
    skip_under_sanitizers()
    tap = Tap()
    plain = Run([program])
    requests = requests_of(plain.log)
    tap.check("the runtime reaches cuInit and gives up", "cuInit" in plain.log
              and "cudaGetDeviceCount: cudaSuccess" not in plain.output
              and "cudaDriverGetVersion: cudaSuccess" in plain.output, plain.tell())
    tap.equal("the runtime asks for the functions on the list", sorted(requests),
              sorted(expected_requests(names)))
    for how, settings in {"with the shim": {}, "switched off": {"METASHARD": "off"},
                          "deferring everything": {"METASHARD_MIN_BYTES": "1"}}.items():
        run = Run([program], shim=True, settings=settings)
        tap.check(f"{how}: the same output", run.output == plain.output, run.differences(plain))
        tap.equal(f"{how}: the same calls of the driver", run.log, plain.log)
        if settings.get("METASHARD") != "off":
            # The runtime's one dlsym, for cuGetProcAddress_v2, is counted as well.
            tap.equal(f"{how}: look-ups", run.dump.get("lookups"),
                      len(requests) + 1)
    tap.end()


main()

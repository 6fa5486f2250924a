#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""payloads.py PROGRAM KERNELS SHIM: small copies on streams that are busy, which may hold addresses."""
from scenarios import main

PATIENT = {"METASHARD_IDLE_MS": "600000", "METASHARD_SETTLE_MS": "0"}  # a call that waits never returns
BLOCK = 8 << 20


def payloads(test):
    for scenario, copies in {"behind_held_work": 64, "behind_the_legacy_stream": 1}.items():
        _, dump = test.both(scenario, PATIENT)
        test.check(f"{scenario}: each copy was looked at in its stream", dump["late_payloads"] == copies, dump)
        test.check(f"{scenario}: nothing was brought into memory", dump["materialised_bytes"] == 0, dump)
    for scenario in ("written_late", "rows_written_late", "by_way_of_the_host"):
        _, dump = test.both(scenario, PATIENT)
        test.check(f"{scenario}: only what the copy points to was brought into memory",
                   dump["backed_bytes_peak"] == BLOCK and dump["payload_seals"] == 0, dump)
    _, dump = test.both("passing", PATIENT)
    test.check("passing: it was looked at when it was copied", dump["late_payloads"] == 0 and dump["payload_seals"] == 0, dump)
    test.both("freed_in_the_order_of_the_stream", PATIENT)
    test.both("returned_before_the_stream_got_there", PATIENT)
    test.both("overwritten_in_the_order_of_the_stream", {"METASHARD_IDLE_MS": "0"})
    _, dump = test.both("address_of_the_host", PATIENT)
    test.check("address_of_the_host: everything was brought into memory", dump["backed_bytes_peak"] == BLOCK, dump)


main(payloads)

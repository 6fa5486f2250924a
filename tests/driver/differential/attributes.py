#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""attributes.py PROGRAM KERNELS SHIM: attributes of pointers are the driver's, whatever state memory is in."""
from scenarios import main

STATES = ("plain", "plain_odd", "plain_written", "plain_shared", "plain_freed", "pool", "pool_written", "pool_freed", "mapped",
          "mapped_written", "mapped_read_only", "mapped_without_access", "mapped_to_export", "mapped_exported", "unmapped")


def attributes(test):
    for state in STATES:
        test.both(state)


main(attributes)

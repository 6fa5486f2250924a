#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_schema.py SCHEMA: docs/plan-schema.json takes random good plans, and of the bad ones it refuses all but
those that BEYOND names. Skipped without the Python package jsonschema. TAP."""
import json
import os
import random
import sys

import bad_inputs
from random_plan import random_plan, random_tensors

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
from tap import end, report, skip_all  # noqa: E402

# Faults that show only by the other parts of the plan, the tensors, or the meaning of a name.
BEYOND = """
mesh too large|world is not the product|rank beyond the world|coordinates too few
coordinates too many|a coordinate missing|a coordinate unknown|a coordinate too large
a coordinate too large in a list|set without its end|set with only ]|set with only !]|range upside down
escape at the end|exact name twice|exact name twice, escaped|a long exact name twice|size 1.0|mesh dimension of size 1.0
sizes overflow|sizes overflow, with a 0|sizes overflow in sum|size is not that of the shape|not whole bytes
declared, not there|declared with another dtype|declared with another shape|pattern with another shape
pattern with another dtype|a long name of two-byte characters|a long name that is cut inside a character|too many placements
mesh dimension not there|dimension not there|dimension of a 1-d tensor not there|interleave that overflows
parts do not divide|interleave is second|interleave is second in a list|two flat|F4 sharded|F4 flat
unit of two dtypes|unit of two dtypes in one entry|unit of two mesh dimensions|ranges of too few ranks
ranges of too many ranks|range empty|range backwards|ranges overlap|ranges not ascending
range beyond the tensor
"""


def main():
    try:
        import jsonschema
    except ImportError:
        skip_all("the Python package jsonschema is not there")
    with open(sys.argv[1]) as file:
        schema = json.load(file)
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    plans = validator(schema)
    faults = []
    for seed in range(300):
        dice = random.Random(seed)
        plan, _ = random_plan(dice, random_tensors(dice))
        faults += [f"seed {seed}: {fault.message}" for fault in plans.iter_errors(plan)]
    beyond = set(BEYOND.strip().replace("\n", "|").split("|"))
    taken = {row.name for row in bad_inputs.ROWS if isinstance(row.plan, dict) and plans.is_valid(row.plan)}
    wrong = taken ^ beyond
    report("good plans", "\n".join(faults[:5]))
    report("bad plans", "\n".join(sorted(wrong)))
    return end()


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Questions of probe.py: rows of a table, each with the answers that the design relies on."""
from collections import namedtuple

# group: when it is asked (probe.py). seconds: the most that all of it may take.
Section = namedtuple("Section", "name group seconds rows")
# key: of the answers in the section's object; None: they are members of that itself. body: makes the calls, with the arguments;
# it yields (key, answer) as soon as there is one, or returns a dictionary. when: after cuInit and in a context; before; in a
# process of its own, as what may be sticky; or only where the device is real. relies: {path of an answer: value, or test of it}.
Row = namedtuple("Row", "key body arguments when relies")
STARTED, LOADED, ALONE, NOT_QUICK = range(4)

INVALID = "CUDA_ERROR_INVALID_VALUE"
NOT_SUPPORTED = "CUDA_ERROR_NOT_SUPPORTED"
ILLEGAL = "CUDA_ERROR_ILLEGAL_ADDRESS"


def row(key, body, *arguments, when=STARTED, relies=None):
    return Row(key, body, arguments, when, relies or {})


def one_of(*values):
    return lambda seen: seen in values


def is_not(value):
    return lambda seen: seen != value


def at_least(value):
    return lambda seen: seen >= value


def facts_of(section):
    """{path in the result: what the design relies on}"""
    return {".".join(filter(None, [section.name, asked.key, path])): wanted
            for asked in section.rows for path, wanted in asked.relies.items()}

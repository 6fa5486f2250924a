# SPDX-License-Identifier: Apache-2.0
"""The digests of a model, of what each of its ranks holds (digest.py): parts of a tensor are added up, and replicas are compared,
and count once."""

DIFFER = "replicas differ"


def merge(ranks):
    """name: the digest of the whole tensor, or DIFFER."""
    sums = {}
    for parts in ranks:
        for name, (replica, value) in parts.items():
            of_name = sums.setdefault(name, {})
            of_name[tuple(replica)] = (of_name.get(tuple(replica), 0) + value) % (1 << 64)
    return {name: min(found.values()) if len(set(found.values())) == 1 else DIFFER for name, found in sums.items()}


def total(digests):
    """The digest of the model, in words."""
    return DIFFER if DIFFER in digests.values() else f"{sum(digests.values()) % (1 << 64):016x}"

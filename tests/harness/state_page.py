# SPDX-License-Identifier: Apache-2.0
"""Reads a state page (runtime/state/format.h), as METASHARD_DUMP leaves it, without the code that it is to test."""
import json
import struct

(PROCESS, PLAN, _, FIGURES, FIGURE_NAMES, DEVICES, FILES, CAUSES, _, BLOCKS, _) = range(11)
KINDS = ("undefined", "dead", "fill", "file", "snapshot", "launch", "parked", "absent", "resident")
CHECK_STATES = ("none", "run", "kept", "incomplete", "off")
PART, CARVED = 1, 2
PLAN_KIND, OUTSIDE_KIND, SETTLE_KIND = 9, 10, 12
UNMATCHED, AMBIGUOUS = 22, 23


def text(data):
    return data.split(b"\0", 1)[0].decode(errors="replace")


def block_of(record, files):
    values = struct.unpack_from("<20Q4I", record)
    file, device, flags = values[20:23]
    return {"id": values[1], "address": hex(values[2]), "bytes": values[3], "backed_bytes": values[4],
            "kinds": {kind: size for kind, size in zip(KINDS, values[5:14]) if size > 0},
            "deferred_bytes": values[14], "cached_bytes": values[15], "remote_bytes": values[16],
            "file_offset": values[19], "file": files[file - 1] if file > 0 else None, "device": device, "flags": flags}


def cause_of(record):
    count, size, _, _, last_ns, kind, reason = struct.unpack_from("<5QII", record, 8)
    return {"kind": kind, "reason": reason, "count": count, "bytes": size, "last_ns": last_ns,
            "call": text(record[64:128]), "text": text(record[128:448])}


def self_check_of(record):
    state, steps_aside = struct.unpack_from("<II", record, 128)
    unmet = text(record[136:])
    return {"state": CHECK_STATES[state], "steps_aside": bool(steps_aside), "unmet": unmet.split("; ") if unmet else []}


def plan_of(record, causes, figures):
    generation, tensors, planned, owned, rank, world, enforced = struct.unpack_from("<4Q3I", record, 8)
    if generation == 0:
        return None
    entries = {reason: [cause["text"] for cause in causes if (cause["kind"], cause["reason"]) == (PLAN_KIND, reason)]
               for reason in (UNMATCHED, AMBIGUOUS)}
    remote_readers = [{"call": cause["call"], "tensor": cause["text"], "count": cause["count"], "bytes": cause["bytes"]}
                for cause in causes if cause["kind"] == OUTSIDE_KIND]
    return {"file": text(record[56:568]), "mode": "enforce" if enforced else "advise", "rank": rank, "world_size": world,
            "plans": generation, "tensors": tensors, "planned_bytes": planned, "owned_bytes": owned,
            "remote_reads": figures["remote_reads"], "remote_read_bytes": figures["remote_read_bytes"],
            "unmatched": entries[UNMATCHED], "ambiguous": entries[AMBIGUOUS], "remote_readers": remote_readers}


def blocks_of(records, files):
    """Allocations by address, each with its parts."""
    all_blocks = [block_of(record, files) for record in records]
    wholes = {block["id"]: dict(block, parts=[]) for block in all_blocks if block["id"] and not block["flags"] & PART}
    for block in all_blocks:
        if block["id"] and block["flags"] & PART:
            wholes[block["id"]]["parts"].append(block)
    for block in wholes.values():
        block["parts"].sort(key=lambda part: int(part["address"], 16))
        if block["flags"] & CARVED:
            begins = [(int(part["address"], 16) - int(block["address"], 16), part["bytes"]) for part in block["parts"]]
            block["taken"] = [[begin, begin + size] for begin, size in begins]
    return sorted(wholes.values(), key=lambda block: int(block["address"], 16))


def read_dump(path):
    """The figures by name, and pid, version, blocks, causes, settle_cause, the self-checks of devices in use and, if there
    is one, plan."""
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 32:
        raise ValueError(f"{path}: {len(data)} bytes are no state page")
    magic, version, _, total, sections = struct.unpack_from("<8sIIQQ", data)
    if (magic, version, total, sections) != (b"metashrd", 3, len(data), 11):
        raise ValueError(f"{path}: not a whole state page of version 3")

    def records(section):
        offset, count, size = struct.unpack_from("<3Q", data, 32 + 24 * section)
        return [data[offset + i * size:offset + (i + 1) * size] for i in range(count)]

    def newest(section):
        return max(records(section), key=lambda record: record[:8][::-1])

    figures = {text(name): struct.unpack("<Q", value)[0] for name, value in zip(records(FIGURE_NAMES), records(FIGURES))}
    causes = [cause for cause in map(cause_of, records(CAUSES)) if cause["count"] > 0]
    files = [text(record[8:]) for record in records(FILES)]
    process = newest(PROCESS)
    settled = [cause for cause in causes if cause["kind"] == SETTLE_KIND]
    seen = dict(figures, pid=struct.unpack_from("<Q", process, 8)[0], version=text(process[96:128]),
                settle_cause=max(settled, key=lambda cause: cause["last_ns"])["text"] if settled else "",
                blocks=blocks_of(records(BLOCKS), files), causes=causes,
                self_checks=[self_check_of(record) for record in records(DEVICES) if record[:8] != bytes(8)])
    plan = plan_of(newest(PLAN), causes, figures)
    return dict(seen, plan=plan) if plan is not None else seen


def read_facts(path):
    """A dump, or the JSON of other facts."""
    with open(path, "rb") as file:
        data = file.read()
    return read_dump(path) if data.startswith(b"metashrd") else json.loads(data)

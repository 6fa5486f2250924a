# SPDX-License-Identifier: Apache-2.0
"""Reads the allocator's history: the peak, the memory held at that moment, and the peak of each phase. Knows nothing of
PyTorch but the entries of torch.cuda.memory._snapshot()["device_traces"]."""
import bisect

BUILD, FORWARD, BACKWARD, OPTIMIZER = "build", "forward", "backward", "optimizer"
RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
WEIGHTS, GRADIENTS, STATES, ACTIVATIONS, TEMPORARY = "weights", "gradients", "optimizer states", "activations", "temporary"
OTHER = "other, from before the first forward"


class Phases:
    """Marks are (microseconds, phase, step), in the order of time."""

    def __init__(self, marks):
        self.marks = marks
        self.times = [mark[0] for mark in marks]

    def at(self, time):
        """The number of the mark that holds at a time."""
        return max(bisect.bisect_right(self.times, time) - 1, 0)

    def name(self, number):
        return self.marks[number][1] if self.marks else BUILD

    def step(self, number):
        return self.marks[number][2] if self.marks else 1


class Labels:
    """Addresses that were known to be something at a time: (microseconds, {address: kind})."""

    def __init__(self, labels):
        self.rows = [(time, sorted(known), known) for time, known in labels]

    def find(self, block):
        for time, addresses, known in self.rows:
            if block["from"] <= time and (block["to"] is None or time <= block["to"]):
                at = bisect.bisect_left(addresses, block["address"])
                if at < len(addresses) and addresses[at] < block["address"] + block["bytes"]:
                    return known[addresses[at]]
        return None


def blocks_and_sums(trace):
    """All blocks that ever were, and (time, reserved, allocated) behind each entry that changes one of the two."""
    reserved = allocated = 0
    blocks, live, sums = [], {}, []
    for entry in trace:
        action, size, time = entry["action"], entry["size"], entry["time_us"]
        if action in RESERVES:
            reserved += RESERVES[action] * size
        elif action == "alloc":
            block = {"address": entry["addr"], "bytes": size, "from": time, "to": None, "frames": entry.get("frames") or []}
            blocks.append(block)
            live[entry["addr"]] = block
            allocated += size
        elif action == "free_requested" and entry["addr"] in live:
            live.pop(entry["addr"])["to"] = time
            allocated -= size
        else:
            continue
        sums.append((time, reserved, allocated))
    return blocks, sums


def kind_of(block, phases, labels):
    known = labels.find(block)
    if known is not None:
        return known
    made = phases.at(block["from"])
    phase = phases.name(made)
    stays = block["to"] is None or phases.at(block["to"]) != made
    if phase == BUILD:
        return OTHER if labels.rows else WEIGHTS
    if not stays:
        return TEMPORARY
    return {FORWARD: ACTIVATIONS, BACKWARD: TEMPORARY if labels.rows else GRADIENTS, OPTIMIZER: STATES}[phase]


def place_of(frames):
    """The line of the user's program, or else the first that is not PyTorch's own."""
    for frame in frames:
        name = frame["filename"]
        if not any(part in name for part in ("/torch/", "<", "metashard_dry", "/importlib/", "??")):
            return f"{name}:{frame['line']}"
    return f"{frames[0]['filename']}:{frames[0]['line']}" if frames else "no line of Python, as in a backward pass"


def at_moment(blocks, time, phases, labels, most=8):
    """Bytes by kind, and the places that have the most."""
    kinds, places = {}, {}
    for block in blocks:
        if block["from"] <= time and (block["to"] is None or block["to"] > time):
            kind = kind_of(block, phases, labels)
            kinds[kind] = kinds.get(kind, 0) + block["bytes"]
            key = (place_of(block["frames"]), kind)
            bytes_, count = places.get(key, (0, 0))
            places[key] = (bytes_ + block["bytes"], count + 1)
    top = sorted(places.items(), key=lambda item: -item[1][0])[:most]
    return kinds, [{"place": place, "kind": kind, "bytes": bytes_, "blocks": count}
                   for (place, kind), (bytes_, count) in top]


def by_phase(sums, phases):
    """[{phase, reserved, allocated}], the phases of the first step by their names, all behind it in one."""
    rows = {}
    for time, reserved, allocated in sums:
        number = phases.at(time)
        name = phases.name(number) if phases.step(number) == 1 else "later steps"
        row = rows.setdefault(name, {"phase": name, "reserved": 0, "allocated": 0})
        row["reserved"] = max(row["reserved"], reserved)
        row["allocated"] = max(row["allocated"], allocated)
    return list(rows.values())


def thin(sums, most=400):
    """Reduces a long curve to the highest points of equal parts."""
    length = max(1, -(-len(sums) // most))
    return [max(sums[at:at + length], key=lambda row: row[2]) for at in range(0, len(sums), length)]


def read(trace, marks, labels):
    blocks, sums = blocks_and_sums(trace)
    if not sums:
        return None
    phases, known = Phases(marks), Labels(labels)
    peak = max(sums, key=lambda row: row[2])
    kinds, places = at_moment(blocks, peak[0], phases, known)
    number = phases.at(peak[0])
    return {"peak_reserved": max(row[1] for row in sums), "peak_allocated": peak[2], "reserved_then": peak[1],
            "peak_phase": phases.name(number), "peak_step": phases.step(number), "kinds": kinds, "places": places,
            "phases": by_phase(sums, phases), "marks": [[time - sums[0][0], name, step] for time, name, step in marks],
            "curve": [[row[0] - sums[0][0], row[1], row[2]] for row in thin(sums)]}

# SPDX-License-Identifier: Apache-2.0
"""The answer of a dry run, for a person: one screen."""
from __future__ import annotations

GIB = 1 << 30
FAILED = "the program failed with"  # as metashard_dry_failure.py begins
LEAST = GIB // 200  # of a row, which would be 0.00 otherwise
MARGIN = 0.05  # docs/results/dry-run.md
MANY = 1024  # elements of a mask: fewer decide little
MOST_PLACES = 3
WITH_METASHARD = "with MetaShard"
WORDS = {0: "fits", 1: "does NOT fit", 2: "cannot say"}


def gib(bytes_: float) -> str:
    return f"{bytes_ / GIB:.2f} GiB"


def shortage_lines(shortage: dict) -> list[str]:
    lines = [f"  {gib(shortage['wanted'])} were wanted and {gib(shortage['free'])} were free: {gib(shortage['wanted'] - shortage['free'])} "
             f"missing, in {shortage['phase']} of step {shortage['step']}"]
    return lines + [f"    {line}" for line in shortage["lines"]]


def verdict(answer: dict) -> str:
    words = WORDS[answer["status"]]
    if "total" not in answer:
        return f"{words}: {answer['reason']}"
    place = f"rank {answer['rank']} of {answer['world']}, {answer['device']}, {answer['steps']} steps"
    if answer["status"] == 2:
        return f"{words} ({place}): {answer['reason']}"
    return f"{words}{' narrowly' * is_narrow(answer)} ({place})"


def is_narrow(answer: dict) -> bool:
    """Is less left than dry runs differ from GPUs?"""
    whole = answer["peak_reserved"] + answer["outside"]
    return answer["status"] == 0 and answer["total"] - whole < MARGIN * whole


def sums(answer: dict) -> list[str]:
    outside, total = answer["outside"], answer["total"]
    whole = answer["peak_reserved"] + outside
    return [f"  device                {gib(total):>12}",
            f"  peak reserved         {gib(answer['peak_reserved']):>12}   {100 * answer['peak_reserved'] / total:.0f} % of it",
            f"  peak allocated        {gib(answer['peak_allocated']):>12}",
            f"  outside the allocator {gib(outside):>12}   context, code, NCCL: from a table",
            f"  left                  {gib(total - whole):>12}"]


def kinds(answer: dict) -> list[str]:
    if not answer.get("kinds"):
        return []
    rows = sorted((item for item in answer["kinds"].items() if item[1] >= LEAST), key=lambda item: -item[1])
    rows.append(("fragmentation", answer["reserved_then"] - answer["peak_allocated"]))
    title = f"  at the peak, in {answer['peak_phase']} of step {answer['peak_step']}:"
    return [title] + [f"    {name:32} {gib(bytes_):>12}" for name, bytes_ in rows]


def phases(answer: dict) -> list[str]:
    rows = answer.get("phases", [])
    return ["  by phase:                           reserved    allocated"] * bool(rows) + \
        [f"    {row['phase']:26} {gib(row['reserved']):>14} {gib(row['allocated']):>12}" for row in rows]


def ranks(answer: dict) -> list[str]:
    rows = answer.get("ranks", [])
    return ["  by rank:                            reserved    allocated"] * bool(rows) + \
        [f"    {row['rank']:26} {gib(row['peak_reserved']):>14} {gib(row['peak_allocated']):>12}" for row in rows]


def places(answer: dict) -> list[str]:
    rows = answer.get("places", [])[:5]
    return ["  most of it from:"] * bool(rows) + \
        [f"    {gib(row['bytes']):>12} in {row['blocks']} blocks, {row['kind']}: {row['place']}" for row in rows]


def notes(answer: dict) -> list[str]:
    found = list(answer.get("advice", []))
    if is_narrow(answer):
        found.append(f"less than {100 * MARGIN:.0f} % is left, and most dry runs differ from GPUs by up to that: it may not fit there")
    counted = answer.get("driver", {})
    if counted.get("launches", 0) > counted.get("empty_launches", counted.get("launches", 0)):
        found.append(f"of {counted['launches']} launches {counted['launches'] - counted['empty_launches']} were computed on the CPU; the "
                     "others did nothing")
    reads = counted.get("unknown_reads", 0)
    if reads and counted.get("launches") == counted.get("empty_launches", counted.get("launches")):
        places = "; ".join(f"{row['place']} ({row['times']})" for row in answer.get("reads", [])[:MOST_PLACES])
        found.append(f"the program read {reads} times from the device, where nothing was computed: what it decided by that "
                     "may be otherwise on a GPU" + f": {places}" * bool(places))
    choices = [row for row in answer.get("choices", []) if row["elements"] >= MANY]
    if choices:
        places = "; ".join(f"{row['place']} ({row['elements']})" for row in choices[:MOST_PLACES])
        found.append("masks decided the sizes of tensors, and counted as all true, so the peak may be less on a GPU: " + places)
    if answer.get("retries"):
        found.append(f"the allocator gave its cache back {answer['retries']} times to go on")
    if answer.get("shortages") and answer["status"] == 0:
        found.append(f"the program caught {len(answer['shortages'])} errors of too little memory")
    return [f"  note: {text}" for text in found]


def comparison(answers: dict[str, dict]) -> list[str]:
    """PyTorch's own counts and the device's, one column for each way."""
    if len(answers) < 2:
        return []
    rows = [("peak reserved", lambda answer: answer.get("peak_reserved", 0)),
            ("peak allocated", lambda answer: answer.get("peak_allocated", 0)),
            ("memory of the device", lambda answer: answer.get("driver", {}).get("physical_bytes_peak"))]
    found = ["  side by side:".ljust(30) + "".join(f"{name:>22}" for name in answers)]
    for name, read in rows:
        values = [read(answer) for answer in answers.values()]
        if None not in values:
            found.append(f"    {name:26}" + "".join(f"{gib(value):>22}" for value in values))
    found += [f"  {name}: {verdict(answer)}" for name, answer in list(answers.items())[1:] if answer["status"] != 0]
    return found + about_metashard(answers[WITH_METASHARD]) if WITH_METASHARD in answers else found


def about_metashard(answer: dict) -> list[str]:
    """PyTorch's counts cannot differ, and without --compute no kernel is recorded."""
    counted = answer.get("driver", {})
    is_most = counted.get("launches") == counted.get("empty_launches", counted.get("launches"))
    return ["  note: PyTorch's counts include memory that MetaShard defers; the device's do not"] + \
        ["  note: nothing was computed, so MetaShard recorded no kernel: its column is an upper bound"] * is_most


def text(answers: dict[str, dict]) -> str:
    """The answer for the way that was asked for first, with the others beside it."""
    answer = next(iter(answers.values()))
    lines = ["", "metashard dry-run: " + verdict(answer)]
    if answer.get("shortages"):
        lines += shortage_lines(answer["shortages"][-1])
    if "total" in answer:
        lines += sums(answer) + ranks(answer) + phases(answer) + kinds(answer) + places(answer) + comparison(answers) + notes(answer)
    return "\n".join(lines)

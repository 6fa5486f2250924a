# SPDX-License-Identifier: Apache-2.0
"""The page of training, docs/results/training.md, of what run found. Rows of an earlier page that were not run again stay,
with the commit and day that they are of, if the page is of the same machine and versions."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "harness"))
import result_page  # noqa: E402

MADE = result_page.version().partition("commit ")[2]  # of the sources as the run begins
HEADER = ("| training | ranks | losses | loss, first to last | peak while loading, MiB | peak in all, MiB | sent, MiB | "
          "step 1, ms | steps 2 to 5, ms | steps 6 and on, ms | made |")
SETTLED_HEADER = "| training | ranks | allocations | settled |"
SUSPENDED_HEADER = ("| training | ranks | suspensions | given back, MiB | come from files | wait outside | the device still has | "
                    "host grows, waiting there | host grows, waiting in a folder |")
SHARED_HEADER = "| training | ranks | largest difference from one rank |"
VALUES_HEADER = "| training | ranks | as on one device | pieces that are the same as another |"

HEAD = """The simulated driver of this repository, with its stand-ins for the CUDA runtime, NCCL and cuBLAS, and host versions of PyTorch's
kernels. No figure here is one of a GPU.

`tests/frameworks/training/train.py` loads a checkpoint and trains for {steps} steps, in eager mode, with attention by PyTorch's
own operations, gradient clipping and AdamW; once without and once with the shim. Transformers' models are trained by
`pretrained.py` beside it. *Same*: every loss of every rank is the same, bit for bit, and so are all parameters in the end. Two
figures are those without and with the shim. Memory, and the bytes that the host sends to the device in the whole run, are those
of the rank with the most. Times are of rank 0, to the end of the device's work: of several steps the one in the middle. Step 1
brings into memory what was loaded. The kernels run on the processor, which other ranks use too, and the runs had low priority
beside other work: times say nothing.

"""

VALUES_HEAD = """
## Random values

Rows that begin with random values and no checkpoint, from one seed. *As on one device*: all parameters, of all ranks together,
are those that one device draws. The last column counts pieces, a rank's part of a tensor each, of all that are drawn.
After meta PyTorch draws each shard by itself; of shards on the host it draws all from the same state of the generator
(pytorch/torchtitan#3106). A model that is made whole on the device, which with the shim takes only the memory of what the rank
keeps, has the values of one device, also in stages of a pipeline, without a seed checkpoint (pytorch/pytorch#139304).

"""

SHARED_HEAD = """
## Losses on any number of ranks

Rows of smaller models that begin with the random values of one device, without dropout, and whose ranks share the same batches. Of the
losses of all steps the largest relative difference from those of one rank, without the shim; with it they are the same, bit for bit.
The run fails above 0.0001. Ranks add up gradients in another order.

"""

SUSPENDED_HEAD = """
## Suspended between steps

Rows that are suspended after every fourth step; every other time what has to wait is in a file of a folder, and the next step
takes everything back. Of each figure the largest, in MiB, of any rank and suspension. *The device still has* is all of the
device that is in use, which is told as what stays: NCCL's buffers, and what was allocated while the graph was captured.
The run fails if the device has more than two granules (4 MiB) besides what is told, or the host grows by more than 64 MiB
besides what waits there.

"""

SETTLED_HEAD = """
## What is settled

Of rank 0's state page, as `metashard-dump show` has it: how many allocations were not whole in memory, what of them was
brought there in addition to what the steps had used, when (since the process began to use CUDA), and why.

"""


def pair(figures, form):
    return f"{form(figures['without'])} / {form(figures['with'])}"


def row_of(*cells):
    return "| " + " | ".join(cells) + " |"


def line(record):
    cells = [record["title"], str(record["ranks"]), "same" if record["same"] else "DIFFERENT",
             f"{record['first loss']:.4f} to {record['last loss']:.4f}",
             *(pair(record[key], lambda most: f"{most / (1 << 20):.0f}") for key in ("loading", "training", "sent"))]
    for number in range(3):
        steps = {name: times[number] for name, times in record["seconds"].items()}
        cells.append(pair(steps, lambda time: "-" if time is None else f"{time * 1000:.0f}"))
    return row_of(*cells, MADE)


def values_line(record):
    values = record["values"]
    return row_of(record["title"], str(record["ranks"]), "yes" if values["one device"] else "no",
                  f"{values['repeated']} of {values['pieces']}")


def shared_line(record):
    return row_of(record["title"], str(record["ranks"]), f"{record['difference']:.1e}")


def suspended_line(record):
    def most(key, of=record["suspended"]):
        return f"{max((told[key] for told in of), default=0) / (1 << 20):.1f}"
    by_place = [[told for told in record["suspended"] if told["to"] == to] for to in (False, True)]
    return row_of(record["title"], str(record["ranks"]), str(len(record["suspended"])), most("freed"), most("file"), most("waits"),
                  most("device"), *(most("host", of) for of in by_place))


def settled_line(record):
    causes = [f"{cause['bytes'] / (1 << 20):.1f} MiB after {cause['seconds']:.1f} s: {cause['why']}"
              for cause in record["settled"]["causes"]]
    return row_of(record["title"], str(record["ranks"]), str(record["settled"]["allocations"]), "; ".join(causes) or "nothing")


def read_lines(path, header):
    """The rows below a header, by title and number of ranks."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        lines = file.read().split("\n")
    at = lines.index(header) + 2 if header in lines else len(lines)
    end = lines.index("", at) if at < len(lines) else at
    return {tuple(text.strip("| ").split(" | ")[:2]): text for text in lines[at:end]}


def table(path, header, rows, found):
    """The rows that are found, and of the others those of the earlier page, in the order of table.py."""
    lines = read_lines(path, header) | found
    keys = [(row.title, str(row.ranks)) for row in rows]
    rule = "|" + " --- |" * header.count(" |")
    return "\n".join([header, rule, *(lines[key] for key in keys if key in lines)]) + "\n"


def key_of(record):
    return record["title"], str(record["ranks"])


def write(path, rows, records, packages, steps):
    head = result_page.head("Training, simulated driver", "tests/frameworks/training/run --write", result_page.settings_of({}),
                            more=[packages], note="each row of its own")
    if len(records) < len(rows) and os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            if result_page.read(file.read())["machine"] not in head:
                sys.exit(f"{path} is of another machine or other packages: run all rows")
    text = head + HEAD.format(steps=steps)
    text += table(path, HEADER, rows, {key_of(record): line(record) for record in records})
    text += SHARED_HEAD
    text += table(path, SHARED_HEADER, [row for row in rows if "--shared" in row.arguments and row.ranks > 1],
                  {key_of(record): shared_line(record) for record in records if record["difference"] is not None})
    text += SUSPENDED_HEAD
    text += table(path, SUSPENDED_HEADER, [row for row in rows if "--suspend" in row.arguments],
                  {key_of(record): suspended_line(record) for record in records if record["suspended"]})
    text += SETTLED_HEAD
    text += table(path, SETTLED_HEADER, rows, {key_of(record): settled_line(record) for record in records})
    text += VALUES_HEAD
    text += table(path, VALUES_HEADER, [row for row in rows if row.values],
                  {key_of(record): values_line(record) for record in records if record["values"]})
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)

# SPDX-License-Identifier: Apache-2.0
"""The page of training, docs/results/training.md, of what run found."""
import datetime
import os
import platform

HEADER = ("| training | ranks | losses | loss, first to last | peak while loading, MiB | peak in all, MiB | step 1, ms | "
          "steps 2 to 5, ms | steps 6 and on, ms |")

HEAD = """# Training, simulated driver

{date}: {cores} cores, no GPU, Python {python}, {packages};
the simulated driver of this repository, with its stand-ins for the CUDA runtime, NCCL and cuBLAS, and host versions of
PyTorch's kernels. Made by `tests/frameworks/training/run --write`. No figure here is one of a GPU.

`tests/frameworks/training/train.py` loads a checkpoint and trains for {steps} steps, in eager mode, with attention by PyTorch's
own operations, gradient clipping and AdamW; once without and once with the shim, with the settings of a user who sets
nothing. Transformers' models are trained by `pretrained.py` beside it. *Same*: every loss of every rank is the same, bit for bit, and so are all parameters in the end. Two figures are
those without and with the shim. Memory is that of the rank with the most. Times are of rank 0, to the end of the device's work:
of several steps the one in the middle. Step 1 brings into memory what was loaded. The kernels run on the processor, which
other ranks and programs use too, so later steps differ by chance.

"""


def pair(figures, form):
    return f"{form(figures['without'])} / {form(figures['with'])}"


def line(record):
    cells = [record["title"], str(record["ranks"]), "same" if record["same"] else "DIFFERENT",
             f"{record['first loss']:.4f} to {record['last loss']:.4f}",
             *(pair(record[phase], lambda peak: f"{peak / (1 << 20):.0f}") for phase in ("loading", "training"))]
    for number in range(3):
        steps = {name: times[number] for name, times in record["seconds"].items()}
        cells.append(pair(steps, lambda time: "-" if time is None else f"{time * 1000:.0f}"))
    return "| " + " | ".join(cells) + " |"


def write(path, records, packages, steps):
    head = HEAD.format(date=datetime.date.today().strftime("%-d %B %Y"), cores=os.cpu_count(),
                       python=platform.python_version(), packages=packages, steps=steps)
    rule = "|" + " --- |" * HEADER.count(" |")
    with open(path, "w", encoding="utf-8") as file:
        file.write(head + "\n".join([HEADER, rule, *map(line, records)]) + "\n")

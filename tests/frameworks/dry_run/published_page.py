# SPDX-License-Identifier: Apache-2.0
"""docs/results/dry-run.md: figures from GPUs (published.py) beside the records of dry runs (published.json), and what `costs` measured."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [HERE, os.path.join(SOURCE, "tests", "harness"), os.path.join(SOURCE, "tools", "python")]
import result_page  # noqa: E402
from published import GROUPS, JOBS, NOTED, OUTSIDE, USUAL, error, in_unit  # noqa: E402

from metashard import dry_run_gpus  # noqa: E402

RECORDS = os.path.join(HERE, "published.json")
PAGE = os.path.join(result_page.PAGES, "dry-run.md")
TITLE, COMMAND, SETTINGS = "Dry runs beside GPUs", "tests/frameworks/dry_run/run --write", "no MetaShard; the dry run of each GPU"
NOTE = "each row of its own"
HEAD = """Public figures that were measured on GPUs, beside those of [a dry run](../dry-run.md), on PyTorch 2.15 with what the source says
of its settings. The scripts are in [tests/frameworks/dry_run](../../tests/frameworks/dry_run). They are plain PyTorch, or
transformers, and know nothing of a dry run. No figure was tuned to a row. What differs by more than 5 % stays, with the reason as
far as it is known. `reserved`, `active` and `allocated` are the peaks of PyTorch's allocator, whichever the source has. The command
replaces the rows that it runs again (`--only` names some), and fails where one differs by more than 5 %, or than its reason allows; it
does not run torchtitan's own script, which is not here. *Made* names the last commit that had changed MetaShard or its simulator, and
the day; for rows of 2026-11-26 and 2026-11-27 it is the commit that recorded them. Rows of 2026-11-26 ran when the device of a dry run
was done at once.

"""
HEADER = "| job | of | measured | dry run | error | why, above 5 % | made |\n| --- | --- | ---: | ---: | ---: | --- | --- |\n"
NOTES = """
[1]: https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md
[2]: https://github.com/pytorch/torchtitan/pull/165
[3]: https://github.com/Lightning-AI/pytorch-lightning/blob/master/docs/source-fabric/advanced/model_parallel/tp.rst
[4]: https://github.com/Lightning-AI/pytorch-lightning/blob/master/docs/source-fabric/advanced/model_parallel/fsdp.rst
[5]: https://github.com/pytorch/tutorials/blob/main/recipes_source/zero_redundancy_optimizer.rst
[6]: https://github.com/Lightning-AI/litgpt/blob/main/tutorials/resource-tables.md
[7]: https://github.com/huggingface/transformers/blob/v4.21.0/docs/source/en/perf_train_gpu_one.mdx

- [1] has `--gpu 97000 -- torchrun --nproc-per-node 8 llama.py [--compile]`, and `--world 128 --rank 77`.
- Its own script, of commit 9dec370, has `--gpu 97000 -- torchrun --nproc-per-node 8 train.py --job.config_file
  train_configs/llama3_8b.toml --training.batch_size 2 --training.dataset c4_test`, with a tokenizer of as many words as Llama 3's, and
  PyTorch 2.15. Which of the two allocators was measured is not said: `run_llama_train.sh` sets expandable segments,
  `multinode_trainer.slurm` does not. `llama.py` with expandable segments has {expandable} GiB.
- The pipeline has `--gpu 97000 --world 512 --rank 0 -- torchrun --nproc-per-node 8 train.py --job.config_file
  train_configs/llama3_405b.toml --training.batch_size 32 --experimental.pipeline_parallel_degree 8
  --experimental.pipeline_parallel_schedule 1F1B`, with the same data and tokenizer, and torchao 0.8.0. The source has the rank with
  the largest peak. Rank 0 has {of_405b} GiB, rank 448, of the last stage, {last_stage}; those between were not tried. The number of microbatches
  is not said; it is the script's own, 8. `TORCHINDUCTOR_SIZE_ASSERTS=0` is set, because PyTorch 2.15 expects other strides of the
  gradients of attention than it gets where a rank has one head of keys. Memory that ranks share for asynchronous TP is outside of the
  allocator. With the schedule Interleaved1F1B (72.7 GiB were measured) no run has ended yet.
- [2] has `--gpu 97320 -- torchrun --nproc-per-node 8 llama.py --model 2-7b --batch 8 --length 2048 --recipe 2024-03`, with
  `--checkpointing`, `--fsdp 1`, `--compile`. It gives per cents of 95.0396 GiB, and what is active, which is what is allocated and
  the blocks that wait for another stream. FSDP1 has such blocks. They wait for a device that is behind the host
  ([how it works](../dry-run.md#how-it-works)); with one that is done at once, the four figures of FSDP1 were up to {at_once} % lower.
  In March 2024, and until [pytorch#129721](https://github.com/pytorch/pytorch/pull/129721) of June, the input of FSDP2's
  reduce-scatter was memory of its own stream, whose segments no other stream can use: 1,002 MiB for that of the embedding and the
  output, and 774 MiB for that of a block, where today's are in gaps of the default stream's segments, which are the same. What is
  allocated at the peak is the same, too. With [`old_reduce.py`](../../tests/frameworks/dry_run/old_reduce.py), which allocates the
  input as then, the dry run reserves {then_full_checkpointing} GiB ({then_full_checkpointing_error} %), and those of all five jobs of
  FSDP2 differ by {then_least} to {then_most} %.
- [3] is `lightning_parallel.py`, [4] `lightning_guide.py --way`, [5] `zero_redundancy.py`, [6] `lora.py --batch`, [7] `bert.py`.
- [4] is of PyTorch 2.1, whose Adam, as that of [early 2023](https://github.com/pytorch/pytorch/blob/005941ebcd15da658ae14bf349b5457517ff9318/torch/optim/adam.py),
  made two temporary lists of the parameters' size where today's makes one. With 4 bytes more for each parameter of a rank the dry run's
  figures would be {ddp} and {fsdp1} MB: {ddp_error} and {fsdp1_error} %.
- [6] runs two of the 128 accumulated passes, which take no more than all. The longest row of Alpaca comes first there, too.
- [7] gives what the device has; what it had before the model, 1,341 MiB, is subtracted. Its PyTorch, of January 2022, is at most
  1.10, which keeps the input of a softmax for the backward pass as well as its result
  ([pytorch#64000](https://github.com/pytorch/pytorch/issues/64000), mended by
  [pytorch#65242](https://github.com/pytorch/pytorch/pull/65242)): 64 MiB for each of 24 layers. With these {softmax} MiB the dry run's
  figure would be {bert} MiB, {bert_error} %.
"""
OUTSIDE_HEAD = """
## Outside of the allocator

What a process has on a device besides PyTorch's blocks is from this table. Its figures are what PyTorch's own message
("Including non-PyTorch memory, this process has") leaves after PyTorch's memory:

| GPU | device | besides | from |
| --- | ---: | ---: | --- |
"""
OUTSIDE_END = """
Each communicator of NCCL with several ranks takes 320 MiB more: 16 channels, each with a ring and a tree, of buffers of
10 MiB ([nccl#1685](https://github.com/NVIDIA/nccl/issues/1685), [nccl#986](https://github.com/NVIDIA/nccl/issues/986)).
All-to-all and more channels take more; children that share with their parent take less. These are the least certain figures.
"""
COSTS_HEAD = """
## What it takes

`tests/frameworks/dry_run/costs --write` measured this on {day}, on a machine of two
cores, which did other work besides: seconds of the processors of all processes, and the memory of the largest one, of which PyTorch's
libraries alone are some 500 MiB.

| job | processors | memory |
| --- | ---: | ---: |
"""


def read():
    """{"jobs": {name: record}, "costs": ...}"""
    with open(RECORDS, encoding="utf-8") as file:
        return json.load(file)


def save(records):
    with open(RECORDS, "w", encoding="utf-8") as file:
        json.dump(records, file, indent=1, ensure_ascii=False)
        file.write("\n")


def keep(job, sizes, made):
    """sizes: of each figure of the job, in bytes."""
    records = read()
    figures = [{"dry run": in_unit(size, figure.unit), "error": f"{error(size, figure):+.1f}"} for figure, size in zip(job.figures, sizes)]
    records["jobs"][job.name] = {"figures": figures, **made}
    save(records)


def keep_note(name, size, made):
    """size: of the note's job, in bytes."""
    records, figure = read(), NOTED[name].job.figures[0]
    records["notes"][name] = {"dry run": in_unit(size, figure.unit), "error": f"{error(size, figure):+.1f}", **made}
    save(records)


def keep_costs(rows, day):
    """rows: job, seconds, MiB."""
    save({**read(), "costs": {"day": day, "rows": rows}})


def is_far(found):
    return abs(float(found["error"])) > USUAL


def as_measured(figure, found):
    """The dry run's figure and its error, if it kept what the measured release of PyTorch keeps."""
    size = float(found["dry run"].replace(",", "")) * figure.unit[1] + figure.kept
    return in_unit(size, figure.unit), f"{error(size, figure):+.1f}"


def notes(records):
    told = {name: as_measured(job.figures[0], records["jobs"][job.name]["figures"][0]) for job in JOBS
            for name in [{"a Transformer, DDP": "ddp", "a Transformer, FSDP1": "fsdp1", "BERT large": "bert",
                          "torchtitan's train.py, Llama 3.1 405B": "of_405b"}.get(job.name)] if name}
    figures = {name: figure for name, (figure, _) in told.items()} | {f"{name}_error": error_ for name, (_, error_) in told.items()}
    kept = {name.replace(" ", "_") + suffix: note[what] for name, note in records["notes"].items()
            for suffix, what in (("", "dry run"), ("_error", "error")) if what in note}
    then = [float(note["error"]) for name, note in records["notes"].items() if name.startswith("then ")]
    kept.update(then_least=f"{min(then):+.1f}", then_most=f"{max(then):+.1f}")
    softmax = next(job.figures[0].kept for job in JOBS if job.name == "BERT large") >> 20
    return NOTES.format(softmax=f"{softmax:,}", at_once=kept["done_at_once"], **kept, **figures)


def row(figure, found, made):
    unit, far = figure.unit[0], "**" * is_far(found)
    cells = [figure.words, figure.what, f"{figure.measured} {unit}", f"{found['dry run']} {unit}", f"{far}{found['error']} %{far}",
             figure.why, made]
    return "| " + " | ".join(cells).lstrip().replace("|  |", "| |") + " |\n"


def table(records):
    text = HEADER
    for words, jobs in GROUPS:
        text += f"| {words} |" + " |" * 6 + "\n"
        for job in jobs:
            record = records[job.name]
            for figure, found in zip(job.figures, record["figures"]):
                text += row(figure, found, f"{record['commit']}, {record['day']}")
    return text


def outside():
    rows = "".join(f"| {name} | {gpu.mebibytes / 1024:.2f} GiB | {gpu.context} MiB | {OUTSIDE[name]} |\n"
                   for name, gpu in dry_run_gpus.GPUS.items())
    return OUTSIDE_HEAD + rows + OUTSIDE_END


def costs(found):
    return COSTS_HEAD.format(day=found["day"]) + "".join(f"| {job} | {seconds} s | {mebibytes} MiB |\n"
                                                         for job, seconds, mebibytes in found["rows"])


def body(records):
    return HEAD + table(records["jobs"]) + notes(records) + outside() + costs(records["costs"])


def head(python=None):
    """The page's, with the version of the sources as they are before a record changes them."""
    return result_page.head(TITLE, COMMAND, SETTINGS, python=python, note=NOTE)


def write(head_):
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(head_ + body(read()))


def counts(records):
    """Figures, jobs, and figures that differ by no more than USUAL."""
    found = [one for job in JOBS for one in records["jobs"][job.name]["figures"]]
    return len(found), len(JOBS), sum(not is_far(one) for one in found)


def faults(records):
    """Jobs without a record, records without a job, and differences that nothing explains."""
    for name in sorted(records["jobs"].keys() ^ {job.name for job in JOBS}):
        yield f"{name}: it has no record, or a record has no job"
    for job in JOBS:
        for figure, found in zip(job.figures, records["jobs"].get(job.name, {"figures": ()})["figures"]):
            if is_far(found) and not figure.why:
                yield f"{job.name}: {found['error']} %, and no reason"
            if figure.kept and abs(float(as_measured(figure, found)[1])) > USUAL:
                yield f"{job.name}: what the older PyTorch kept does not explain {found['error']} %"

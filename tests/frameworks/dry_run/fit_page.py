# SPDX-License-Identifier: Apache-2.0
"""docs/results/fit.md: ten public configurations, and the records of `fits` (fit.json) about them."""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [HERE, os.path.join(SOURCE, "tests", "harness")]
import result_page  # noqa: E402

RECORDS = os.path.join(HERE, "fit.json")
PAGE = os.path.join(result_page.PAGES, "fit.md")
TITLE, COMMAND, SETTINGS = "The values that fit", "tests/frameworks/dry_run/fits --write", "no MetaShard; the dry run's own GPU"
GIB = 1 << 30


def ranks(number):
    return ["torchrun", "--nproc-per-node", str(number)]


def llama(*words):
    return [*ranks(8), "llama.py", *words]


def numbers(first, last):
    return ",".join(map(str, range(first, last + 1)))


LLAMA_2 = ["--model", "2-7b", "--recipe", "2024-03"]
# The configuration, the GPU, what varies, its values, and the command.
CONFIGURATIONS = [
    ("torchtitan, Llama 3.1 8B, FSDP2, 8 ranks, rows of 8192 tokens", "97000", "batch", numbers(1, 4), llama("--batch", "{batch}")),
    ("the same, length of two rows", "97000", "length", "4096,6144,8192,10240,12288", llama("--length", "{length}")),
    ("the same, two rows of 8192 tokens, number of ranks", "h100-80", "world", "4,8,16,32,64", llama()),
    ("torchtitan, Llama 2 7B, FSDP2, full checkpointing, rows of 8192 tokens", "97320", "batch", numbers(2, 17),
     llama(*LLAMA_2, "--checkpointing", "full", "--length", "8192", "--batch", "{batch}")),
    ("torchtitan, Llama 2 7B, FSDP1, selective checkpointing, rows of 2048 tokens", "97320", "batch", numbers(10, 25),
     llama(*LLAMA_2, "--fsdp", "1", "--length", "2048", "--batch", "{batch}")),
    ("LitGPT, Llama 2 7B, LoRA", "a100-40", "batch", numbers(1, 4), ["python", "lora.py", "--batch", "{batch}"]),
    ("LitGPT, Llama 2 13B, LoRA", "a100-80", "batch", numbers(1, 8),
     ["python", "lora.py", "--model", "llama-2-13b", "--batch", "{batch}"]),
    ("transformers, BERT large in fp32, rows of 512 tokens", "16160", "batch", numbers(1, 8), ["python", "bert.py", "--batch", "{batch}"]),
    ("transformers, BERT large in mixed precision, rows of 512 tokens", "16160", "batch", numbers(1, 16),
     ["python", "bert.py", "--fp16", "--batch", "{batch}"]),
    ("Lightning, a Transformer of 1B parameters, FSDP1, number of ranks", "t4", "world", "1,2,4,8",
     [*ranks(2), "lightning_guide.py", "--way", "full_shard"])]
HEAD = """`metashard fit` names the value *n* of ten public configurations, and then full dry runs say what *n* and the value
behind it do. The command fails if the dry run of *n* does not fit, or if that of the next value ends otherwise than out of memory.
Values are whole numbers one after another, but lengths, of which the next is 2048 more, and numbers of ranks, of which the next is
half as many. The models and settings are those of [dry runs beside GPUs](dry-run.md), whose sources are named there; the scripts are in
[tests/frameworks/dry_run](../../tests/frameworks/dry_run). No figure here is one of a GPU; `97000`, `97320` and `16160` are the MiB of
an H100 with 96 GB, that of torchtitan's measurement, and a V100.

*Peak* is all that the process takes of the device, *left* the rest of the device. Where next to nothing is left, PyTorch's allocator
gives cached blocks back to go on, as it does on a GPU. `metashard fit` then says that the value fits narrowly, and a GPU, from which
dry runs differ by some per cent, may say otherwise. *Runs* counts the dry runs that `metashard fit`
started, of so many values. *Made* names the last commit that changed MetaShard or its simulator, and the day.

"""
HEADER = "| configuration | GPU | varies | *n* | peak | left | the next value | in its dry run | runs | made |"


def read():
    """{configuration: its record}"""
    if not os.path.exists(RECORDS):
        return {}
    with open(RECORDS, encoding="utf-8") as file:
        return json.load(file)


def keep(name, record):
    records = {**read(), name: record}
    with open(RECORDS, "w", encoding="utf-8") as file:
        json.dump(records, file, indent=1)
        file.write("\n")


def gib(size):
    return f"{size / GIB:.2f} GiB"


def next_cell(shortage):
    sizes = f"{gib(shortage['wanted'])} wanted, {gib(shortage['free'])} free"
    return f"out of memory: {sizes}, in {shortage['phase']} of step {shortage['step']}"


def command_of(gpu, name, values, command):
    return " ".join(["metashard", "fit", "--gpu", gpu, "--vary", f"{name}={values}", "--", *command])


def row(configuration, record):
    title, gpu, name, values, _ = configuration
    cells = [title, gpu, name, record["n"], gib(record["peak"]), gib(record["left"]), record["next"], next_cell(record["shortage"]),
             f"{record['runs']} of {len(values.split(','))}", f"{record['commit']}, {record['day']}"]
    return "| " + " | ".join(cells) + " |"


def body(records):
    found = [(configuration, records[configuration[0]]) for configuration in CONFIGURATIONS if configuration[0] in records]
    commands = [command_of(*configuration[1:]) for configuration, _ in found]
    return (HEAD + "\n".join([HEADER, "|" + " --- |" * (HEADER.count("|") - 1), *(row(*one) for one in found)]) +
            "\n\nThe commands of `metashard fit`, in that order; the dry runs have the value in its place, or `--world`:\n\n```sh\n" +
            "\n".join(commands) + "\n```\n")


def head(python):
    """The page's, with the version of the sources as they are before a record changes them."""
    return result_page.head(TITLE, COMMAND, SETTINGS, python=python, note="each row of its own")


def write(head_):
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(head_ + body(read()))


def faults(records):
    """Configurations without a record, and records without a configuration."""
    for name in sorted(records.keys() ^ {configuration[0] for configuration in CONFIGURATIONS}):
        yield f"{name}: it has no record in fit.json, or a record has no configuration"

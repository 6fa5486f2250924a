# SPDX-License-Identifier: Apache-2.0
"""docs/results/values.md, of what run found. What a row of an earlier page has stays, with its commit, where one device has the same
values as now."""
import os
import re
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(SOURCE, "tests", "harness"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import result_page  # noqa: E402
from merge import DIFFER  # noqa: E402

TITLES = {"fsdp1": "FSDP1", "fsdp2": "FSDP2", "tp": "tensor parallel", "tp-fsdp2": "tensor parallel in twos, and FSDP2",
          "pipeline": "pipeline stages", "experts": "expert parallel", "experts-fsdp2": "expert parallel in twos, and FSDP2",
          "offload": "FSDP2, offloaded to the host",
          "replicas": "replicas (DDP)"}
# How a model is sharded, and the numbers of ranks with which that is another thing than with fewer.
WORLDS = {"fsdp1": (1, 2, 4, 8), "fsdp2": (1, 2, 4, 8), "tp": (2, 4), "tp-fsdp2": (4, 8), "pipeline": (2, 4), "experts": (2, 4),
          "experts-fsdp2": (8,), "offload": (2, 4), "replicas": (2, 4)}
SHOWN = 8  # digits of a digest
WITHOUT_META = "replicas"
SAME = "as one device"
RANKS = ("1", "2", "4", "8")
HEAD = """Nothing computes but initialisers, on the simulated driver of this repository, with its stand-in for NCCL and host versions of
PyTorch's kernels, where fresh device memory is not zero. No figure here is one of a GPU.

A script sets one seed and makes a model of a public definition, with a small configuration, on one device: *one device* is the digest
of all its parameters and buffers, without MetaShard. Then ranks do one of two things:

- **with MetaShard** the same script makes the model whole on the device of each rank, and shards it;
- **after a meta device**, without MetaShard, it makes it on the meta device, shards it, calls `to_empty` and initialises it as its
  project recommends: `initialize_weights` of transformers, `init_weights` of torchtitan; otherwise `reset_parameters` of all modules
  that have it, and then the `init_weights` of timm's models that have one; for FSDP1 each module by itself, in `param_init_fn`. What
  nothing initialises has one pattern here, and so the same digest on any number of ranks, which it has not on a GPU.

The digest ([digest.py](../../tests/frameworks/values/digest.py)) does not depend on how tensors are sharded: of each tensor it is
the sum of a hash of (name, index, bits) over the elements, so ranks add up what they hold. Replicas, also tied weights of two
stages, have to be equal, and count once. The first eight digits are shown. *{same}* is the digest of one device, in all {digits}
digits. The last column has the buffers, persistent or not, that have each bit of one device after a meta device, on any number of
ranks. Inverse frequencies of rotary embeddings are right up to rounding: transformers computes them again, on the host.

In *pipeline stages* each rank frees the tensors of other stages, and after a meta device initialises its own module by module; in
*expert parallel* it keeps some experts of the stacked parameters (`Shard(0)`); *offloaded to the host* is FSDP2 with
`CPUOffloadPolicy`, and after a meta device `to_empty(device="cpu")`, as torchtitan does. *None*: nobody recommends a meta device for
replicas, each of which keeps the whole model. Where a cell is empty, that number of ranks is not one of this way to shard. A model has
rows of tensor parallelism where [models.py](../../tests/frameworks/values/models.py) has a plan for it, and of expert parallelism where
it has experts. Each row names the commits that its cells were made with.

The first rows are those of [pytorch#168058](https://github.com/pytorch/pytorch/issues/168058): shards have other values on other
numbers of ranks.

"""
HEADER = ("| model | sharded | one device | with MetaShard | after a meta device: 1 rank | 2 ranks | 4 ranks | 8 ranks |"
          " its buffers as one device | commit |")
FAILED = re.compile(rf"^- (.+?), ({'|'.join(map(re.escape, TITLES.values()))}), (\d) ranks, after a meta device: `(.*)`$", re.M)
FAILED_HEAD = """
## Runs that ended with an error

Of these it is not known whether the values are those of one device. transformers' initialiser of Mamba copies plain tensors into
DTensors, which PyTorch refuses. timm's Swin makes a block's mask on the device of the block's first norm, which is still the meta device
where each module is initialised by itself. torchtitan's Llama 3 cuts the output layer's values off at three standard deviations:
`trunc_normal_` draws again, until none is outside, and of shards on the host PyTorch draws the same numbers each time.

"""


def commit():
    """The commit of the sources as they are now; with a + where they differ from the commit."""
    return re.search(r"commit (\w+\+?)", result_page.version())[1]


def cell(found, one):
    if found is None:
        return ""
    if "error" in found:
        return "error"
    if found["digest"] == DIFFER:
        return DIFFER
    return SAME if found["digest"] == one and not found["differ"] else found["digest"][:SHOWN]


def plain(record):
    cells = {ranks: cell(record["plain"][ranks], record["one"]) for ranks in sorted(record["plain"], key=int)}
    words = f"{', '.join(cells)} ranks: " if cells else ""
    return words + (SAME if set(cells.values()) == {SAME} else ", ".join(cells.values()))


def meta(record):
    if record["parallel"] == WITHOUT_META:
        return ["none"] * 4
    return [cell(record["meta"].get(ranks), record["one"]) for ranks in RANKS]


def buffers(record):
    found = [one for one in record["meta"].values() if "error" not in one]
    if record["buffers"] == 0 or record["parallel"] == WITHOUT_META:
        return "none"
    return f"{record['buffers'] - max(len(one['buffers']) for one in found)} of {record['buffers']}" if found else ""


def line(record):
    cells = [record["title"], TITLES[record["parallel"]], record["one"][:SHOWN], plain(record), *meta(record), buffers(record), record["commit"]]
    return ("| " + " | ".join(cells) + " |").replace("|  |", "| |").replace("|  |", "| |")


def record_of(row):
    """What an earlier page says, or None where its row has a difference, and is to be made anew."""
    cells = [text.strip() for text in row.strip("|\n").split("|")]
    title, parallel, one, of_plain, *of_meta, right, of_commit = cells
    ranks, _, words = of_plain.partition(" ranks: ")
    if words not in ("", SAME):
        return None
    parts = re.match(r"(\d+) of (\d+)", right)
    wrong = ["?"] * (int(parts[2]) - int(parts[1])) if parts else []
    found = {number: {"digest": one if text == SAME else text, "differ": [] if text == SAME else ["?"], "buffers": wrong}
             for number, text in zip(RANKS, of_meta) if text not in ("", "none", "error")}
    return {"title": title, "parallel": next(name for name, words in TITLES.items() if words == parallel), "one": one,
            "buffers": int(parts[2]) if parts else 0, "commit": of_commit, "meta": found,
            "plain": {number: {"digest": one, "differ": [], "buffers": []} for number in ranks.split(", ")} if words else {}}


def joined(old, new):
    """The cells of both, the new ones first; old digests are short. The old commits stay while a cell of theirs may."""
    kept = [(way, ranks) for way in ("plain", "meta") for ranks in old[way] if ranks not in new[way]]
    for way, ranks in kept:
        found = old[way][ranks]
        of_one = {"digest": new["one"]} if found.get("digest") == old["one"] else {}
        new[way][ranks] = {**found, **of_one}
    if kept:
        new["commit"] = ", ".join(dict.fromkeys([*old["commit"].split(", "), new["commit"]]))


def errors(records):
    for record in records:
        for way, words in (("plain", "with MetaShard"), ("meta", "after a meta device")):
            for ranks, one in record[way].items():
                if "error" in one:
                    yield f"- {record['title']}, {TITLES[record['parallel']]}, {ranks} ranks, {words}: `{one['error'][:160]}`"


def versions(python):
    code = ("from importlib import metadata as m\nfor name in ('transformers', 'timm', 'torchtitan'):\n"
            "    try: print(name, m.version(name))\n    except m.PackageNotFoundError: pass")
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()


class Page:
    """titles and ways to shard: in their order. Rows of other titles stay, at the end."""

    def __init__(self, titles, ways):
        self.titles, self.ways, self.commit = titles, ways, commit()
        self.path, self.records = os.path.join(result_page.PAGES, "values.md"), {}
        if os.path.exists(self.path):
            with open(self.path, encoding="utf-8") as file:
                rows = [record_of(row) for row in file if row.count(" | ") > 5 and not row.startswith(("| model |", "| --- |"))]
            self.records = {self.key(record): record for record in rows if record is not None}
            with open(self.path, encoding="utf-8") as file:
                for title, parallel, ranks, why in FAILED.findall(file.read()):
                    self.take_error(title, parallel, ranks, why)

    def take_error(self, title, parallel, ranks, why):
        """After a meta device: what fails under MetaShard is made anew."""
        for record in self.records.values():
            if record["title"] == title and TITLES[record["parallel"]] == parallel:
                record["meta"][ranks] = {"error": why, "differ": ["all"], "buffers": []}

    @staticmethod
    def key(record):
        return record["title"], record["parallel"]

    def there(self, title, parallel):
        """[number of ranks, way] that the page has."""
        record = self.records.get((title, parallel), {"plain": {}, "meta": {}})
        return [(int(ranks), way) for way in ("plain", "meta") for ranks, found in record[way].items() if "error" not in found]

    def add(self, record):
        record["commit"] = self.commit
        old = self.records.get(self.key(record))
        if old is not None and record["one"].startswith(old["one"]):
            joined(old, record)
        self.records[self.key(record)] = record

    def place(self, record):
        title = record["title"]
        return self.titles.index(title) if title in self.titles else len(self.titles), self.ways.index(record["parallel"])

    def write(self, python):
        records = sorted(self.records.values(), key=self.place)
        text = result_page.head("The values of a model, for any number of ranks", "tests/frameworks/values/run --write", python=python,
                                more=versions(python), note="each row of its own")
        text += HEAD.format(same=SAME.capitalize(), digits=16)
        text += "\n".join([HEADER, "|" + " --- |" * HEADER.count(" |"), *map(line, records)]) + "\n"
        failed = list(errors(records))
        text += FAILED_HEAD + "\n".join(failed) + "\n" if failed else ""
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(text)

# SPDX-License-Identifier: Apache-2.0
"""Figures of device memory that others measured on GPUs, and the dry runs that stand beside them: the data of `run` and of
docs/results/dry-run.md."""
from collections import namedtuple

# Its name, the bytes of one, and how many digits are shown. Lightning's guide to FSDP says MB, and means MiB.
GIB, GB, MB, MIB, LIGHTNING = ("GiB", 1 << 30, 2), ("GB", 1e9, 2), ("MB", 1e6, 0), ("MiB", 1 << 20, 0), ("MB", 1 << 20, 0)
USUAL = 5  # per cent

# `words` of the row; `what` is reserved, allocated or active; by how many per cent a dry run may differ; `why` by more than USUAL;
# `kept`: bytes that the measured release of PyTorch keeps, by its sources, and today's does not.
Figure = namedtuple("Figure", "words what measured unit most why kept", defaults=(USUAL, "", 0))
# `name` in messages and records; `command` is None for a script that is not here; `kind`: "small" takes seconds, "transformers" needs it.
Job = namedtuple("Job", "name figures arguments command kind", defaults=("",))


def ranks(number):
    return ["torchrun", "--nproc-per-node", str(number)]


def llama(*own):
    return [*ranks(8), "llama.py", *own]


def titan(*own):
    return llama("--model", "2-7b", "--batch", "8", "--length", "2048", "--recipe", "2024-03", *own)


BIG, BIGGER, OF_128, A100, ROOM = (["--gpu", "97000"], ["--gpu", "97320"], ["--world", "128", "--rank", "77"], ["--gpu", "a100-40"],
                                   ["--gpu", "40000"])
# Its inputs have two segments of their own in that stream; today the stream has one, of the largest output.
OLD_REDUCE = (10, "reduce-scatter of March 2024 ([2])", (1002 + 774 - 126) << 20)
PARAMETERS = 1_008_763_390  # of lightning_guide.py
OLD_ADAM, OLD_SOFTMAX = (20, "Adam of PyTorch 2.1 ([4])"), (15, "softmax of PyTorch 1.10 ([7])", 24 * (64 << 20))
FULL, NONE = ["--checkpointing", "full"], ["--checkpointing", "none"]
GROUPS = [
    ("**torchtitan**, H100 96 GB, 8 ranks ([1], [2])", [
        Job("Llama 3.1 8B, FSDP2, 8 ranks",
            [Figure("Llama 3.1 8B, FSDP2, 2 × 8192 tokens, selective checkpointing", "reserved", "82.4", GIB)], BIG, llama()),
        Job("Llama 3.1 8B, FSDP2, compiled, 8 ranks", [Figure("the same with `torch.compile` of each block", "reserved", "77.0", GIB)],
            BIG, llama("--compile")),
        Job("Llama 3.1 8B, FSDP2, 128 ranks", [Figure("128 ranks instead of 8", "reserved", "67.0", GIB)], BIG + OF_128, llama()),
        Job("Llama 3.1 8B, FSDP2, compiled, 128 ranks", [Figure("128 ranks, with `torch.compile`", "reserved", "62.0", GIB)],
            BIG + OF_128, llama("--compile")),
        Job("Llama 2 7B, FSDP2, full checkpointing",
            [Figure("Llama 2 7B, FSDP2, 8 × 2048 tokens, full checkpointing", "allocated", "22.73", GIB),
             Figure("", "reserved", "31.02", GIB, *OLD_REDUCE)], BIGGER, titan(*FULL)),
        Job("Llama 2 7B, FSDP2, selective checkpointing",
            [Figure("selective checkpointing", "allocated", "49.54", GIB), Figure("", "reserved", "59.41", GIB)], BIGGER, titan()),
        Job("Llama 2 7B, FSDP1, full checkpointing",
            [Figure("FSDP1, full checkpointing", "active", "23.58", GIB), Figure("", "reserved", "32.14", GIB)],
            BIGGER, titan(*FULL, "--fsdp", "1")),
        Job("Llama 2 7B, FSDP1, selective checkpointing",
            [Figure("FSDP1, selective checkpointing", "active", "50.35", GIB), Figure("", "reserved", "63.90", GIB)],
            BIGGER, titan("--fsdp", "1")),
        Job("Llama 2 7B, FSDP2, compiled, full checkpointing",
            [Figure("FSDP2 and `torch.compile`, full checkpointing", "reserved", "28.90", GIB)], BIGGER, titan("--compile", *FULL)),
        Job("Llama 2 7B, FSDP2, compiled", [Figure("`torch.compile`, no checkpointing", "reserved", "90.28", GIB)],
            BIGGER, titan("--compile", *NONE)),
        Job("Llama 2 7B, FSDP2, compiled, selective checkpointing",
            [Figure("`torch.compile`, selective checkpointing, 16 × 2048 tokens", "reserved", "88.23", GIB)],
            BIGGER, titan("--compile", "--batch", "16"))]),
    ("**torchtitan's own `train.py`** of December 2024, not changed ([1])", [
        Job("torchtitan's train.py, Llama 3.1 8B",
            [Figure("Llama 3.1 8B, FSDP2, 2 × 8192 tokens, selective checkpointing", "reserved", "82.4", GIB)], BIG, None),
        Job("torchtitan's train.py, Llama 3.1 8B, expandable segments",
            [Figure("with expandable segments, as its `run_llama_train.sh` sets them", "reserved", "82.4", GIB)], BIG, None),
        Job("torchtitan's train.py, Llama 3.1 405B",
            [Figure("Llama 3.1 405B, 512 ranks: FSDP2 of 8, TP of 8, a pipeline of 8 by 1F1B; eight-bit products, asynchronous TP, "
                    "`torch.compile`, 32 × 8192 tokens, full checkpointing", "reserved", "82.5", GIB)], BIG, None)]),
    ("**Lightning**, guide to tensor parallelism ([3])", [
        Job("tensor parallelism, 1 GPU", [Figure("feed-forward block of 8192 in fp32, 1 GPU", "allocated", "4.04", GB)],
            [], ["python", "lightning_parallel.py"], "small"),
        Job("tensor parallelism, 2 ranks",
            [Figure("2-way TP", "allocated", "2.03", GB)], [], [*ranks(2), "lightning_parallel.py"], "small"),
        Job("tensor parallelism, 4 ranks",
            [Figure("4-way TP", "allocated", "1.02", GB)], [], [*ranks(4), "lightning_parallel.py"], "small"),
        Job("tensor parallelism, 8 ranks", [Figure("8-way TP, whose peak is in the sharding of the weights", "allocated", "0.60", GB)],
            [], [*ranks(8), "lightning_parallel.py"], "small")]),
    ("**Lightning**, guide to FSDP, A100 40 GB, 2 ranks ([4])", [
        Job("a Transformer, DDP", [Figure("Transformer of 1B parameters, DDP", "allocated", "26,953", LIGHTNING, *OLD_ADAM, 4 * PARAMETERS)],
            A100, [*ranks(2), "lightning_guide.py"]),
        Job("a Transformer, FSDP1", [Figure("FSDP1, each layer a unit", "allocated", "11,578", LIGHTNING, *OLD_ADAM, 2 * PARAMETERS)],
            A100, [*ranks(2), "lightning_guide.py", "--way", "full_shard"])]),
    ("**PyTorch**, recipe of ZeroRedundancyOptimizer, 2 ranks ([5])", [
        Job("DDP, 2 ranks", [Figure("twenty layers of 2000, DDP, Adam", "allocated", "1,697", MB)],
            [], [*ranks(2), "zero_redundancy.py"], "small"),
        Job("ZeroRedundancyOptimizer, 2 ranks", [Figure("with ZeroRedundancyOptimizer", "allocated", "1,361", MB)],
            [], [*ranks(2), "zero_redundancy.py", "--zero"], "small")]),
    ("**LitGPT**, A100 40 GB, LoRA of rank 8 in bf16 ([6])", [
        Job("Llama 2 7B, LoRA", [Figure("Llama 2 7B, 1 × 1304 tokens", "allocated", "21.30", GB)], A100, ["python", "lora.py"]),
        Job("Llama 2 7B, LoRA, two rows",
            [Figure("2 × 1304 tokens", "allocated", "29.07", GB)], A100, ["python", "lora.py", "--batch", "2"])]),
    ("**transformers**, guide to one GPU, V100 16 GB ([7])", [
        Job("BERT large", [Figure("BERT large in fp32, 4 × 512 tokens", "reserved", "13,608", MIB, *OLD_SOFTMAX)],
            ROOM, ["python", "bert.py"], "transformers"),
        Job("BERT large, checkpointing", [Figure("1 × 512 tokens, four accumulated, checkpointing", "reserved", "5,434", MIB)],
            ROOM, ["python", "bert.py", "--batch", "1", "--accumulate", "4", "--checkpointing"], "transformers")])]
JOBS = [job for _, jobs in GROUPS for job in jobs]
# Whose figures are in notes below the table. `answer`: which of the dry run's it is, if there are two.
Note = namedtuple("Note", "job answer", defaults=(None,))


def then(name):
    """The job of that name with the reduce-scatter of March 2024."""
    job, at = next(job for job in JOBS if job.name == name), len(ranks(8))
    return Note(Job(name + ", reduce-scatter of 2024", [job.figures[-1]._replace(most=USUAL)], job.arguments,
                    [*job.command[:at], "old_reduce.py", *job.command[at:]]))


NOTED = {
    "expandable": Note(Job("Llama 3.1 8B, FSDP2, 8 ranks, expandable segments", [Figure("", "reserved", "82.4", GIB)],
                           [*BIG, "--with-expandable-segments"], llama()), "expandable"),
    **{f"then {words}": then(f"Llama 2 7B, FSDP2, {words}") for words in (
        "full checkpointing", "selective checkpointing", "compiled, full checkpointing", "compiled",
        "compiled, selective checkpointing")}}

# Where the memory of a GPU, and what a process has there besides PyTorch's blocks, is from.
OUTSIDE = {
    "h100-80": "[vllm#27508](https://github.com/vllm-project/vllm/issues/27508) for the device; besides as an H200",
    "h200": "[pytorch#150096](https://github.com/pytorch/pytorch/issues/150096)",
    "a100-80": "[OOTDiffusion#235](https://github.com/levihsu/OOTDiffusion/issues/235) for the device; besides as with 40 GB",
    "a100-40": "[CoSeR#10](https://github.com/TianheWu/CoSeR/issues/10)",
    "l4": "[evo2#190](https://github.com/ArcInstitute/evo2/issues/190)",
    "l40": "[Qwen3-VL#2097](https://github.com/QwenLM/Qwen3-VL/issues/2097)",
    "rtx-4090": "[pytorch#16417](https://github.com/pytorch/pytorch/issues/16417)",
    "rtx-5090": "[Wan2.1#465](https://github.com/Wan-Video/Wan2.1/issues/465)",
    "t4": "[Open-Sora#697](https://github.com/hpcaitech/Open-Sora/issues/697)"}


def in_unit(size, unit):
    """As the page shows it."""
    return f"{size / unit[1]:,.{unit[2]}f}"


def error(size, figure):
    """By how many per cent the dry run is above what was measured."""
    return 100 * (size / figure.unit[1] / float(figure.measured.replace(",", "")) - 1)

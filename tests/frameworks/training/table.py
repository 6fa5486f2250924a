# SPDX-License-Identifier: Apache-2.0
"""The rows: which script is called, how, and with how many ranks."""
from collections import namedtuple

# name: as --only has it. checkpoint: a file or folder of make_checkpoint.py. ranks: their number. packages: what the script
# imports and a machine may lack; then the row is skipped. variables: of the environment. plan: a strategy of metashard-plan;
# the run with the shim has METASHARD_PLAN. values: None, or what the random values that it begins with have to be: "one
# device", those of one device; "any".
Row = namedtuple("Row", "name title script arguments checkpoint ranks packages variables plan values")

SHARED = ("--start", "device", "--shared")  # random values of one device, and its batches
MODELS = {"llama": "Llama", "gpt2": "GPT-2", "mixture": "Mixture of experts", "encoder": "PyTorch's encoder"}
EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def row(name, title, *arguments, model="llama", ranks=1, variables=None, plan=None, values=None):
    checkpoint = "gpt2.pt" if model == "gpt2" else model + ".safetensors"
    return Row(name, title, "train.py", ["--model", model, *arguments], checkpoint, ranks, (), variables or {}, plan, values)


def pretrained(name, title, how, *packages, model="llama", ranks=1, variables=None):
    return Row(name, title, "pretrained.py", ["--how", how], "pretrained-" + model, ranks, ("transformers", *packages),
               variables or {}, None, None)


ROWS = [
    row("llama", "Llama"),
    row("gpt2", "GPT-2, tied", model="gpt2"),
    row("llama-fused", "Llama, fused AdamW", "--optimizer", "fused"),
    row("llama-forloop", "Llama, AdamW one by one", "--optimizer", "forloop"),
    row("llama-adapters", "Llama, adapters of frozen weights", "--adapters"),
    row("llama-recompute", "Llama, activation checkpointing", "--recompute"),
    row("llama-accumulate", "Llama, gradients of four batches", "--accumulate"),
    row("llama-autocast", "Llama, autocast to bfloat16", "--precision", "autocast"),
    row("llama-average", "Llama, a moving average, evaluated", "--average"),
    row("llama-graph", "Llama, a CUDA graph of the step, fused AdamW", "--graph", "--optimizer", "fused"),
    row("llama-graph-foreach", "Llama, a CUDA graph of the step", "--graph"),
    row("llama-suspend", "Llama, suspended between steps", "--suspend"),
    row("llama-graph-suspend", "Llama, a CUDA graph of the step, suspended between steps", "--graph", "--optimizer", "fused",
        "--suspend"),
    row("llama-adapters-suspend", "Llama, adapters of frozen weights, expandable segments, suspended between steps", "--adapters",
        "--suspend", variables=EXPANDABLE),
    row("llama-fsdp2-suspend", "Llama, FSDP2, suspended between steps", "--parallel", "fsdp2", "--suspend", ranks=2),
    *(row(f"llama-all-suspend-{ranks}", "Llama, FSDP2, adapters of frozen weights, expandable segments, a CUDA graph of the step, "
          "suspended between steps", "--parallel", "fsdp2", "--adapters", "--graph", "--optimizer", "fused", "--suspend",
          ranks=ranks, variables=EXPANDABLE) for ranks in (1, 2, 8)),
    row("llama-save", "Llama, saved by safetensors and loaded again", "--save", "safetensors"),
    row("gpt2-save", "GPT-2, saved by torch.save and loaded again", "--save", "torch", model="gpt2"),
    pretrained("trainer", "transformers' Llama, its Trainer", "trainer", "accelerate"),
    pretrained("trainer-gpt2", "transformers' GPT-2, its Trainer", "trainer", "accelerate", model="gpt2"),
    pretrained("accelerate", "transformers' Llama, accelerate", "accelerate", "accelerate"),
    pretrained("adapters", "transformers' Llama, LoRA of peft", "adapters", "peft"),
    row("llama-ddp", "Llama, DDP", "--parallel", "ddp", ranks=2),
    row("gpt2-ddp", "GPT-2, DDP", "--parallel", "ddp", model="gpt2", ranks=2),
    row("llama-fsdp1", "Llama, FSDP1", "--parallel", "fsdp1", ranks=2),
    row("gpt2-fsdp1", "GPT-2, FSDP1", "--parallel", "fsdp1", model="gpt2", ranks=2),
    row("llama-fsdp2", "Llama, FSDP2", "--parallel", "fsdp2", ranks=2),
    row("gpt2-fsdp2", "GPT-2, FSDP2", "--parallel", "fsdp2", model="gpt2", ranks=2),
    row("llama-fsdp2-mixed", "Llama, FSDP2 in bfloat16", "--parallel", "fsdp2", "--precision", "mixed", ranks=2),
    row("llama-fsdp1-mixed", "Llama, FSDP1 in bfloat16", "--parallel", "fsdp1", "--precision", "mixed", ranks=2),
    row("llama-fsdp2-save", "Llama, FSDP2, saved by DCP and loaded again", "--parallel", "fsdp2", "--save", "dcp", ranks=2),
    pretrained("accelerate-ddp", "transformers' Llama, accelerate with DDP", "accelerate", "accelerate", ranks=2),
    row("llama-tp", "Llama, tensor parallel and FSDP2", "--parallel", "tp", "--optimizer", "forloop", ranks=4),
    row("llama-fsdp2-4", "Llama, FSDP2", "--parallel", "fsdp2", ranks=4),
    row("llama-offload", "Llama, FSDP2 with CPUOffloadPolicy", "--parallel", "fsdp2", "--offload", ranks=2),
    row("llama-offload-random", "Llama, FSDP2 with CPUOffloadPolicy, random values made on the device", "--parallel", "fsdp2",
        "--offload", "--start", "device", ranks=2, values="one device"),
    row("llama-offload-meta", "Llama, FSDP2 with CPUOffloadPolicy, random values made after meta", "--parallel", "fsdp2",
        "--offload", "--start", "meta", ranks=2, values="any"),
    row("llama-fsdp2-random", "Llama, FSDP2, random values made on the device", "--parallel", "fsdp2", "--start", "device",
        ranks=2, values="one device"),
    row("llama-fsdp2-meta", "Llama, FSDP2, random values made after meta", "--parallel", "fsdp2", "--start", "meta", ranks=2,
        values="any"),
    *(row(f"{model}-shared", f"{title}, batches that ranks share", *SHARED, model=model) for model, title in MODELS.items()),
    *(row(f"{model}-{parallel}-shared-{ranks}", f"{title}, {parallel.upper()}, batches that ranks share", "--parallel", parallel, *SHARED,
          model=model, ranks=ranks) for model, title in MODELS.items() for parallel in ("fsdp2", "fsdp1", "ddp") for ranks in (2, 4)),
    row("llama-pipeline", "Llama, two stages of a pipeline", "--parallel", "pipeline", ranks=2),
    row("llama-pipeline-random", "Llama, two stages of a pipeline, random values", "--parallel", "pipeline", "--start",
        "device", ranks=2, values="one device"),
    row("llama-fsdp2-plan", "Llama, FSDP2, with a plan", "--parallel", "fsdp2", ranks=2, plan="fsdp2"),
    row("llama-fsdp1-plan", "Llama, FSDP1, with a plan", "--parallel", "fsdp1", ranks=2, plan="fsdp1"),
    row("gpt2-fsdp2-plan", "GPT-2, FSDP2, with a plan", "--parallel", "fsdp2", model="gpt2", ranks=2, plan="fsdp2"),
    pretrained("batch", "transformers' Llama, find_executable_batch_size of accelerate", "batch", "accelerate",
               variables={"SIMCUDA_MEMORY_MIB": "96"}),
    row("llama-half", "Llama, autocast to float16, GradScaler", "--precision", "half"),
    row("llama-half-fused", "Llama, autocast to float16, GradScaler, fused AdamW", "--precision", "half", "--optimizer",
        "fused"),
    pretrained("fabric", "transformers' Llama, Lightning Fabric", "fabric", "lightning"),
    pretrained("fabric-fsdp", "transformers' Llama, Lightning Fabric with FSDP", "fabric", "lightning", ranks=2),
    pretrained("trainer-fsdp2", "transformers' Llama, its Trainer with FSDP2", "trainer-device", "accelerate", model="wide", ranks=2),
    pretrained("trainer-rank0", "the same, loaded on rank 0's host alone", "trainer-rank0", "accelerate", model="wide", ranks=2),
    pretrained("lightning", "transformers' Llama, Lightning's Trainer with FSDP", "lightning", "lightning", model="wide", ranks=2),
    row("llama-fsdp1-4", "Llama, FSDP1", "--parallel", "fsdp1", ranks=4),
    row("llama-ddp-4", "Llama, DDP", "--parallel", "ddp", ranks=4),
    row("llama-fsdp2-expandable", "Llama, FSDP2, expandable segments", "--parallel", "fsdp2", ranks=2, variables=EXPANDABLE),
]

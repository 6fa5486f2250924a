# SPDX-License-Identifier: Apache-2.0
"""The rows: a script of this folder each, as its users write it.

The runner starts every rank with what a script does not say: torchrun's variables, and
    --checkpoint PATH   of the row's kind, if it has one (tests/frameworks/flows/make_checkpoint.py)
    --scale S           the width of the model
and the row's own arguments. The script leaves what it made in a global variable: `model`, a module, or `values`, a dict of
tensors by name, or both. Nothing in it knows of MetaShard.
"""
from collections import namedtuple

# name: as --only has it. system: the row's name in the table. script: NAME.py. checkpoint: a kind, or None.
# plan: a strategy of metashard-plan, for a third run with a plan; None: the program's own slicing is the plan.
# bound: whose peak is at most 1.05 x shard + the largest tensor's shard + 64 MiB, with the shim (and a plan, where
#   the row has one): "all" ranks, "but 0", "small" (all, in models of --scale below 1), or "none".
# slack: of these rows, in MiB, if it is more than --slack-mib: buckets of FSDP1 and parts of tensor parallelism are there
#   whole for a moment, however small the model is.
# packages: what the script imports and a machine may lack; then the row is skipped. least: ranks it needs.
# copied: what is copied to the device, with the shim, follows the shard.
# lacks: what is missing of the simulated device, where the row cannot run there; said in the table.
Row = namedtuple("Row", "name system script arguments checkpoint plan bound packages least lacks slack copied",
                 defaults=((), None, None, "none", ("torch",), 1, None, 0, False))

NO_TRITON = "what Triton compiles does not run on a simulated device"

ROWS = [
    Row("plain-scratch", "plain FSDP2, from scratch", "plain_scratch", bound="all"),
    Row("plain-load", "plain FSDP2, safetensors", "plain_load", checkpoint="safetensors", bound="all"),
    Row("plain-fsdp1-scratch", "plain FSDP1, from scratch", "plain_fsdp1", bound="all"),
    Row("plain-fsdp1-load", "plain FSDP1, safetensors", "plain_fsdp1", checkpoint="safetensors", bound="all"),
    Row("fsdp1-meta", "FSDP1, meta and param_init_fn", "fsdp1_meta"),
    Row("fsdp1-sync", "FSDP1, sync_module_states", "fsdp1_sync", checkpoint="safetensors", plan="fsdp1",
        bound="but 0", slack=64),
    Row("fsdp1-sharded", "FSDP1, sharded checkpoint into empty tensors", "fsdp1_sharded", checkpoint="dcp_model"),
    Row("deferred", "deferred initialisation, module by module", "deferred"),
    Row("dcp-meta", "DCP, FSDP2 on meta", "dcp_load", ("--start", "meta"), "dcp_even", bound="all"),
    Row("dcp-real", "DCP, FSDP2 built on the device", "dcp_load", ("--start", "real"), "dcp_even", bound="all"),
    # Rank 0 of each tensor parallel group sends the others their half of every tensor, which they have until FSDP2 has
    # taken its part of it: in a large model, and on more than 2 ranks, above the bound.
    Row("tp-fsdp2", "tensor parallel and FSDP2, DCP", "tp_fsdp2", checkpoint="dcp_even", bound="small", least=2,
        slack=64),
    Row("tp-fsdp2-local", "the same, each rank cuts its own (src_data_rank=None)", "tp_fsdp2", ("--cut", "local"), "dcp_even",
        bound="all", least=2),
    Row("broadcast-from-rank0", "set_model_state_dict(broadcast_from_rank0)", "broadcast_from_rank0",
        checkpoint="safetensors", plan="fsdp2", bound="but 0"),
    Row("fms-rank0-scratch", "fms low_cpu_fsdp by rank 0, from scratch", "fms_rank0", plan="fsdp1", bound="but 0",
        slack=64),
    Row("fms-rank0-continue", "fms low_cpu_fsdp by rank 0, continued", "fms_rank0", checkpoint="torch", plan="fsdp1",
        bound="but 0", slack=64),
    Row("fms-meta-scratch", "fms low_cpu_fsdp on meta, from scratch", "fms_meta", bound="all"),
    # FSDP1 gathers every tensor whole, on every rank, to put the shards of a state dict into it, and has them all until
    # the end: no bound.
    Row("fms-meta-continue", "fms low_cpu_fsdp on meta, continued", "fms_meta", checkpoint="dcp_model"),
    # Why there is none, in a few lines.
    Row("gathered", "tensors that are gathered and kept, and nothing else", "gathered", least=2),
    Row("plain-pretrained", "plain transformers, from_pretrained to the device, FSDP2", "plain_pretrained",
        checkpoint="pretrained", bound="all", packages=("transformers",)),
    # The checkpoint has each expert by itself; transformers stacks them, and concatenates gate and up in dimension 1.
    Row("mixture-pretrained", "a mixture of experts, from_pretrained to the device, FSDP2", "plain_pretrained",
        checkpoint="pretrained_mixture", bound="all", packages=("transformers",), copied=True),
    Row("accelerate-fsdp1-device", "transformers, device_map to the device, accelerate FSDP1", "accelerate_pretrained",
        ("--fsdp", "1", "--load", "device"), "pretrained", bound="all", packages=("accelerate", "transformers")),
    Row("accelerate-fsdp1-host", "transformers, on every host, accelerate FSDP1", "accelerate_pretrained",
        ("--fsdp", "1", "--load", "host"), "pretrained", bound="all", packages=("accelerate", "transformers")),
    # The other ranks copy their hosts' tensors, never written, to the device before rank 0's arrive.
    Row("accelerate-fsdp1-rank0", "transformers, on rank 0's host, accelerate FSDP1", "accelerate_pretrained",
        ("--fsdp", "1", "--load", "rank0"), "pretrained", "fsdp1", bound="small", packages=("accelerate", "transformers"),
        slack=64),
    Row("accelerate-fsdp2-device", "transformers, device_map to the device, accelerate FSDP2", "accelerate_pretrained",
        ("--fsdp", "2", "--load", "device"), "pretrained", bound="all", packages=("accelerate", "transformers")),
    Row("accelerate-fsdp2-host", "transformers, on every host, accelerate FSDP2", "accelerate_pretrained",
        ("--fsdp", "2", "--load", "host"), "pretrained", bound="all", packages=("accelerate", "transformers")),
    Row("accelerate-fsdp2-rank0", "transformers, on rank 0's host, accelerate FSDP2", "accelerate_pretrained",
        ("--fsdp", "2", "--load", "rank0"), "pretrained", "fsdp2", bound="but 0", packages=("accelerate", "transformers")),
    Row("fabric-empty", "Fabric, init_module(empty_init=True)", "fabric_fsdp", ("--init", "empty"),
        packages=("lightning",)),
    Row("fabric-host", "Fabric, init_module on the host, optimizer first", "fabric_fsdp", ("--init", "host"),
        packages=("lightning",)),
    Row("fabric-plain", "plain Fabric: on the device, loaded, optimizer first", "fabric_fsdp", ("--init", "plain"),
        "safetensors", bound="all", packages=("lightning",)),
    Row("deepspeed-zero", "DeepSpeed zero.Init", "deepspeed_zero", plan="zero3", packages=("deepspeed",)),
    Row("lora", "LoRA with peft, frozen pretrained model, FSDP2", "lora", (), "pretrained", packages=("peft",)),
    Row("lora-built", "the same, built and not trained", "lora", ("--steps", "0"), "pretrained", bound="all",
        packages=("peft",)),
    Row("training-plain", "training, FSDP2", "training", ("--how", "plain")),
    Row("training-checkpointing", "training, activation checkpointing", "training", ("--how", "checkpointing")),
    Row("training-accumulation", "training, gradients accumulated", "training", ("--how", "accumulation")),
    Row("training-compiled", "training, torch.compile", "training", ("--how", "compiled"),
        lacks=NO_TRITON),
    Row("training-graph", "training, a CUDA graph for each step", "training", ("--how", "graph")),
    Row("gates-plain", "training without matrix products, plain", "training_gates", ("--how", "plain")),
    Row("gates-checkpointing", "training without matrix products, activation checkpointing", "training_gates", ("--how", "checkpointing")),
    Row("gates-accumulation", "training without matrix products, gradients accumulated", "training_gates", ("--how", "accumulation")),
    Row("gates-graph", "training without matrix products, a CUDA graph for each step", "training_gates", ("--how", "graph")),
    *(Row("fsdp2-passes-" + "-".join(how), f"FSDP2 of a loaded, frozen model, {how[0]} passes, width {how[1]}, {how[2]}", "fsdp2_passes",
          ("--passes", how[0], "--width", how[1], "--precision", how[2]), least=2, copied=True)
      for how in (("1", "1024", "float32"), ("4", "1024", "float32"), ("12", "1024", "float32"), ("4", "1021", "float32"),
                  ("4", "1021", "bfloat16"))),
    Row("numba", "numba, device arrays", "others", ("--what", "numba"), packages=("numba.cuda",)),
    Row("bindings", "cuda.bindings, a mapped file", "others", ("--what", "bindings"), packages=("cuda.bindings.driver",)),
    Row("cupy", "CuPy", "others", ("--what", "cupy"), packages=("cupy",),
        lacks="CuPy contains the CUDA runtime, which does not start on a simulated driver"),
    Row("jax", "JAX", "others", ("--what", "jax"), packages=("jax",),
        lacks="JAX asks CUPTI for its version, which crashes on a simulated driver"),
    Row("triton", "Triton, a kernel of the program's own", "others", ("--what", "triton"), packages=("torch", "triton"),
        lacks=NO_TRITON),
]

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads a checkpoint and trains: --model, --parallel and so on say what and how. Prints a line of JSON for each step, with
the loss and the seconds until the device had done all of it, and one in the end, with a hash of the parameters."""
import argparse
import contextlib
import ctypes
import functools
import hashlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import (CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy,
                                    OffloadPolicy, fully_shard)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "tools", "python"))
import metashard  # noqa: E402
from models import KINDS, LAYERS, Config, initialise  # noqa: E402

ROWS, LENGTH = 2, 32
SHARED_ROWS = 4  # of all ranks together
SHARED = Config(width=128, hidden=352, dropout=0.0)  # ranks drop out other values
# While it is suspended: of a device beside what is told as staying, and of the host beside what waits there.
DEVICE_ALLOWANCE, HOST_ALLOWANCE = 2 * (2 << 20), 64 << 20
# Of Llama's layers, by tensor parallelism.
PARTS = {**{name: ColwiseParallel() for name in ("attention.query", "attention.key", "attention.value", "gate", "up")},
         **{name: RowwiseParallel() for name in ("attention.output", "down")}}


class Adapted(nn.Module):
    """A frozen linear layer and its low-rank adapter."""

    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.first = nn.Linear(base.in_features, rank, bias=False)
        self.second = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.second.weight)

    def forward(self, x):
        return self.base(x) + 2.0 * self.second(self.first(x))


def adapt(model):
    model.requires_grad_(False)
    for layer in model.layers:
        for name, child in [*layer.named_modules()]:
            if isinstance(child, nn.Linear):
                parent, _, leaf = name.rpartition(".")
                setattr(layer.get_submodule(parent) if parent else layer, leaf, Adapted(child))


def local_of(parameter):
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def bytes_of(tensor):
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy()


def digest_of(model):
    """The digest of all parameters, or of this rank's part of them."""
    result = hashlib.sha256()
    for parameter in model.parameters():
        result.update(bytes_of(local_of(parameter)))
    return result.hexdigest()


def digests_of(model):
    """Two digests of each parameter: of this rank's part, and of the whole."""
    found = {}
    for name, parameter in model.named_parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        found[name] = [hashlib.sha256(bytes_of(tensor)).hexdigest() for tensor in (local_of(parameter), whole)]
    return found


def recompute(layer):
    layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)


def host_bytes():
    """Memory of this process, without that of the simulated device."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) << 10


def device_bytes():
    """All memory of the simulated device, which is this process's own, whoever has made it."""
    ctypes.CDLL("libcuda.so.1").simcuda_write_statistics()
    with open(os.environ["SIMCUDA_STATS"], encoding="ascii") as file:
        return json.load(file)["physical_bytes_now"]


class Elsewhere(nn.Module):
    """Stands for a module of another stage of the pipeline."""

    def forward(self, x, *_):
        return x


def keep_stage(model, rank, world):
    """Keeps this rank's stage of a whole model: the others' modules are dropped, the names of the rest stay."""
    if rank > 0:
        model.embedding = Elsewhere()
    if rank < world - 1:
        model.norm, model.head = Elsewhere(), Elsewhere()
    for number in range(len(model.layers)):
        if number * world // len(model.layers) != rank:
            model.layers[number] = Elsewhere()


def cross_entropy(scores, words):
    return F.cross_entropy(scores.flatten(0, 1).float(), words.flatten())


class Training:
    def __init__(self, options):
        self.options = options
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(self.device)
        if options.parallel != "none":
            # Offloaded tensors need a backend for the host.
            dist.init_process_group("cuda:nccl,cpu:gloo" if options.offload else "nccl", device_id=self.device)
        torch.manual_seed(1234)
        data = {"tp": self.rank // 2, "pipeline": 0}.get(options.parallel, self.rank)  # ranks with the same get the same words
        self.numbers = torch.Generator().manual_seed(99 + (0 if options.shared else data))
        self.averaged = None
        self.suspended = []
        self.scaler = torch.amp.GradScaler("cuda", growth_interval=2) if options.precision == "half" else None

    # --- the model

    def build(self, path):
        with torch.device("meta") if self.options.start == "meta" else self.device:
            model = KINDS[self.options.model](SHARED if self.options.shared else Config())
        if path is not None and self.options.start == "checkpoint":
            state = load_file(path) if path.endswith(".safetensors") else torch.load(path, mmap=True)
            model.load_state_dict(state)
        if self.options.adapters:
            with self.device:
                adapt(model)
        if self.options.recompute:
            for layer in model.layers:
                recompute(layer)
        model = self.distribute(model)
        if self.options.start == "meta":
            model.to_empty(device="cpu" if self.options.offload else self.device)
            initialise(model, self.device)
        return model

    def distribute(self, model):
        half = torch.bfloat16 if self.options.precision == "mixed" else None
        if self.options.parallel == "ddp":
            return DistributedDataParallel(model, device_ids=[self.device])
        if self.options.parallel == "fsdp1":
            mixed = MixedPrecision(param_dtype=half, reduce_dtype=torch.float32) if half else None
            return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy(LAYERS), use_orig_params=True,
                                            mixed_precision=mixed, device_id=self.device)
        if self.options.parallel in ("fsdp2", "tp"):
            mesh = None
            if self.options.parallel == "tp":
                both = init_device_mesh("cuda", (self.world // 2, 2), mesh_dim_names=("data", "tensor"))
                mesh = both["data"]
                for layer in model.layers:
                    parallelize_module(layer, both["tensor"], PARTS)
            policy = {"mp_policy": MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32),
                      "offload_policy": CPUOffloadPolicy() if self.options.offload else OffloadPolicy()}
            for layer in model.layers:
                fully_shard(layer, mesh=mesh, **policy)
            fully_shard(model, mesh=mesh, **policy)
        if self.options.parallel == "pipeline":
            keep_stage(model, self.rank, self.world)
            stage = PipelineStage(model, self.rank, self.world, self.device)
            self.schedule = ScheduleGPipe(stage, n_microbatches=ROWS, loss_fn=cross_entropy)
        return model

    def optimizer_of(self, model):
        how = {"foreach": {"foreach": True}, "fused": {"fused": True}, "forloop": {"foreach": False}}
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.1, capturable=self.options.graph,
                                 **how[self.options.optimizer])

    def start(self, path):
        self.model = self.build(path)
        self.optimizer = self.optimizer_of(self.model)

    # --- steps

    def batch(self):
        if self.options.shared:
            words = torch.randint(Config.words, (SHARED_ROWS, LENGTH + 1), generator=self.numbers)
            return words[self.rank::self.world].to(self.device)
        words = torch.randint(Config.words, (ROWS, LENGTH + 1), generator=self.numbers)
        return words.to(self.device)

    def loss_of(self, batch):
        kind = {"autocast": torch.bfloat16, "half": torch.float16}.get(self.options.precision)
        with torch.autocast("cuda", kind) if kind else contextlib.nullcontext():
            return cross_entropy(self.model(batch[:, :-1]), batch[:, 1:])

    def pipeline_loss(self, batch):
        """All stages work on the batch; the last has the losses, and tells the others."""
        words = (batch[:, :-1],) if self.rank == 0 else ()
        losses = []
        is_last = self.rank == self.world - 1
        self.schedule.step(*words, **({"target": batch[:, 1:], "losses": losses} if is_last else {}))
        total = torch.stack(losses).mean().detach() if is_last else torch.zeros((), device=self.device)
        dist.broadcast(total, self.world - 1)
        return total

    def gradients(self):
        """Computes the gradients of the next batches; returns their loss."""
        if self.options.parallel == "pipeline":
            return self.pipeline_loss(self.batch())
        parts = 4 if self.options.accumulate else 1
        total = 0.0
        for _ in range(parts):
            loss = self.loss_of(self.batch()) / parts
            (self.scaler.scale(loss) if self.scaler else loss).backward()
            total += loss.detach()
        return self.mean(total) if self.options.shared and self.world > 1 else total

    def mean(self, loss):
        """Of all ranks, whose parts of the batch are of one size."""
        dist.all_reduce(loss)
        return loss / self.world

    def step(self):
        total = self.gradients()
        trained = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        if self.options.parallel == "fsdp1":
            self.model.clip_grad_norm_(1.0)
        elif self.options.parallel not in ("tp", "pipeline"):  # gradients are on two meshes, or on other ranks
            nn.utils.clip_grad_norm_(trained, 1.0)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()
        if self.options.average:
            if self.averaged is None:
                self.averaged = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
            self.averaged.update_parameters(self.model)
        return total.item()

    # --- one graph of all that a step does, as PyTorch's notes on CUDA graphs have it

    def work(self):
        loss = self.loss_of(self.given)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    def graph_step(self, number):
        if number == 0:
            self.given, self.side = self.batch(), torch.cuda.Stream()
        else:
            self.given.copy_(self.batch())
        if number < 3:
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                loss = self.work()
            torch.cuda.current_stream().wait_stream(self.side)
            return loss.item()
        if number == 3:
            self.graph = torch.cuda.CUDAGraph()
            how = "global" if self.options.parallel == "none" else "relaxed"  # expandable segments map memory, and NCCL waits
            with torch.cuda.graph(self.graph, capture_error_mode=how):
                self.captured = self.work()
        self.graph.replay()
        return self.captured.item()

    @torch.no_grad()
    def evaluate(self):
        model = self.averaged if self.averaged is not None else self.model
        kept, self.model = self.model, model.eval()
        loss = self.loss_of(self.batch()).item()
        self.model = kept.train()
        return loss

    # --- saved and loaded again

    def save_and_load(self, folder):
        path = os.path.join(folder, "saved")
        if self.options.save == "dcp":
            model, optimizer = get_state_dict(self.model, self.optimizer)
            dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=path)
            del self.model, self.optimizer
            self.start(None)
            model, optimizer = get_state_dict(self.model, self.optimizer)
            dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=path)
            set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
            return
        model = self.model.module if self.options.parallel == "ddp" else self.model
        state = dict(model.state_dict())
        suffix = ".safetensors" if self.options.save == "safetensors" else ".pt"
        if self.rank == 0:
            if self.options.save == "safetensors":
                save_file(state, path + suffix)
            else:
                torch.save(state, path + suffix)
            torch.save(self.optimizer.state_dict(), path + ".optimizer")
        if self.world > 1:
            dist.barrier()
        del self.model, self.optimizer, model, state
        self.start(path + suffix)
        self.optimizer.load_state_dict(torch.load(path + ".optimizer", map_location=self.device))

    # --- suspended

    def suspend(self, number):
        """After every fourth step. Every other time what changed waits in a folder, and it is the next step that takes
        everything back."""
        if number % 4 != 3 or not metashard.is_loaded():
            return
        is_in_memory = number % 8 == 3
        host, own = host_bytes(), metashard.status()["backed_bytes"]
        others = device_bytes() - own  # of the driver, NCCL and captured graphs
        told = metashard.suspend(None if is_in_memory else self.options.folder)
        waits = told["stored_bytes"] if is_in_memory else 0
        stays = sum(told[key] for key in ("stays_exported_bytes", "stays_mapped_bytes", "others_bytes"))
        device, grown = device_bytes(), host_bytes() - host
        said = f"suspended: {told}, the device has {device} bytes, {others} of others before, and the host {grown} more"
        print(said, file=sys.stderr)
        if (told["freed_bytes"] == 0 or told["stays_bytes"] or told["others_bytes"] > others + DEVICE_ALLOWANCE or
                device > stays + DEVICE_ALLOWANCE or grown > waits + HOST_ALLOWANCE):
            sys.exit(said)
        self.suspended.append({"freed": told["freed_bytes"], "file": told["replayed_bytes"], "waits": told["stored_bytes"],
                               "others": told["others_bytes"], "device": device, "host": grown, "to": not is_in_memory})
        if is_in_memory:
            metashard.resume()

    # --- all of it

    def run(self):
        self.start(self.options.checkpoint)
        torch.cuda.synchronize()
        for number in range(self.options.steps):
            begin = time.perf_counter()
            loss = self.graph_step(number) if self.options.graph else self.step()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - begin
            print(json.dumps({"step": number + 1, "loss": loss.hex(), "seconds": round(seconds, 5)}), flush=True)
            if self.options.suspend:
                self.suspend(number)
            if self.options.save and number + 1 == self.options.steps // 2:
                self.save_and_load(self.options.folder)
        if self.suspended:
            print(json.dumps({"suspended": self.suspended}), flush=True)
        end = {"parameters": digest_of(self.model)}
        if self.scaler:
            end["scale"] = self.scaler.get_scale()
        if self.options.steps == 0 and self.options.start != "checkpoint":
            end["values"] = digests_of(self.model)
        if self.options.steps > 0 and self.options.parallel != "pipeline":
            end["evaluated"] = self.evaluate().hex()
        print(json.dumps(end), flush=True)
        if dist.is_initialized():
            dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=KINDS, default="llama")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--start", choices=["checkpoint", "device", "meta"], default="checkpoint",
                        help="device: random values, made on the device; meta: after sharding, as torchtitan does")
    parser.add_argument("--parallel", choices=["none", "ddp", "fsdp1", "fsdp2", "tp", "pipeline"], default="none",
                        help="tp: tensor parallel in twos, and FSDP2; pipeline: each rank makes the whole model and keeps its "
                             "stage")
    parser.add_argument("--offload", action="store_true", help="FSDP2 with CPUOffloadPolicy")
    parser.add_argument("--optimizer", choices=["foreach", "fused", "forloop"], default="foreach")
    parser.add_argument("--precision", choices=["single", "autocast", "half", "mixed"], default="single",
                        help="half: autocast to float16, with a GradScaler")
    parser.add_argument("--adapters", action="store_true", help="train low-rank adapters of frozen weights")
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing")
    parser.add_argument("--accumulate", action="store_true", help="gradients of four batches")
    parser.add_argument("--shared", action="store_true", help="the batches of any number of ranks, which share their rows")
    parser.add_argument("--graph", action="store_true", help="a CUDA graph of the whole step, from the fourth on")
    parser.add_argument("--average", action="store_true", help="an exponential moving average of the parameters")
    parser.add_argument("--save", choices=["torch", "safetensors", "dcp"], help="in the middle, and go on from there")
    parser.add_argument("--suspend", action="store_true", help="device memory goes back after every fourth step")
    parser.add_argument("--folder", help="for --save")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    # No GPU-only attention: PyTorch's own operations.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.mha.set_fastpath_enabled(False)
    Training(options).run()


if __name__ == "__main__":
    main()

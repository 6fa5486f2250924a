# SPDX-License-Identifier: Apache-2.0
"""A pipeline of as many stages as there are ranks, by the schedule 1F1B, of layers that are all alike: a rank near the beginning keeps
the activations of more microbatches than one near the end. --told: the stages tell each other their shapes. --interleaved: two stages
of each rank."""
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

WIDTH, LENGTH, LAYERS, MICROBATCHES = 1024, 512, 2, 8


def make_stage(index, count, device):
    with device:
        model = nn.Sequential(*(nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, dropout=0, batch_first=True) for _ in range(LAYERS)))
    like = torch.empty(1, LENGTH, WIDTH, device="meta", requires_grad=True)
    known = {} if "--told" in sys.argv else {"input_args": like.detach() if index == 0 else like, "output_args": like}
    return PipelineStage(model, index, count, device, **known)


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    count = 2 if "--interleaved" in sys.argv else 1
    stages = [make_stage(rank + world * number, world * count, device) for number in range(count)]
    schedule = Schedule1F1B(stages[0], MICROBATCHES, loss_fn=nn.functional.mse_loss) if count == 1 else \
        ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW([parameter for stage in stages for parameter in stage.submod.parameters()], fused=True)
    batch = torch.zeros(MICROBATCHES, LENGTH, WIDTH, device=device)
    for _ in range(3):
        optimizer.zero_grad()
        schedule.step(*([batch] if rank == 0 else []), **({"target": batch} if rank == world - 1 else {}))
        optimizer.step()
    print("rank", rank, "reserved MiB", torch.cuda.max_memory_reserved() / 2**20)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

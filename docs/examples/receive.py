import os

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)


device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
if dist.get_rank() == 0:
    model = nn.Sequential(*(Block(1024) for _ in range(8)))
    model.load_state_dict(load_file("model.safetensors"))
else:
    with torch.device("meta"):
        model = nn.Sequential(*(Block(1024) for _ in range(8)))
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device, sync_module_states=True,
             param_init_fn=lambda module: module.to_empty(device=device, recurse=False))
torch.cuda.synchronize()
dist.destroy_process_group()

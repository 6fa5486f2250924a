# SPDX-License-Identifier: Apache-2.0
"""The Transformer of Lightning's guide to FSDP in plain PyTorch: encoder and decoder of 32 layers each, width 1024, in fp32, a row of
35 words a step, Adam with its defaults. --way is ddp, or a sharding strategy of FSDP1 with each layer as a unit."""
import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

WORDS, WIDTH, LENGTH = 33278, 1024, 35  # of WikiText2, and as the guide has it


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(WORDS, WIDTH), nn.Dropout(0.1)
        self.transformer = nn.Transformer(WIDTH, nhead=64, num_encoder_layers=32, num_decoder_layers=32, dim_feedforward=4096,
                                          dropout=0.2, batch_first=True)
        self.decoder = nn.Linear(WIDTH, WORDS)

    def forward(self, words, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], device=words.device)
        source, target = (self.dropout(self.embedding(x) * math.sqrt(WIDTH)) for x in (words, targets))
        return F.log_softmax(self.decoder(self.transformer(source, target, tgt_mask=mask)), dim=-1).view(-1, WORDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=["ddp", *(way.name.lower() for way in ShardingStrategy)], default="ddp")
    options = parser.parse_args()
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    model = Model()
    if options.way == "ddp":
        model = DistributedDataParallel(model.cuda(), device_ids=[device])
    else:
        wrap = ModuleWrapPolicy({nn.TransformerEncoderLayer, nn.TransformerDecoderLayer})
        model = FullyShardedDataParallel(model, sharding_strategy=ShardingStrategy[options.way.upper()], auto_wrap_policy=wrap, device_id=device,
                                         use_orig_params=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(10):
        words, targets = torch.randint(WORDS, (2, 1, LENGTH)).cuda()
        loss = F.nll_loss(model(words, targets), targets.view(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), "allocated MiB", torch.cuda.max_memory_allocated() / 2**20)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""BERT large as transformers' guide to training on one GPU had it in January 2022: a classifier in fp32, rows of 512 words, attention of
separate operations, gradients that stay and are zeroed, AdamW parameter by parameter. Needs transformers."""
import argparse

import torch
from transformers import BertConfig, BertForSequenceClassification

LENGTH, STEPS = 512, 3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--fp16", action="store_true")
    options = parser.parse_args()
    config = BertConfig(vocab_size=30522, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
                        attn_implementation="eager")
    model = BertForSequenceClassification(config).cuda().train()
    if options.checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, foreach=False)
    scaler = torch.amp.GradScaler("cuda", enabled=options.fp16)
    for _ in range(STEPS):
        for _ in range(options.accumulate):
            words = torch.randint(100, 30000, (options.batch, LENGTH)).cuda()
            labels = torch.zeros(options.batch, dtype=torch.int64).cuda()
            with torch.autocast("cuda", dtype=torch.float16, enabled=options.fp16):
                loss = model(input_ids=words, labels=labels).loss / options.accumulate
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad(set_to_none=False)
        print("reserved MiB", torch.cuda.max_memory_reserved() / 2**20)


if __name__ == "__main__":
    main()

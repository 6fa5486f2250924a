#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads a model of transformers from a folder and trains it: --how says with whose loop. Prints what train.py prints."""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from train import digest_of

ROWS, LENGTH, WORDS = 2, 32, 2048
LARGEST = 16  # batch, which is too large for the device


class Words(Dataset):
    def __init__(self, count):
        self.words = torch.randint(WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(99))

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.words[index]}


class Steps:
    """A line for each step."""

    def __init__(self):
        self.number, self.begin = 0, time.perf_counter()

    def note(self, loss):
        torch.cuda.synchronize()
        self.number += 1
        seconds, self.begin = time.perf_counter() - self.begin, time.perf_counter()
        print(json.dumps({"step": self.number, "loss": loss.item().hex(), "seconds": round(seconds, 5)}), flush=True)


class NotingTrainer(Trainer):
    steps = None

    def training_step(self, *arguments, **more):
        loss = super().training_step(*arguments, **more)
        self.steps.note(loss)
        return loss


def train_with_trainer(model, options, steps):
    arguments = TrainingArguments(output_dir=options.folder, max_steps=options.steps, report_to=[], save_strategy="no",
                                  per_device_train_batch_size=ROWS, learning_rate=1e-3, dataloader_pin_memory=False,
                                  disable_tqdm=True, logging_strategy="no")
    trainer = NotingTrainer(model=model, args=arguments, train_dataset=Words(64 * ROWS))
    trainer.steps = steps
    trainer.train()
    return model


def train_with_trainer_and_fsdp(_, options, steps):
    """FSDP2 by the Trainer's own settings: loaded on each rank's device; or (trainer-rank0) on rank 0's host, which sends the
    others their shards. For that the arguments have to be there before the model."""
    arguments = TrainingArguments(
        output_dir=options.folder, max_steps=options.steps, report_to=[], save_strategy="no", fsdp=True,
        per_device_train_batch_size=ROWS, learning_rate=1e-3, dataloader_pin_memory=False, disable_tqdm=True, logging_strategy="no",
        fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
                     "cpu_ram_efficient_loading": options.how == "trainer-rank0"})
    trainer = NotingTrainer(model=load(options), args=arguments, train_dataset=Words(64 * ROWS))
    trainer.steps = steps
    trainer.train()
    return trainer.model


def train_with_lightning(_, options, steps):
    """Lightning's Trainer. configure_model has the device as the one in use, and the whole model is made there."""
    import lightning
    from lightning.pytorch.strategies import FSDPStrategy
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    class Module(lightning.LightningModule):
        def configure_model(self):
            self.model = getattr(self, "model", None) or load(options)

        def training_step(self, batch, _):
            return self.model(**batch).loss

        def on_train_batch_end(self, outputs, *_):
            steps.note(outputs["loss"])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)
    world = int(os.environ.get("WORLD_SIZE", 1))
    trainer = lightning.Trainer(
        accelerator="cuda", devices=world, max_steps=options.steps, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=options.folder, strategy=FSDPStrategy(auto_wrap_policy={LlamaDecoderLayer}))
    module = Module()
    trainer.fit(module, DataLoader(Words(world * options.steps * ROWS), batch_size=ROWS))
    return module


def train_with_accelerate(model, options, steps):
    from accelerate import Accelerator
    accelerator = Accelerator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Words(2 * options.steps * ROWS), batch_size=ROWS)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for number, batch in enumerate(loader):
        if number == options.steps:
            break
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps.note(loss.detach())
    return model


def train_adapters(model, options, steps):
    from peft import LoraConfig, get_peft_model
    model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", lora_dropout=0.1, task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-3)
    model.train()
    for batch in DataLoader(Words(options.steps * ROWS), batch_size=ROWS):
        loss = model(**{name: value.cuda() for name, value in batch.items()}).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps.note(loss.detach())
    return model


def train_with_fabric(model, options, steps):
    from lightning.fabric import Fabric
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer
    from lightning.fabric.strategies import FSDPStrategy
    world = int(os.environ.get("WORLD_SIZE", 1))
    strategy = FSDPStrategy(auto_wrap_policy={LlamaDecoderLayer}, sharding_strategy="FULL_SHARD") if world > 1 else "auto"
    fabric = Fabric(accelerator="cuda", devices=world, strategy=strategy, precision="bf16-mixed" if world > 1 else "32-true")
    fabric.launch()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    loader = fabric.setup_dataloaders(DataLoader(Words(world * options.steps * ROWS), batch_size=ROWS))
    model.train()
    for batch in loader:
        loss = model(**batch).loss
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps.note(loss.detach())
    return model


def train_with_found_batch(_, options, steps):
    """As accelerate's guide to memory has it: all of the training is tried, with a smaller batch after each shortage."""
    from accelerate import Accelerator
    from accelerate.utils import find_executable_batch_size
    accelerator, size = Accelerator(), LARGEST

    def halve():
        nonlocal size
        size //= 2
        return size

    @find_executable_batch_size(starting_batch_size=LARGEST, reduce_batch_size_fn=halve)
    def train(batch_size):
        accelerator.free_memory()
        print(json.dumps({"batch": batch_size}), flush=True)
        steps.number = 0
        model = load(options)
        model, optimizer, loader = accelerator.prepare(
            model, torch.optim.AdamW(model.parameters(), lr=1e-3),
            DataLoader(Words(options.steps * batch_size), batch_size=batch_size))
        model.train()
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            steps.note(loss.detach())
        return model
    return train()


HOW = {"trainer": train_with_trainer, "accelerate": train_with_accelerate, "adapters": train_adapters,
       "fabric": train_with_fabric, "batch": train_with_found_batch, "trainer-device": train_with_trainer_and_fsdp,
       "trainer-rank0": train_with_trainer_and_fsdp, "lightning": train_with_lightning}
# They load by themselves.
LOADING = ("batch", "trainer-device", "trainer-rank0", "lightning")


def load(options):
    # For a device of less than 1.2 GiB transformers computes a negative size of what it allocates at first.
    device = None if options.how in ("batch", "trainer-rank0") else torch.cuda.current_device()
    return AutoModelForCausalLM.from_pretrained(options.checkpoint, attn_implementation="eager", device_map=device)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--how", choices=HOW, required=True)
    parser.add_argument("--folder")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    torch.manual_seed(1234)
    model = load(options).cuda() if options.how not in LOADING or options.steps == 0 else None
    torch.cuda.synchronize()
    if options.steps > 0:
        model = HOW[options.how](model, options, Steps())
    print(json.dumps({"parameters": digest_of(model)}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

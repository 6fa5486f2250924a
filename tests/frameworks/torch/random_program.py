#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""random_program.py SEED OPS: a random program of tensors on the device; prints a hash of what it reads.

A plain program: check_random.py runs it without and with the shim. Every element is written before it is
read.
"""
import hashlib
import random
import sys
import tempfile
import time

import torch

TYPES = [torch.float32, torch.bfloat16, torch.int32, torch.uint8]
FLOATING = (torch.float32, torch.bfloat16)
MOST_TENSORS, MOST_BYTES = 40, 80 << 20


class Program:
    def __init__(self, seed, folder):
        self.random = random.Random(seed)
        self.tensors = []
        self.folder = folder
        torch.manual_seed(seed)

    def pick(self):
        return self.random.choice(self.tensors)

    def shape(self):
        """Most divide no page, granule or piece of what is worked through in parts."""
        rows = self.random.choice([1, 3, 64, 509, 1024, 1999])
        return rows, self.random.choice([1, 5, 127, 997, 2048, 2053])

    def add(self, tensor):
        self.tensors.append(tensor)
        while (len(self.tensors) > MOST_TENSORS or
               sum(tensor.nbytes for tensor in self.tensors) > MOST_BYTES):
            self.tensors.pop(self.random.randrange(len(self.tensors)))

    # --- tensors from nothing

    def filled(self):
        self.add(torch.full(self.shape(), self.random.randrange(100), dtype=self.random.choice(TYPES),
                            device="cuda"))

    def zeros(self):
        self.add(torch.zeros(self.shape(), dtype=self.random.choice(TYPES), device="cuda"))

    def drawn(self):
        tensor = torch.empty(self.shape(), dtype=self.random.choice(FLOATING), device="cuda")
        self.add(tensor.normal_(0, 2) if self.random.random() < 0.5 else tensor.uniform_(-1, 3))

    def sent(self):
        tensor = torch.arange(4 << 10, dtype=torch.int32).repeat(self.random.choice([1, 30, 300]))
        self.add((tensor.pin_memory() if self.random.random() < 0.3 else tensor).cuda())

    def loaded(self):
        path = f"{self.folder}/{self.random.randrange(3)}"
        state = torch.load(path, mmap=True)
        self.add(state["rows"].cuda()[self.random.randrange(500):])

    # --- from other tensors

    def cloned(self):
        self.add(self.pick().clone())

    def sliced(self):
        tensor = self.pick()
        if tensor.dim() == 2 and self.random.random() < 0.5:
            begin = self.random.randrange(tensor.shape[1])
            self.add(tensor[:, begin:begin + self.random.randrange(1, 700)].contiguous())
        else:
            begin = self.random.randrange(tensor.shape[0])
            self.add(tensor[begin:begin + self.random.randrange(1, 700)].clone())

    def cast(self):
        self.add(self.pick().clone().to(self.random.choice(TYPES[:3])))

    def joined(self):
        tensor = self.pick()
        self.add(torch.cat([tensor, tensor.clone()], 0))

    # --- in place

    def changed(self):
        tensor = self.pick()
        what = self.random.randrange(4)
        if what == 0:
            tensor.mul_(2)
        elif what == 1:
            tensor.add_(1)
        elif what == 2:
            tensor[: self.random.randrange(1, tensor.shape[0] + 1)] = self.random.randrange(50)
        elif tensor.dtype in FLOATING:
            tensor[self.random.randrange(tensor.shape[0]):].normal_()

    def copied(self):
        to, source = self.pick(), self.pick()
        rows = min(to.shape[0], source.shape[0])
        if to.shape[1:] == source.shape[1:]:
            to[:rows].copy_(source[-rows:])

    def dropped(self):
        self.tensors.pop(self.random.randrange(len(self.tensors)))

    # --- seen

    def read(self):
        tensor = self.pick()
        begin = self.random.randrange(tensor.shape[0])
        self.tell(tensor[begin:begin + self.random.randrange(1, 100)])

    def worked(self):
        """Many launches that are no copies, on little."""
        few = torch.ones(1000, device="cuda")
        for _ in range(100):
            few = torch.where(few > 0, few, few)
        time.sleep(0.003)
        self.add(torch.where(few > 0, few, few))

    def compared(self):
        tensor = self.pick()
        self.tell((tensor > 3).any())

    def tell(self, tensor):
        # Views of bfloat16 as bytes; a view of one element has no last dimension to split.
        data = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        print(tuple(tensor.shape), tensor.dtype, hashlib.sha256(data).hexdigest()[:16], flush=True)

    def run(self, ops):
        makers = [self.filled, self.zeros, self.drawn, self.sent, self.loaded]
        others = makers + [self.cloned, self.sliced, self.cast, self.joined, self.changed, self.changed,
                           self.copied, self.copied, self.dropped, self.read, self.read, self.compared, self.worked]
        for _ in range(ops):
            self.random.choice(others if len(self.tensors) > 3 else makers)()
        for tensor in self.tensors:
            self.tell(tensor)


def main():
    seed, ops = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        for number in range(3):
            rows = torch.arange((number + 1) * 700 * 1000, dtype=torch.float32).view(-1, 1000)
            torch.save({"rows": rows * 0.5}, f"{folder}/{number}")
        with torch.no_grad():
            Program(seed, folder).run(ops)


if __name__ == "__main__":
    main()

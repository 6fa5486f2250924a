#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""shared_program.py HOW: CUDA tensors that processes share; prints sums of their bytes as each process sees them.

queue    torch.multiprocessing: a parent sends tensors, a view and a parameter by a queue, and both write them
back     a child makes tensors, and sends them to the parent, which sends one on to another child
reduce   ForkingPickler and reduce_tensor, as verl, slime and SGLang send weights: a rank loads from what it is sent, bucket by
         bucket, in the same memory
"""
import hashlib
import io
import sys
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing as mp
from torch.multiprocessing.reductions import reduce_tensor

ROWS, COLUMNS = 1536, 1024  # 6 MiB
BUCKETS = 4


def digest(tensor):
    torch.cuda.synchronize()
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]


def make(seed, rows=ROWS):
    host = torch.arange(rows * COLUMNS, dtype=torch.float32).reshape(rows, COLUMNS)
    return (host * 0.5 + seed).to("cuda")


def reader(inbox, outbox):
    tensors = inbox.get()
    outbox.put([digest(tensor) for tensor in tensors])
    for number, tensor in enumerate(tensors):
        tensor[0].fill_(number + 7)
        tensor.mul_(2)
    outbox.put([digest(tensor) for tensor in tensors])
    inbox.get()
    outbox.put([digest(tensor) for tensor in tensors])
    del tensors
    inbox.get()


def start(target, *arguments):
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=target, args=(inbox, outbox, *arguments))
    process.start()
    return process, inbox, outbox


def end(process):
    process.join(120)
    print("a child ends with", process.exitcode)


def queue():
    process, inbox, outbox = start(reader)
    whole = make(1)
    small = torch.full((100,), 3.0, device="cuda")
    weight = torch.nn.Parameter(make(2, 512))
    tensors = [whole, whole[200:900], small, weight.data]
    print("before", [digest(tensor) for tensor in tensors])
    inbox.put(tensors)
    print("child", outbox.get())
    print("child has written", outbox.get())
    print("parent", [digest(tensor) for tensor in tensors])
    whole.add_(1)
    small.copy_(torch.arange(100, dtype=torch.float32))
    print("parent has written", [digest(tensor) for tensor in tensors])
    inbox.put("look")
    print("child", outbox.get())
    inbox.put("end")
    end(process)


def maker(inbox, outbox, seed):
    tensor = make(seed)
    outbox.put(tensor)
    inbox.get()
    outbox.put(digest(tensor))
    inbox.get()


def back():
    process, inbox, outbox = start(maker, 5)
    tensor = outbox.get()
    print("parent", digest(tensor))
    tensor.mul_(3)
    torch.cuda.synchronize()
    inbox.put("look")
    print("child", outbox.get())
    copy = tensor.clone()
    print("copy", digest(copy))
    other, to_other, from_other = start(reader)
    to_other.put([copy])
    print("another child", from_other.get(), from_other.get())
    to_other.put("look")
    print("another child", from_other.get(), digest(copy))
    to_other.put("end")
    end(other)
    del tensor
    inbox.put("end")
    end(process)


def loader(inbox, outbox):
    weight = torch.zeros(BUCKETS, ROWS, COLUMNS, device="cuda")
    for number in range(BUCKETS):
        rebuild, arguments = ForkingPickler.loads(inbox.get())
        bucket = rebuild(*arguments)
        weight[number].copy_(bucket)
        torch.cuda.synchronize()
        del bucket
        outbox.put(digest(weight[number]))
    outbox.put(digest(weight))


def reduce():
    process, inbox, outbox = start(loader)
    bucket = torch.empty(ROWS, COLUMNS, device="cuda")
    for number in range(BUCKETS):
        bucket.copy_(make(10 + number))
        torch.cuda.synchronize()
        packed = io.BytesIO()
        ForkingPickler(packed).dump(reduce_tensor(bucket))
        inbox.put(packed.getvalue())
        print(number, digest(bucket), outbox.get())
    print("all", outbox.get())
    end(process)


if __name__ == "__main__":
    torch.cuda.init()
    {"queue": queue, "back": back, "reduce": reduce}[sys.argv[1]]()

# SPDX-License-Identifier: Apache-2.0
"""torch_training.py FOLDER CHECKPOINT: the training of tests/frameworks/training, for as long as standard input lasts, saved and
loaded after each step: by torch.save and by safetensors, in turn. Speaks with `run` as training.c does (training.h)."""
import argparse
import os
import select
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "frameworks", "training"))
import torch  # noqa: E402
import train  # noqa: E402


def main():
    folder, checkpoint = sys.argv[1:]
    options = argparse.Namespace(model="llama", parallel="none", optimizer="foreach", precision="single", adapters=False,
                                 recompute=False, accumulate=False, graph=False, average=False, save=None, folder=folder)
    for kind in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{kind}_sdp")(False)
    training, rounds, compared = train.Training(options), 0, 0
    training.start(checkpoint)
    while True:
        for options.save in ("torch", "safetensors"):
            training.step()
            saved = train.digest_of(training.model)
            training.save_and_load(folder)
            if train.digest_of(training.model) != saved:
                sys.exit(f"round {rounds}: what was loaded is not what was saved")
            rounds += 1
            compared += sum(parameter.nbytes for parameter in training.model.parameters())
        if not select.select([0], [], [], 0)[0]:
            continue
        if not os.read(0, 1):
            break
        print("rounds", rounds, "bytes", compared, flush=True)
        if not os.read(0, 1):
            break
    print("rounds", rounds, "bytes", compared, flush=True)


if __name__ == "__main__":
    main()

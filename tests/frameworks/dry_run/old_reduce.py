# SPDX-License-Identifier: Apache-2.0
"""old_reduce.py SCRIPT [ARGUMENT...]: runs a script on FSDP2 as it was before pytorch#129721 of June 2024: the input of a
reduce-scatter is memory of its own stream, and free for the next one of that stream as soon as it is launched."""
import runpy
import sys

import torch
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as groups

NOW = groups.foreach_reduce


class InOwnStream:
    """What allocates the input, and then the output, and reduces."""

    def __init__(self, reduce, stream):
        self.reduce, self.stream = reduce, stream

    def allocate(self, *arguments, **named):
        with torch.cuda.stream(self.stream):
            return self.reduce.allocate(*arguments, **named)

    def __call__(self, *arguments, **named):
        return self.reduce(*arguments, **named)


def then(parameters, gradients, group, stream, reduce, *more, **named):
    """Returns no input, which FSDP2 keeps today until the next one."""
    found = NOW(parameters, gradients, group, stream, InOwnStream(reduce, stream), *more, **named)
    return torch.empty(0, device="cuda"), *found[1:]


groups.foreach_reduce = then
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")

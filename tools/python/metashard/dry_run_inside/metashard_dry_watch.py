# SPDX-License-Identifier: Apache-2.0
"""Watches a program: where in a step it is, what its tensors are, what its allocator did. At its end writes the answer, as
JSON, into the folder DRY_RUN_FOLDER."""
import atexit
import ctypes
import json
import os
import sys
import time
import traceback

import metashard_dry_curve as curve
import metashard_dry_numbers as numbers

MOST_ENTRIES = 1_000_000
WAIT_SECONDS = 120
MIB = 1 << 20
ADVICE = {"conv": "cuDNN is off: convolutions are PyTorch's own, which take other memory than cuDNN's",
          "gathers": "in this release of PyTorch what ranks gather on the CPU is not as in a job: 2.15 has it",
          "history": "the allocator keeps no history (cudaMallocAsync): only the peaks are known"}


def now():
    return time.time_ns() // 1000


def say(text):
    print(f"metashard: {text}", file=sys.stderr, flush=True)


class Watch:
    def __init__(self, torch):
        self.torch = torch
        self.process = os.getpid()
        self.marks, self.labels, self.shortages, self.advice = [], [], [], set()
        self.steps, self.counts = 0, {}
        self.step_limit = int(os.environ.get("DRY_RUN_STEPS") or 0)
        self.forward_hook = None
        self.is_written = False

    # --- where the program is

    def mark(self, phase):
        if not self.marks or self.marks[-1][1:] != (phase, self.steps + 1):
            self.marks.append((now(), phase, self.steps + 1))

    def await_forward(self):
        if self.forward_hook is None:
            from torch.nn.modules.module import register_module_forward_pre_hook
            self.forward_hook = register_module_forward_pre_hook(self.begin_forward)

    def begin_forward(self, *_):
        if self.torch.cuda.is_initialized() and self.forward_hook is not None:
            self.forward_hook.remove()
            self.forward_hook = None
            self.mark(curve.FORWARD)

    def wrap_backward(self):
        autograd = self.torch.autograd
        run = autograd.backward

        def backward(*arguments, **named):
            self.mark(curve.BACKWARD)
            try:
                return run(*arguments, **named)
            finally:
                self.mark(curve.FORWARD)
        autograd.backward = backward

    def before_step(self, optimizer, *_):
        self.mark(curve.OPTIMIZER)
        self.label(optimizer, curve.WEIGHTS, lambda parameter: [parameter])
        self.label(optimizer, curve.GRADIENTS, lambda parameter: [parameter.grad])

    def after_step(self, optimizer, *_):
        self.label(optimizer, curve.STATES, lambda parameter: optimizer.state.get(parameter, {}).values())
        number = self.counts[id(optimizer)] = self.counts.get(id(optimizer), 0) + 1
        if number > self.steps:
            self.end_step(number)

    def end_step(self, number):
        self.report_progress(number)
        self.steps = number
        self.mark(curve.FORWARD)
        self.await_forward()
        if self.step_limit and number >= self.step_limit:
            say(f"stopped after {number} steps of the optimizer (--steps)")
            self.write()
            self.wait_for_ranks()
            ctypes.CDLL("libcuda.so.1").simcuda_write_statistics()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def wait_for_ranks(self):
        """Where others are processes here too, they may be in a collective that wants this one."""
        wanted, folder = int(os.environ.get("DRY_RUN_RANKS_HERE") or 0), os.environ["DRY_RUN_FOLDER"]
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until and \
                sum(name.startswith("rank-") and name.endswith(".json") for name in os.listdir(folder)) < wanted:
            time.sleep(0.05)

    def report_progress(self, number):
        if self.torch.cuda.is_initialized():
            cuda = self.torch.cuda
            say(f"step {number}: at most {cuda.max_memory_reserved() / 2**30:.2f} GiB reserved, "
                f"{cuda.max_memory_allocated() / 2**30:.2f} GiB allocated")

    # --- what is where

    def label(self, optimizer, kind, tensors_of):
        if self.steps > 1:
            return
        known = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for tensor in tensors_of(parameter):
                    tensor = getattr(tensor, "_local_tensor", tensor)
                    if isinstance(tensor, self.torch.Tensor) and tensor.is_cuda:
                        known[tensor.data_ptr()] = kind
        if known:
            self.labels.append((now(), known))

    def note_shortage(self, device, wanted, allowed, free):
        stack = [frame for frame in traceback.extract_stack() if "/torch/" not in frame.filename and
                 "metashard_dry" not in frame.filename]
        self.shortages.append({"wanted": wanted, "free": free, "phase": self.marks[-1][1] if self.marks else curve.BUILD,
                               "step": self.steps + 1, "lines": [f"{frame.filename}:{frame.lineno} {frame.line}"
                                                                 for frame in stack[-3:]]})

    # --- the beginning and the end

    def begin(self):
        torch = self.torch
        self.turn_cudnn_off()
        torch.cuda._lazy_call(self.begin_device)
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.after_step)
        self.wrap_backward()
        self.await_forward()
        self.note_convolutions()
        self.note_gathers()
        atexit.register(self.write)

    def turn_cudnn_off(self):
        """For good: programs, and PyTorch at each call of its compiler, set what they once read."""
        torch = self.torch
        for name in ("_set_cudnn_enabled", "_set_sdp_use_cudnn"):
            getattr(torch._C, name)(False)
            setattr(torch._C, name, lambda enabled: None)
        vars(type(torch.backends.cudnn))["enabled"].setter = lambda enabled: None

    def begin_device(self):
        torch = self.torch
        self.mark(curve.BUILD)
        torch._C._cuda_attach_out_of_memory_observer(self.note_shortage)
        if torch.cuda.get_allocator_backend() == "native":
            torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=MOST_ENTRIES)
        else:
            self.advice.add("history")

    def note_convolutions(self):
        from torch.nn.modules import conv
        make, advice = conv._ConvNd.__init__, self.advice

        def __init__(module, *arguments, **named):
            advice.add("conv")
            make(module, *arguments, **named)
        conv._ConvNd.__init__ = __init__

    def note_gathers(self):
        is_alone = not int(os.environ.get("DRY_RUN_RANKS_HERE") or 0) and int(os.environ.get("WORLD_SIZE", 1)) > 1
        if is_alone and self.torch.distributed.is_available():
            from torch._C._distributed_c10d import FakeProcessGroup
            if not hasattr(FakeProcessGroup.Options, "simulate_uniform_ranks"):
                self.advice.add("gathers")

    def write(self):
        """Once, and not in a process that was forked."""
        if self.is_written or os.getpid() != self.process or not self.torch.cuda.is_initialized():
            return
        self.is_written = True
        folder = os.environ["DRY_RUN_FOLDER"]
        with open(os.path.join(folder, f"rank-{self.process}.json.part"), "w", encoding="utf-8") as file:
            json.dump(self.answer(), file)
        os.rename(file.name, file.name[:-len(".part")])

    def answer(self):
        cuda = self.torch.cuda
        device = cuda.current_device()
        properties, statistics = cuda.get_device_properties(device), cuda.memory_stats(device)
        free = cuda.mem_get_info(device)[0]
        found = {"torch": self.torch.__version__, "device": properties.name, "total": properties.total_memory,
                 "outside": properties.total_memory - free - statistics.get("reserved_bytes.all.current", 0),
                 "rank": os.environ.get("RANK", "0"), "world": os.environ.get("WORLD_SIZE", "1"), "steps": self.steps,
                 "peak_reserved": statistics.get("reserved_bytes.all.peak", 0),
                 "peak_allocated": statistics.get("allocated_bytes.all.peak", 0),
                 "peak_active": statistics.get("active_bytes.all.peak", 0),
                 "retries": statistics.get("num_alloc_retries", 0), "shortages": self.shortages,
                 "advice": [ADVICE[name] for name in sorted(self.advice)], **numbers.answer()}
        if "history" not in self.advice:
            snapshot = cuda.memory._snapshot(device)
            read = curve.read(snapshot["device_traces"][device], self.marks, self.labels) or {}
            # The program may have reset its peaks, and of a long history only the end is kept.
            found.update({name: max(value, found[name]) if name in found else value for name, value in read.items()})
            if os.environ.get("DRY_RUN_SNAPSHOT"):
                import pickle
                with open(os.environ["DRY_RUN_SNAPSHOT"], "wb") as file:
                    pickle.dump(snapshot, file)
        return found


def start(torch):
    Watch(torch).begin()

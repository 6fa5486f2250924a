# SPDX-License-Identifier: Apache-2.0
"""The parts of probe_torch.py; each runs alone in a process with the launch recorder preloaded."""
import collections
import os
import re
import threading

import torch

import probe_driver as driver
from probe_driver import GRANULE
from probe_torch_tools import DeviceArray, Recorder, half_owned, measure, owned_bytes

CUDA_TYPE = 1  # c10::DeviceType::CUDA


def run(part, recorder_path):
    result = {}
    driver.caller = os.path.join(os.path.dirname(recorder_path), "libprobe_call.so")
    torch.cuda.init()
    measure(result, "result", {"facts": facts, "launches": launches, "replay": replay,
                               "blocks": blocks}[part], Recorder(recorder_path))
    return result["result"]


# --- facts


def symbols_of(library):
    """Names of the block observer that occur in one of PyTorch's libraries."""
    path = os.path.join(os.path.dirname(torch.__file__), "lib", library)
    with open(path, "rb") as file:
        found = re.findall(rb"_ZN3c10\d+reportMemoryUsageToProfiler\w*", file.read())
    return sorted({name.decode() for name in found})


def facts(recorder):
    torch.zeros(1, device="cuda")
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(0),
        "lookups": recorder.lookups(),
        "observer_in_libc10": symbols_of("libc10.so"),
        "observer_in_libc10_cuda": symbols_of("libc10_cuda.so"),
        "observer_calls_so_far": len(recorder.blocks()),
    }


# --- launches


def initialise():
    weight = torch.empty(1024, 1024, device="cuda")
    for name in ("uniform_", "normal_", "kaiming_uniform_", "xavier_normal_", "trunc_normal_", "ones_", "zeros_"):
        getattr(torch.nn.init, name)(weight)
    torch.nn.init.constant_(weight, 0.5)
    torch.randn(1 << 20, device="cuda", dtype=torch.bfloat16)
    torch.arange(1 << 20, device="cuda")
    weight.to(torch.bfloat16)


def train(fused):
    layer = torch.nn.TransformerEncoderLayer(256, 4, batch_first=True, device="cuda")
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3, fused=fused)
    data = torch.randn(8, 128, 256, device="cuda")
    layer(data).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def attend():
    shape = (2, 8, 256, 64)
    query, key, value = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def rearrange():
    data = torch.randn(1 << 16, device="cuda")
    data.sort()
    data.cumsum(0)
    torch.cat([data, data])
    data[torch.randint(0, 1 << 16, (1000,), device="cuda")]
    data.unique()
    data.topk(5)


def convolve():
    layer = torch.nn.Conv2d(3, 16, 3, device="cuda")
    layer(torch.randn(2, 3, 64, 64, device="cuda")).sum().backward()


def told(launch):
    name = launch.name if len(launch.name) <= 160 else launch.name[:120] + "..." + launch.name[-37:]
    return {"name": name, "entry": launch.entry, "grid": "x".join(map(str, launch.grid)),
            "parameters": " ".join(f"{offset}+{size}" for offset, size in launch.parameters)}


def summary(found):
    first_asked = {}
    for launch in found:
        first_asked.setdefault(launch.name, launch)
    times = sorted(launch.layout_us for launch in found)
    firsts = sorted(launch.layout_us for launch in first_asked.values())
    kinds = {"entries": "entry", "packed_by_caller": "packed_by_caller", "loading_state_before": "loaded_before",
             "layout_from": "layout_from", "layout_end": "layout_end", "name_from": "name_from"}
    return {
        "launches": len(found),
        **{key: dict(collections.Counter(str(getattr(launch, name)) for launch in found)) for key, name in kinds.items()},
        "with_attributes": sum(launch.attributes > 0 for launch in found),
        "without_parameters": sum(not launch.parameters for launch in found),
        "most_packed_bytes": max((len(launch.packed) for launch in found), default=0),
        "layout_us_median": times[len(times) // 2] if times else None,
        "layout_us_first_median": firsts[len(firsts) // 2] if firsts else None,
        "layout_us_most": times[-1] if times else None,
        "kernels": [told(launch) | {"block": "x".join(map(str, launch.block))} | {
            key: getattr(launch, key) for key in ("attributes", "packed_by_caller", "loaded_before")}
            for launch in list(first_asked.values())[:40]],
    }


def recorded(recorder, work):
    recorder.start()
    try:
        work()
        torch.cuda.synchronize()
    finally:
        found = recorder.stop()
    return summary(found)


# The first of each kind finds its kernels not loaded.
WORKS = {"initialise": initialise, "train": lambda: train(False), "train_fused": lambda: train(True), "attend": attend,
         "rearrange": rearrange, "convolve": convolve}


def launches(recorder):
    result = {"module_loading": os.environ.get("CUDA_MODULE_LOADING", "default")}
    for name, work in WORKS.items():
        measure(result, name, recorded, recorder, work)
    return result | {"lookups": recorder.lookups()}


# --- replay

BYTES = 8 * GRANULE
SOURCE = {}  # tensors that recorded launches read; they must stay alive


def copy_from_float(tensor):
    source = SOURCE.setdefault(tensor.numel(), torch.randn(tensor.numel(), device="cuda"))
    tensor.copy_(source)


OPERATIONS = {
    "uniform_": lambda tensor: tensor.uniform_(-0.1, 0.1),
    "normal_": lambda tensor: tensor.normal_(0.0, 0.02),
    "fill_": lambda tensor: tensor.fill_(0.5),
    "zero_": lambda tensor: tensor.zero_(),
    "ones_": torch.nn.init.ones_,
    "trunc_normal_": lambda tensor: torch.nn.init.trunc_normal_(tensor, std=0.02),
    "bernoulli_": lambda tensor: tensor.bernoulli_(0.3),
    "exponential_": lambda tensor: tensor.exponential_(),
    "mul_": lambda tensor: tensor.mul_(0.02),
    "add_": lambda tensor: tensor.add_(1.0),
    "clamp_": lambda tensor: tensor.clamp_(-1, 1),
    "erfinv_": lambda tensor: tensor.erfinv_(),
    "copy_from_float": copy_from_float,
    "arange_out": lambda tensor: torch.arange(tensor.numel(), out=tensor),
}
CASES = [(name, torch.float32, 0) for name in OPERATIONS]
CASES += [(name, dtype, 0) for name in ("uniform_", "normal_", "fill_", "mul_", "copy_from_float")
          for dtype in (torch.bfloat16, torch.float16)]
# An odd number of elements, ending in an owned granule: the kernels' branches for a tail.
CASES += [(name, torch.float32, GRANULE // 4 + 12345) for name in ("uniform_", "normal_", "fill_", "mul_")]


def bytes_of(tensor):
    return tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()


def same_again(found, tensor, start, wanted):
    tensor.copy_(start)
    for launch in found:
        launch.again()
    return bytes_of(tensor) == wanted


def on_other_tensor(found, tensor, start, wanted):
    other = start.clone()
    tensor.copy_(start)
    begin, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    moved = [launch.again(begin, begin + size, other.data_ptr()) for launch in found]
    return {"equal": bytes_of(other) == wanted, "words_moved": moved,
            "first_tensor_untouched": bytes_of(tensor) == bytes_of(start),
            "aligned_alike": (begin ^ other.data_ptr()) % 512 == 0}


def on_half_owned(found, tensor, start, wanted):
    address = half_owned(BYTES)
    begin, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    torch.cuda.synchronize()
    driver.need("cuMemcpyHtoD_v2", address, bytes_of(start), size)
    # The odd granules of the copy went into the sink; the even ones hold the start.
    for launch in found:
        launch.again(begin, begin + size, address)
    torch.cuda.synchronize()
    seen = driver.read(address, size)
    return {"owned_half_equal": owned_bytes(seen) == owned_bytes(wanted)}


def replay_case(recorder, name, dtype, fewer):
    elements = BYTES // torch.empty((), dtype=dtype).element_size() - fewer
    start = ((torch.arange(elements, device="cuda") % 251).to(torch.float32) / 256).to(dtype)
    tensor = start.clone()
    OPERATIONS[name](tensor)  # once before, so that what is set up lazily is not recorded
    tensor.copy_(start)
    torch.cuda.synchronize()
    torch.manual_seed(1234)
    recorder.start()
    OPERATIONS[name](tensor)
    torch.cuda.synchronize()
    found = recorder.stop()
    wanted = bytes_of(tensor)
    begin, size = tensor.data_ptr(), elements * tensor.element_size()
    result = {"launches": [told(launch) | {"words_into_tensor": list(launch.words_in(begin, begin + size))} for launch in found],
              "changed_the_tensor": wanted != bytes_of(start)}
    for key, again in (("same_bytes_equal", same_again), ("other_tensor", on_other_tensor), ("sink", on_half_owned)):
        if found:
            measure(result, key, again, found, tensor, start, wanted)
    return result


def program_on_half_owned():
    """The program's own call on a tensor of which only half is owned."""
    elements = BYTES // 4
    address = half_owned(BYTES)
    tensor = torch.as_tensor(DeviceArray(address, elements, "<f4"), device="cuda")
    ordinary = torch.empty(elements, device="cuda")
    result = {"is_the_same_memory": tensor.data_ptr() == address}
    for name in ("uniform_", "normal_", "trunc_normal_"):
        for target in (ordinary, tensor):
            torch.manual_seed(99)
            OPERATIONS[name](target)
        torch.cuda.synchronize()
        seen = driver.read(address, BYTES)
        result[name] = owned_bytes(seen) == owned_bytes(bytes_of(ordinary))
    return result


def replay(recorder):
    result = {}
    torch.zeros(1, device="cuda")
    driver.start()
    for name, dtype, fewer in CASES:
        key = f"{name} {str(dtype).replace('torch.', '')}" + (" odd size" if fewer else "")
        measure(result, key, replay_case, recorder, name, dtype, fewer)
    measure(result, "program_on_half_owned", program_on_half_owned)
    return result


# --- blocks


class Ledger:
    """The live blocks, from the observer's reports alone."""

    def __init__(self, recorder):
        self.recorder = recorder

    def read(self):
        live, odd = {}, collections.Counter()
        last = None
        for block in self.recorder.blocks():
            if block.device_type != CUDA_TYPE:
                odd["other_device_type"] += 1
                continue
            last = block
            if block.bytes > 0:
                odd["given_while_live"] += block.address in live
                live[block.address] = block.bytes
            else:
                odd["taken_back_with_other_size"] += live.get(block.address) != -block.bytes
                live.pop(block.address, None)
        return live, {key: count for key, count in odd.items() if count}, last


def snapshot_blocks():
    """address -> (size, requested size, state), of every block that is not free."""
    found = {}
    for segment in torch.cuda.memory_snapshot():
        address = segment["address"]
        for block in segment["blocks"]:
            at = block.get("address", address)
            if block["state"] != "inactive":
                found[at] = (block["size"], block.get("requested_size"), block["state"])
            address += block["size"]
    return found


def compare(ledger):
    live, odd, last = ledger.read()
    result = {"live_by_reports": len(live), "odd": odd}
    if last is not None:
        result["allocated_matches"] = last.allocated == torch.cuda.memory_allocated()
        result["reserved_matches"] = last.reserved == torch.cuda.memory_reserved()
    blocks_now = snapshot_blocks()
    active = {at: entry for at, entry in blocks_now.items() if entry[2] == "active_allocated"}
    result.update({
        "active_in_snapshot": len(active),
        "pending_free_in_snapshot": len(blocks_now) - len(active),
        "missing_in_reports": len(active.keys() - live.keys()),
        "only_in_reports": len(live.keys() - active.keys()),
        "only_in_reports_but_pending": len((live.keys() - active.keys()) & blocks_now.keys()),
        "sizes_differ": sum(live[at] != active[at][0] for at in live.keys() & active.keys()),
        "rounded_up": sum(entry[1] is not None and entry[1] != entry[0]
                          for entry in active.values()),
    })
    return result


def some_tensors():
    sizes = [1, 511, 513, 4096, 300_000, 1 << 20, (1 << 20) + 1, 5 << 20, 11 << 20, 30 << 20]
    return [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes for _ in range(3)]


def in_second_thread(ledger):
    kept = []
    thread = threading.Thread(target=lambda: kept.extend(some_tensors()))
    thread.start()
    thread.join()
    result = compare(ledger)
    result["threads_seen"] = len({block.thread for block in ledger.recorder.blocks()})
    return result


def with_other_stream(ledger):
    """A block that another stream still uses is freed: reported at once, or when it is reusable?"""
    stream = torch.cuda.Stream()
    tensor = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        tensor.fill_(1)
    tensor.record_stream(stream)
    address = tensor.data_ptr()
    del tensor
    reported = address not in ledger.read()[0]
    result = compare(ledger)
    result["reported_while_in_use"] = reported
    torch.cuda.synchronize()
    return result


def in_private_pool(ledger):
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        kept = torch.ones(3 << 20, device="cuda").mul(2)
    result = compare(ledger)
    graph.replay()
    torch.cuda.synchronize()
    del kept
    return result


def after_free(ledger, kept):
    del kept[::2]
    return compare(ledger)


def after_empty_cache(ledger):
    torch.cuda.empty_cache()
    return compare(ledger)


def directly(ledger):
    """The allocator's own entry for other libraries."""
    address = torch.cuda.caching_allocator_alloc(3 << 20)
    seen = address in ledger.read()[0]
    torch.cuda.caching_allocator_delete(address)
    return {"given": seen, "taken_back": address not in ledger.read()[0]}


def blocks(recorder):
    result, ledger, kept = {"alloc_conf": os.environ.get("PYTORCH_ALLOC_CONF", "default")}, Ledger(recorder), some_tensors()
    for key, work, *arguments in (("after_alloc", compare), ("after_free", after_free, kept), ("second_thread", in_second_thread),
                                  ("other_stream", with_other_stream), ("private_pool", in_private_pool),
                                  ("allocator_called_directly", directly), ("after_empty_cache", after_empty_cache)):
        measure(result, key, work, ledger, *arguments)
    return result | {"reports": len(recorder.blocks())}

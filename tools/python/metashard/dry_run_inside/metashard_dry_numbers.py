# SPDX-License-Identifier: Apache-2.0
"""Answers programs and PyTorch itself where they decide by numbers of the device, which nobody computed. Draws that are repeated until all
are good would never end. Masks count as all true, so that they choose no less than on a GPU; tensors that are compared count as equal,
as those of peers are. This module keeps the places where a program reads and chooses, for the answer."""
import inspect
import os
import sys
import warnings

FILLED_BYTES = 1 << 20  # as large as copies to the device are made
MOST_PLACES = 5
kept = []  # libraries, whose implementations go with them
reads, choices = {}, {}  # by place: how often, and of how many elements at most
last_read = None


def place():
    """The line outside of PyTorch that came here."""
    frame, inside = sys._getframe(1).f_back, None
    while frame is not None:
        name = frame.f_code.co_filename
        if "/torch/" not in name and "metashard_dry" not in name and not name.startswith("<"):
            return f"{name}:{frame.f_lineno}"
        inside, frame = inside or f"{name}:{frame.f_lineno}", frame.f_back
    return inside or "no line of Python"


def change_draws(torch):
    init = torch.nn.init
    drawn = getattr(init, "_no_grad_trunc_normal_", None)
    if drawn is None or "while" not in inspect.getsource(drawn):
        return

    def trunc_normal(tensor, mean, std, a, b, generator=None):
        """Draws twice, as nearly every tensor does, with the memory of both."""
        if tensor.device.type != "cuda":
            return drawn(tensor, mean, std, a, b, generator=generator)
        with torch.no_grad():
            result = tensor.normal_(mean, std, generator=generator)
            mask = (result < a) | (result > b)
            mask.any()
            tensor.copy_(torch.where(mask, torch.empty_like(result).normal_(mean, std, generator=generator), result))
        return tensor
    init._no_grad_trunc_normal_ = trunc_normal


def change_reads(torch):
    def nonzero(mask):
        """All of it, in the order and the strides of PyTorch's own."""
        note_choice(mask)
        found = torch.empty((mask.dim(), mask.numel()), dtype=torch.int64, device=mask.device)
        if 0 < found.numel() * found.element_size() <= FILLED_BYTES:
            found.copy_(torch.ones(mask.shape, dtype=torch.bool).nonzero().t())
        return found.t()

    def equal(left, right):
        if left.shape != right.shape:
            return False
        torch.eq(left, right).all()  # the memory of it
        return True

    def read(tensor):
        global last_read
        last_read = place()
        reads[last_read] = reads.get(last_read, 0) + 1
        return tensor.detach().cpu().item()

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there was another one
        for name, function in (("nonzero", nonzero), ("equal", equal), ("_local_scalar_dense", read)):
            library.impl(name, function, "CUDA")
    kept.append(library)


def change_masks(torch):
    """Makes masks that come to the host all true, like those of `nonzero` above: the memory holds bytes of its previous owner."""
    def changed(function):
        def to_host(self, *arguments, **named):
            found = function(self, *arguments, **named)
            if type(self) is torch.Tensor and self.is_cuda and self.dtype is torch.bool and self.numel() > 1:
                note_choice(self)
                found.fill_(True)
            return found
        return to_host

    def tolist(self, before=torch.Tensor.tolist):
        return before(self.cpu() if type(self) is torch.Tensor and self.is_cuda else self)

    torch.Tensor.cpu = changed(torch.Tensor.cpu)
    torch.Tensor.tolist = tolist


def note_choice(mask):
    where = place()
    choices[where] = max(choices.get(where, 0), mask.numel())


def answer():
    """The choices of the most elements, and the places of the most frequent reads."""
    def rows(found, value):
        ordered = sorted(found.items(), key=lambda row: -row[1])[:MOST_PLACES]
        return [{"place": where, value: number} for where, number in ordered]
    return {"choices": rows(choices, "elements"), "reads": rows(reads, "times")}


def change(torch):
    change_draws(torch)
    if os.environ.get("SIMCUDA_DRY") == "1":
        change_reads(torch)
        change_masks(torch)

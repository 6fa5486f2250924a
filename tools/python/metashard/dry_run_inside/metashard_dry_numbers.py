# SPDX-License-Identifier: Apache-2.0
"""What PyTorch itself decides by numbers of the device, which nobody computed: draws that are made again until all are good would
never end."""
import inspect


def change(torch):
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

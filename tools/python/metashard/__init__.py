# SPDX-License-Identifier: Apache-2.0
"""The functions of metashard.h, by which a Python program informs MetaShard and queries it.

No program needs this package: MetaShard is made for programs that know nothing of it. It is loaded by
`metashard run -- python train.py`, or by LD_PRELOAD. In a process without it, and with METASHARD=off, everything here
succeeds and does nothing; without it, the first call warns once. torch is not imported.
"""
from __future__ import annotations

import ctypes
import json
import os
import sys
import warnings
from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Protocol, Sequence, TypedDict, Union

__all__ = ["Error", "Status", "Suspension", "Tensor", "is_loaded", "materialise", "materialize", "name", "plan", "resume", "status",
           "suspend", "suspended", "unname"]


def __getattr__(attribute: str) -> str:
    if attribute == "__version__":
        from .installed import version
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")


_OFF = b"METASHARD is off"
_DTYPES = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
           "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
           "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
           "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ"}


class Error(RuntimeError):
    """MetaShard could not do what was asked; the text says why."""


class Tensor(Protocol):
    """The members of a tensor that this module uses: torch.Tensor has them."""

    @property
    def dtype(self) -> Any: ...

    @property
    def shape(self) -> Sequence[int]: ...

    def data_ptr(self) -> int: ...

    def numel(self) -> int: ...

    def element_size(self) -> int: ...

    def is_contiguous(self) -> bool: ...


class Status(TypedDict, total=False):
    """The result of status(): `loaded`, and with MetaShard the keys of metashard_status() in metashard.h."""

    loaded: bool
    pid: int
    plans: int
    mode: str
    rank: int
    world_size: int
    tensors: int
    planned_bytes: int
    owned_bytes: int
    remote_reads: int
    remote_read_bytes: int
    requested_bytes: int
    backed_bytes: int
    plan_freed_bytes: int
    suspended: bool


class Suspension(TypedDict, total=False):
    """The result of suspend(), in bytes: the keys of metashard_suspend() in metashard.h."""

    freed_bytes: int
    replayed_bytes: int
    made_bytes: int
    stored_bytes: int
    zero_bytes: int
    stays_exported_bytes: int
    stays_mapped_bytes: int
    stays_bytes: int
    others_bytes: int


def _find() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)  # what is preloaded belongs to the program itself
    if not hasattr(library, "metashard_status"):
        return None
    library.metashard_error.restype = ctypes.c_char_p
    library.metashard_status.restype = ctypes.c_size_t
    library.metashard_status.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    library.metashard_plan_file.argtypes = [ctypes.c_char_p]
    library.metashard_plan_text.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    library.metashard_name.argtypes = [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p,
                                       ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint]
    library.metashard_unname.argtypes = [ctypes.c_uint64, ctypes.c_size_t]
    if hasattr(library, "metashard_suspend"):
        library.metashard_suspend.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    return library


_library = _find()
_has_warned = False


def _is_there() -> bool:
    global _has_warned
    if _library is None and not _has_warned:
        _has_warned = True
        how = "`metashard run --kernel` makes a Jupyter kernel that has it" if "ipykernel" in sys.modules else \
            "start the program with `metashard run -- python ...`"
        warnings.warn(f"MetaShard is not loaded in this process, so the calls of metashard do nothing: {how}", RuntimeWarning, stacklevel=3)
    return _library is not None


def _must(result: int) -> None:
    assert _library is not None
    if result != 0:
        error = _library.metashard_error()
        if error != _OFF:
            raise Error(error.decode(errors="replace"))


def is_loaded() -> bool:
    """Whether MetaShard is loaded in this process. Never warns."""
    return _library is not None


def status() -> Status:
    """The counters of the plan and of memory: `loaded`, and, if that is true, the keys of metashard_status() in
    metashard.h, as `requested_bytes` (deferred allocations) and `backed_bytes` (their device memory now). Never warns."""
    if _library is None:
        return {"loaded": False}
    size = 512
    while True:
        text = ctypes.create_string_buffer(size)
        length = _library.metashard_status(text, size)
        if length < size:
            found: Status = json.loads(text.value)
            return {"loaded": True, **found}
        size = length + 64


def name(tensor: Tensor, name: str) -> None:
    """Says that `tensor`, on a device, is the tensor `name` of the plan. Needed only for tensors that are not copied from
    a checkpoint file. Raises ValueError for a tensor that is not contiguous or has an unknown dtype, and Error for memory
    that MetaShard does not defer, as small allocations are (METASHARD_MIN_BYTES). TypeError: the arguments are swapped."""
    if isinstance(tensor, str) or not isinstance(name, str):
        raise TypeError(f"expected a tensor and its name, found {type(tensor).__name__} and {type(name).__name__}")
    dtype = _DTYPES.get(str(tensor.dtype).rpartition(".")[2])
    if dtype is None:
        raise ValueError(f"{name}: the dtype {tensor.dtype} is not one of safetensors")
    if not tensor.is_contiguous():
        raise ValueError(f"{name}: the tensor is not contiguous")
    if _is_there():
        assert _library is not None
        shape = (ctypes.c_uint64 * len(tensor.shape))(*tensor.shape)
        _must(_library.metashard_name(tensor.data_ptr(), tensor.numel() * tensor.element_size(), name.encode(),
                                      dtype.encode(), shape, len(tensor.shape)))


def unname(tensor: Tensor) -> None:
    """Removes all names from the memory of `tensor`. For allocators that use memory again without freeing it; PyTorch's
    needs no call."""
    if _is_there():
        assert _library is not None
        _must(_library.metashard_unname(tensor.data_ptr(), tensor.numel() * tensor.element_size()))


def plan(plan: Union[str, os.PathLike[str], Mapping[str, Any]]) -> None:
    """Activates a sharding plan (docs/plan-format.md): a file, or the plan itself as a mapping. A second plan replaces the
    first. Raises Error if the plan is not valid; the previous one then stays active."""
    if _is_there():
        assert _library is not None
        if isinstance(plan, Mapping):
            text = json.dumps(plan).encode()
            _must(_library.metashard_plan_text(text, len(text)))
        else:
            _must(_library.metashard_plan_file(os.fsencode(plan)))


def materialise() -> None:
    """Brings everything that is deferred into device memory, except what the plan gives to other ranks."""
    if _is_there():
        assert _library is not None
        _must(_library.metashard_materialise())


materialize = materialise


def suspend(to: Union[str, os.PathLike[str], None] = None) -> Suspension:
    """Gives the device memory of this process back while it lives; tensors keep their addresses. Data still in its file
    is dropped; the rest waits in host memory, or in a file of the folder `to`. Returns the bytes of each outcome, with the
    keys of metashard_suspend() in metashard.h; {} without MetaShard. Raises Error, and changes nothing, while a stream is
    captured, in an open NCCL group, or where there is no room."""
    if not _is_there():
        return {}
    assert _library is not None
    text = ctypes.create_string_buffer(1024)
    _must(_library.metashard_suspend(None if to is None else os.path.abspath(os.fsencode(to)), text, len(text)))
    found: Suspension = json.loads(text.value or b"{}")
    return found


def resume() -> None:
    """Takes back what suspend() gave. The first kernel does so, too. Raises Error where the device has no memory for it;
    then nothing is lost, and a later call may succeed."""
    if _is_there():
        assert _library is not None
        _must(_library.metashard_resume())


@contextmanager
def suspended(to: Union[str, os.PathLike[str], None] = None) -> Iterator[Suspension]:
    """`with metashard.suspended() as freed:` suspends, and resumes at the end of the block, also after an exception."""
    freed = suspend(to)
    try:
        yield freed
    finally:
        resume()

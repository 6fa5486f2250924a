# SPDX-License-Identifier: Apache-2.0
"""Files as torch.save writes them, made without PyTorch: the same records, and a pickle of the same calls."""
import io
import pickle
import struct
import sys
import types
import zipfile
import zlib
from collections import OrderedDict
from contextlib import contextmanager

# Storage type, dtype, bytes of an element, name in safetensors; None: there is none.
TYPES = [("FloatStorage", "float32", 4, "F32"), ("HalfStorage", "float16", 2, "F16"),
         ("BFloat16Storage", "bfloat16", 2, "BF16"), ("LongStorage", "int64", 8, "I64"),
         ("IntStorage", "int32", 4, "I32"), ("ShortStorage", "int16", 2, "I16"),
         ("CharStorage", "int8", 1, "I8"), ("ByteStorage", "uint8", 1, "U8"),
         ("BoolStorage", "bool", 1, "BOOL"), ("DoubleStorage", "float64", 8, "F64"),
         ("ComplexFloatStorage", "complex64", 8, "C64"), ("ComplexDoubleStorage", "complex128", 16, None),
         ("QInt8Storage", "qint8", 1, None), ("UntypedStorage", "uint16", 2, "U16"),
         ("UntypedStorage", "uint32", 4, "U32"), ("UntypedStorage", "uint64", 8, "U64"),
         ("UntypedStorage", "float8_e5m2", 1, "F8_E5M2"), ("UntypedStorage", "float8_e4m3fn", 1, "F8_E4M3"),
         ("UntypedStorage", "float8_e5m2fnuz", 1, "F8_E5M2FNUZ"),
         ("UntypedStorage", "float8_e4m3fnuz", 1, "F8_E4M3FNUZ"),
         ("UntypedStorage", "float8_e8m0fnu", 1, "F8_E8M0"), ("UntypedStorage", "complex32", 4, None),
         ("UntypedStorage", "bits16", 2, None)]

MODULES = {
    "torch": [row[0] for row in TYPES[:13]] + [row[1] for row in TYPES] + ["Tensor"],
    "torch.storage": ["UntypedStorage"],
    "torch._utils": ["_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter",
                     "_rebuild_parameter_with_state", "_rebuild_qtensor", "_rebuild_sparse_tensor"],
    "torch._tensor": ["_rebuild_from_type_v2"],
    "fairseq": ["Namespace"],
}
STUBS = {module: types.ModuleType(module) for module in MODULES}
for _module, _names in MODULES.items():
    for _name in _names:
        setattr(STUBS[_module], _name, type(_name, (), {"__module__": _module}))


def stub(path):
    module, _, name = path.rpartition(".")
    return getattr(STUBS[module], name)


@contextmanager
def importable_stubs():
    """The pickler looks up what it writes the name of."""
    before = {name: sys.modules.get(name) for name in STUBS}
    sys.modules.update(STUBS)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


class Call:
    """Pickled as a call of a function that this program does not have."""

    def __init__(self, function, *arguments, state=None):
        self.function, self.arguments, self.state = function, arguments, state

    def __reduce_ex__(self, protocol):
        function = stub(self.function) if isinstance(self.function, str) else self.function
        return (function, self.arguments) + (() if self.state is None else (self.state,))


class Storage:
    def __init__(self, row, data, key=None):
        self.row, self.data, self.key = row, data, key

    def persistent_id(self, key):
        kind, _, size, _ = self.row
        of_bytes = kind == "UntypedStorage"
        return ("storage", stub(("torch.storage." if of_bytes else "torch.") + kind), key, "cpu",
                len(self.data) // (1 if of_bytes else size))


class View:
    """A tensor: first and strides in elements."""

    def __init__(self, storage, first, shape, strides=None, wrap="", metadata=None):
        self.storage, self.first, self.shape = storage, first, tuple(shape)
        self.wrap, self.metadata = wrap, metadata
        self.strides = row_major(shape) if strides is None else tuple(strides)

    def __reduce_ex__(self, protocol):
        kind, dtype, _, _ = self.storage.row
        arguments = (self.storage, self.first, self.shape, self.strides, False, OrderedDict())
        function = "torch._utils._rebuild_tensor_v2"
        if kind == "UntypedStorage":
            function = "torch._utils._rebuild_tensor_v3"
            arguments += (stub("torch." + dtype),)
        elif kind.startswith("QInt"):
            function = "torch._utils._rebuild_qtensor"
            arguments = arguments[:4] + ((0.5, 3), False, OrderedDict())
        if self.metadata is not None:
            arguments += (self.metadata,)
        if self.wrap == "parameter":
            return stub("torch._utils._rebuild_parameter"), (Call(function, *arguments), True, OrderedDict())
        if self.wrap == "state":
            return stub("torch._utils._rebuild_parameter_with_state"), (
                Call(function, *arguments), True, OrderedDict(), {"tensor_parallel": True})
        if self.wrap == "subclass":
            return stub("torch._tensor._rebuild_from_type_v2"), (
                stub(function), stub("torch.Tensor"), arguments, {"attribute": 3})
        return stub(function), arguments

    def elements(self):
        """Where each element is in the storage, in elements, in row-major order."""
        places = [self.first]
        for length, stride in zip(self.shape, self.strides):
            places = [place + i * stride for place in places for i in range(length)]
        return places

    def content(self):
        size = self.storage.row[2]
        return b"".join(self.storage.data[place * size:(place + 1) * size] for place in self.elements())


def row_major(shape):
    strides, step = [], 1
    for length in reversed(shape):
        strides.insert(0, step)
        step *= max(length, 1)
    return tuple(strides)


def pickled(state, protocol=2):
    """(data.pkl, {key: storage})"""
    out, keys, storages = io.BytesIO(), {}, {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            if not isinstance(value, Storage):
                return None
            key = keys.setdefault(id(value), value.key or str(len(keys)))
            storages[key] = value
            return value.persistent_id(key)

    with importable_stubs():
        Pickler(out, protocol=protocol).dump(state)
    return out.getvalue(), storages


def records_of(state, folder="archive", protocol=2, byteorder=b"little"):
    text, storages = pickled(state, protocol)
    records = [(f"{folder}/data.pkl", text), (f"{folder}/.format_version", b"1")]
    if byteorder is not None:
        records.append((f"{folder}/byteorder", byteorder))
    records += [(f"{folder}/data/{key}", storage.data) for key, storage in storages.items()]
    return records + [(f"{folder}/version", b"3\n")]


def padding(offset, name):
    """The extra field that torch puts before a record to align it: id FB, and Z."""
    rest = -(offset + 30 + len(name.encode("utf-8", "surrogateescape")) + 4) % 64
    return b"FB" + struct.pack("<H", rest) + b"Z" * rest


def plain_zip(records):
    """By Python's zipfile."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in records:
            info = zipfile.ZipInfo(name)
            info.extra = padding(out.tell(), name)
            archive.writestr(info, data)
    return out.getvalue()


def torch_zip(records, wide=False, ends="both", comment=b"", header=None, entry=None, end=None):
    """As torch's miniz writes it: sizes behind the data, two ends. wide: all numbers in zip64 fields.

    header, entry: functions that are given name and a dict of fields, and may change it; end: of both ends.
    """
    out, directory = io.BytesIO(), io.BytesIO()
    for name, data in records:
        text, begin = name.encode("utf-8", "surrogateescape"), out.tell()
        fields = {"mark": b"PK\3\4", "flags": 0x808, "method": 0, "crc": 0, "packed": 0, "bytes": 0, "name": text,
                  "extra": padding(begin, name)}
        if header is not None:
            header(name, fields)
        out.write(fields["mark"] + struct.pack("<5H3I2H", 0, fields["flags"], fields["method"], 0, 0, fields["crc"],
                                               fields["packed"], fields["bytes"], len(fields["name"]),
                                               len(fields["extra"])) + fields["name"] + fields["extra"])
        out.write(data)
        crc = zlib.crc32(data)
        if data:
            out.write(b"PK\7\10" + struct.pack("<I2Q" if wide else "<3I", crc, len(data), len(data)))
        fields = {"mark": b"PK\1\2", "flags": 0x808, "method": 0, "packed": len(data), "bytes": len(data),
                  "name": text, "offset": begin, "extra": b"", "comment": b"", "disk": 0}
        if wide:
            fields["extra"] = struct.pack("<2H3Q", 1, 24, len(data), len(data), begin)
            fields["packed"] = fields["bytes"] = fields["offset"] = 0xffffffff
        if entry is not None:
            entry(name, fields)
        directory.write(fields["mark"] + struct.pack(
            "<6H3I5H2I", 0, 0, fields["flags"], fields["method"], 0, 0, crc, fields["packed"], fields["bytes"],
            len(fields["name"]), len(fields["extra"]), len(fields["comment"]), fields["disk"], 0, 0,
            fields["offset"]) + fields["name"] + fields["extra"] + fields["comment"])
    fields = {"count": len(records), "bytes": len(directory.getvalue()), "offset": out.tell(), "disk": 0}
    if end is not None:
        end(fields)
    out.write(directory.getvalue())
    place = out.tell()
    if ends == "both":
        out.write(b"PK\6\6" + struct.pack("<Q2H2I4Q", 44, 45, 45, 0, 0, fields["count"], fields["count"],
                                          fields["bytes"], fields["offset"]))
        out.write(b"PK\6\7" + struct.pack("<IQI", 0, place, 1))
    narrow = [0xffff, 0xffffffff, 0xffffffff] if wide else [fields["count"], fields["bytes"], fields["offset"]]
    out.write(b"PK\5\6" + struct.pack("<4H2IH", fields["disk"], 0, narrow[0], *narrow, len(comment)) + comment)
    return out.getvalue()


def save(path, state, **options):
    with open(path, "wb") as file:
        file.write(torch_zip(records_of(state, **options)))

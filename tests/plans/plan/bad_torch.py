# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save that must be refused, and the place that the one line names."""
import struct
from collections import OrderedDict

from bad_inputs import Row
from torch_writer import TYPES, Call, Storage, View, pickled, records_of, stub, torch_zip

ROWS = []
FLOAT = TYPES[0]
WEIGHT = View(Storage(FLOAT, bytes(range(48))), 0, (3, 4))
STATE = {"w": WEIGHT, "b": View(Storage(FLOAT, bytes(12)), 0, (3,))}
RECORDS = records_of(STATE)
GOOD = torch_zip(RECORDS)


def file(name, content, place=": "):
    ROWS.append(Row(name, place, None, {"ckpt/x.pt": content}, "ckpt/x.pt"))


def records(name, place=": ", **changes):
    """Records of the good file with some changed, by their names; None takes one away."""
    changed = [(record, changes.get(record.split("/", 1)[1], data)) for record, data in RECORDS]
    file(name, torch_zip([(record, data) for record, data in changed if data is not None]), place)


def text(name, text_, place=": data.pkl"):
    """A data.pkl, as it is."""
    records(name, place, **{"data.pkl": text_})


def state(name, value, place=": "):
    file(name, torch_zip(records_of(value)), place)


def fields(name, place=": ", **functions):
    file(name, torch_zip(RECORDS, **functions), place)


def of_weight(**changes):
    """Changes the fields of one record."""
    return lambda name, found: found.update(changes) if name.endswith("data/0") else None


def changed_end(**changes):
    return lambda found: found.update(changes)


# The zip file.
for length in (4, 21, 22, 64, len(GOOD) // 2, len(GOOD) - 1):
    file(f"zip cut off after {length}", GOOD[:length])
file("zip with bytes behind its end", GOOD + b"\0")
file("zip with bytes before its wide end", GOOD[:-98] + b"\0" + GOOD[-98:])
ONE_END = torch_zip(RECORDS, ends="one")
file("zip with bytes before its end", ONE_END[:-22] + b"\0" + ONE_END[-22:])
LAST = GOOD.rindex(b"PK\1\2")
file("zip: a record's comment beyond the directory", GOOD[:LAST + 32] + struct.pack("<H", 16) + GOOD[LAST + 34:],
     ": expected a name in UTF-8")
fields("zip: compressed by the directory", ": archive/data/0: ", entry=of_weight(method=8))
fields("zip: compressed by the header", ": archive/data/0: ", header=of_weight(method=8))
fields("zip: encrypted", ": archive/data/0: ", entry=of_weight(flags=0x809))
fields("zip: packed size differs", ": archive/data/0: ", entry=of_weight(packed=47))
fields("zip: record beyond the directory", ": archive/data/0: ", entry=of_weight(bytes=1 << 20, packed=1 << 20))
fields("zip: record of 2^32 - 1 bytes", ": archive/data/0: ", entry=of_weight(bytes=0xffffffff, packed=0xffffffff))
WIDE = struct.pack("<2H3Q", 1, 24, (1 << 64) - 1, (1 << 64) - 1, 0)
fields("zip: record of 2^64 - 1 bytes", ": archive/data.pkl: ",
       entry=lambda name, found: found.update(bytes=0xffffffff, packed=0xffffffff, offset=0xffffffff, extra=WIDE)
       if name.endswith("data.pkl") else None)
WIDE_AT = struct.pack("<2HQ", 1, 8, (1 << 64) - 8)
fields("zip: header at 2^64 - 8", ": archive/data/0: ", entry=of_weight(offset=0xffffffff, extra=WIDE_AT))
fields("zip: wide offset is missing", ": archive/data/0: ",
       entry=of_weight(offset=0xffffffff, extra=struct.pack("<2HI", 1, 4, 0)))
fields("zip: extra field is longer than it is", ": archive/data/0: ", entry=of_weight(extra=b"\1\0\xff\xff"))
fields("zip: extra field is cut off", ": archive/data/0: ", entry=of_weight(extra=b"\1"))
fields("zip: header elsewhere", ": archive/data/0: ", entry=of_weight(offset=1))
fields("zip: header at the directory", ": archive/data/0: ", entry=of_weight(offset=len(GOOD) - 98))
fields("zip: the header of another", ": archive/data/0: ", entry=of_weight(offset=0))
fields("zip: header without its mark", ": archive/data/0: ", header=of_weight(mark=b"PK\3\5"))
fields("zip: names differ", ": archive/data/0: ", header=of_weight(name=b"archive/data/7"))
fields("zip: name is longer in the header", ": archive/data/0: ", header=of_weight(name=b"archive/data/00"))
fields("zip: entry without its mark", entry=of_weight(mark=b"PK\1\1"))
fields("zip: name without bytes", entry=of_weight(name=b""), header=of_weight(name=b""))
fields("zip: name not UTF-8", entry=of_weight(name=b"archive/data/\xff"), header=of_weight(name=b"archive/data/\xff"))
file("zip: a name that nothing asks for not UTF-8", torch_zip(RECORDS + [("archive/\udcff", b"")]))
fields("zip: name with NUL", entry=of_weight(name=b"archive/data\0"), header=of_weight(name=b"archive/data\0"))
fields("zip: entry of another part", ": archive/data/0: ", entry=of_weight(disk=1))
fields("zip: of several parts", end=changed_end(disk=1))
fields("zip: directory of fewer entries", end=changed_end(count=2))
fields("zip: directory of one entry less", end=changed_end(count=5))
fields("zip: directory of more entries", end=changed_end(count=7))
fields("zip: directory of very many entries", end=changed_end(count=60000))
fields("zip: directory elsewhere", end=changed_end(offset=0))
fields("zip: directory is shorter", end=changed_end(bytes=46))
fields("zip: directory of 2^32 - 1 bytes", end=changed_end(bytes=0xffffffff))
file("zip: the two ends differ", GOOD[:-6] + struct.pack("<I", 1) + GOOD[-2:])
file("zip: the end's count differs", GOOD[:-14] + struct.pack("<2H", 3, 3) + GOOD[-10:])
file("zip: locator to nowhere", GOOD[:-34] + b"\xff" * 8 + GOOD[-26:])
file("zip: locator to another place", GOOD[:-34] + struct.pack("<Q", 64) + GOOD[-26:])
file("zip: without records", torch_zip([]))
file("zip: the same record twice", torch_zip(RECORDS + [RECORDS[0]]), ": archive/data.pkl: ")
file("zip: overlapping records", torch_zip(RECORDS, entry=lambda name, found: found.update(bytes=200, packed=200)
                                           if name.endswith("data/0") else None), ": archive/")

# The records that torch.save puts in a file.
file("record without a folder", torch_zip([("data.pkl", b"")]))
records("no data.pkl", **{"data.pkl": None})
records("no storage", ": w: ", **{"data/0": None})
records("storage too short", ": w: ", **{"data/0": bytes(47)})
records("storage without bytes", ": w: ", **{"data/0": b""})
records("big-endian", ": byteorder: ", byteorder=b"big")
records("byteorder unknown", ": byteorder: ", byteorder=b"middle")
records("byteorder empty", ": byteorder: ", byteorder=b"")
file("TorchScript", torch_zip(RECORDS + [("archive/constants.pkl", b"\x80\2).")]))
file("torch before 1.6", bytes.fromhex("80028a0a6cfc9c46f9206aa85019") + b".")

# The pickle.
P = b"\x80\2"
text("pickle of no bytes", b"", ": data.pkl[0]: ")
text("pickle without STOP", P + b"}", ": data.pkl[3]: ")
text("pickle with bytes behind", P + b"}.}", ": data.pkl[3]: ")
text("pickle: nothing on the stack", P + b".", ": data.pkl[2]: ")
text("pickle: protocol 6", b"\x80\6}.", ": data.pkl[0]: ")
for name, code in {"INST": b"i", "OBJ": b"o", "INT": b"I", "GET": b"g", "PUT": b"p", "STRING": b"S", "UNICODE": b"V",
                   "DICT": b"d", "LIST": b"l", "PERSID": b"P", "EXT1": b"\x82", "EXT4": b"\x84", "FLOAT": b"F",
                   "NEXT_BUFFER": b"\x97", "READONLY_BUFFER": b"\x98", "0xff": b"\xff", "0x00": b"\0"}.items():
    text(f"pickle: opcode {name}", P + b"}" + code + b"01\n.",
         f": data.pkl[3]: expected an opcode of torch.save, found {name}\n")
for name, rest in {"BININT": b"J\0\0\0", "BINUNICODE": b"X\xff\xff\xff\xffa", "BINUNICODE8": b"\x8d" + b"\xff" * 8,
                   "LONG1": b"\x8a\x08abc", "LONG4": b"\x8b\xff\xff\xff\x7f", "GLOBAL": b"ctorch\nname",
                   "GLOBAL of one line": b"ctorch", "BINFLOAT": b"G\0", "BINPUT": b"q", "FRAME": b"\x95" + b"\xff" * 8,
                   "BYTEARRAY8": b"\x96\0", "LONG_BINPUT": b"}r\xff\xff\xff\xff."}.items():
    text(f"pickle: {name} cut off", P + rest)
for name, rest in {"POP": b"0.", "POP_MARK": b"1.", "TUPLE": b"Nt.", "TUPLE1": b"\x85.", "TUPLE2": b"N\x86.",
                   "TUPLE3": b"NN\x87.", "APPEND": b"]a.", "APPENDS": b"(Ne.", "APPENDS without mark": b"]Ne.",
                   "SETITEM": b"}Ns.", "SETITEMS": b"(NNu.", "SETITEMS of a key": b"}(Nu.", "REDUCE": b")R.",
                   "BUILD": b"}b.", "BINPERSID": b"Q.", "DUP": b"2.", "NEWOBJ": b")\x81.", "NEWOBJ_EX": b"))\x92.",
                   "STACK_GLOBAL": b"U\0\x93.", "MEMOIZE": b"\x94.", "FROZENSET": b"\x91.", "ADDITEMS": b"(\x90.",
                   "TUPLE1 below a mark": b"N(\x85.", "BINPUT of nothing": b"q\0.",
                   "APPEND to a dict": b"}Na.", "SETITEM in a list": b"]NNs.", "SETITEM in a text": b"U\0NNs.",
                   "BINGET of what was not kept": b"h\0.", "LONG_BINGET of nothing": b"j\xff\xff\xff\xff."}.items():
    text(f"pickle: {name}", P + rest)

# The tensors.
ARGUMENTS = (WEIGHT.storage, 0, (3, 4), (4, 1), False, OrderedDict())


def tensor(name, *arguments, function="_rebuild_tensor_v2", place=": t: "):
    state(f"tensor: {name}", {"t": Call("torch._utils." + function, *arguments)}, place)


tensor("no arguments")
tensor("too few arguments", *ARGUMENTS[:3])
tensor("v3 with too few arguments", *ARGUMENTS, function="_rebuild_tensor_v3")
tensor("v3 with a dtype that is none", *ARGUMENTS, "float32", function="_rebuild_tensor_v3")
tensor("storage is none", None, *ARGUMENTS[1:])
tensor("offset below 0", ARGUMENTS[0], -1, *ARGUMENTS[2:])
tensor("offset is a text", ARGUMENTS[0], "0", *ARGUMENTS[2:])
tensor("ends behind its storage", ARGUMENTS[0], 1, *ARGUMENTS[2:])
tensor("offset overflows", ARGUMENTS[0], 1 << 62, *ARGUMENTS[2:])
tensor("offset of 2^63 - 1", ARGUMENTS[0], (1 << 63) - 1, *ARGUMENTS[2:])
tensor("offset of 2^64", ARGUMENTS[0], 1 << 64, *ARGUMENTS[2:])
tensor("shape is a list", ARGUMENTS[0], 0, [3, 4], (4, 1))
tensor("shape below 0", ARGUMENTS[0], 0, (-3, 4), (4, 1))
tensor("shape with a text", ARGUMENTS[0], 0, ("3", 4), (4, 1))
tensor("shape overflows", ARGUMENTS[0], 0, (1 << 62, 1 << 62), (1 << 62, 1))
tensor("shape of 2^63 bytes", ARGUMENTS[0], 0, (1 << 61,), (1,))
tensor("shape and strides differ", ARGUMENTS[0], 0, (3, 4), (1,))
tensor("strides below 0", ARGUMENTS[0], 0, (3, 4), (-4, 1))
tensor("parameter of nothing", function="_rebuild_parameter", place=": ")
state("two tensors of one name", {"a": {"b": WEIGHT}, "a.b": WEIGHT}, ": a.b: ")
state("two tensors of one name, by number", {0: WEIGHT, "0": WEIGHT}, ": 0: ")
state("key with NUL", {"a\0b": WEIGHT})
state("key not UTF-8", {"\udc80": WEIGHT})


def storage(name, identity):
    """The weight's persistent id, replaced."""
    class Named(Storage):
        def persistent_id(self, key):
            return identity(key)
    state(f"storage: {name}", {"t": View(Named(FLOAT, bytes(48)), 0, (3, 4))}, ": t: ")


storage("a text", lambda key: "storage")
storage("of four", lambda key: ("storage", stub("torch.FloatStorage"), key, "cpu"))
storage("another word", lambda key: ("module", stub("torch.FloatStorage"), key, "cpu", 12))
storage("type is a text", lambda key: ("storage", "FloatStorage", key, "cpu", 12))
storage("key is a number", lambda key: ("storage", stub("torch.FloatStorage"), 0, "cpu", 12))
storage("key above", lambda key: ("storage", stub("torch.FloatStorage"), "../version", "cpu", 12))
storage("key with NUL", lambda key: ("storage", stub("torch.FloatStorage"), "0\0", "cpu", 12))
storage("size below 0", lambda key: ("storage", stub("torch.FloatStorage"), key, "cpu", -12))
storage("size overflows", lambda key: ("storage", stub("torch.FloatStorage"), key, "cpu", 1 << 62))
storage("more than its record", lambda key: ("storage", stub("torch.FloatStorage"), key, "cpu", 13))

# Nesting, cycles, and a few bytes that stand for very many names.
CYCLE = []
CYCLE.append(CYCLE)
state("a list in itself", {"a": CYCLE})
DICT = {}
DICT["x"] = DICT["y"] = DICT
state("a dict in itself, twice", DICT)


def nested(opening, closing, depth, inner):
    return P + opening * depth + inner + closing * depth + b"."


def inner_weight():
    body, _ = pickled(WEIGHT)
    return body[2:-1]


text("pickle: nesting of 2049", nested(b"]", b"a", 2049, inner_weight()), ": 0.0.0")
text("pickle: nesting of 300000", nested(b"]", b"a", 300000, inner_weight()), ": 0.0.0")
LAUGHS, NOTHING = {"lol": WEIGHT}, []
for _ in range(40):
    LAUGHS, NOTHING = {"a": LAUGHS, "b": LAUGHS}, [NOTHING, NOTHING]
state("2^40 names of one tensor", LAUGHS)
state("2^40 names of nothing", NOTHING)
state("a long key for many", {"k" * 200000: {str(i): WEIGHT for i in range(3000)}})

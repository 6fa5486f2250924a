# SPDX-License-Identifier: Apache-2.0
"""Plans and checkpoints that must be refused, and the place that the one line names."""
import json
from dataclasses import dataclass, field

from checkpoint import file_bytes, header_of
from oracle import Tensor

TENSORS = [Tensor("a", "BF16", (6, 4)), Tensor("b", "F32", (5,)), Tensor("f4", "F4", (4, 2))]


@dataclass
class Row:
    """place: what follows the name of the file at fault, or several that may."""
    name: str
    place: object
    plan: object = None
    files: dict = field(default_factory=dict)  # of the checkpoint
    at_fault: str = ""                         # the plan, if empty
    given: str = ""                            # the checkpoint's path below its folder
    reason: str = ""                           # the end of the line

    def write(self, plans):
        """(path of the plan, arguments, the name of the file at fault)"""
        folder = "bad/" + "".join(c if c.isalnum() else "-" for c in self.name)
        plan = {"format": "metashard-plan/1", "world_size": 2, "tensors": [{"name": "*"}]}
        path = plans.write(f"{folder}/plan.json", plan if self.plan is None else self.plan)
        for name, content in self.files.items():
            plans.write(f"{folder}/{name}", content)
        arguments = ["check", path]
        if self.files:
            arguments.append(plans.path(f"{folder}/{self.given or 'ckpt'}"))
        fault = plans.path(f"{folder}/{self.at_fault}") if self.at_fault else path
        return path, arguments, fault


ROWS = []


def text(name, place, plan):
    ROWS.append(Row(name, place, plan))


def document(name, place, **changes):
    """A good plan with some keys changed; None takes a key away."""
    plan = {"format": "metashard-plan/1", "mesh": {"dp": 2, "tp": 2}, "tensors": []}
    plan.update(changes)
    ROWS.append(Row(name, place, {key: value for key, value in plan.items() if value is not None}))


def entry(name, place, *entries, checkpoint=True, mesh=None, reason=""):
    plan = {"format": "metashard-plan/1", "mesh": mesh or {"dp": 2, "tp": 2}, "tensors": list(entries)}
    header, size = header_of(TENSORS)
    ROWS.append(Row(name, place, plan, {"ckpt/x.safetensors": file_bytes(header, size)} if checkpoint else {},
                    reason=reason))


def file(name, content, place=":", file_name="ckpt/x.safetensors", **others):
    ROWS.append(Row(name, place, None, {file_name: content, **others}, file_name))


def header(name, place=":", slack=0, **entries):
    """A header whose data is as long as its last tensor says."""
    ends = [value["data_offsets"][1] for value in entries.values()
            if isinstance(value, dict) and isinstance(value.get("data_offsets"), list)
            and len(value["data_offsets"]) == 2 and isinstance(value["data_offsets"][1], int)]
    size = max([0] + [end for end in ends if 0 <= end < 10000]) + slack
    file(name, file_bytes(entries, size), place)


def tensor(dtype="U8", shape=(4,), offsets=(0, 4), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


# Not JSON: line and column.
HEAD = '{"format": "metashard-plan/1", "world_size": 2,\n '
text("empty", ":1:", b"")
text("not JSON", ":1:", b"hello")
text("comma missing", ":2:", HEAD + '"tensors": [{"name": "a"} {"name": "b"}]}')
text("cut off", ":2:", HEAD + '"tensors": [{"name": "a"')
text("more behind it", ":2:", HEAD + '"tensors": []} x')
text("comma at the end", ":2:", HEAD + '"tensors": [],}')
text("not UTF-8", ":2:", HEAD.encode() + b'"tensors": [{"name": "\xff"}]}')
text("overlong UTF-8", ":2:", HEAD.encode() + b'"tensors": [{"name": "\xc0\x80"}]}')
text("half a surrogate", ":2:", HEAD + '"tensors": [{"name": "\\ud800"}]}')
text("NUL in a string", ":2:", HEAD + '"tensors": [{"name": "a\\u0000b"}]}')
text("NUL in the text", ":2:", HEAD.encode() + b'"tensors": []\0}')
text("a control character in a string", ":2:", HEAD.encode() + b'"tensors": [{"name": "a\x01"}]}')
text("key twice", ":", HEAD + '"tensors": [{"name": "a", "name": "b"}]}')
text("key twice in a mesh", ":", '{"format": "metashard-plan/1", "mesh": {"dp": 2, "dp": 2}, "tensors": []}')
text("integer of 65 bits", ":2:", HEAD + '"tensors": [{"size": 18446744073709551616}]}')
text("integer of 64 bits", ":", HEAD + '"tensors": [{"size": 9223372036854775808}]}')
text("number too large", ":", HEAD + '"tensors": [{"size": 1e999}]}')
text("NaN", ":2:", HEAD + '"tensors": [{"size": NaN}]}')
text("deep nesting", ":", b"[" * 3000)
text("deep nesting, closed", ":", b"[" * 3000 + b"]" * 3000)
text("very deep nesting", ":", b'{"a":' * 300000)
text("a list", ": ", "[]")
text("a string", ":", '"metashard-plan/1"')

# Keys of the document.
document("no format", ": ", format=None)
document("another format", ": format: ", format="metashard-plan/2")
document("format is a number", ": format: ", format=1)
document("no tensors", ": ", tensors=None)
document("tensors is an object", ": tensors: ", tensors={})
document("unknown key", ": ranks: ", ranks=3)
document("no mesh", ": ", mesh=None)
document("mesh is a list", ": mesh: ", mesh=[2, 2])
document("mesh without dimensions", ": mesh: ", mesh={})
document("mesh of 9 dimensions", ": mesh", mesh={str(i): 1 for i in range(9)})
document("mesh dimension without a name", ": mesh", mesh={"": 2})
document("mesh dimension of size 0", ": mesh.dp: ", mesh={"dp": 0})
document("mesh dimension of size -1", ": mesh.dp: ", mesh={"dp": -1})
document("mesh dimension of size 1.0", ": mesh.dp: ", mesh={"dp": 1.0})
document("mesh dimension of size true", ": mesh.dp: ", mesh={"dp": True})
document("mesh too large", ": mesh", mesh={"dp": 1048576, "tp": 2})
document("mesh that overflows", ": mesh", mesh={"a": 1 << 32, "b": 1 << 32})
document("mesh size of 2^63 - 1", ": mesh", mesh={"a": (1 << 63) - 1, "b": (1 << 63) - 1})
document("world is not the product", ": world_size: ", world_size=5)
document("world of 0", ": world_size: ", mesh=None, world_size=0)
document("world too large", ": world_size: ", mesh=None, world_size=1048577)
document("rank beyond the world", ": rank: ", rank=4)
document("rank below 0", ": rank: ", rank=-1)
document("rank is text", ": rank: ", rank="0")
document("rank and coordinates", ": ", rank=0, coordinates=[0, 0])
document("coordinates too few", ": coordinates", coordinates=[0])
document("coordinates too many", ": coordinates", coordinates=[0, 0, 0])
document("a coordinate missing", ": coordinates", coordinates={"dp": 0})
document("a coordinate unknown", ": coordinates", coordinates={"dp": 0, "tp": 0, "pp": 0})
document("a coordinate too large", ": coordinates.tp: ", coordinates={"dp": 0, "tp": 2})
document("a coordinate too large in a list", ": coordinates[1]: ", coordinates=[0, 2])

# Entries.
A = {"name": "a"}
entry("entry is a string", ": tensors[0]: ", "a")
entry("entry selects nothing", ": tensors[0]: ", {"placements": []})
entry("unknown key of an entry", ": tensors[0].nmae: ", {"nmae": "a"})
entry("unknown key in the second entry", ": tensors[1].x: ", A, {"name": "b", "x": 1})
entry("name empty", ": tensors[0].name: ", {"name": ""})
entry("name is a number", ": tensors[0].name: ", {"name": 1})
entry("set without its end", ": tensors[0].name: ", {"name": "a[bc"})
entry("set with only ]", ": tensors[0].name: ", {"name": "a[]"})
entry("set with only !]", ": tensors[0].name: ", {"name": "a[!]"})
entry("range upside down", ": tensors[0].name: ", {"name": "[z-a]"})
entry("escape at the end", ": tensors[0].name: ", {"name": "a\\"})
entry("exact name twice", ": tensors[1]", A, A)
entry("exact name twice, escaped", ": tensors[1]", A, {"name": "\\a"})
entry("size below 0", ": tensors[0].size: ", {"size": -1})
entry("size 1.0", ": tensors[0].size: ", {"size": 1.0})
entry("order below 0", ": tensors[0].order: ", {"order": -1})
entry("dtype alone", ": tensors[0]", dict(A, dtype="BF16"))
entry("shape alone", ": tensors[0]", dict(A, shape=[6, 4]))
entry("unknown dtype", ": tensors[0].dtype: ", dict(A, dtype="bf16", shape=[6, 4]))
entry("shape of 9 dimensions", ": tensors[0].shape", dict(A, dtype="BF16", shape=[1] * 9))
entry("length below 0", ": tensors[0].shape[1]: ", dict(A, dtype="BF16", shape=[6, -4]))
entry("length is text", ": tensors[0].shape[1]: ", dict(A, dtype="BF16", shape=[6, "4"]))
entry("sizes overflow", ": tensors[0]", dict(A, dtype="BF16", shape=[1 << 62]), checkpoint=False)
entry("sizes overflow, with a 0", ": tensors[0]", dict(A, dtype="BF16", shape=[0, 1 << 40, 1 << 40]),
      checkpoint=False)
entry("sizes overflow in sum", ": tensors", dict(A, dtype="U8", shape=[(1 << 63) - 1]),
      {"name": "b", "dtype": "U8", "shape": [1]}, checkpoint=False)
entry("size is not that of the shape", ": tensors[0]", dict(A, dtype="BF16", shape=[6, 4], size=49))
entry("not whole bytes", ": tensors[0]", dict(A, dtype="F4", shape=[3]), checkpoint=False)
entry("declared, not there", ": tensors[0]", {"name": "c", "dtype": "BF16", "shape": [6, 4]})
entry("declared with another dtype", ": tensors[0]", dict(A, dtype="F16", shape=[6, 4]))
entry("declared with another shape", ": tensors[0]", dict(A, dtype="BF16", shape=[4, 6]))
entry("a long name of two-byte characters", ": tensors[0]",
      {"name": "\u03c0" * 400, "dtype": "BF16", "shape": [6, 4]}, reason="\u03c0 is not in the checkpoint")
entry("a long name that is cut inside a character", ": tensors[0]",
      {"name": "a" + "\u03c0" * 400, "dtype": "BF16", "shape": [6, 4]}, reason="\u03c0 is not in the checkpoint")
entry("a long exact name twice", ": tensors[1]: ", {"name": "\u03c0" * 400}, {"name": "\u03c0" * 400},
      reason=" is already that of tensors[0]")
entry("a key that is a control character", ": tensors[0].??: ", {"\u0085": 1})
entry("pattern with another shape", ": tensors[0]", {"name": "[a]", "dtype": "BF16", "shape": [4, 6]})
entry("pattern with another dtype", ": tensors[0]", {"name": "?", "dtype": "F32", "shape": [6, 4]})

# Placements.


def placed(name, place, placements, which="a", **more):
    entry(name, ": tensors[0]" + place, {"name": which, "placements": placements, **more})


placed("placements is text", ".placements: ", "replicate")
placed("too many placements", ".placements", ["replicate"] * 3)
placed("mesh dimension not there", ".placements.pp: ", {"pp": "replicate"})
placed("unknown placement", ".placements[0]: ", ["sharded"])
placed("placement is a number", ".placements[0]: ", [0])
placed("placement is null", ".placements[0]: ", [None])
placed("placement says nothing", ".placements[0]: ", [{}])
placed("shard below 0", ".placements.dp.shard: ", {"dp": {"shard": -1}})
placed("shard is text", ".placements.dp.shard: ", {"dp": {"shard": "0"}})
placed("shard far too large", "", {"dp": {"shard": 1 << 62}})
placed("dimension not there", ": ", {"dp": {"shard": 2}})
placed("dimension of a 1-d tensor not there", ": ", {"tp": {"shard": 1}}, which="b")
placed("unknown key of a placement", ".placements[0].dim: ", [{"shard": 0, "dim": 0}])
placed("interleave alone", ".placements[0]", [{"interleave": [1, 1]}])
placed("interleave of nothing", ".placements[0].interleave", [{"shard": 0, "interleave": []}])
placed("interleave of 65", ".placements[0].interleave", [{"shard": 0, "interleave": [1] * 65}])
placed("interleave with a 0", ".placements[0].interleave[1]: ", [{"shard": 0, "interleave": [1, 0]}])
placed("interleave that overflows", ".placements[0].interleave[1]: ", [{"shard": 0, "interleave": [(1 << 63) - 1] * 4}])
placed("parts do not divide", ": ", [{"shard": 0, "interleave": [3, 1]}])
placed("interleave is second", ".placements",
       {"tp": {"shard": 0}, "dp": {"shard": 0, "interleave": [1, 1]}})
placed("interleave is second in a list", ".placements",
       [{"shard": 0}, {"shard": 0, "interleave": [1, 1]}])
placed("unknown flat", ".placements.dp.flat: ", {"dp": {"flat": "zero2"}})
placed("flat is a number", ".placements.dp.flat: ", {"dp": {"flat": 3}})
placed("fsdp1 without unit", ".placements.dp", {"dp": {"flat": "fsdp1"}})
placed("unit empty", ".placements.dp.unit: ", {"dp": {"flat": "fsdp1", "unit": ""}})
placed("zero3 with unit", ".placements.dp", {"dp": {"flat": "zero3", "unit": "u"}})
placed("shard and flat in one", ".placements.dp", {"dp": {"flat": "zero3", "shard": 0}})
placed("two flat", ".placements", {"dp": {"flat": "zero3"}, "tp": {"flat": "zero3"}})
placed("F4 sharded", ": ", [{"shard": 0}], which="f4")
placed("F4 flat", ": ", [{"flat": "zero3"}], which="f4")
U = {"flat": "fsdp1", "unit": "u"}
entry("unit of two dtypes", ": tensors[", {"name": "a", "placements": {"dp": U}},
      {"name": "b", "placements": {"dp": U}})
entry("unit of two dtypes in one entry", ": tensors[0]", {"name": "?", "placements": {"dp": U}})
entry("unit of two mesh dimensions", ": tensors[", {"name": "a", "placements": {"dp": U}},
      {"name": "c", "dtype": "BF16", "shape": [2], "placements": {"tp": U}},
      {"name": "a2", "dtype": "BF16", "shape": [2], "placements": {"dp": U}}, checkpoint=False)


def ranged(name, place, ranges, **more):
    entry(name, ": tensors[0]" + place, dict({"name": "b", "ranges": ranges}, **more), mesh={"dp": 2})


ranged("ranges of too few ranks", ".ranges", [[]])
ranged("ranges of too many ranks", ".ranges", [[], [], []])
ranged("ranges is an object", ".ranges: ", {})
ranged("ranges of a rank is a number", ".ranges[1]", [[], 3])
ranged("range of one number", ".ranges[1][0]", [[], [[3]]])
ranged("range of three numbers", ".ranges[1][0]", [[], [[3, 4, 5]]])
ranged("range empty", ".ranges[1][0]", [[], [[3, 3]]])
ranged("range backwards", ".ranges[1][0]", [[], [[4, 3]]])
ranged("range below 0", ".ranges[1][0]", [[], [[-1, 3]]])
ranged("ranges overlap", ".ranges[0][1]", [[[0, 4], [3, 8]], []])
ranged("ranges not ascending", ".ranges[0][1]", [[[4, 8], [0, 2]], []])
ranged("range beyond the tensor", "", [[[0, 21]], []])
ranged("ranges and placements", "", [[], []], placements=[])

# Headers of checkpoints.
GOOD = file_bytes(*header_of(TENSORS))
file("header shorter than its length", GOOD[:5])
file("no bytes", b"")
file("header longer than the file", (1 << 40).to_bytes(8, "little") + GOOD[8:])
file("header of 2^64 - 1 bytes", b"\xff" * 8 + GOOD[8:])
file("header of 100 MB and one", (100_000_001).to_bytes(8, "little") + GOOD[8:])
file("header is no JSON", file_bytes(b"{'a'}", 0))
file("header is empty", bytes(8))
file("header is a list", file_bytes(b"[]", 0))
file("header with text behind", file_bytes(b'{} {}', 0))
file("header not UTF-8", file_bytes(b'{"\xff":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', 4))
file("tensor twice", file_bytes(b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
                                b'"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}', 8))
file("data cut off", GOOD[:-1])
file("data behind the last", GOOD + b"\0")
header("tensor is a list", a=[])
header("tensor without dtype", a={"shape": [4], "data_offsets": [0, 4]})
header("tensor without shape", a={"dtype": "U8", "data_offsets": [0, 4]})
header("tensor without offsets", a={"dtype": "U8", "shape": [4]})
header("dtype of no safetensors", a=tensor(dtype="F128"))
header("dtype is a number", a=tensor(dtype=8))
header("shape with text", a=tensor(shape=["4"]))
header("shape below 0", a=tensor(shape=[-4]))
header("shape with 4.0", a=tensor(shape=[4.0]))
header("shape of 9", a=tensor(shape=[1] * 8 + [4]))
header("shape overflows", a=tensor(shape=[1 << 62, 1 << 62]))
header("offsets of one", a=tensor(offsets=[4]))
header("offsets of three", a=tensor(offsets=[0, 4, 8]))
header("offsets backwards", a=tensor(offsets=[4, 0]), slack=4)
header("offsets below 0", a=tensor(offsets=[-4, 0]), slack=4)
header("offsets do not fit the shape", a=tensor(offsets=[0, 5]))
header("offsets beyond the file", a=tensor(offsets=[0, 1 << 62], shape=[1 << 62]))
header("offsets overlap", a=tensor(), b=tensor(offsets=[3, 7]))
header("the same bytes twice", a=tensor(), b=tensor())
header("a hole", a=tensor(), b=tensor(offsets=[5, 9]))
header("a hole at the start", a=tensor(offsets=[1, 5]))
header("F4 of half bytes", a=tensor(dtype="F4", shape=[3], offsets=[0, 2]))


def index(name, content, at_fault="ckpt/model.safetensors.index.json", place=":", **more):
    files = {"ckpt/model.safetensors.index.json": content, "ckpt/x.safetensors": GOOD}
    ROWS.append(Row(name, place, None, {**files, **more}, at_fault))


MAP = {"a": "x.safetensors", "b": "x.safetensors", "f4": "x.safetensors"}
index("index is no JSON", b"{")
index("index is a list", b"[]")
index("index without a map", {})
index("map is a list", {"weight_map": []})
index("map with a number", {"weight_map": dict(MAP, b=1)})
index("index names a folder above", {"weight_map": dict(MAP, b="../x.safetensors")})
index("index names an absolute path", {"weight_map": dict(MAP, b="/etc/passwd")})
index("index names a folder", {"weight_map": dict(MAP, b=".")})
index("index names nothing", {"weight_map": dict(MAP, b="")})
index("index names a file that is not there", {"weight_map": dict(MAP, b="y.safetensors")}, "ckpt/y.safetensors")
index("index places what is not there", {"weight_map": dict(MAP, c="x.safetensors")})
index("index leaves one out", {"weight_map": {"a": "x.safetensors", "f4": "x.safetensors"}})


def shared(name, tensor_name, named):
    """A tensor in two files that are not the first."""
    both = file_bytes(*header_of([Tensor(tensor_name, "U8", (4,))]))
    other = file_bytes(*header_of([Tensor("other", "U8", (4,))]))
    files = {"ckpt/x.safetensors": other, "ckpt/y.safetensors": both, "ckpt/z.safetensors": both}
    ROWS.append(Row(name, f"y.safetensors: tensor {named} is in z.safetensors too", None, files, "ckpt/"))


shared("tensor in two files", "a", "a")
shared("long tensor in two files", "\u03c0" * 400, "\u03c0" * 49 + "..." + "\u03c0" * 49)
LONG = "long" * 60
ROWS.append(Row("a long path", ".safetensors: ", None, {f"ckpt/{LONG}.safetensors": b"x"}, f"ckpt/{LONG}"))
ROWS.append(Row("a long path of what is no JSON", ".safetensors:1:1: ", None,
                {f"ckpt/{LONG}.safetensors": file_bytes(b"x", 0)}, f"ckpt/{LONG}"))
ROWS.append(Row("index leaves a long name out", ": weight_map: expected tensor \u03c0", None, {
    "ckpt/model.safetensors.index.json": {"weight_map": {"a": "x.safetensors"}},
    "ckpt/x.safetensors": file_bytes(*header_of([Tensor("\u03c0" * 400, "U8", (4,))]))},
    "ckpt/model.safetensors.index.json", reason="\u03c0 of x.safetensors"))
ROWS.append(Row("folder without files", ":", None, {"ckpt/readme": "x"}, "ckpt"))
ROWS.append(Row("checkpoint is not there", ":", None, {"other/readme": "x"}, "ckpt"))

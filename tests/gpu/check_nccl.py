# SPDX-License-Identifier: Apache-2.0
"""Checks the parts of tests/gpu/run about NCCL, on the simulated NCCL and driver: compared with itself nothing differs,
an answer that was changed, wrong bytes, a rank that fails and a library that was not meant are seen.

    check_nccl.py --build DIR
"""
import copy
import os
import subprocess
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import SimpleNamespace

sys.dont_write_bytecode = True

from nccl_alias import problems  # noqa: E402
from run_tools import read_json, run_checks, run_script, without_shim  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SYSTEMS = os.path.join(os.path.dirname(HERE), "frameworks", "systems", "run")


def check_nothing_differs(build):
    for ranks, least in ((1, 25), (4, 25)):
        _, error, result = run_script(build, "nccl_conformance.py", "--simulated", "--ranks", str(ranks))
        differences = [test for test in result.get("tests", []) if not test["same"] or test["shim_differences"]]
        assert result and differences == [], error or differences
        assert result["complete"] and result["stale_rows"] == [], result["stale_rows"]
        assert result["counts"]["same"] >= least and result["counts"]["not_run"] == 0, result["counts"]
        assert all(test["checks"] > 0 for test in result["tests"])


def check_changed_answer(build):
    _, _, result = run_script(build, "nccl_conformance.py", "--simulated", "SIMNCCL_FAULTS=0:0=error3", "--ranks", "2",
                       "--only", "nccl_collectives.bcast", "--limit", "5")
    [test] = result["tests"]
    first = test["differences"][0]
    assert first["check"].startswith("ncclBcast(") and first["simulated"] == "ncclSuccess", test["differences"]


def check_alias(build):
    _, error, result = run_script(build, "nccl_alias.py", "--simulated")
    assert result.get("complete"), error or result
    assert problems(result) == [], problems(result)
    assert [run["protocol"] for run in result["broadcast"]] == ["Simple", "LL", "LL128"]
    for kind in result["broadcast"]:
        rows = [row for row in kind["rows"] if "own" in row]
        places = {(row["rank"], row["root"]) for row in rows}
        assert len(places) == 9 and any(row["maps"] > 2 for row in rows), rows
        assert all(row["own"] == [0, row["bytes"]] for row in rows if row["rank"] == row["root"]), rows
    assert len(result["map"]) == 6 and all("map_us_median" in row for row in result["map"]), result["map"]
    assert [run["preload"] for run in result["shim"]] == ["without", "with", "with a plan"]
    assert all(row["named"] for run in result["shim"][1:] for row in run["rows"] if "named" in row), result["shim"]
    wrong = copy.deepcopy(result)
    wrong["broadcast"][1]["rows"][5]["wrong_bytes"] = 3
    assert len(problems(wrong)) == 1 and "LL: rank" in problems(wrong)[0], problems(wrong)


def check_wrong_library(build):
    """The simulated NCCL must never pass for the real one; without any, nothing is run."""
    library = os.path.join(build, "tools", "simcuda", "nccl", "libnccl.so.2")
    folders = f"{os.path.join(build, 'tools', 'simcuda')}:{os.path.dirname(library)}"
    for program, more in (("nccl_conformance.py", ["--ranks", "1", "--only", "nccl_alone.groups"]), ("nccl_alias.py", [])):
        status, error, _ = run_script(build, program, *more, NCCL_LIBRARY=library, LD_LIBRARY_PATH=folders)
        assert status != 0 and "was wanted" in error, (program, status, error)


def check_ranks_that_share_a_device(build):
    """Ranks of tests/frameworks/systems/run --gpu: before 2.30 each is a host of its own, and they talk
    over sockets."""
    loader = SourceFileLoader("systems_run", SYSTEMS)
    systems = module_from_spec(spec_from_loader("systems_run", loader))
    loader.exec_module(systems)
    systems.glob = SimpleNamespace(glob=lambda pattern: ["the only device"])
    options = SimpleNamespace(gpu=True, build=build, python=sys.executable, set={})

    def ranks(nccl):
        systems.release = lambda options: ["2.11.0", nccl]
        return systems.Runner(options, "folder").ranks(systems.ROWS[0], systems.WITHOUT, 2, "folder")

    older, newer = ranks("22809"), ranks("23000")
    assert [rank["NCCL_HOSTID"] for rank in older] == ["rank0", "rank1"], older
    assert all(rank["NCCL_NET"] == "Socket" and rank["LOCAL_RANK"] == "0" for rank in older), older
    assert all(rank["NCCL_MULTI_RANK_GPU_ENABLE"] == "1" and "NCCL_HOSTID" not in rank for rank in newer), newer


def check_run(build):
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([sys.executable, os.path.join(HERE, "run"), "--simulated", "--no-build", "--build", build,
                               "--out", out, "--only", "nccl"], capture_output=True, text=True, env=without_shim(),
                              check=False)
        assert done.returncode == 0, done.stderr
        rows = {row["part"]: row for row in read_json(os.path.join(out, "summary-simulated.json"))["parts"]}
        for part in ("nccl-alias", "nccl-alone", "nccl-ranks"):
            assert rows[part]["result"] == "done" and rows[part]["details"] == [], rows
            assert os.path.exists(os.path.join(out, f"{part}-simulated.json")), os.listdir(out)


if __name__ == "__main__":
    run_checks(check_nothing_differs, check_changed_answer, check_alias, check_wrong_library,
               check_ranks_that_share_a_device, check_run)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_release.py: what tools/packaging/check_release lets be published, and what not; that the workflow asks it first; and
that what is packaged is of one version. TAP."""
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
from tap import check, end, equal  # noqa: E402
from text import read  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGING = os.path.join(SOURCE, "tools", "packaging")
WORKFLOWS = os.path.join(SOURCE, ".github", "workflows")


def ask(source, *arguments):
    done = subprocess.run([sys.executable, os.path.join(PACKAGING, "check_release"), "--source", source, *arguments],
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def copy_of(folder):
    """Copies the files that the check reads, filled in as whoever publishes would have them."""
    for place in ("docs", "tools/packaging", ".github"):
        shutil.copytree(os.path.join(SOURCE, place), os.path.join(folder, place))
    for path in [*glob.glob(os.path.join(SOURCE, "*.md")), *(os.path.join(SOURCE, name) for name in ("meson.build", "pyproject.toml"))]:
        shutil.copy(path, folder)
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with open(path, "rb") as file:
                data = file.read()
            filled = re.sub(rb"\b(\w+@)?(\w+)\.invalid\b", rb"\1\2.example", data).replace(b"git clone REPOSITORY", b"git clone URL")
            if name == "CHANGELOG.md":
                filled = re.sub(rb"^(## \S+) \(.*\)$", rb"\1 (2030-01-31)", filled, count=1, flags=re.M)
            if filled != data and name != "check_release":
                with open(path, "wb") as file:
                    file.write(filled)


def change(folder, path, old, new):
    text = read(folder, path)
    with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
        file.write(text.replace(old, new, 1))
    return text


def check_refusals(version):
    with tempfile.TemporaryDirectory() as folder:
        copy_of(folder)
        check("a release without a placeholder, and with a day, may be published", ask(folder, "--tag", "v" + version) ==
              (0, f"metashard {version} may be published\n"), ask(folder, "--tag", "v" + version))
        status, text = ask(folder, "--tag", "v9.9.9")
        check("not by a tag of another version", status == 1 and "expected the version of the tag v9.9.9" in text, text)
        for path, old, new, words in (
                ("CHANGELOG.md", "(2030-01-31)", "(not released)", "expected the day of " + version),
                ("CHANGELOG.md", f"## {version}", "## 0.0.9", f"expected version {version} first, found 0.0.9"),
                ("meson.build", f"'{version}'", "'9.9.9'", "expected version 9.9.9 first"),
                ("pyproject.toml", f"simulator=={version}", "simulator==0.0.9", f"expected the simulator of version {version}, found 0.0.9"),
                ("pyproject.toml", "metashard.example", "metashard.invalid", "pyproject.toml:"),
                ("tools/packaging/debian/control", "metashard.example", "metashard.invalid", "tools/packaging/debian/control:"),
                ("README.md", "# MetaShard", "# MetaShard, see https://metashard.invalid/x", "README.md:1: a placeholder: https://metashard.invalid/x"),
                ("docs/tutorial.md", "git clone URL", "git clone REPOSITORY", "docs/tutorial.md:")):
            kept = change(folder, path, old, new)
            status, text = ask(folder)
            check(f"{path} with {new} is refused", kept != read(folder, path) and status == 1 and words in text, text)
            with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
                file.write(kept)


def check_here(version):
    """As long as nobody has said who publishes, nothing can be published; and nothing else is missing."""
    placeholders = ".invalid" in read(SOURCE, "pyproject.toml")
    for mode in ((), ("--tag", "v" + version)):
        status, text = ask(SOURCE, *mode)
        check("placeholders that are here are refused", not placeholders or (status == 1 and "pyproject.toml:" in text), text)
        others = [line for line in text.splitlines() if placeholders and ": a placeholder: " not in line]
        check("only addresses are missing, which an owner fills in", not others, others)


def jobs_of(path):
    """{job: its lines}, without a parser of YAML, which not every Python has."""
    found = re.split(r"^  (\w+):\n", read(path).split("\njobs:\n", 1)[1], flags=re.M)
    return dict(zip(found[1::2], found[2::2]))


def before(jobs, name):
    needs = re.search(r"^    needs: (\w+)$", jobs[name], re.M)
    return {needs[1], *before(jobs, needs[1])} if needs else set()


# The commands of continuous integration, by job, in the words of check.yml and of the script that a job calls.
RUNS = {"all": ("./check --all", "build-clang/", "build-asan/", "build-tsan/", "build-aarch64/"),
        "python": ("tests/setup/python_tests", "actions/setup-python@", *(f'"3.{minor}"' for minor in range(9, 15))),
        "bare": ("sudo tests/setup/bare_machines --quickstart debian-12 debian-13-user debian-11-python",)}
BUILDS = ("CC=clang build build-clang ", "-Db_sanitize=address,undefined", "-Db_sanitize=thread", "build build-aarch64 ")


def check_integration():
    jobs = jobs_of(os.path.join(WORKFLOWS, "check.yml"))
    for name, words in RUNS.items():
        missing = [word for word in words if word not in jobs.get(name, "")]
        check(f"check.yml: job {name} is there", not missing, missing)
    missing = [word for word in BUILDS if word not in read(SOURCE, "check")]
    check("./check --all builds with clang, under the sanitizers and for aarch64", not missing, missing)
    oldest = re.search(r'^requires-python = ">=(.*)"$', read(SOURCE, "pyproject.toml"), re.M)[1]
    check("the oldest Python that may install it is tried", f'["{oldest}", ' in jobs["python"], oldest)


def check_trial(jobs):
    """./check passes, and both wheels do what the README says, before anything is attested or published."""
    checking = [name for name, lines in jobs.items() if "- run: ./check\n" in lines]
    trying = [name for name, lines in jobs.items() if "docker run --rm --network none" in lines and "readme_commands.py" in lines]
    check("./check runs, and the README's commands with each wheel in an empty container", len(checking) == len(trying) == 1 and
          all(f"- machine: {machine}\n" in jobs[trying[0]] for machine in ("x86_64", "aarch64")), (checking, trying))
    late = [name for name, lines in jobs.items() if re.search(r"pypi-publish|gh release create|attest@", lines) and
            not {*checking, *trying} <= before(jobs, name)]
    check("before anything is attested or published", not late, late)


def check_forms():
    """The pages that somebody who reports something meets."""
    folder = os.path.join(SOURCE, ".github")
    for name in ("fault", "wish"):
        text = read(folder, "ISSUE_TEMPLATE", name + ".yml")
        missing = [word for word in ("name: ", "description: ", "body:", "type: textarea", "required: true") if word not in text]
        check(f"{name}.yml is a form", not missing, missing)
    check("no issue without a form", "blank_issues_enabled: false" in read(folder, "ISSUE_TEMPLATE", "config.yml") and
          not glob.glob(os.path.join(folder, "ISSUE_TEMPLATE", "*.md")))
    check("somebody says when an action is old", "package-ecosystem: github-actions" in read(folder, "dependabot.yml"))
    times = re.findall(r"within (\d+)(?: working)? days|within (\d+)", re.sub(r"\s+", " ", read(SOURCE, "SECURITY.md")))
    check("SECURITY.md says when there is an answer, an assessment and a correction", "**Response times.**" in read(SOURCE, "SECURITY.md") and
          len(times) == 3, times)


def check_workflows():
    for path in sorted(glob.glob(os.path.join(WORKFLOWS, "*.yml"))):
        name, text = os.path.basename(path), read(path)
        loose = [used for used in re.findall(r"uses: (.*)", text) if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", used)]
        check(f"{name}: each action is pinned to a commit, with its version beside it", not loose, loose)
        check(f"{name}: a job has the rights that it names, and no others", re.search(r"^permissions:( \{\}|\n  contents: read)$", text, re.M) is not None)
        scripts = re.findall(r"run: (tools/\S+|\./\S+)", text)
        check(f"{name}: what it runs is there", all(os.access(os.path.join(SOURCE, script), os.X_OK) for script in scripts), scripts)
    jobs = jobs_of(os.path.join(WORKFLOWS, "release.yml"))
    asking = [name for name, lines in jobs.items() if "tools/packaging/check_release" in lines]
    publishing = [name for name, lines in jobs.items() if re.search(r"pypi-publish|gh release create|attest@", lines)]
    check("nothing is attested or published before check_release has let it", len(asking) == 1 and len(publishing) >= 3 and
          all(asking[0] in before(jobs, name) for name in publishing), (asking, publishing))
    check("two machines build, and what they have built is compared", "copy: [first, second]" in jobs["build"] and
          "diff -r dist-first dist-second" in jobs["attest"] and "dist-first" in jobs["publish"])
    check_trial(jobs)
    projects = re.findall(r"- project: (\S+)\n", jobs["publish"])
    check("both wheels are published, the simulator's before the one that asks for it, and attested", projects == [
        "metashard-simulator", "metashard"] and "max-parallel: 1" in jobs["publish"] and all(
        f"sbom-{name}-{machine}.json" in jobs["attest"] for name in ("metashard", "metashard_simulator") for machine in ("x86_64", "aarch64")), projects)
    check("publishing needs no password", not re.search(r"password|secrets\.", "".join(jobs.values())) and "id-token: write" in jobs["publish"])


def check_header(version):
    """Whoever compiles with the header can ask for its version."""
    numbers = dict(re.findall(r"^#define METASHARD_VERSION_(MAJOR|MINOR|PATCH) (\d+)$", read(SOURCE, "shim", "metashard.h"), re.M))
    equal("the header's macros have the version", ".".join(numbers.get(name, "") for name in ("MAJOR", "MINOR", "PATCH")), version)


def check_recipes(version):
    if shutil.which("xz") is None:
        check("the same sources are packaged to the same bytes # SKIP there is no xz", True)
        return
    with tempfile.TemporaryDirectory() as folder:
        digests = set()
        for _ in range(2):
            done = subprocess.run([os.path.join(PACKAGING, "package"), "recipes", folder], capture_output=True, text=True,
                                  env=dict(os.environ, SOURCE_DATE_EPOCH="1700000000", XZ_OPT="-0"), check=False)
            if done.returncode != 0:
                break
            with open(os.path.join(folder, f"metashard-{version}.tar.xz"), "rb") as file:
                digests.add(hashlib.sha256(file.read()).hexdigest())
        check("the same sources are packaged to the same bytes", len(digests) == 1, done.stderr)
        for name in ("recipe.yaml", "package.py"):
            text = read(folder, name)
            check(f"{name} names the version, the archive and its checksum", version in text and all(digest in text for digest in digests) and
                  not re.search(r"@\w+@", text), text)
        compile(read(folder, "package.py"), "package.py", "exec")


def main():
    version = re.search(r"^  version: '(.*)',$", read(SOURCE, "meson.build"), re.M)[1]
    check_refusals(version)
    check_here(version)
    check_workflows()
    check_integration()
    check_forms()
    check_header(version)
    check_recipes(version)
    return end()


if __name__ == "__main__":
    sys.exit(main())

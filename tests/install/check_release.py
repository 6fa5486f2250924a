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
from tap import check, end  # noqa: E402
from text import read  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGING = os.path.join(SOURCE, "tools", "packaging")
WORKFLOWS = os.path.join(SOURCE, ".github", "workflows")


def ask(source, *arguments):
    done = subprocess.run([sys.executable, os.path.join(PACKAGING, "check_release"), "--source", source, *arguments],
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def copy_of(folder):
    """What it reads, as whoever publishes would have it."""
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
            filled = filled.replace(b"(not released)", b"(2030-01-31)") if name == "CHANGELOG.md" else filled
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
        check("what has no placeholder, and a day, may be published", ask(folder, "--tag", "v" + version) ==
              (0, f"metashard {version} may be published\n"), ask(folder, "--tag", "v" + version))
        status, text = ask(folder, "--tag", "v9.9.9")
        check("not by a tag of another version", status == 1 and "expected the version of the tag v9.9.9" in text, text)
        for path, old, new, words in (
                ("CHANGELOG.md", "(2030-01-31)", "(not released)", "expected the day of " + version),
                ("CHANGELOG.md", f"## {version}", "## 0.0.9", f"expected version {version} first, found 0.0.9"),
                ("meson.build", f"'{version}'", "'9.9.9'", "expected version 9.9.9 first"),
                ("pyproject.toml", "metashard.example", "metashard.invalid", "pyproject.toml:"),
                ("tools/packaging/debian/control", "metashard.example", "metashard.invalid", "tools/packaging/debian/control:"),
                ("README.md", "# MetaShard", "# MetaShard, see https://metashard.invalid/x", "README.md:1: a placeholder: https://metashard.invalid/x"),
                ("docs/tutorial.md", "git clone URL", "git clone REPOSITORY", "docs/tutorial.md:")):
            kept = change(folder, path, old, new)
            status, text = ask(folder)
            check(f"{path} with {new} is refused", kept != read(folder, path) and status == 1 and words in text, text)
            with open(os.path.join(folder, path), "w", encoding="utf-8") as file:
                file.write(kept)


def check_here():
    """As long as nobody has said who publishes, nothing can be published."""
    placeholders = ".invalid" in read(SOURCE, "pyproject.toml")
    status, text = ask(SOURCE)
    check("placeholders that are here are refused", not placeholders or (status == 1 and "pyproject.toml:" in text), text)


def jobs_of(path):
    """{job: its lines}, without a parser of YAML, which not every Python has."""
    found = re.split(r"^  (\w+):\n", read(path).split("\njobs:\n", 1)[1], flags=re.M)
    return dict(zip(found[1::2], found[2::2]))


def before(jobs, name):
    needs = re.search(r"^    needs: (\w+)$", jobs[name], re.M)
    return {needs[1], *before(jobs, needs[1])} if needs else set()


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
    check("publishing needs no password", not re.search(r"password|secrets\.", "".join(jobs.values())) and "id-token: write" in jobs["publish"])


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
        jansson = re.search(r"^source_hash = (\w+)$", read(SOURCE, "subprojects", "jansson.wrap"), re.M)[1]
        check("jansson is the one that others build with", jansson in read(folder, "recipe.yaml"))


def main():
    version = re.search(r"^  version: '(.*)',$", read(SOURCE, "meson.build"), re.M)[1]
    check_refusals(version)
    check_here()
    check_workflows()
    check_recipes(version)
    return end()


if __name__ == "__main__":
    sys.exit(main())

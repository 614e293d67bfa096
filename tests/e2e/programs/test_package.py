"""The Debian package: built by cpack, then taken apart."""
import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import harness
from harness import ROOT, run

BUILD = harness.BUILD.resolve()

work = pathlib.Path(tempfile.mkdtemp(prefix="lorad-deb-"))
deb = None
# two packages that cannot be there together
NAME = "lorad-cuda" if re.search(r"^LORAD_CUDA:BOOL=ON$", (BUILD / "CMakeCache.txt").read_text(), re.M) else "lorad"


def deb_field(name):
    return subprocess.run(["dpkg-deb", "--field", deb, name], capture_output=True, text=True,
                          check=True).stdout.strip()


def test_build():
    global deb
    p = subprocess.run(["cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", work / "out"],
                       capture_output=True, text=True, cwd=work)
    assert p.returncode == 0, p.stdout + p.stderr
    found = list((work / "out").glob("*.deb"))
    assert len(found) == 1, found
    deb = found[0]
    assert re.fullmatch(NAME + r"_[0-9.]+_\w+\.deb", deb.name), deb.name
    subprocess.run(["dpkg-deb", "-x", deb, work / "root"], check=True)
    symbols, = (work / "out").glob("*.ddeb")
    assert symbols.name.startswith(NAME + "-dbgsym_"), symbols.name
    subprocess.run(["dpkg-deb", "-x", symbols, work / "symbols"], check=True)
    subprocess.run(["dpkg-deb", "-e", deb, work / "control"], check=True)


def test_control():
    assert deb_field("Package") == NAME and deb_field("Maintainer")
    depends = deb_field("Depends")
    for library in ("libc6", "libssl3", "libsqlite3-0", "libcjson1", "libcurl4", "libnghttp2-14"):
        assert library in depends, depends
    assert (work / "control/conffiles").read_text().split() == ["/etc/lorad/lorad.conf"]
    for script in ("postinst", "prerm", "postrm"):
        path = work / "control" / script
        assert os.access(path, os.X_OK), script
        subprocess.run(["sh", "-n", path], check=True)
    sums = (work / "control/md5sums").read_text()
    assert "usr/bin/lorad" in sums
    if NAME == "lorad-cuda":
        assert deb_field("Provides") == deb_field("Conflicts") == "lorad"
    changes = gzip.open(work / f"root/usr/share/doc/{NAME}/changelog.gz", "rt").read()
    newest = re.match(r"lorad \((.+)\) \w+; urgency=\w+\n\n  \* .+", changes)
    assert newest and newest[1] == deb_field("Version"), changes


def test_contents():
    listing = subprocess.run(["dpkg-deb", "-c", deb], capture_output=True, text=True, check=True).stdout
    assert all("root/root" in line for line in listing.splitlines()), listing
    modes = {line.split()[5].lstrip("."): line.split()[0] for line in listing.splitlines()}
    want = {"/usr/bin/lorad": "-rwxr-xr-x", "/usr/bin/loractl": "-rwxr-xr-x",
            "/etc/lorad/lorad.conf": "-rw-r-----", "/usr/lib/systemd/system/lorad.service": "-rw-r--r--",
            "/usr/lib/sysusers.d/lorad.conf": "-rw-r--r--",
            f"/usr/share/doc/{NAME}/copyright": "-rw-r--r--", f"/usr/share/doc/{NAME}/changelog.gz": "-rw-r--r--",
            "/usr/share/doc/lorad/README.md": "-rw-r--r--",
            "/usr/share/doc/lorad/docs/tutorial.md": "-rw-r--r--",
            "/usr/share/man/man1/lorad.1.gz": "-rw-r--r--",
            "/usr/share/man/man1/loractl.1.gz": "-rw-r--r--",
            "/usr/share/man/man5/lorad.conf.5.gz": "-rw-r--r--",
            "/usr/share/bash-completion/completions/loractl": "-rw-r--r--",
            "/usr/share/bash-completion/completions/lorad": "-rw-r--r--",
            "/usr/share/zsh/vendor-completions/_loractl": "-rw-r--r--",
            "/usr/share/fish/vendor_completions.d/loractl.fish": "-rw-r--r--"}
    if (BUILD / "loratop").exists():
        want["/usr/bin/loratop"] = "-rwxr-xr-x"
        want["/usr/share/man/man1/loratop.1.gz"] = "-rw-r--r--"
    if NAME == "lorad-cuda":
        want["/usr/lib/systemd/system/lorad.service.d/cuda.conf"] = "-rw-r--r--"
    for path, mode in want.items():
        assert modes.get(path) == mode, (path, modes.get(path))
    assert not [p for p in modes if p.startswith("/work") or "/build" in p], modes


def test_debug_information():
    """It is beside the programs, found by their build ids, and not in them."""
    for program in ("lorad", "loractl"):
        sections = subprocess.run(["readelf", "-nS", "-W", work / "root/usr/bin" / program], capture_output=True, text=True, check=True).stdout
        assert ".debug_info" not in sections, program
        build_id = re.search(r"Build ID: (\w+)", sections)[1]
        beside = work / f"symbols/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
        there = subprocess.run(["readelf", "-S", "-W", beside], capture_output=True, text=True, check=True).stdout
        assert ".debug_info" in there, program


def test_it_runs():
    usr = work / "root/usr"
    for program in ("lorad", "loractl"):
        out = subprocess.run([usr / "bin" / program, "version"], capture_output=True, text=True,
                             check=True).stdout
        name, version, commit = re.fullmatch(r"(\w+) (\S+) \(commit (\S+); .+\)", out.splitlines()[0]).groups()
        assert (name, version) == (program, deb_field("Version")), out
        if program == "lorad":
            assert re.search(r"^CPU kernels: portable\b.*\nCUDA: \S", out, re.M), out
        assert commit == "unknown" or re.fullmatch(r"[0-9a-f]{12,}(-modified)?", commit), out
    unit = (usr / "lib/systemd/system/lorad.service").read_text()
    command = re.search(r"^ExecStart=(\S+)", unit, re.M)[1]
    assert (work / "root" / command.lstrip("/")).exists() and "/usr/local/" not in unit, command
    conf = (work / "root/etc/lorad/lorad.conf").read_text()
    assert conf == (ROOT / "conf/lorad.conf").read_text()
    page = gzip.open(usr / "share/man/man1/loractl.1.gz", "rt").read()
    assert page == subprocess.run([usr / "bin/loractl", "--print-man"], capture_output=True,
                                  text=True).stdout
    completions = usr / "share/bash-completion/completions"
    subprocess.run(["bash", "-n", completions / "loractl"], check=True)
    for name, typed, want in (("lorad", "se", "serve"), ("lorad", "--d", "--deep --dev --diff --dir"), ("loratop", "--sc", "--screen")):
        if (usr / "bin" / name).exists():
            script = f'. {completions / name}; _lorad {usr / "bin" / name} "{typed}" x; echo "${{COMPREPLY[*]}}"'
            assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.strip() == want, typed


def test_bill_of_materials():
    """What the programs are made of, in SPDX: every library that the loader is asked for."""
    out = subprocess.run([sys.executable, ROOT / "tests/tools/make_sbom.py", BUILD], capture_output=True, text=True, check=True)
    bill = json.loads(out.stdout)
    assert bill["spdxVersion"] == "SPDX-2.3" and bill["SPDXID"] == "SPDXRef-DOCUMENT" and bill["creationInfo"]["creators"]
    packages = {p["SPDXID"]: p for p in bill["packages"]}
    names = {p["name"] for p in packages.values()}
    assert {"lorad", "civetweb"} < names and len(names) >= 6, names
    for p in packages.values():
        assert p["downloadLocation"] and p["licenseConcluded"] and p["versionInfo"], p
    for r in bill["relationships"]:
        assert {r["spdxElementId"], r["relatedSpdxElement"]} <= {*packages, "SPDXRef-DOCUMENT"}, r
    assert len(bill["relationships"]) == len(packages)
    if shutil.which("dpkg-query"):
        for library in ("libssl3", "libsqlite3-0", "libcjson1", "libcurl4"):
            assert any(name.startswith(library) for name in names), (library, names)


if __name__ == "__main__":
    try:
        run([test_build, test_control, test_contents, test_debug_information, test_it_runs, test_bill_of_materials])
    finally:
        shutil.rmtree(work, ignore_errors=True)

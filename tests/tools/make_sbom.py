#!/usr/bin/env python3
"""Writes what lorad's programs are made of as SPDX 2.3: make_sbom.py BUILD > lorad.spdx.json

The libraries are those that the loader is asked for by the programs in BUILD, with the packages that own them
(dpkg; without it, the files' names); civetweb is the archive whose hash cmake/build_civetweb.sh holds.
SOURCE_DATE_EPOCH, or else the commit, gives the date: the same build gives the same text.
"""
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("lorad", "loractl", "loratop")
LICENSES = {"libssl": "Apache-2.0", "libcrypto": "Apache-2.0", "libsqlite3": "blessing", "libcjson": "MIT", "libcurl": "curl", "libnghttp2": "MIT",
            "libedit": "BSD-3-Clause", "libncurses": "X11-distribute-modifications-variant", "libtinfo": "X11-distribute-modifications-variant"}


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def license_of(name):
    return next((text for start, text in LICENSES.items() if name.startswith(start)), "NOASSERTION")


def libraries(program):
    """Files that the loader is asked for by the program itself, and not by another library."""
    wanted = set(re.findall(r"\(NEEDED\).*\[(.+)\]", output("readelf", "-d", program)))
    for name, path in re.findall(r"(\S+) => (\S+)", output("ldd", program)):
        if name in wanted:
            yield os.path.realpath(path)


def owner(path):
    """(name, version) of the package that a file came with."""
    for name in (path, path.removeprefix("/usr")):
        if found := output("dpkg-query", "-S", name):
            package = found.split(": ")[0]
            return package.split(":")[0], output("dpkg-query", "-W", "-f=${Version}", package)
    return os.path.basename(path), "NOASSERTION"


def package(name, version, license_, checksum=None):
    made = {"SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name), "name": name, "versionInfo": version,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": license_,
            "licenseDeclared": license_, "copyrightText": "NOASSERTION"}
    if checksum:
        made["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksum}]
    return made


def main(build):
    programs = [build / p for p in PROGRAMS if (build / p).exists()]
    if not programs:
        sys.exit(f"make_sbom.py: none of {', '.join(PROGRAMS)} is in {build}")
    version, commit = re.match(r"\w+ (\S+) \(commit ([^;]+);", output(programs[0], "--version")).groups()
    hash_, archive = re.search(r"sha256=(\w+) # (\S+)", (ROOT / "cmake/build_civetweb.sh").read_text()).groups()
    parts = [package("lorad", version, "Apache-2.0"),
             package("civetweb", re.search(r"_([0-9.]+)", archive)[1], "MIT", hash_)]
    found = {owner(path) for program in programs for path in libraries(program)}
    parts += [package(name, v, license_of(name)) for name, v in sorted(found)]
    date = os.environ.get("SOURCE_DATE_EPOCH") or output("git", "-C", ROOT, "log", "-1", "--format=%ct") or 0
    created = datetime.datetime.fromtimestamp(int(date), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    top = parts[0]["SPDXID"]
    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": top}]
    relations += [{"spdxElementId": top, "relationshipType": "DEPENDS_ON", "relatedSpdxElement": p["SPDXID"]} for p in parts[1:]]
    json.dump({"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"lorad-{version}",
               "documentNamespace": f"https://spdx.org/spdxdocs/lorad-{version}-{commit}",
               "creationInfo": {"created": created, "creators": ["Tool: make_sbom.py"]},
               "packages": parts, "relationships": relations}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release"))

"""schemathesis against both planes, by conf/openapi.json: data that the description allows, data that it
forbids, other methods, no key, and calls that follow one another.

Nothing may fail inside (5xx), every status, type, header and body must be as described, what the schemas forbid
is refused, no call works without a key.  It needs an environment of its own (build/venv-schema,
requirements-schema.txt; made by tests/run.sh); where that could not be installed, the test says so and is
skipped.  LORAD_EXAMPLES: how many cases each call gets (tests/bench/run.sh schemathesis asks for many).
"""
import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from harness import DEMO, PATIENCE, ROOT, Server, demo_adapters, run

ST = ROOT / "build/venv-schema/bin/st"
EXAMPLES = int(os.environ.get("LORAD_EXAMPLES", "6"))
SEED = os.environ.get("LORAD_SEED", "20261121")
if not ST.exists():
    print("skipped: schemathesis is not installed (sh tests/run.sh does it)")
    sys.exit(77)

# What the description says is right, but a schema cannot say that top_logprobs needs logprobs or that a tenant
# must be there: what it allows may be refused.  A deleted tenant or key stays to be looked at.
NOT_ASKED = "positive_data_acceptance,use_after_free,ensure_resource_availability"


def narrowed(document, plane):
    """The description of one plane, with names that are there."""
    d = copy.deepcopy(document)
    d["paths"] = {p: v for p, v in d["paths"].items() if p.startswith("/admin/") == (plane == "admin")}
    d["paths"].pop("/admin/v1/drain", None)  # it would be the end
    names = {"name": kept, "id": ["base", *kept], "version": ["1", "2", upload], "verb": ["pin", "unpin", "warm", "rollback", "evict"],
             "file": ["adapter_config.json", "adapter_model.safetensors"]}
    calls = [(m, c) for path in d["paths"].values() for m, c in path.items() if isinstance(c, dict)]
    for method, call in calls:
        for p in call.get("parameters", ()):
            if p["in"] == "path" and p["name"] == "tenant":
                p["example"] = "victim"  # no list of them: this run makes others
            elif p["in"] == "path" and p["name"] in names:
                p["schema"] = {"enum": [spent] if method == "delete" and p["name"] == "name" else names[p["name"]]}
        asked = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        for part in [asked, *asked.get("anyOf", ())]:
            more = part.get("properties", {})
            if "model" in more:
                more["model"] = {"enum": ["base", *kept, *([None] if "null" in more["model"]["type"] else [])]}
            if "path" in more:
                more["path"] = {"enum": [str(server.dir / "backup"), "/nowhere/at/all"]}
    return d


def hunt(plane, key, port):
    """One worker: with two, ast.parse() of Python 3.11 fails now and then (its count of depth is all threads')."""
    with tempfile.TemporaryDirectory(prefix="lorad-schema-") as folder:
        file = pathlib.Path(folder) / "openapi.json"
        file.write_text(json.dumps(narrowed(json.loads((ROOT / "conf/openapi.json").read_text()), plane)))
        (pathlib.Path(folder) / "schemathesis.toml").write_text(
            "color = false\n[phases.coverage]\nunexpected-methods = ['GET', 'PUT', 'POST', 'DELETE', 'PATCH', 'OPTIONS']\n[generation]\ndatabase = 'none'\nallow-extra-parameters = false\n[warnings]\nenabled = false\n")
        argv = [ST, "run", file, "--url", f"https://localhost:{port}", "--tls-verify", server.ca, "-H", f"Authorization: Bearer {key}",
                "--checks", "all", "--exclude-checks", NOT_ASKED, "--max-examples", str(EXAMPLES), "--seed", SEED, "--workers", "1",
                "--request-timeout", str(60 * PATIENCE), "--no-shrink", "--continue-on-failure"]
        done = subprocess.run(argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        print(done.stdout[-60000:] if done.returncode else re.sub(r"(?s).*=+ SUMMARY =+", "", done.stdout), flush=True)
        assert done.returncode == 0, f"schemathesis: {done.returncode}\n{done.stderr[-2000:]}"


def the_inference_plane_is_as_described():
    hunt("inference", key, server.port)


def the_admin_plane_is_as_described():
    hunt("admin", server.admin_key, server.admin_port)


def the_server_is_well():
    assert server.ask(key, "base", "What is 7 plus 5?").status == 200
    log = server.log_path.read_text()
    assert " fatal " not in log and "internal_error" not in log


server = Server(settings={"log.level": "info", "engine.max_context": "256"})
with server:
    key, victim = server.tenant("schema"), server.tenant("victim")
    *kept, spent = demo_adapters()[:3]
    upload = "u0000000000000001"
    for tenant in (key, victim):
        for each in (*kept, spent):
            server.upload(tenant, each, DEMO / "adapters" / each)
    run([the_inference_plane_is_as_described, the_admin_plane_is_as_described, the_server_is_well])

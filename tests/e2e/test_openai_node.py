"""openai-node as a client (openai_node.mjs).  LORAD_NODE=1 sh tests/run.sh installs it by npm (build/node); else this is skipped."""
import os
import pathlib
import shutil
import subprocess
import sys

from harness import DEMO, Server

HERE = pathlib.Path(__file__).resolve().parent
NODE = HERE.parents[1] / "build/node"

if not shutil.which("node") or not (NODE / "node_modules/openai").is_dir():
    print("skipped: openai-node is not installed (LORAD_NODE=1 sh tests/run.sh does it, where npm can)")
    sys.exit(77)

with Server() as server:
    key = server.tenant("acme")
    server.upload(key, "shout", DEMO / "adapters/shout")
    env = {**os.environ, "LORAD_URL": server.url, "LORAD_KEY": key, "NODE_EXTRA_CA_CERTS": str(server.ca)}
    sys.exit(subprocess.run(["node", HERE / "openai_node.mjs"], cwd=NODE, env=env, check=False).returncode)

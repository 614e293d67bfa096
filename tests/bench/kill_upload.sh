#!/bin/sh
# kill_upload.sh [ROUNDS] -- SIGKILL at random points of uploads; prints one line
# of JSON.  Called by run.sh.
set -eu
cd "$(dirname "$0")/../.."
exec build/venv/bin/python - "${1:-200}" <<'PY'
import json, sys
sys.path.insert(0, "tests/e2e")
from killing import kill_rounds
rounds, wrong, why = int(sys.argv[1]), 0, ""
try:
    seen = kill_rounds(rounds, seed=2026)
except AssertionError as e:
    seen, wrong, why = {}, 1, str(e)
print(json.dumps({"asked": rounds, "wrong": wrong, "why": why, **seen}))
PY

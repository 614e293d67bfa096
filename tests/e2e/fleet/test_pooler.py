"""Two servers, and a PostgreSQL behind pgbouncer in transaction mode: notices do not come through, all else does."""
import random
import sys

import fleets
import postgres
from harness import run, until

postgres.skip_unless_there()
if not postgres.POOLER:
    print("skipped: pgbouncer is not on this machine (Debian: pgbouncer)")
    sys.exit(77)
rng = random.Random(7)


def a_revoked_key_is_refused_everywhere(fleet):
    """Without a notice: by the look every 250 ms."""
    first, other = fleet.nodes
    for i in range(2):
        key = fleet.tenant(f"short-{i}")
        id_ = next(k["id"] for k in first.admin("GET", f"/keys?tenant=short-{i}")["data"])
        first.admin("DELETE", f"/keys/{id_}")
        until(lambda: other.call("GET", "/v1/models", key=key).status == 401)


def a_budget_is_spent_and_not_more(fleet):
    for happens in (fleet.nothing, fleet.cut_wire):
        assert fleets.budget_trial(fleet, f"pooled-{happens.__name__}", happens, rng, limit=700) > 0.5
    assert fleet.books_agree() > 0


def all_of_it():
    with fleets.Fleet(2, pooled=True) as fleet:
        for part in (a_revoked_key_is_refused_everywhere, a_budget_is_spent_and_not_more):
            part(fleet)
            print(f"  {part.__name__}", flush=True)


run([all_of_it])

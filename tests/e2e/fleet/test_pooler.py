"""Two servers, and a PostgreSQL behind pgbouncer in transaction mode: notices do not come through, all else does."""
import sys

import asking
import fleets
import postgres
from harness import run, until

postgres.skip_unless_there()
if not postgres.POOLER:
    print("skipped: pgbouncer is not on this machine (Debian: pgbouncer)")
    sys.exit(77)


def a_revoked_key_is_refused_everywhere(fleet):
    """Without a notice: by the look every 250 ms."""
    first, other = fleet.nodes
    for i in range(2):
        key = fleet.tenant(f"short-{i}")
        id_ = next(k["id"] for k in first.admin("GET", f"/keys?tenant=short-{i}")["data"])
        first.admin("DELETE", f"/keys/{id_}")
        until(lambda: other.call("GET", "/v1/models", key=key).status == 401)


def a_budget_is_spent_and_not_more(fleet):
    budgets, _, _ = asking.trials(fleet, 8, together=4, events=[fleet.cut_wire])
    used, wrong = fleet.held(budgets)
    assert not wrong and min(used[b.name] / b.limit for b in budgets) > 0.5, (used, wrong)


def all_of_it():
    with fleets.Fleet(2, pooled=True) as fleet:
        for part in (a_revoked_key_is_refused_everywhere, a_budget_is_spent_and_not_more):
            part(fleet)
            print(f"  {part.__name__}", flush=True)


run([all_of_it])

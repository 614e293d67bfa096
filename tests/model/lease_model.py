#!/usr/bin/env python3
"""lease_model.py -- the leases of storage/fleet/lease.h, in all orders of all that can happen, for small sizes.

A breadth-first search over all states of two nodes and one database. Each kind of limit is a model of its own: `sum` (budgets
of a day and month; seats), `bucket` (requests and tokens a minute). What is one step here is one critical section there: a node
draws, or takes back what a request did not use, or asks; the database reads a question; an answer arrives, or is lost; a node is
killed and comes back with what its meters say; it has not been answered for long and draws no more; an operator fences it.

  lease_model.py            0 states where more is used than the limit
  lease_model.py --faults   each planted fault is found
"""
import collections
import sys

NODES, LIMIT = 2, 2
ASKS, DRAWS, REFILLS = (2, 1), 2, 1  # of each node; of the bucket

# A node: what it knows.  granted and drawn are sums since its begin; used is what really ran, over all its lives.
Node = collections.namedtuple("Node", "granted drawn used turn asks draws valid epoch crashed fenced returned")
# The database's row of a node.
Row = collections.namedtuple("Row", "granted drawn turn epoch")
# On the wire: a question until it is read or lost (also when its asker has given it up), an answer until then.
Ask = collections.namedtuple("Ask", "node epoch turn drawn keep need")
Reply = collections.namedtuple("Reply", "node epoch turn granted")
State = collections.namedtuple("State", "nodes rows level refills waits wire")


def begin():
    return State((Node(0, 0, 0, 0, 0, 0, True, 1, False, False, 0),) * NODES, (Row(0, 0, 0, 1),) * NODES, LIMIT, 0, 0, frozenset())


def put(items, i, item):
    return items[:i] + (item,) + items[i + 1:]


def without(wire, message):
    return wire - {message}


class Model:
    def __init__(self, bucket, fault=None):
        self.bucket, self.fault = bucket, fault

    def read(self, s, ask):
        """The database reads a question."""
        row, s = s.rows[ask.node], s._replace(wire=without(s.wire, ask))
        if row.epoch != ask.epoch and self.fault != "epoch":
            return s
        if row.turn >= ask.turn and self.fault != "turn":
            return s
        low, level = ask.drawn + ask.keep, s.level
        others = [r for i, r in enumerate(s.rows) if i != ask.node]
        if self.bucket:
            held = sum(max(0, r.granted - r.drawn) for r in others)
            base = min(level + s.waits + row.granted - low, LIMIT - held - ask.keep if self.fault != "cap" else LIMIT)
        else:
            base = LIMIT - sum(r.granted for r in others) - low
        give = max(0, min(ask.need, base))
        if self.fault == "others" and not self.bucket:
            give = ask.need if base + sum(r.granted for r in others) > 0 else 0
        row = row._replace(granted=low + give, drawn=ask.drawn, turn=ask.turn)
        return s._replace(rows=put(s.rows, ask.node, row), level=base - give if self.bucket else level, waits=0,
                          wire=s.wire | {Reply(ask.node, ask.epoch, ask.turn, low + give)})

    def steps(self, s):
        for i, n in enumerate(s.nodes):
            def node(**change):
                return s._replace(nodes=put(s.nodes, i, n._replace(**change)))
            if n.draws < DRAWS and n.drawn < n.granted and n.valid:
                yield "draw", node(drawn=n.drawn + 1, used=n.used + 1, draws=n.draws + 1)
            if n.drawn > 0 and n.used > 0:  # what was reserved and not used
                back = 1 if self.bucket else 0  # a bucket may have been filled meanwhile: it goes there first
                yield "take back", node(drawn=n.drawn - 1, used=n.used - 1, returned=n.returned + back,
                                        granted=n.granted - (back if self.fault != "back" else 0))
            if n.asks < ASKS[i]:
                spare = max(0, n.granted - n.drawn) if n.valid else 0
                for keep in {0, spare}:
                    for need in (0, LIMIT):
                        # The grant goes down before the question leaves.
                        granted = n.drawn + keep if self.fault != "lower" else n.granted
                        asked = node(granted=granted, turn=n.turn + 1, asks=n.asks + 1, returned=0)
                        yield "ask", asked._replace(wire=s.wire | {Ask(i, n.epoch, n.turn + 1, n.drawn, keep, need)})
            if i == 0 and self.bucket and n.valid:  # only who is fenced must have expired
                yield "expires", node(valid=False)
            if i == 0 and not n.crashed:
                # Of a budget the meters know what was drawn; of a bucket a new epoch begins at 0.
                drawn = 0 if self.bucket else n.used
                row = Row(0 if self.bucket else s.rows[i].granted, 0, 0, n.epoch + 1)
                if self.fault == "crash":
                    row = row._replace(granted=0)
                if self.fault == "forfeit" and self.bucket:  # what the dead node held is granted again
                    s2 = s._replace(level=min(LIMIT, s.level + s.rows[i].granted))
                else:
                    s2 = s
                back = n._replace(granted=drawn, drawn=drawn, turn=0, epoch=n.epoch + 1, crashed=True, valid=True, returned=0)
                yield "killed", s2._replace(nodes=put(s2.nodes, i, back), rows=put(s2.rows, i, row))
            if i == 0 and self.bucket and not n.fenced and (not n.valid or self.fault == "fence"):
                gone = s.rows[i]._replace(granted=s.rows[i].drawn, epoch=99)
                # Answers are valid from when they were asked for: those to come have expired with the rest.
                wire = frozenset(m for m in s.wire if self.fault == "fence" or m.node != i or isinstance(m, Ask))
                yield "fenced", node(fenced=True)._replace(rows=put(s.rows, i, gone), wire=wire)
        for m in s.wire:
            yield "lost", s._replace(wire=without(s.wire, m))
            if isinstance(m, Ask):
                yield "read", self.read(s, m)
            else:
                n = s.nodes[m.node]
                yield "answer", s._replace(wire=without(s.wire, m),
                                           nodes=put(s.nodes, m.node, n._replace(granted=m.granted - (n.returned if self.fault != "returned" else 0), valid=True)))
        if self.bucket and s.refills < REFILLS:
            yield "refill", s._replace(waits=s.waits + 1, refills=s.refills + 1)

    def wrong(self, s):
        used = sum(n.used for n in s.nodes)
        if used > LIMIT + s.refills:
            return f"{used} are used of {LIMIT}"
        if not self.bucket and sum(r.granted for r in s.rows) > LIMIT:
            return "more is granted than there is"
        if self.bucket and s.level + sum(max(0, n.granted - n.drawn) for n in s.nodes if n.valid) > LIMIT:
            return "more may be drawn at once than the limit"
        if any(n.drawn > n.granted for n in s.nodes):
            return "a node has drawn more than it was granted"
        return None

    def search(self):
        """How many states there are, and the shortest way to a wrong one; None: there is none."""
        first = begin()
        came, queue = {first: None}, collections.deque([first])
        while queue:
            s = queue.popleft()
            if why := self.wrong(s):
                way = []
                while came[s]:
                    name, s = came[s]
                    way.append(name)
                return len(came), f"{why}: {', '.join(reversed(way))}"
            for name, t in self.steps(s):  # answers to questions that were given up are not looked at
                t = t._replace(wire=frozenset(m for m in t.wire if isinstance(m, Ask) or
                                              (t.nodes[m.node].epoch, t.nodes[m.node].turn) == (m.epoch, m.turn)))
                if t not in came:
                    came[t] = (name, s)
                    queue.append(t)
        return len(came), None


FAULTS = {"sum": ("turn", "epoch", "lower", "crash", "others"), "bucket": ("turn", "lower", "cap", "back", "returned", "forfeit", "fence")}


def main():
    bad = 0
    for kind in FAULTS:
        for fault in FAULTS[kind] if "--faults" in sys.argv else (None,):
            n, found = Model(kind == "bucket", fault).search()
            print(f"{kind} {fault or 'as it is'}: {n} states, {found or 'none wrong'}", flush=True)
            bad += (found is None) == bool(fault)
    return bad


if __name__ == "__main__":
    sys.exit(main())

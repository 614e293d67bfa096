-- lease.sql -- grants leases of limits to one node of a fleet (storage/fleet/lease.h).
--
-- It is part of migrations.c.  One call is one transaction.  Rows are locked in the order of
-- `asks`, which is that of kinds and ids at all nodes.  Each statement sees what was committed
-- before it, so sums are those under the lock.  A node that gave a call up may have it read late,
-- after its next one: `turn` is then too old, and the call does nothing.
--
-- For each limit:
--   base = what nobody has     = limit - held by other nodes - drawn and kept by this one
--   give = what is granted now = at most `need`, and at most `extra` of a quarter of the rest
-- Requests and tokens of a minute are a bucket: its level grows by limit / 60 in a second, up to
-- the limit.
--
-- What a node drew of a day or month is deleted when both its clock and this server's say that
-- the period is over: if one of them was ahead, another node could draw it again.
CREATE FUNCTION lorad_lease(me int, my_epoch bigint, turn bigint, asks jsonb)
RETURNS TABLE(granted bigint[], remains bigint[], may_come bigint[]) LANGUAGE plpgsql AS $f$
DECLARE
    who bytea;
    a lorad_ask;
    one lorad_ask_limit;
    s lorad_limits;
    mine lorad_leases;
    at_ timestamptz;
    utc timestamp;
    fresh boolean;  -- the node has no leases of this epoch
    low bigint;     -- drawn and kept: the least that is granted
    held bigint;    -- granted to other nodes
    used bigint;    -- drawn by other nodes
    give bigint;
    of_period bigint;
    base double precision;
BEGIN
    UPDATE lorad_nodes AS n SET heartbeat = clock_timestamp(), lease_turn = turn
    WHERE n.node = me AND n.epoch = my_epoch AND n.lease_turn < turn
    RETURNING n.instance INTO who;
    IF NOT FOUND THEN RETURN; END IF;
    FOR i IN 0 .. jsonb_array_length(asks) - 1 LOOP
        a := jsonb_populate_record(NULL::lorad_ask, asks -> i);
        INSERT INTO lorad_limits
        VALUES(a.kind, a.id, ARRAY[NULL, NULL]::double precision[], clock_timestamp())
        ON CONFLICT DO NOTHING;
        SELECT * INTO s FROM lorad_limits AS x WHERE x.kind = a.kind AND x.id = a.id FOR UPDATE;
        SELECT * INTO mine FROM lorad_leases AS x
        WHERE x.kind = a.kind AND x.id = a.id AND x.instance = who;
        fresh := NOT FOUND OR mine.epoch <> my_epoch;
        IF fresh THEN mine.granted := '{0,0,0}'; mine.drawn := '{0,0,0}'; END IF;
        at_ := greatest(s.at, clock_timestamp());
        granted := '{0,0,0,0,0}'; remains := granted; may_come := granted;
        FOR r IN 1 .. 5 LOOP  -- requests, tokens, seats, tokens of the day, of the month
            one := a.limits[r];
            low := one.drawn + one.keep;
            CONTINUE WHEN one.cap <= 0;
            IF r <= 3 THEN
                SELECT coalesce(sum(greatest(
                    x.granted[r] - CASE r WHEN 3 THEN 0 ELSE x.drawn[r] END, 0)), 0) INTO held
                FROM lorad_leases AS x
                WHERE x.kind = a.kind AND x.id = a.id AND x.instance <> who;
                used := held;
            ELSE
                of_period := CASE r WHEN 4 THEN a.day ELSE -a.month END;
                SELECT coalesce(sum(greatest(x.granted, x.shipped)), 0),
                    coalesce(sum(greatest(x.drawn, x.shipped)), 0)
                INTO held, used FROM lorad_budgets AS x
                WHERE x.id = a.id AND x.period = of_period AND x.instance <> who;
            END IF;
            IF r <= 2 THEN
                base := coalesce(s.level[r], one.cap) + mine.granted[r] - low
                    + extract(epoch FROM at_ - s.at)::double precision * one.cap / 60;
                base := greatest(least(base, one.cap - held - one.keep), -one.cap);
            ELSE
                base := one.cap - held - low;
            END IF;
            give := CASE WHEN floor(base) < one.useful THEN 0
                ELSE greatest(0, least(one.need, floor(base))) END;
            give := give + greatest(0, least(one.extra, floor((base - give) / 4)));
            granted[r] := low + give;
            remains[r] := floor(base) - give;
            may_come[r] := remains[r] + held - used;
            IF r <= 2 THEN s.level[r] := base - give; END IF;
            IF r <= 3 THEN
                mine.granted[r] := granted[r]; mine.drawn[r] := one.drawn;
            ELSE
                INSERT INTO lorad_budgets AS x(id, period, instance, granted, drawn)
                VALUES(a.id, of_period, who, granted[r], one.drawn)
                ON CONFLICT(id, period, instance) DO UPDATE
                SET granted = excluded.granted, drawn = excluded.drawn;
            END IF;
        END LOOP;
        UPDATE lorad_limits AS x SET level = s.level, at = at_
        WHERE x.kind = a.kind AND x.id = a.id;
        INSERT INTO lorad_leases VALUES(a.kind, a.id, who, my_epoch, mine.granted, mine.drawn)
        ON CONFLICT(kind, id, instance) DO UPDATE
        SET epoch = excluded.epoch, granted = excluded.granted, drawn = excluded.drawn;
        IF fresh THEN
            utc := clock_timestamp() AT TIME ZONE 'UTC';
            DELETE FROM lorad_budgets AS x WHERE x.id = a.id AND x.instance = who
                AND (x.period BETWEEN 0
                     AND least(a.day, floor(extract(epoch FROM utc) / 86400)::bigint) - 2
                     OR x.period BETWEEN 2 - least(a.month, (12 * (extract(year FROM utc) - 1900)
                                                     + extract(month FROM utc) - 1)::bigint)
                     AND -1);
        END IF;
        RETURN NEXT;
    END LOOP;
END $f$

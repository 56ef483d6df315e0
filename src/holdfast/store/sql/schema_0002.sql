-- Version 2: views for people. Nothing of Holdfast reads them, and they are no way to change anything. They take the
-- records apart as core/records.py and store/packs.py describe them, whole tables at a time: seconds for a million
-- messages.

-- An unsigned number of `size` bytes at a place.
CREATE FUNCTION u(v bytea, at int, size int) RETURNS bigint IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN ('x' || lpad(encode(substr(v, at + 1, size), 'hex'), 16, '0'))::bit(64)::bigint;

-- An instant from microseconds; 0 is none.
CREATE FUNCTION instant(microseconds bigint) RETURNS timestamptz IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN CASE WHEN microseconds > 0 THEN timestamptz 'epoch' + microseconds * interval '1 microsecond' END;

-- The floating point number of eight bytes at a place.
CREATE FUNCTION float_at(v bytea, at int) RETURNS double precision IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN CASE WHEN (u(v, at, 8) & 9223372036854775807) = 0 THEN 0.0 ELSE
        CASE WHEN get_byte(v, at) < 128 THEN 1.0 ELSE -1.0 END
        * (1.0 + (u(v, at, 8) & 4503599627370495) / 4503599627370496.0)::double precision
        * power(2.0::double precision, ((u(v, at, 8) >> 52) & 2047) - 1023) END;

-- A value of msgpack at a place, and where the next one begins. Bytes become hexadecimal text.
CREATE FUNCTION unpack_at(v bytea, at int, OUT value jsonb, OUT next int) IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql
    SET search_path FROM CURRENT AS $$
DECLARE
    kind int := get_byte(v, at);
    size int := 0;  -- bytes or members
    part bytea;
    items jsonb[] := '{}';
    fields jsonb := '{}';
    one record;
    other record;
BEGIN
    next := at + 1;
    IF kind < 128 THEN
        value := to_jsonb(kind);
    ELSIF kind >= 224 THEN
        value := to_jsonb(kind - 256);
    ELSIF kind = 192 THEN
        value := 'null';
    ELSIF kind IN (194, 195) THEN
        value := to_jsonb(kind = 195);
    ELSIF kind = 203 THEN
        value := to_jsonb(float_at(v, next));
        next := next + 8;
    ELSIF kind BETWEEN 204 AND 207 THEN
        size := 1 << (kind - 204);
        value := to_jsonb(u(v, next, size));
        next := next + size;
    ELSIF kind BETWEEN 208 AND 211 THEN
        size := 1 << (kind - 208);
        value := to_jsonb(u(v, next, size) - CASE WHEN size < 8 AND get_byte(v, next) > 127
                                                  THEN 1::bigint << (8 * size) ELSE 0 END);
        next := next + size;
    ELSIF kind BETWEEN 160 AND 191 OR kind BETWEEN 217 AND 219 OR kind BETWEEN 196 AND 198 THEN
        IF kind BETWEEN 160 AND 191 THEN
            size := kind - 160;
        ELSIF kind >= 217 THEN
            size := u(v, next, 1 << (kind - 217));
            next := next + (1 << (kind - 217));
        ELSE
            size := u(v, next, 1 << (kind - 196));
            next := next + (1 << (kind - 196));
        END IF;
        part := substr(v, next + 1, size);
        next := next + size;
        IF kind BETWEEN 196 AND 198 THEN
            value := to_jsonb(encode(part, 'hex'));
        ELSIF position('\x00'::bytea IN part) > 0 THEN  -- no text of PostgreSQL has this character
            value := to_jsonb(encode(part, 'escape'));
        ELSE
            value := to_jsonb(convert_from(part, 'UTF8'));
        END IF;
    ELSIF kind BETWEEN 144 AND 159 OR kind IN (220, 221) THEN
        IF kind < 160 THEN
            size := kind - 144;
        ELSE
            size := u(v, next, 2 << (kind - 220));
            next := next + (2 << (kind - 220));
        END IF;
        FOR _ IN 1 .. size LOOP
            one := unpack_at(v, next);
            items := items || one.value;
            next := one.next;
        END LOOP;
        value := to_jsonb(items);
    ELSIF kind BETWEEN 128 AND 143 OR kind IN (222, 223) THEN
        IF kind < 144 THEN
            size := kind - 128;
        ELSE
            size := u(v, next, 2 << (kind - 222));
            next := next + (2 << (kind - 222));
        END IF;
        FOR _ IN 1 .. size LOOP
            one := unpack_at(v, next);
            other := unpack_at(v, one.next);
            fields := fields || jsonb_build_object(one.value #>> '{}', other.value);
            next := other.next;
        END LOOP;
        value := fields;
    ELSE
        RAISE EXCEPTION 'a value of msgpack of the kind % is not known', kind;
    END IF;
END $$;

CREATE FUNCTION unpack(v bytea) RETURNS jsonb IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN (unpack_at(v, 0)).value;

-- The records of a pack, those that have not left it: see store/packs.py.
CREATE FUNCTION members(last bytea, count int, gone bytea, packed bytea)
    RETURNS TABLE (k bytea, v bytea) IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    content bytea := packed || ''::bytea;  -- read once, if it is not in the row
    head bytea := substr(last, 1, length(last) - 8);
    first bigint := u(last, length(last) - 8, 8) - count + 1;
    homogeneous bool := u(content, 0, 4) = 4294967295;
    sizes int := CASE WHEN homogeneous THEN 20 ELSE 0 END;
    begins bytea := ''::bytea;
    middle bytea := ''::bytea;
    number bigint;
    at int := sizes + 4 * count;
    size int;
BEGIN
    IF homogeneous THEN
        number := u(content, 4, 8);
        begins := substr(content, at + 1, u(content, 12, 4)::int);
        at := at + u(content, 12, 4)::int;
        middle := substr(content, at + 1, u(content, 16, 4)::int);
        at := at + u(content, 16, 4)::int;
    END IF;
    FOR index IN 0 .. count - 1 LOOP
        size := u(content, sizes + 4 * index, 4);
        IF index >= 8 * length(gone) OR get_bit(gone, index) = 0 THEN
            k := head || int8send(first + index);
            v := substr(content, at + 1, size);
            IF homogeneous THEN
                v := begins || int8send(number + index) || middle || v;
            END IF;
            RETURN NEXT;
        END IF;
        at := at + size;
    END LOOP;
END $$;

-- What is stored as a pack (store/runs.py): the table that its records are of, the last key, and what `members` needs.
CREATE VIEW stored_packs AS
SELECT get_byte(e.k, 1) AS t, substr(e.k, 3) AS last, u(e.v, 0, 2)::int AS count, substr(e.v, 3) AS gone, p.v AS content
FROM heads AS e
JOIN packs AS p ON p.k = CASE get_byte(e.k, 1) WHEN 4 THEN '\x1f'::bytea ELSE '\x20'::bytea END || substr(e.k, 3)
WHERE e.k >= '\x1e' AND e.k < '\x1f';

-- The records of MESSAGES (4) or READY (5), single or in packs.
CREATE FUNCTION rows_of(t int) RETURNS TABLE (k bytea, v bytea) STABLE LANGUAGE sql SET search_path FROM CURRENT AS $$
    SELECT substr(k, 2), v FROM records WHERE k >= set_byte('\x00', 0, t) AND k < set_byte('\x00', 0, t + 1)
    UNION ALL
    SELECT m.k, m.v
    FROM stored_packs AS p, members(p.last, p.count, p.gone, p.content) AS m WHERE p.t = rows_of.t
$$;

-- The partitions of all queues, by the numbers of their shards.
CREATE VIEW partitions AS
SELECT own.shard::bigint AS shard, (own.place - 1)::int AS partition, q.r ->> 0 AS namespace, q.r ->> 1 AS topic, q.r
FROM (SELECT unpack(v) AS r FROM records WHERE k >= '\x01' AND k < '\x02') AS q,
    jsonb_array_elements(q.r -> 3) WITH ORDINALITY AS own (shard, place);

CREATE VIEW queues AS
SELECT p.namespace, p.topic, coalesce(sum((h.r ->> 1)::bigint), 0)::bigint AS ready,
    coalesce(sum((h.r ->> 2)::bigint), 0)::bigint AS scheduled,
    coalesce(sum((h.r ->> 3)::bigint), 0)::bigint AS payload_bytes,
    count(*)::int AS partitions, instant((p.r ->> 4)::bigint) AS created_at, p.r -> 2 AS config
FROM partitions AS p
LEFT JOIN (SELECT u(k, 1, 4) AS shard, unpack(v) AS r FROM heads WHERE k >= '\x02' AND k < '\x03') AS h USING (shard)
GROUP BY p.namespace, p.topic, p.r;

-- Deliveries that are leased, or that wait for another attempt: in LEASES (27), as many as one call gave, and in
-- DELIVERIES (8), one by one.
CREATE VIEW deliveries AS
WITH leases AS (
    SELECT substr(k, 1, 17) AS batch, get_byte(k, 17) AS part, u(k, 1, 4) AS shard, v
    FROM heads WHERE k >= '\x1b' AND k < '\x1c'
), given AS (
    SELECT l.shard, unpack(l.v) AS r, e.v AS ended
    FROM leases AS l LEFT JOIN leases AS e ON e.batch = l.batch AND e.part = 1 WHERE l.part = 0
)
SELECT g.shard, one.id::bigint AS id, (g.r ->> 2)::bigint AS deadline, 0::bigint AS ready_at
FROM given AS g, jsonb_array_elements(g.r -> 5) WITH ORDINALITY AS one (id, place)
WHERE g.ended IS NULL OR one.place > 8 * length(g.ended)
    OR get_bit(g.ended, 8 * (length(g.ended) - 1 - (one.place - 1) / 8) + (one.place - 1) % 8) = 0
UNION ALL
SELECT u(k, 1, 4), u(k, 9, 8), CASE WHEN u(v, 79, 8) <> 0 THEN u(v, 71, 8) END, u(v, 87, 8)
FROM records WHERE k >= '\x08' AND k < '\x09';

-- Live messages with everything that their records say.
CREATE VIEW live AS
WITH places AS (
    SELECT u(k, 0, 4) AS shard, u(v, 0, 8) AS seq, false AS delayed FROM rows_of(5)
    UNION ALL
    SELECT u(k, 1, 4), u(k, 13, 8), true FROM records WHERE k >= '\x06' AND k < '\x07'
), held AS (
    SELECT shard, id, max(deadline) AS deadline, min(nullif(ready_at, 0)) AS ready_at FROM deliveries GROUP BY shard, id
)
SELECT u(m.v, 1, 8) AS id, p.namespace, p.topic,
    CASE WHEN h.deadline IS NOT NULL THEN 'leased' WHEN places.delayed OR h.ready_at IS NOT NULL THEN 'scheduled'
        ELSE 'ready' END AS status,
    get_byte(m.v, 33) AS priority, substr(m.v, 39 + u(m.v, 34, 4)::int) AS payload,
    instant(coalesce(h.ready_at, u(m.v, 17, 8))) AS deliver_after, instant(h.deadline) AS lease_expires_at,
    instant(u(m.v, 9, 8)) AS created_at, instant(u(m.v, 25, 8)) AS expires_at, p.partition, places.seq AS sequence,
    substr(m.v, 39, u(m.v, 34, 4)::int) AS extra, p.r
FROM places
JOIN (SELECT u(k, 0, 4) AS shard, u(k, 4, 8) AS seq, v FROM rows_of(4)) AS m USING (shard, seq)
JOIN partitions AS p USING (shard)
LEFT JOIN held AS h ON h.shard = places.shard AND h.id = u(m.v, 1, 8);

CREATE VIEW messages AS
SELECT id, namespace, topic, status, priority, payload, deliver_after, lease_expires_at, created_at, expires_at,
    partition, sequence
FROM live;

-- Messages of dead queues, with where they come from.
CREATE VIEW dead_letters AS
SELECT l.id, l.namespace, l.topic, l.status, l.priority, l.payload, l.deliver_after, l.lease_expires_at, l.created_at,
    (o.origin ->> 0)::bigint AS source_id, o.origin ->> 1 AS source_topic, o.origin ->> 2 AS source_group,
    o.origin ->> 3 AS reason, o.origin ->> 4 AS error, (o.origin ->> 5)::int AS attempts,
    instant((o.origin ->> 6)::bigint) AS first_attempt_at, instant((o.origin ->> 7)::bigint) AS last_attempt_at
FROM live AS l,
    LATERAL (SELECT CASE WHEN length(l.extra) > 0 THEN unpack(l.extra) -> 7 END AS origin) AS o
WHERE starts_with(l.topic, 'dlq/') OR EXISTS (
    SELECT FROM partitions AS p WHERE p.namespace = l.namespace AND p.r -> 2 -> 'dlq' ->> 'queue' = l.topic);

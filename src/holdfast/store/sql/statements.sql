-- The statements of a session. Each begins with its name and the types of its parameters; {table} is one of the tables
-- of schema_0001.sql. Keys have the number of the record's table as their first byte.

-- name: fence (bigint, bigint, bigint)
SELECT fence($1, $2, $3)

-- name: position ()
SELECT epoch, batch FROM cell

-- name: acquire ()
UPDATE cell SET epoch = epoch + 1, owner = current_setting('application_name'), acquired_at = now()
RETURNING epoch, batch

-- Ends sessions, and waits until they have ended: nothing that they were sent is stored afterwards. Returns how many have
-- not.
-- name: terminate (text)
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE $1 AND pid <> pg_backend_pid()
    AND NOT pg_terminate_backend(pid, 3000)

-- name: connected (text)
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE $1

-- name: put_{table} (bytea[], bytea[])
INSERT INTO {table} (k, v) SELECT * FROM unnest($1, $2) ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v

-- name: delete_{table} (bytea[])
DELETE FROM {table} WHERE k = ANY ($1)

-- name: delete_ranges_{table} (bytea[], bytea[])
DELETE FROM {table} USING unnest($1, $2) AS ranges (start, stop) WHERE k >= start AND k < stop

-- name: get_{table} (bytea[])
SELECT k, v FROM {table} WHERE k = ANY ($1)

-- name: scan_{table} (bytea, bytea, bigint)
SELECT k, v FROM {table} WHERE k >= $1 AND k < $2 ORDER BY k LIMIT $3

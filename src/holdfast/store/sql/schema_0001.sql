-- The schema of a cell, version 1: the tables. Every record is a key and a value, as core/records.py describes them; the
-- first byte of a key is the number of the record's table there. The tables differ in how they are written.

-- One row: who may write, and the number of the last batch. It is updated in every transaction: room for versions of it
-- in its page keeps those updates in place.
CREATE TABLE cell (
    one bool PRIMARY KEY DEFAULT true CHECK (one),
    number int NOT NULL,
    format int NOT NULL,  -- of the records: store/formats.py
    epoch bigint NOT NULL DEFAULT 0,
    batch bigint NOT NULL DEFAULT 0,
    owner text NOT NULL DEFAULT '',
    acquired_at timestamptz
) WITH (fillfactor = 10);

-- Heads of shards and groups, leases: small, and written again and again.
CREATE TABLE heads (k bytea PRIMARY KEY, v bytea NOT NULL)
    WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Everything that is in no other table.
CREATE TABLE records (k bytea PRIMARY KEY, v bytea NOT NULL)
    WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- Up to 256 records in one row: messages and their places. Up to 8 KiB stay in the row itself.
CREATE TABLE packs (k bytea PRIMARY KEY, v bytea NOT NULL)
    WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- Blocks of the journal: appended, and deleted from the front once they are exported.
CREATE TABLE journal (k bytea PRIMARY KEY, v bytea NOT NULL)
    WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- What is worth compressing is compressed before it comes here, and PostgreSQL's compression would cost each commit.
ALTER TABLE heads ALTER v SET STORAGE EXTERNAL;
ALTER TABLE records ALTER v SET STORAGE EXTERNAL;
ALTER TABLE packs ALTER v SET STORAGE EXTERNAL;
ALTER TABLE journal ALTER v SET STORAGE EXTERNAL;

-- The first statement of every transaction that writes. It lets the batch through that follows the last one, of the
-- newest owner, and raises HF001 with epoch and batch for any other.
CREATE FUNCTION fence(of_epoch bigint, before bigint, after bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    found_epoch bigint;
    found_batch bigint;
BEGIN
    UPDATE cell SET batch = after WHERE epoch = of_epoch AND batch = before;
    IF NOT FOUND THEN
        SELECT epoch, batch INTO found_epoch, found_batch FROM cell;
        RAISE EXCEPTION 'this batch does not follow the last one of the newest owner'
            USING ERRCODE = 'HF001', DETAIL = found_epoch || ' ' || found_batch;
    END IF;
END $$;

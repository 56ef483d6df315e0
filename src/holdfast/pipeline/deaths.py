"""`dead_letters`: what died, why, and what became of the letter; with a fingerprint by which like deaths are found.

A death and its letter are journalled in one commit, so they are in one batch: the `dead` event of the source, and the
`enqueued` event of the letter, which names the source. If a message dies in several groups it has several letters; the
first death goes with the first letter.

A letter that was redriven and taken back is a new message that names the letter it was: the death has another letter.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.core.audits import UNDONE_PROPERTY
from holdfast.pipeline.tables import DEAD_LETTERS

ERROR_MAX = 300
"""Characters of an error that its pattern is made from: what tells errors apart stands at their beginning."""

# Details that differ from one occurrence to the next, most specific first, and what is put for them.
DETAILS = (
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<uuid>"),
    (r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?", "<time>"),
    (r"[\w.+-]+@[\w-]+\.[\w.-]+", "<email>"),
    (r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b", "<address>"),
    (r"\b0x[0-9a-fA-F]+\b", "<hex>"),
    (r"\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b", "<hex>"),
    (r"\d+(\.\d+)?", "<n>"),
    (r"\s+", " "),
)


def error_pattern(error: Column) -> Column:
    """An error without its details: `timeout after 17 ms` and `timeout after 9 ms` are one."""
    short = F.substring(F.coalesce(error, F.lit("")), 1, ERROR_MAX)
    return F.trim(reduce(lambda text, detail: F.regexp_replace(text, *detail), DETAILS, short))


def payload_shape(payload: Column) -> Column:
    """The structure of a payload: keys and types of JSON, else what kind of thing it is."""
    text = F.when(F.is_valid_utf8(payload.cast("string")), payload.cast("string"))
    shape = F.schema_of_variant(F.try_parse_json(text))
    # Whether a number has a fraction, and how many digits, is a value and not a shape.
    numbers = F.regexp_replace(shape, r"BIGINT|DOUBLE|FLOAT|DECIMAL\(\d+,\s*\d+\)", "NUMBER")
    return (
        F.when(payload.isNull(), F.lit("unknown"))
        .when(F.length(payload) == 0, F.lit("empty"))
        .when(text.isNull(), F.lit("binary"))
        .otherwise(F.coalesce(numbers, F.lit("text")))
    )


def fingerprint(reason: Column, pattern: Column, shape: Column) -> Column:
    """Sixteen hex digits for deaths of the same kind."""
    return F.substring(F.sha2(F.concat_ws("\x01", F.coalesce(reason, F.lit("")), pattern, shape), 256), 1, 16)


def with_fingerprint(deaths: DataFrame) -> DataFrame:
    """Deaths with what they have in common with others."""
    shaped = deaths.withColumns(
        {"error_pattern": error_pattern(F.col("error")), "payload_shape": payload_shape(F.col("payload"))}
    )
    return shaped.withColumn(
        "fingerprint", fingerprint(F.col("reason"), F.col("error_pattern"), F.col("payload_shape"))
    )


def died(events: DataFrame, messages: DataFrame) -> DataFrame:
    """The deaths that `events` tell of, as rows of the table; `messages` knows how the sources had fared."""
    turn = Window.partitionBy("source_id").orderBy("lsn")
    deaths = events.where("event = 'dead'").select(
        F.col("message_id").alias("source_id"),
        F.col("group").alias("source_group"),
        "namespace",
        F.col("queue").alias("source_queue"),
        F.col("at").alias("died_at"),
        "reason",
        "error",
        F.coalesce("attempt", F.lit(0)).alias("attempts"),
        "consumer",
        "lsn",
        "node",
    )
    # Redriven and replayed messages name a source as well, but no broker makes them by itself.
    letters = events.where("event = 'enqueued' AND source_id IS NOT NULL AND protocol = 'broker'").select(
        "source_id",
        F.col("message_id").alias("letter_id"),
        F.col("queue").alias("dead_queue"),
        "key",
        "priority",
        "correlation_id",
        "properties",
        "size_bytes",
        "payload",
        "lsn",
    )
    deaths = deaths.withColumn("turn", F.row_number().over(turn)).withColumn("died_lsn", F.col("lsn")).drop("lsn")
    letters = letters.withColumn("turn", F.row_number().over(turn)).drop("lsn")
    sources = messages.where("outcome = 'dead'").select(
        F.col("message_id").alias("of_message"),
        F.col("group").alias("of_group"),
        "enqueued_at",
        "first_leased_at",
        "last_leased_at",
        "client_message_id",
    )
    same = (F.col("of_message") == F.col("source_id")) & F.col("of_group").eqNullSafe(F.col("source_group"))
    joined = deaths.join(letters, ["source_id", "turn"], "left").join(sources, same, "left")
    made = with_fingerprint(joined).withColumns(
        {"outcome": F.lit(None).cast("string"), "ended_at": F.lit(None).cast("timestamp")}
    )
    return made.select(*[f"`{name}`" for name in DEAD_LETTERS.names])


def ended(messages: DataFrame) -> DataFrame:
    """Letters that the batch says are no longer waiting: `letter_id`, `now_outcome`, `now_ended_at`.

    With several groups on a dead queue the last to be done counts.
    """
    over = messages.where("source_id IS NOT NULL AND outcome IS NOT NULL AND told AND gone_at IS NOT NULL")
    last = over.groupBy("message_id").agg(F.max(F.struct("ended_at", "outcome")).alias("last"))
    return last.select(
        F.col("message_id").alias("letter_id"),
        F.col("last.outcome").alias("now_outcome"),
        F.col("last.ended_at").alias("now_ended_at"),
    )


def returned(events: DataFrame) -> dict[int, int]:
    """Letters that are letters again, because their redrive was undone: what each is now, by what it was."""
    was = F.filter("properties", lambda one: one["name"] == UNDONE_PROPERTY)[0]["value"].cast("bigint")
    found = events.where("event = 'enqueued' AND protocol = 'undo'").select(was, "message_id").collect()
    return latest({row[0]: row[1] for row in found if row[0] is not None})


def latest(now: dict[int, int]) -> dict[int, int]:
    """The same for letters that were taken back more than once: what each is in the end."""
    found: dict[int, int] = {}
    for letter, following in now.items():
        last = following
        while last in now:
            last = now[last]
        found[letter] = last
    return found


def updated(rows: DataFrame, ends: DataFrame, back: dict[int, int] | None = None) -> DataFrame:
    """Rows of the table, with the ends that have come; and before that, with the letters that are others now."""
    if back:
        pairs = rows.sparkSession.createDataFrame(list(back.items()), "letter_id bigint, now_letter_id bigint")
        again = F.col("now_letter_id").isNotNull()
        rows = rows.join(F.broadcast(pairs), "letter_id", "left").withColumns(
            {
                "letter_id": F.coalesce("now_letter_id", "letter_id"),
                "outcome": F.when(~again, F.col("outcome")),
                "ended_at": F.when(~again, F.col("ended_at")),
            }
        )
    joined = rows.join(F.broadcast(ends), "letter_id", "left")
    changed = joined.withColumns(
        {
            "outcome": F.coalesce("now_outcome", "outcome"),
            "ended_at": F.coalesce("now_ended_at", "ended_at"),
        }
    )
    return changed.select(*[f"`{name}`" for name in DEAD_LETTERS.names])

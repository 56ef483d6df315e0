"""`load`: rows into a queue, from any source that Spark reads.

They are written in one transaction of the data source, so that consumers see everything or nothing, and a job that is
run again under the same `transaction` adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.errors import InvalidArgument
from holdfast.pipeline.spark.failures import SPARK_ERRORS, summary
from pyspark_holdfast.writing import WRITABLE

TABLE = "table"
"""The format for tables of the session's catalog: the path is the table's name."""

DEFAULTS = {"csv": {"header": "true", "inferSchema": "true"}}
"""Default options of formats; given options take precedence."""

_TEXTS = ("key", "message_id", "correlation_id", "content_type", "reply_to", "source_queue")
SAMPLE = 5
SAMPLE_TEXT_CHARS = 200


def read_source(spark: SparkSession, form: str, path: str, options: Mapping[str, str]) -> DataFrame:
    """The rows of a source: of files, of a database by JDBC, of a table, or of whatever else Spark has a format for."""
    given = {name.lower() for name in options}
    if form == "jdbc" and ("url" not in given or not given & {"dbtable", "query"}):
        raise InvalidArgument(
            field="--format jdbc", problem="needs --option url=jdbc:… and --option dbtable=TABLE or query=SQL"
        )
    if form not in ("jdbc", "rate", "holdfast") and not path:
        raise InvalidArgument(field="PATH", problem=f"is needed: where the {form} is, or the name of a table")
    try:
        if form == TABLE:
            found = spark.read.table(path)
        else:
            reader = spark.read.format(form).options(**{**DEFAULTS.get(form, {}), **options})
            found = reader.load(path) if path else reader.load()
        found.schema  # noqa: B018 - a Connect server looks only now
    except SPARK_ERRORS as error:
        raise InvalidArgument(field="The source", problem=f"cannot be read: {summary(str(error))}") from error
    return found


def rows_to_load(found: DataFrame, dedup: str = "", key: str = "") -> DataFrame:
    """Rows as messages. With a column `payload` (or `value`), columns that messages have are taken as they are named;
    without one the payload is the whole row as JSON. `dedup` and `key` name columns for the producer's id and the key.
    """
    missing = [name for name in (dedup, key) if name and name not in found.columns]
    if missing:
        raise InvalidArgument(
            field=f"Column {missing[0]!r}", problem=f"is not in the source; it has {', '.join(found.columns)}"
        )
    fields = {"message_id": dedup, "key": key}
    columns = {name: F.col(f"`{column}`").cast("string") for name, column in fields.items() if column}
    if "payload" in found.columns or "value" in found.columns:
        named = [name for name in found.columns if name in {*WRITABLE, "value"} and name not in columns]
        columns |= {name: F.col(name).cast("string") if name in _TEXTS else F.col(name) for name in named}
        if "priority" in named:
            columns["priority"] = F.col("priority").cast("int")
    else:
        columns["payload"] = F.to_json(F.struct(*[F.col(f"`{name}`") for name in found.columns]))
    return found.select(*[column.alias(name) for name, column in columns.items()])


def sample(rows: DataFrame) -> list[dict[str, object]]:
    """A few messages, as a preview before anything is stored."""
    body = "payload" if "payload" in rows.columns else "value"
    text = F.substring(F.col(body).cast("string"), 1, SAMPLE_TEXT_CHARS).alias("payload")
    others = [name for name in ("message_id", "key", "priority") if name in rows.columns]
    found: list[dict[str, object]] = rows.select(*others, text).limit(SAMPLE).toArrow().to_pylist()
    return found


def fill(frame: DataFrame, options: dict[str, str]) -> None:
    """Write messages, all in one transaction."""
    frame.write.format("holdfast").options(**options).mode("append").save()

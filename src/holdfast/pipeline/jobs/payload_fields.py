"""Conditions and expressions of Spark SQL in which `payload.a.b` is a field of a JSON payload.

Payloads are bytes. For `payload.a.b` to be a number where it is one, and not text that looks like one, the fields'
types are inferred from the payloads first; a field with several types is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.errors import InvalidArgument

BODY = "payload_json"
"""The column that holds the fields."""

_QUOTED = r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`"""
_STRING_OR_FIELD = re.compile(_QUOTED + r"|(?<![\w.])payload(?=(?:\.[\w`]|\[\d))")
_STEP = r"\.(?:\w+|`[^`]+`)|\[\d+\]"
_STRING_OR_PATH = re.compile(_QUOTED + rf"|(?<![\w.])payload((?:{_STEP})+)")
_Fields = dict[str, "_Fields"]
"""The fields of an object by name; of an array, what is in it under `[]`."""
_TYPES = ((r"\bOBJECT<", "STRUCT<"), (r"(?<=[ <])(?:VOID|VARIANT)(?=[,>])", "STRING"))


def rewritten(expression: str) -> str:
    """The expression with `payload.a.b` as a field of the column that holds them. Quoted text stays as it is."""
    return _STRING_OR_FIELD.sub(lambda match: BODY if match[0] == "payload" else match[0], expression)


def whole(expression: str) -> str:
    """The expression, rewritten and in parentheses: Spark takes words after one for its name, so that
    `reason = 'rejected' AND` would be a condition called `AND`. The line end is for one that ends with a comment."""
    return f"({rewritten(expression)}\n)"


def with_text(frame: DataFrame) -> DataFrame:
    """Add a column `text`: the payload, where it is text."""
    payload = F.col("payload").cast("string")
    return frame.withColumn("text", F.when(F.is_valid_utf8(payload), payload))


def with_fields(frame: DataFrame, *expressions: str) -> DataFrame:
    """Rows of `with_text`, with the fields of their payloads if one of the expressions uses them."""
    if all(rewritten(expression) == expression for expression in expressions):
        return frame
    document = F.when(F.ltrim("text").startswith("{"), F.try_parse_json("text"))
    rows, found = frame.agg(F.count("*"), F.schema_of_variant_agg(document)).collect()[0]
    if not rows:
        return frame.withColumn(BODY, F.from_json("text", _named_fields(expressions)))
    schema = found if found and found.startswith("OBJECT<") else "OBJECT<>"
    for pattern, name in _TYPES:
        schema = re.sub(pattern, name, schema)
    if schema == "STRUCT<>":
        schema = "STRUCT<`(nothing)`: STRING>"  # so that a field is refused by its name
    return frame.withColumn(BODY, F.from_json("text", schema))


def _named_fields(expressions: Sequence[str]) -> str:
    """A schema with all fields that the expressions name: of no rows, none of them can be wrong."""
    root: _Fields = {}
    for expression in expressions:
        for path in filter(None, (match[1] for match in _STRING_OR_PATH.finditer(expression))):
            fields = root
            for step in re.findall(_STEP, path):
                fields = fields.setdefault("[]" if step.startswith("[") else step[1:].strip("`"), {})
    return _schema(root)


def _schema(fields: _Fields) -> str:
    if "[]" in fields:
        return f"ARRAY<{_schema(fields['[]'])}>"
    return (
        f"STRUCT<{', '.join(f'`{name}`: {_schema(inner)}' for name, inner in fields.items())}>" if fields else "STRING"
    )


@contextmanager
def sql_errors_as(field: str) -> Iterator[None]:
    """Around SQL that the user wrote: Spark's errors become errors of that option."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        detail = str(error).strip().splitlines()[0].replace(BODY, "payload")
        raise InvalidArgument(field=field, problem=f"cannot be understood: {detail}") from error


def matching(frame: DataFrame, where: str, field: str = "--where") -> DataFrame:
    """The rows for which a condition holds. They have `text`."""
    readable = with_text(frame)
    if not where:
        return readable
    with sql_errors_as(field):
        readable = with_fields(readable, where)
        readable.where(rewritten(where)).schema  # noqa: B018 - `a) OR (b` is one only in parentheses
        filtered = readable.where(whole(where))
        filtered.schema  # noqa: B018 - on a Connect server Spark looks at the condition only now
    return filtered


def value_of(expression: str) -> Column:
    """An expression's value as JSON, in an object under `v`; null: no value."""
    value = F.expr(whole(expression))
    return F.when(value.isNotNull(), F.to_json(F.struct(value.alias("v"))))

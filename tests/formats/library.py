"""Calls of the Java library without a job of Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster_kafka_flip.formats.jvm_decoder import FunctionFormat


def decoded(jvm: Any, form: FunctionFormat, values: Iterable[bytes]) -> list[dict[str, Any]]:
    """What a format's function makes of values, without what is null; numbers with a point as texts.

    Args:
        jvm: A session's `_jvm`.
        form: The format.
        values: The values.
    """
    sql = jvm.org.apache.spark.sql
    catalog = jvm.io.dagsterkafkaflip.FlipCatalog()
    declared = sql.types.DataType.fromJson(form.struct().json())
    given = sql.types.StructType()
    for name, kind in (("data", "binary"), ("typed", None), ("options", "string")):
        given = given.add(name, declared if kind is None else kind)
    nowhere = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Class.forName("java.lang.String"), 0)
    name = sql.connector.catalog.Identifier.of(nowhere, form.function)
    function = catalog.loadFunction(name).bind(given)
    options = jvm.org.apache.spark.unsafe.types.UTF8String.fromString(json.dumps(form.function_options))
    found: list[dict[str, Any]] = []
    for value in values:
        row = function.invoke(value, None, options)
        shown = sql.catalyst.CatalystTypeConverters.convertToScala(row, function.resultType()).json()
        found.append(json.loads(shown, parse_float=str))
    return found

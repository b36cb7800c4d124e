"""Days and times in JSON, whatever is written for them."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.reader.kafka_reader import RECORD_SCHEMA

# A date in full, or its start. Spark takes a year of four to six digits in a TIMESTAMP, and up to seven in a DATE.
_DATED = re.compile(r"[\t ]*[+]?[0-9]{4,7}(?:-[0-9]{1,2}(?:-[0-9]{1,2}(?:[ T].*)?)?)?[\t ]*")
_SOME_DAY = st.text("0123456789-:T +Z.", min_size=1, max_size=14)
_SOME_TIME = st.from_regex(
    r"[-+]?([0-9]{4}-)?([0-9]{1,2}-)?([0-9]{1,2}[ T])?T?[0-9]{1,2}(:[0-9]{1,2}){0,2}Z?", fullmatch=True
)
_SOME_SECONDS = st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**14), 10**14) | st.integers(-(10**11), 10**12)


@pytest.mark.spark
@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(values=st.lists(_SOME_DAY | _SOME_TIME | _SOME_SECONDS, min_size=300, max_size=300))
def test_values_neither_depend_on_the_day_of_the_run_nor_overflow(spark, values):
    for field in ("t TIMESTAMP", "n TIMESTAMP_NTZ", "d DATE", "ts ARRAY<TIMESTAMP>"):
        name = field.split()[0]
        texts = [json.dumps({name: [each] if name == "ts" else each}) for each in values]
        decoder = Decoder.of(None, JsonFormat(field, on_error="null"), KafkaColumns(fields=("offset",)))
        records = [(None, bytearray(text.encode()), "t", 0, number, None, 0, None) for number, text in enumerate(texts)]
        landed = decoder.finish(decoder.stage(spark.createDataFrame(records, RECORD_SCHEMA)))
        first = f"{name}[0]" if name == "ts" else name
        # A number is the seconds of a TIMESTAMP.
        kind = "bigint" if name in {"t", "ts"} else "string"
        rows = landed.selectExpr("kafka_offset", "kafka_error", f"CAST({first} AS {kind})")
        for number, why, found in rows.collect():
            each = values[number]
            if why is not None or found is None:
                continue
            if isinstance(each, int):
                assert int(found) == each
            else:
                assert _DATED.fullmatch(each), (field, each, found)

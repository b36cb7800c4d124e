"""Random topic partitions, splits and states, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState

topics = st.from_regex(r"[a-zA-Z0-9._-]{1,12}", fullmatch=True)
topic_partitions = st.builds(TopicPartition, topics, st.integers(0, 50))
offsets = st.integers(0, 2**62)
splits = st.tuples(topic_partitions, offsets, st.integers(0, 2**20)).map(
    lambda parts: KafkaPartitionSplit(parts[0], parts[1], parts[1] + parts[2])
)
states = st.builds(
    EnumeratorState,
    position=st.dictionaries(topic_partitions, offsets, max_size=8),
    cluster_id=st.none() | st.text(max_size=20),
    topic_ids=st.dictionaries(topics, st.text(max_size=20), max_size=3),
    watermark=st.none() | st.integers(0, 2**42),
)

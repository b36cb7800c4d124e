"""What a long read tells of itself: the share, the rate and the time left, in one line."""

from __future__ import annotations

from dagster_kafka_flip.ingestion.progress import ReadProgress


def test_a_line_shows_share_rate_and_time_left():
    progress = ReadProgress(5_000_000)
    progress.line(240_000, 1.2)
    assert progress.line(1_240_000, 6.2) == (
        "read 1,240,000 of at most 5,000,000 records (24 %), 200,000 records/s, about 19 s left"
    )


def test_a_reading_that_says_nothing_new_makes_no_line():
    progress = ReadProgress(100)
    assert progress.line(0, 5.0) is None
    assert progress.line(10, 10.0) is not None
    assert progress.line(10, 15.0) is None
    assert progress.line(11, 20.0) is not None


def test_progress_of_a_read_never_exceeds_100_percent():
    # A task that failed and was repeated has read its records twice.
    assert ReadProgress(100).line(130, 5.0) == "read 100 of at most 100 records (100 %)"

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


def test_the_rate_is_that_of_the_last_lines_and_not_of_the_whole_read():
    progress = ReadProgress(10_000)
    for second in range(1, 11):
        progress.line(second, float(second))
    lines = [progress.line(10 + (second - 10) * 100, float(second)) for second in range(11, 16)]
    line = lines[-1]
    assert line is not None
    assert "100 records/s, about 95 s left" not in line
    assert line.endswith("100 records/s, about 2 min left")


def test_the_time_until_the_first_records_counts_for_no_rate():
    # Until then Spark has planned, fetched jars and started tasks.
    progress = ReadProgress(30_000)
    assert progress.line(300, 40.0) == "read 300 of at most 30,000 records (1 %)"
    assert progress.line(3_300, 43.0) == "read 3,300 of at most 30,000 records (11 %), 1,000 records/s, about 27 s left"


def test_progress_of_a_read_never_exceeds_100_percent():
    # A task that failed and was repeated has read its records twice.
    assert ReadProgress(100).line(130, 5.0) == "read 100 of at most 100 records (100 %)"


def test_a_count_that_decreases_starts_again():
    progress = ReadProgress(100)
    progress.line(90, 10.0)
    assert progress.line(10, 20.0) == "read 10 of at most 100 records (10 %)"
    assert progress.line(20, 30.0) == "read 20 of at most 100 records (20 %), 1 records/s, about 80 s left"


def test_a_batch_without_offsets_reports_nothing():
    assert ReadProgress(0).line(5, 5.0) is None


def test_times_are_reported_in_units_that_can_be_read():
    lines: list[str | None] = []
    for seconds in (5.0, 0.0005, 20.0):
        progress = ReadProgress(1_001_000)
        progress.line(1_000, 1.0)
        lines.append(progress.line(2_000, 1.0 + seconds))
    assert lines == [
        "read 2,000 of at most 1,001,000 records (0 %), 200 records/s, about 83 min left",
        "read 2,000 of at most 1,001,000 records (0 %), 2,000,000 records/s, about 1 s left",
        "read 2,000 of at most 1,001,000 records (0 %), 50 records/s, about 5 h 33 min left",
    ]

package io.dagsterkafkaflip;

import java.time.DateTimeException;
import java.time.LocalDate;

/** A day or a time, cut from its text without a copy. Used again for each value. */
final class TimeText {
  private static final int MOST_PLACES = 6;
  private static final int GREATEST_OFFSET = 18 * 3_600;

  private char[] text;
  private int at;
  private int end;

  /** Days since 1970, and microseconds of that day. */
  long day;

  private long micros;

  /** Seconds from UTC. */
  int offset;

  /** What is written: a day of the month, a time of day, an offset. */
  boolean hasDay;

  boolean hasClock;
  boolean hasOffset;

  /** Whether there are digits after the microseconds that are not zero. */
  boolean isCut;

  /** Microseconds since 1970 on the clock that shows this time. */
  long local() {
    return 86_400_000_000L * day + micros;
  }

  /** Reads a text; false if it is none of the accepted forms, or no such day or time exists. */
  boolean read(char[] chars, int from, int length) {
    text = chars;
    at = from;
    end = from + length;
    micros = 0;
    hasOffset = false;
    hasClock = false;
    isCut = false;
    int year = number(4, 4);
    boolean hasMonth = skips('-');
    int month = hasMonth ? number(1, 2) : 1;
    hasDay = hasMonth && skips('-');
    int dayOfMonth = hasDay ? number(1, 2) : 1;
    if (year < 1) {
      return false;
    }
    try {
      day = LocalDate.of(year, month, dayOfMonth).toEpochDay();
    } catch (DateTimeException error) {
      return false;
    }
    if (hasDay && (skips('T') || skips('t') || skips(' '))) {
      hasClock = true;
      return readsClock() && readsOffset() && at == end;
    }
    return at == end;
  }

  private boolean readsClock() {
    int hour = number(1, 2);
    int minute = skips(':') ? number(1, 2) : -1;
    int second = skips(':') ? number(1, 2) : 0;
    micros = 1_000_000L * (3_600 * hour + 60 * minute + second);
    if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59) {
      return false;
    }
    if (!skips('.')) {
      return true;
    }
    int from = at;
    long factor = 1_000_000;
    for (; at < end && isDigit(text[at]); at++) {
      factor /= 10;
      micros += factor * (text[at] - '0');
      isCut |= at - from >= MOST_PLACES && text[at] != '0';
    }
    return at > from;
  }

  private boolean readsOffset() {
    if (at == end) {
      return true;
    }
    skips(' ');
    hasOffset = true;
    offset = 0;
    if (skips('Z') || skips('z')) {
      return true;
    }
    if (skips('U')) {
      return skips('T') && skips('C');
    }
    int sign = skips('-') ? -1 : skips('+') ? 1 : 0;
    int hours = number(2, 2);
    int minutes = skips(':') || at < end ? number(2, 2) : 0;
    offset = sign * (3_600 * hours + 60 * minutes);
    boolean isThere = sign != 0 && hours >= 0 && minutes >= 0 && minutes < 60;
    return isThere && Math.abs(offset) <= GREATEST_OFFSET;
  }

  private boolean skips(char wanted) {
    boolean isNext = at < end && text[at] == wanted;
    at += isNext ? 1 : 0;
    return isNext;
  }

  /** A number of so many digits; -1 if there are fewer. */
  private int number(int least, int most) {
    int from = at;
    int number = 0;
    while (at < end && at - from < most && isDigit(text[at])) {
      number = 10 * number + text[at++] - '0';
    }
    return at - from < least ? -1 : number;
  }

  private static boolean isDigit(char each) {
    return each >= '0' && each <= '9';
  }
}

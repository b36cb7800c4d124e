package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.time.LocalDateTime;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.time.zone.ZoneRules;
import java.util.List;
import org.apache.spark.sql.types.DataType;

/** Readers of DATE, TIMESTAMP and TIMESTAMP_NTZ. */
final class Times {
  private static final long MICROS = 1_000_000;

  private Times() {}

  private static boolean isRead(TimeText text, Scan scan, JsonToken token) throws IOException {
    if (token != JsonToken.VALUE_STRING) {
      return false;
    }
    JsonParser parser = scan.parser;
    // The characters first: only with them are offset and length known.
    char[] chars = parser.getTextCharacters();
    return text.read(chars, parser.getTextOffset(), parser.getTextLength());
  }

  private static boolean isClock(TimeText text, String written) {
    boolean isRead = text.read(written.toCharArray(), 0, written.length());
    return isRead && text.hasClock && !text.isCut;
  }

  /** DATE: the day that is written, whatever time follows it. */
  static final class Day extends ValueReader {
    private final TimeText text = new TimeText();

    Day(String path, DataType type) {
      super(path, type);
    }

    @Override
    Object read(Scan scan, JsonToken token) throws IOException, Misfit {
      if (!isRead(text, scan, token)) {
        throw misfit(scan);
      }
      return (int) text.day;
    }

    @Override
    Object ofText(Scan scan, String written) throws IOException, Misfit {
      boolean isRead = text.read(written.toCharArray(), 0, written.length());
      if (!isRead || !text.hasDay || text.hasClock) {
        throw misfit(scan);
      }
      return (int) text.day;
    }
  }

  /** TIMESTAMP_NTZ: what a clock shows. */
  static final class Local extends ValueReader {
    private final TimeText text = new TimeText();

    Local(String path, DataType type) {
      super(path, type);
    }

    @Override
    Object read(Scan scan, JsonToken token) throws IOException, Misfit {
      if (!isRead(text, scan, token) || text.hasOffset) {
        throw misfit(scan);
      }
      return text.local();
    }

    @Override
    Object ofText(Scan scan, String written) throws IOException, Misfit {
      if (!isClock(text, written) || text.hasOffset) {
        throw misfit(scan);
      }
      return text.local();
    }
  }

  /** TIMESTAMP: with an offset, or in the session's time zone; or whole seconds since 1970. */
  static final class Moment extends ValueReader {
    private final TimeText text = new TimeText();
    private final ZoneId zone;
    private final ZoneRules rules;
    private final ZoneOffset fixed;
    private final long first;
    private final long last;

    Moment(String path, DataType type, ZoneId zone) {
      super(path, type);
      this.zone = zone;
      this.rules = zone.getRules();
      this.fixed = rules.isFixedOffset() ? rules.getOffset(LocalDateTime.MIN) : null;
      this.first = LocalDateTime.of(1, 1, 1, 0, 0).atZone(zone).toEpochSecond() * MICROS;
      this.last = LocalDateTime.of(9999, 12, 31, 23, 59, 59).atZone(zone).toEpochSecond() * MICROS;
    }

    @Override
    Object read(Scan scan, JsonToken token) throws IOException, Misfit {
      if (token == JsonToken.VALUE_NUMBER_INT) {
        return ofSeconds(scan);
      }
      if (!isRead(text, scan, token)) {
        throw misfit(scan);
      }
      return moment(scan);
    }

    @Override
    Object ofText(Scan scan, String written) throws IOException, Misfit {
      if (!isClock(text, written)) {
        throw misfit(scan);
      }
      return moment(scan);
    }

    private long moment(Scan scan) throws IOException, Misfit {
      return checked(scan, text.local() - MICROS * (text.hasOffset ? text.offset : offset(scan)));
    }

    private long ofSeconds(Scan scan) throws IOException, Misfit {
      boolean isLong = scan.parser.getNumberType() != JsonParser.NumberType.BIG_INTEGER;
      long seconds = isLong ? scan.parser.getLongValue() : Long.MAX_VALUE;
      // Beyond these, its microseconds overflow.
      boolean isIn = seconds >= first / MICROS && seconds <= last / MICROS;
      return checked(scan, isIn ? seconds * MICROS : Long.MAX_VALUE);
    }

    private long checked(Scan scan, long micros) throws IOException, Misfit {
      if (micros < first || micros >= last + MICROS) {
        throw wrong(scan, "is not in the years 1 to 9999 (a bare number is seconds since 1970)");
      }
      return micros;
    }

    private int offset(Scan scan) throws IOException, Misfit {
      if (fixed != null) {
        return fixed.getTotalSeconds();
      }
      long seconds = Math.floorDiv(text.local(), MICROS);
      List<ZoneOffset> valid =
          rules.getValidOffsets(LocalDateTime.ofEpochSecond(seconds, 0, ZoneOffset.UTC));
      if (valid.isEmpty()) {
        throw wrong(scan, "is a time that the time zone " + zone + " skips");
      }
      // Where the clock shows a time twice, the first.
      return valid.get(0).getTotalSeconds();
    }
  }
}

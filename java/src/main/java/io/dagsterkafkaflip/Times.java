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
import org.apache.spark.sql.types.DateType;

/** Reads a DATE, the day that is written, or a TIMESTAMP_NTZ, what a clock shows. */
class Times extends ValueReader {
  private static final long MICROS = 1_000_000;

  final TimeText text = new TimeText();
  private final boolean isDay;

  Times(String path, DataType type) {
    super(path, type);
    isDay = type instanceof DateType;
  }

  /** The value of the text that was read. */
  Object value(Scan scan) throws IOException, Misfit {
    if (isDay) {
      return (int) text.day;
    }
    if (text.hasOffset) {
      throw misfit(scan);
    }
    return text.local();
  }

  @Override
  Object read(Scan scan, JsonToken token) throws IOException, Misfit {
    JsonParser parser = scan.parser;
    if (token == JsonToken.VALUE_STRING) {
      // The characters first: only with them are offset and length known.
      char[] chars = parser.getTextCharacters();
      if (text.read(chars, parser.getTextOffset(), parser.getTextLength())) {
        return value(scan);
      }
    }
    throw misfit(scan);
  }

  @Override
  Object ofText(Scan scan, String written) throws IOException, Misfit {
    boolean isTime = text.read(written.toCharArray(), 0, written.length());
    boolean isWhole = isDay ? text.hasDay && !text.hasClock : text.hasClock && !text.isCut;
    if (!isTime || !isWhole) {
      throw misfit(scan);
    }
    return value(scan);
  }

  /** TIMESTAMP: with an offset, or in the session's time zone; or whole seconds since 1970. */
  static final class Moment extends Times {
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
      this.first = LocalDateTime.of(1, 1, 1, 0, 0).atZone(zone).toEpochSecond();
      this.last = LocalDateTime.of(9999, 12, 31, 23, 59, 59).atZone(zone).toEpochSecond();
    }

    @Override
    Object read(Scan scan, JsonToken token) throws IOException, Misfit {
      if (token != JsonToken.VALUE_NUMBER_INT) {
        return super.read(scan, token);
      }
      boolean isLong = scan.parser.getNumberType() != JsonParser.NumberType.BIG_INTEGER;
      long seconds = isLong ? scan.parser.getLongValue() : Long.MAX_VALUE;
      checkYears(scan, seconds, " (a bare number is seconds since 1970)");
      return seconds * MICROS;
    }

    @Override
    Object value(Scan scan) throws IOException, Misfit {
      long micros = text.local() - MICROS * (text.hasOffset ? text.offset : offset(scan));
      checkYears(scan, Math.floorDiv(micros, MICROS), "");
      return micros;
    }

    private void checkYears(Scan scan, long seconds, String hint) throws IOException, Misfit {
      if (seconds < first || seconds > last) {
        throw wrong(scan, "is not in the years 1 to 9999" + hint);
      }
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

package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.time.LocalDateTime;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.util.List;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.TimestampType;

/**
 * Reads a DATE, the day that is written; a TIMESTAMP_NTZ, what a clock shows; or a TIMESTAMP, with
 * an offset or in the session's time zone, or as whole seconds since 1970.
 */
final class Times extends ValueReader {
  private static final long MICROS = 1_000_000;

  private final TimeText text = new TimeText();
  private final boolean isDay;
  private final boolean isMoment;
  private final ZoneId zone;
  private final ZoneOffset fixed;
  private final long first;
  private final long last;

  Times(String path, DataType type, ZoneId zone) {
    super(path, type);
    isDay = type instanceof DateType;
    isMoment = type instanceof TimestampType;
    this.zone = zone;
    boolean isFixed = zone.getRules().isFixedOffset();
    fixed = isFixed ? zone.getRules().getOffset(LocalDateTime.MIN) : null;
    first = LocalDateTime.of(1, 1, 1, 0, 0).atZone(zone).toEpochSecond();
    last = LocalDateTime.of(9999, 12, 31, 23, 59, 59).atZone(zone).toEpochSecond();
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
    if (!isMoment || token != JsonToken.VALUE_NUMBER_INT) {
      throw misfit(scan);
    }
    boolean isLong = parser.getNumberType() != JsonParser.NumberType.BIG_INTEGER;
    long seconds = isLong ? parser.getLongValue() : Long.MAX_VALUE;
    checkYears(scan, seconds, " (a bare number is seconds since 1970)");
    return seconds * MICROS;
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

  private Object value(Scan scan) throws IOException, Misfit {
    if (isDay) {
      return (int) text.day;
    }
    if (!isMoment && text.hasOffset) {
      throw misfit(scan);
    }
    if (!isMoment) {
      return text.local();
    }
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
        zone.getRules().getValidOffsets(LocalDateTime.ofEpochSecond(seconds, 0, ZoneOffset.UTC));
    if (valid.isEmpty()) {
      throw wrong(scan, "is a time that the time zone " + zone + " skips");
    }
    // Where the clock shows a time twice, the first.
    return valid.get(0).getTotalSeconds();
  }
}

package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.io.JsonStringEncoder;
import com.fasterxml.jackson.core.io.NumberOutput;
import java.math.BigDecimal;
import java.util.Arrays;
import java.util.TreeMap;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.unsafe.types.UTF8String;

/** What makes a column's value of those of a message's fields, as in protobuf_plan.py. */
final class ProtobufMeaning {
  private static final int MOST_NANOS = 999_999_999;
  private static final long MOST_SECONDS = 315_576_000_000L;
  // Larger numbers are not exact.
  private static final double EXACT = 1L << 53;

  private ProtobufMeaning() {}

  static Object of(String meaning, Object[] values, String path) throws Misfit {
    return switch (meaning) {
      case "empty" -> true;
      case "entry" -> values;
      case "wrapper" -> values[0];
      case "timestamp" -> timestamp((long) values[0], (int) values[1], path);
      case "duration" -> duration((long) values[0], (int) values[1], path);
      case "struct" -> object((MapData) values[0]);
      case "value" -> json(values, path);
      default -> joined("[", ((ArrayData) values[0]).array(), "]");
    };
  }

  private static long timestamp(long seconds, int nanos, String path) throws Misfit {
    if (!Types.isInYears(seconds) || nanos < 0 || nanos > MOST_NANOS) {
      throw wrong(path, "is out of range for google.protobuf.Timestamp");
    }
    return seconds * 1_000_000 + nanos / 1_000;
  }

  private static Decimal duration(long seconds, int nanos, String path) throws Misfit {
    boolean isWide = seconds < -MOST_SECONDS || seconds > MOST_SECONDS;
    if (isWide || nanos < -MOST_NANOS || nanos > MOST_NANOS || Long.signum(seconds) * nanos < 0) {
      throw wrong(path, "is out of range for google.protobuf.Duration");
    }
    return Decimal.apply(BigDecimal.valueOf(seconds).add(BigDecimal.valueOf(nanos, 9)), 21, 9);
  }

  private static Misfit wrong(String path, String what) {
    return new Misfit("the value of " + path + " " + what);
  }

  private static UTF8String object(MapData map) {
    TreeMap<UTF8String, UTF8String> parts = new TreeMap<>();
    for (int index = 0; index < map.numElements(); index++) {
      UTF8String name = map.keyArray().getUTF8String(index);
      UTF8String value = map.valueArray().getUTF8String(index);
      parts.put(name, UTF8String.concat(quoted(name), text(": "), value));
    }
    return joined("{", parts.values().toArray(), "}");
  }

  private static UTF8String json(Object[] values, String path) throws Misfit {
    int place = 0;
    while (place < values.length && values[place] == null) {
      place++;
    }
    return switch (place) {
      case 0 -> text("null");
      case 1 -> number((double) values[1], path);
      case 2 -> quoted((UTF8String) values[2]);
      case 3 -> text(values[3].toString());
      case 4, 5 -> (UTF8String) values[place];
      default -> throw wrong(path, "is a google.protobuf.Value without a value");
    };
  }

  private static UTF8String number(double number, String path) throws Misfit {
    if (!Double.isFinite(number)) {
      throw wrong(path, "is a google.protobuf.Value that is NaN or infinite");
    }
    // Only a number with a point can be a negative zero.
    boolean isWhole = Double.valueOf((long) number).equals(number) && Math.abs(number) < EXACT;
    return text(isWhole ? Long.toString((long) number) : NumberOutput.toString(number, true));
  }

  private static UTF8String quoted(UTF8String text) {
    char[] escaped = JsonStringEncoder.getInstance().quoteAsString(text.toString());
    return text('"' + new String(escaped) + '"');
  }

  private static UTF8String joined(String first, Object[] parts, String last) {
    UTF8String[] texts = Arrays.copyOf(parts, parts.length, UTF8String[].class);
    return UTF8String.concat(text(first), UTF8String.concatWs(text(", "), texts), text(last));
  }

  private static UTF8String text(String text) {
    return UTF8String.fromString(text);
  }
}

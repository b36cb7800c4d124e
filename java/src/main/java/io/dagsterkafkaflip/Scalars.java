package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.util.Base64;
import java.util.Locale;
import java.util.function.LongFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.unsafe.types.UTF8String;

/** Readers of texts, whole and broken numbers, BOOLEAN and BINARY. */
final class Scalars {
  private Scalars() {}

  /** A STRING: a text, or any other value as it is written. */
  static final class Text extends ValueReader {
    Text(String path, DataType type) {
      super(path, type);
    }

    @Override
    Object read(Scan scan, JsonToken token) throws IOException, Misfit {
      return token.isScalarValue() ? scan.text(this) : scan.ownText();
    }

    @Override
    Object ofText(Scan scan, String text) throws IOException, Misfit {
      return UTF8String.fromString(whole(scan, text));
    }
  }

  static final class Whole extends ValueReader {
    private final long least;
    private final long greatest;
    private final LongFunction<Object> box;

    Whole(String path, DataType type, long greatest, LongFunction<Object> box) {
      super(path, type);
      this.least = -greatest - 1;
      this.greatest = greatest;
      this.box = box;
    }

    @Override
    Object read(Scan scan, JsonToken token) throws IOException, Misfit {
      if (token != JsonToken.VALUE_NUMBER_INT
          || scan.parser.getNumberType() == JsonParser.NumberType.BIG_INTEGER) {
        throw misfit(scan);
      }
      return boxed(scan, scan.parser.getLongValue());
    }

    @Override
    Object ofText(Scan scan, String text) throws IOException, Misfit {
      try {
        return boxed(scan, Long.parseLong(number(scan, text.trim())));
      } catch (NumberFormatException error) {
        throw misfit(scan);
      }
    }

    private Object boxed(Scan scan, long number) throws IOException, Misfit {
      if (number < least || number > greatest) {
        throw misfit(scan);
      }
      return box.apply(number);
    }
  }

  static final class Broken extends ValueReader {
    private final boolean isFloat;

    Broken(String path, DataType type, boolean isFloat) {
      super(path, type);
      this.isFloat = isFloat;
    }

    @Override
    Object read(Scan scan, JsonToken token) throws IOException, Misfit {
      if (token == JsonToken.VALUE_STRING) {
        return boxed(
            switch (scan.parser.getText()) {
              case "NaN" -> Double.NaN;
              case "Infinity" -> Double.POSITIVE_INFINITY;
              case "-Infinity" -> Double.NEGATIVE_INFINITY;
              default -> throw misfit(scan);
            });
      }
      if (!token.isNumeric()) {
        throw misfit(scan);
      }
      double number = isFloat ? 0 : scan.parser.getDoubleValue();
      // The text tells what a zero was, and whether it has a sign.
      return number == 0 || Double.isInfinite(number)
          ? ofText(scan, scan.parser.getText())
          : (Object) number;
    }

    @Override
    Object ofText(Scan scan, String text) throws IOException, Misfit {
      double number;
      try {
        String digits = number(scan, text.trim());
        number = isFloat ? Float.parseFloat(digits) : Double.parseDouble(digits);
      } catch (NumberFormatException error) {
        throw misfit(scan);
      }
      if (Double.isInfinite(number) || number == 0 && !isZero(text)) {
        throw wrong(scan, "is beyond the range of " + Types.shown(type));
      }
      return boxed(number);
    }

    private Object boxed(double number) {
      // Not a conditional expression, which would make a DOUBLE of both.
      if (isFloat) {
        return (float) number;
      }
      return number;
    }
  }

  static boolean isZero(String text) {
    for (int at = 0; at < text.length() && "eE".indexOf(text.charAt(at)) < 0; at++) {
      if (text.charAt(at) >= '1' && text.charAt(at) <= '9') {
        return false;
      }
    }
    return true;
  }

  static final class Truth extends ValueReader {
    Truth(String path, DataType type) {
      super(path, type);
    }

    @Override
    Object read(Scan scan, JsonToken token) throws IOException, Misfit {
      if (!token.isBoolean()) {
        throw misfit(scan);
      }
      return token == JsonToken.VALUE_TRUE;
    }

    @Override
    Object ofText(Scan scan, String text) throws IOException, Misfit {
      // Not equalsIgnoreCase, to which a long s is an s.
      return switch (text.trim().toLowerCase(Locale.ROOT)) {
        case "true" -> true;
        case "false" -> false;
        default -> throw misfit(scan);
      };
    }
  }

  static final class Bytes extends ValueReader {
    Bytes(String path, DataType type) {
      super(path, type);
    }

    @Override
    Object read(Scan scan, JsonToken token) throws IOException, Misfit {
      if (token != JsonToken.VALUE_STRING) {
        throw misfit(scan);
      }
      return ofText(scan, scan.parser.getText());
    }

    @Override
    Object ofText(Scan scan, String text) throws IOException, Misfit {
      try {
        byte[] bytes = Base64.getDecoder().decode(text);
        // Java takes a text without padding, and leaves out bits after the last byte.
        boolean isCut =
            text.endsWith("=") && !text.equals(Base64.getEncoder().encodeToString(bytes));
        if (text.length() % 4 == 0 && !isCut) {
          return bytes;
        }
      } catch (IllegalArgumentException error) {
        throw misfit(scan);
      }
      throw misfit(scan);
    }
  }
}

package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.math.BigDecimal;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;

/** Reads a DECIMAL from a number or from a text, exactly. */
final class DecimalReader extends ValueReader {
  /** Digits that fit a long, and a DECIMAL that Spark keeps in one. */
  private static final int MOST_OF_LONG = 18;

  private static final int LONGEST = 1_000;
  static final long[] POWERS = Decimal.POW_10();

  private final int precision;
  private final int scale;

  DecimalReader(String path, DecimalType type) {
    super(path, type);
    precision = type.precision();
    scale = type.scale();
  }

  @Override
  Object read(Scan scan, JsonToken token) throws IOException, Misfit {
    if (token != JsonToken.VALUE_STRING && !token.isNumeric()) {
      throw misfit(scan);
    }
    int from = scan.parser.getTextOffset();
    return value(scan, scan.parser.getTextCharacters(), from, from + scan.parser.getTextLength());
  }

  @Override
  Object ofText(Scan scan, String text) throws IOException, Misfit {
    return value(scan, text.toCharArray(), 0, text.length());
  }

  /** The value of a short number without an exponent; null if it is not one, or does not fit. */
  private Decimal plain(char[] text, int from, int to) {
    if (precision > MOST_OF_LONG || to - from > MOST_OF_LONG) {
      return null;
    }
    boolean isNegative = from < to && text[from] == '-';
    int first = isNegative ? from + 1 : from;
    int point = to;
    long digits = 0;
    for (int at = first; at < to; at++) {
      char each = text[at];
      if (each >= '0' && each <= '9') {
        digits = 10 * digits + each - '0';
      } else if (each == '.' && point == to && at > first && at + 1 < to) {
        point = at;
      } else {
        return null;
      }
    }
    int places = point == to ? 0 : to - point - 1;
    if (first == to || places > scale) {
      return null;
    }
    long factor = POWERS[scale - places];
    if (digits > (POWERS[precision] - 1) / factor) {
      return null;
    }
    digits *= factor;
    return Decimal.createUnsafe(isNegative ? -digits : digits, precision, scale);
  }

  private Decimal value(Scan scan, char[] text, int from, int to) throws IOException, Misfit {
    Decimal plain = plain(text, from, to);
    if (plain != null) {
      return plain;
    }
    if (to - from > LONGEST) {
      throw misfit(scan);
    }
    BigDecimal number;
    try {
      number = new BigDecimal(number(scan, new String(text, from, to - from)));
      if (number.signum() == 0) {
        return Decimal.apply(BigDecimal.ZERO, precision, scale);
      }
      number = number.stripTrailingZeros();
    } catch (NumberFormatException | ArithmeticException error) {
      throw misfit(scan);
    }
    // Compared before it is written out: for 1e9999999 that takes a minute.
    long places = number.scale();
    if (number.precision() - places > precision - scale) {
      throw misfit(scan);
    }
    if (places > scale) {
      throw wrong(scan, "has more digits than " + Types.shown(type) + " holds");
    }
    return Decimal.apply(number.setScale(scale), precision, scale);
  }
}

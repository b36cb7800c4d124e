package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import org.apache.spark.sql.types.DataType;

/**
 * Reads the values of one place of a schema. Its state is that of the record in hand: one thread at
 * a time.
 */
abstract class ValueReader {
  private static final String NUMBER = "0123456789.-+eE";

  final String path;
  final DataType type;

  ValueReader(String path, DataType type) {
    this.path = path;
    this.type = type;
  }

  /** Reads a value that is not null, from its first token, and leaves the parser at its last. */
  abstract Object read(Scan scan, JsonToken token) throws IOException, Misfit;

  /**
   * The value of a text that stands by itself, as in CSV: numbers and dates are not in quotes
   * there.
   */
  Object ofText(Scan scan, String text) throws IOException, Misfit {
    throw misfit(scan);
  }

  /** The value, or null for JSON's null. */
  Object readOrNull(Scan scan, JsonToken token) throws IOException, Misfit {
    return token == JsonToken.VALUE_NULL ? null : read(scan, token);
  }

  final Misfit misfit(Scan scan) throws IOException {
    return wrong(scan, "does not fit " + Types.shown(type));
  }

  /** The misfit of the current value. */
  final Misfit wrong(Scan scan, String what) throws IOException {
    return new Misfit("the value of " + path + " " + what + scan.quoted());
  }

  /** A text or a key, unless Spark would change it. */
  final String whole(Scan scan, String text) throws IOException, Misfit {
    if (Scan.hasHalfPair(text)) {
      throw wrong(scan, "has half of a surrogate pair");
    }
    return text;
  }

  /**
   * A number; a misfit if it has what only Java's numbers have, such as digits of other scripts.
   */
  final String number(Scan scan, String text) throws IOException, Misfit {
    for (int at = 0; at < text.length(); at++) {
      if (NUMBER.indexOf(text.charAt(at)) < 0) {
        throw misfit(scan);
      }
    }
    return text;
  }
}

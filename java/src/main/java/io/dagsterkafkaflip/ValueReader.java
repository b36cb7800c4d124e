package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import org.apache.spark.sql.types.DataType;

/**
 * Reads the values of one place of a schema. Its state is that of the record in hand: one thread at
 * a time.
 */
abstract class ValueReader {
  final String path;
  private final DataType type;

  /**
   * Makes a reader.
   *
   * @param path where its values are, as an error names it
   * @param type the declared type
   */
  ValueReader(String path, DataType type) {
    this.path = path;
    this.type = type;
  }

  /**
   * Reads a value that is not null, and leaves the parser at its last token.
   *
   * @param token the value's first token, which is the parser's current one
   */
  abstract Object read(Scan scan, JsonToken token) throws IOException, Misfit;

  /** The value, or null for JSON's null. */
  Object readOrNull(Scan scan, JsonToken token) throws IOException, Misfit {
    return token == JsonToken.VALUE_NULL ? null : read(scan, token);
  }

  final Misfit misfit(Scan scan) throws IOException {
    return wrong(scan, "does not fit " + shownType());
  }

  /** The misfit of the current value. */
  final Misfit wrong(Scan scan, String what) throws IOException {
    return new Misfit("the value of " + path + " " + what + scan.quoted());
  }

  final String shownType() {
    return Types.shown(type);
  }
}

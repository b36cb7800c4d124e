package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.time.ZoneId;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.StructType;

/** Reads the values of one place of a schema, in one thread. */
abstract class ValueReader {
  private static final String NUMBER = "0123456789.-+eE";

  final String path;
  final DataType type;

  ValueReader(String path, DataType type) {
    this.path = path;
    this.type = type;
  }

  /** A reader of a type, none of whose leaves are noted. */
  static ValueReader of(String path, DataType type, ZoneId zone) {
    return of(path, type, zone, StructReader.NONE);
  }

  /** A reader of a type; the leaves of a STRUCT are noted with numbers from this one on. */
  static ValueReader of(String path, DataType type, ZoneId zone, int leaf) {
    return switch (Types.name(type)) {
      case "string" -> new Scalars.Text(path, type);
      case "long" -> new Scalars.Whole(path, type, Long.MAX_VALUE, number -> number);
      case "integer" -> new Scalars.Whole(path, type, Integer.MAX_VALUE, number -> (int) number);
      case "short" -> new Scalars.Whole(path, type, Short.MAX_VALUE, number -> (short) number);
      case "byte" -> new Scalars.Whole(path, type, Byte.MAX_VALUE, number -> (byte) number);
      case "decimal" -> new DecimalReader(path, (DecimalType) type);
      case "double" -> new Scalars.Broken(path, type, false);
      case "float" -> new Scalars.Broken(path, type, true);
      case "boolean" -> new Scalars.Truth(path, type);
      case "binary" -> new Scalars.Bytes(path, type);
      case "date", "timestamp", "timestamp_ntz" -> new Times(path, type, zone);
      case "variant" -> new Variants(path, type);
      case "struct" -> new StructReader(path, (StructType) type, zone, leaf, false, false);
      case "array", "map" -> new CollectionReader(path, type, zone);
      default -> throw new UnsupportedOperationException(path + ": " + Types.shown(type));
    };
  }

  /** Reads a value that is not null, from its first token, and leaves the parser at its last. */
  abstract Object read(Scan scan, JsonToken token) throws IOException, Misfit;

  /** Reads a text by itself, as in CSV: numbers and dates are not in quotes there. */
  Object ofText(Scan scan, String text) throws IOException, Misfit {
    throw misfit(scan);
  }

  Object readOrNull(Scan scan, JsonToken token) throws IOException, Misfit {
    return token == JsonToken.VALUE_NULL ? null : read(scan, token);
  }

  final Misfit misfit(Scan scan) throws IOException {
    return wrong(scan, "does not fit " + Types.shown(type));
  }

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

  /** A number, unless it has what only Java's numbers have, such as digits of other scripts. */
  final String number(Scan scan, String text) throws IOException, Misfit {
    for (int at = 0; at < text.length(); at++) {
      if (NUMBER.indexOf(text.charAt(at)) < 0) {
        throw misfit(scan);
      }
    }
    return text;
  }
}

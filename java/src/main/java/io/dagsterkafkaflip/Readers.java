package io.dagsterkafkaflip;

import java.time.ZoneId;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructType;

/** Makes the readers of declared types. */
final class Readers {
  private final ZoneId zone;
  private int leaves;

  Readers(ZoneId zone) {
    this.zone = zone;
  }

  /** How many leaves a record's fields have: a STRUCT has those inside of it. */
  static int leavesOf(StructType struct) {
    Readers readers = new Readers(ZoneId.of("Z"));
    return readers.top("", struct, false).leaves;
  }

  /** A reader of a record's fields, whose leaves and undeclared names are noted. */
  StructReader top(String path, StructType type, boolean isOfTexts) {
    leaves = 0;
    return new StructReader(path, type, this, true, true, isOfTexts);
  }

  /** The number of the next leaf. */
  int nextLeaf() {
    return leaves++;
  }

  /** How many leaves there are so far. */
  int leaves() {
    return leaves;
  }

  /** A reader of values of a type. */
  ValueReader of(String path, DataType type) {
    return of(path, type, false);
  }

  /** As the other `of`; its leaves may be noted. */
  ValueReader of(String path, DataType type, boolean isWatched) {
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
      case "date", "timestamp_ntz" -> new Times(path, type);
      case "timestamp" -> new Times.Moment(path, type, zone);
      case "variant" -> new Variants(path, type);
      case "struct" -> new StructReader(path, (StructType) type, this, isWatched, false, false);
      case "array" -> new Collections.Array(path, (ArrayType) type, this);
      case "map" -> new Collections.Map(path, (MapType) type, this);
      default -> throw unreadable(path, type);
    };
  }

  static UnsupportedOperationException unreadable(String path, DataType type) {
    return new UnsupportedOperationException(
        "no value of JSON can be a " + Types.shown(type) + " (" + path + ")");
  }
}

package io.dagsterkafkaflip;

import java.time.ZoneId;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.CharType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.types.VarcharType;
import org.apache.spark.sql.types.VariantType;

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
    readers.top("", struct);
    return readers.leaves;
  }

  /** A reader of a record's fields, whose leaves and undeclared names are noted. */
  StructReader top(String path, StructType type) {
    leaves = 0;
    return new StructReader(path, type, this, true, true);
  }

  /** The number of the next leaf. */
  int nextLeaf() {
    return leaves++;
  }

  /** A reader of values of a type. */
  ValueReader of(String path, DataType type) {
    return of(path, type, false);
  }

  /**
   * As the other `of`.
   *
   * @param isWatched whether its leaves are noted
   */
  ValueReader of(String path, DataType type, boolean isWatched) {
    if (type instanceof StringType && !(type instanceof CharType || type instanceof VarcharType)) {
      return new Scalars.Text(path, type);
    }
    if (type instanceof LongType) {
      return new Scalars.Whole(path, type, Long.MAX_VALUE, number -> number);
    }
    if (type instanceof IntegerType) {
      return new Scalars.Whole(path, type, Integer.MAX_VALUE, number -> (int) number);
    }
    if (type instanceof ShortType) {
      return new Scalars.Whole(path, type, Short.MAX_VALUE, number -> (short) number);
    }
    if (type instanceof ByteType) {
      return new Scalars.Whole(path, type, Byte.MAX_VALUE, number -> (byte) number);
    }
    if (type instanceof DecimalType decimal) {
      return new DecimalReader(path, decimal);
    }
    if (type instanceof DoubleType || type instanceof FloatType) {
      return new Scalars.Broken(path, type, type instanceof FloatType);
    }
    if (type instanceof BooleanType) {
      return new Scalars.Truth(path, type);
    }
    if (type instanceof BinaryType) {
      return new Scalars.Bytes(path, type);
    }
    if (type instanceof DateType) {
      return new Times.Day(path, type);
    }
    if (type instanceof TimestampType) {
      return new Times.Moment(path, type, zone);
    }
    if (type instanceof TimestampNTZType) {
      return new Times.Local(path, type);
    }
    if (type instanceof VariantType) {
      return new Variants(path, type);
    }
    if (type instanceof StructType struct) {
      return new StructReader(path, struct, this, isWatched, false);
    }
    if (type instanceof ArrayType array) {
      return new Collections.Array(path, array, this);
    }
    if (type instanceof MapType map && map.keyType() instanceof StringType) {
      return new Collections.Map(path, map, this);
    }
    throw new IllegalArgumentException(
        "no value of JSON can be a " + Types.shown(type) + " (" + path + ")");
  }
}

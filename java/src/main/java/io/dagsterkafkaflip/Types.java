package io.dagsterkafkaflip;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Locale;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** What several classes ask of Spark's types. */
final class Types {
  private static final long FIRST_SECOND = -62_135_596_800L;
  private static final long LAST_SECOND = 253_402_300_799L;
  private static final int LONGEST = 60;

  /** Eight bytes of an array at once, and the highest bit of each. */
  static final VarHandle EIGHT =
      MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.nativeOrder());

  static final long HIGHEST = 0x8080808080808080L;

  private Types() {}

  /** The type with everything inside nullable, and without comments. */
  static DataType nullable(DataType type) {
    if (type instanceof StructType struct) {
      return new StructType(
          Arrays.stream(struct.fields())
              .map(field -> field(field.name(), nullable(field.dataType())))
              .toArray(StructField[]::new));
    }
    if (type instanceof ArrayType array) {
      return new ArrayType(nullable(array.elementType()), true);
    }
    if (type instanceof MapType map) {
      return new MapType(map.keyType(), nullable(map.valueType()), true);
    }
    return type;
  }

  /** Whether seconds since 1970 are in the years 1 to 9999. */
  static boolean isInYears(long seconds) {
    return seconds >= FIRST_SECOND && seconds <= LAST_SECOND;
  }

  /** Whether bytes from a place to another are UTF-8. */
  static boolean isUtf8(byte[] bytes, int from, int to) {
    long all = 0;
    int at = from;
    for (; at + Long.BYTES <= to; at += Long.BYTES) {
      all |= (long) EIGHT.get(bytes, at);
    }
    for (; at < to; at++) {
      all |= bytes[at];
    }
    boolean isAscii = (all & HIGHEST) == 0;
    return isAscii || UTF8String.fromBytes(bytes, from, to - from).isValid();
  }

  /** An array of values as Spark holds it. */
  static GenericArrayData array(Object[] values) {
    return new GenericArrayData(values);
  }

  /** A row of values as Spark holds it. */
  static InternalRow row(Object... values) {
    return new GenericInternalRow(values);
  }

  /** The type of an array's elements or a map's values; the type of nothing for others. */
  static DataType inside(DataType type) {
    if (type instanceof ArrayType array) {
      return array.elementType();
    }
    return type instanceof MapType map ? map.valueType() : DataTypes.NullType;
  }

  /** What kind of type it is, without what is in it. */
  static String name(DataType type) {
    return type.typeName().split("\\W", 2)[0];
  }

  static StructField field(String name, DataType type) {
    return new StructField(name, type, true, Metadata.empty());
  }

  static String shown(DataType type) {
    String name = type.catalogString();
    // Names of fields inside of it keep their case.
    name = name.contains("<") ? name : name.toUpperCase(Locale.ROOT);
    return name.length() <= LONGEST ? name : name.substring(0, LONGEST) + "...";
  }
}

package io.dagsterkafkaflip;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Collection;
import java.util.Locale;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.MapType;
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
      StructType made = new StructType();
      for (StructField field : struct.fields()) {
        made = made.add(field.name(), nullable(field.dataType()));
      }
      return made;
    }
    if (type instanceof ArrayType array) {
      return new ArrayType(nullable(array.elementType()), true);
    }
    if (type instanceof MapType map) {
      return new MapType(map.keyType(), nullable(map.valueType()), true);
    }
    return type;
  }

  static boolean isInYears(long seconds) {
    return seconds >= FIRST_SECOND && seconds <= LAST_SECOND;
  }

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

  static ArrayData array(Collection<?> values) {
    return new GenericArrayData(values.toArray());
  }

  static MapData map(Collection<?> keys, Collection<?> values) {
    return new ArrayBasedMapData(array(keys), array(values));
  }

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

  static String name(DataType type) {
    return type.typeName().split("\\W", 2)[0];
  }

  static String shown(DataType type) {
    String name = type.catalogString();
    // Names of fields inside of it keep their case.
    name = name.contains("<") ? name : name.toUpperCase(Locale.ROOT);
    return name.length() <= LONGEST ? name : name.substring(0, LONGEST) + "...";
  }
}

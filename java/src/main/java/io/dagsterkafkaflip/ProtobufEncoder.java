package io.dagsterkafkaflip;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Stream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Encodes rows as messages of Protobuf. What has no form there, Spark's expressions refused. */
final class ProtobufEncoder {
  private final List<Field> fields;

  ProtobufEncoder(StructType struct, JsonNode plan) {
    fields = fields(plan, types(struct));
  }

  byte[] encode(InternalRow row) {
    return message(fields, row);
  }

  /**
   * A field of a message.
   *
   * @param place its place in the row
   * @param single the type of a value; of a list, of its elements
   * @param oneof the name of what holds it, if that also holds other fields; else null
   * @param skips whether a value that is zero or empty is left out
   * @param fields those of a message; key and value of a map; what a wrapper holds
   */
  private record Field(
      int place,
      int number,
      String shape,
      String type,
      String oneof,
      boolean skips,
      DataType column,
      DataType single,
      List<Field> fields) {

    void write(WireOutput out, Object value) {
      switch (shape) {
        case "map" -> {
          MapData map = (MapData) value;
          ArrayData keys = map.keyArray();
          ArrayData values = map.valueArray();
          for (int place = 0; place < map.numElements(); place++) {
            WireOutput entry = new WireOutput();
            fields.get(0).write(entry, keys.get(place, fields.get(0).column));
            fields.get(1).write(entry, values.get(place, fields.get(1).column));
            out.tag(number, Wire.BYTES);
            out.bytes(entry.toByteArray());
          }
        }
        case "repeated" -> writeAll(out, (ArrayData) value);
        default -> {
          WireOutput single = new WireOutput();
          writeValue(single, value);
          if (!skips || !single.isZero()) {
            out.tag(number, wireType());
            single.addTo(out);
          }
        }
      }
    }

    private void writeAll(WireOutput out, ArrayData values) {
      boolean isPacked = wireType() != Wire.BYTES;
      WireOutput packed = isPacked ? new WireOutput() : out;
      for (int place = 0; place < values.numElements(); place++) {
        if (!isPacked) {
          out.tag(number, Wire.BYTES);
        }
        writeValue(packed, values.get(place, single));
      }
      if (isPacked && values.numElements() > 0) {
        out.tag(number, Wire.BYTES);
        out.bytes(packed.toByteArray());
      }
    }

    private int wireType() {
      boolean isMessage = type.equals("wrapper") || type.equals("timestamp");
      return isMessage ? Wire.BYTES : ProtobufScalar.wireType(type);
    }

    /** Writes what stands behind a tag. */
    private void writeValue(WireOutput out, Object value) {
      switch (type) {
        case "double" -> out.fixed(Double.doubleToRawLongBits((Double) value), Long.BYTES);
        case "float" -> out.fixed(Float.floatToRawIntBits((Float) value), Integer.BYTES);
        case "bool" -> out.varint((Boolean) value ? 1 : 0);
        case "bytes" -> out.bytes((byte[]) value);
        case "string" ->
            out.bytes(
                value instanceof Decimal decimal
                    ? UTF8String.fromString(decimal.toJavaBigDecimal().toPlainString()).getBytes()
                    : ((UTF8String) value).getBytes());
        case "message" -> out.bytes(message(fields, (InternalRow) value));
        case "wrapper" -> {
          WireOutput inner = new WireOutput();
          fields.get(0).write(inner, value);
          out.bytes(inner.toByteArray());
        }
        case "timestamp" -> out.bytes(timestamp((Long) value));
        case "fixed64", "sfixed64" -> out.fixed(whole(value), Long.BYTES);
        case "fixed32", "sfixed32" -> out.fixed(whole(value), Integer.BYTES);
        case "sint32", "sint64" -> out.varint(whole(value) << 1 ^ whole(value) >> 63);
        default -> out.varint(whole(value));
      }
    }
  }

  private static List<Field> fields(JsonNode plan, List<DataType> columns) {
    List<Field> found = new ArrayList<>();
    for (int place = 0; place < columns.size(); place++) {
      JsonNode given = plan.get(place);
      DataType column = columns.get(place);
      DataType single = column instanceof ArrayType array ? array.elementType() : column;
      String type = given.get("type").asText();
      List<DataType> inner = type.equals("wrapper") ? List.of(single) : types(single);
      found.add(
          new Field(
              place,
              given.get("number").asInt(),
              given.get("shape").asText(),
              type,
              given.get("oneof").asText(null),
              given.get("skips").asBoolean(),
              column,
              single,
              fields(given.get("fields"), inner)));
    }
    // As other writers order them: keys are compared by their bytes.
    found.sort(Comparator.comparingInt(Field::number));
    return found;
  }

  private static List<DataType> types(DataType type) {
    if (type instanceof MapType map) {
      return List.of(map.keyType(), map.valueType());
    }
    return type instanceof StructType struct
        ? Stream.of(struct.fields()).map(StructField::dataType).toList()
        : List.of();
  }

  private static byte[] message(List<Field> fields, InternalRow row) {
    WireOutput out = new WireOutput();
    Set<String> chosen = new HashSet<>(0);
    for (Field field : fields) {
      if (!row.isNullAt(field.place)) {
        if (field.oneof != null && !chosen.add(field.oneof)) {
          throw new IllegalArgumentException(
              "several fields of the oneof "
                  + field.oneof
                  + " have a value, and Protobuf keeps one");
        }
        field.write(out, row.get(field.place, field.column));
      }
    }
    return out.toByteArray();
  }

  private static byte[] timestamp(long micros) {
    WireOutput out = new WireOutput();
    long[] parts = {Math.floorDiv(micros, 1_000_000L), Math.floorMod(micros, 1_000_000L) * 1000};
    for (int place = 0; place < parts.length; place++) {
      if (parts[place] != 0) {
        out.tag(place + 1, Wire.VARINT);
        out.varint(parts[place]);
      }
    }
    return out.toByteArray();
  }

  /** A number as its 64 bits, which of large unsigned ones are those of a negative one. */
  private static long whole(Object value) {
    return value instanceof Decimal decimal
        ? decimal.toJavaBigDecimal().longValue()
        : ((Number) value).longValue();
  }
}

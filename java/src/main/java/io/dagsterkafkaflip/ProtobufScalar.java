package io.dagsterkafkaflip;

import com.fasterxml.jackson.databind.JsonNode;
import java.math.BigDecimal;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.unsafe.types.UTF8String;

/** Reads a scalar as a column's value. */
interface ProtobufScalar {
  Object read(Wire in) throws Misfit;

  /** The value of zero bytes, which is that of a field that is not there. */
  default Object absent() throws Misfit {
    return read(new Wire(new byte[Long.BYTES], 0, ""));
  }

  /** How a type's values are written. */
  static int wireType(String type) {
    return switch (type) {
      case "double", "fixed64", "sfixed64" -> Wire.FIXED64;
      case "float", "fixed32", "sfixed32" -> Wire.FIXED32;
      case "string", "bytes", "message" -> Wire.BYTES;
      case "group" -> Wire.GROUP;
      default -> Wire.VARINT;
    };
  }

  /**
   * What reads a type.
   *
   * @param given what the column's values are, by `as`; of an enum `names` by number
   */
  static ProtobufScalar of(String type, JsonNode given, String path) {
    Whole whole = whole(type);
    switch (given.get("as").asText()) {
      case "int":
        return in -> (int) whole.read(in);
      case "bigint":
        return whole::read;
      case "decimal":
        boolean isUnsigned = type.equals("uint64") || type.equals("fixed64");
        return in -> {
          long value = whole.read(in);
          return isUnsigned && value < 0
              ? Decimal.apply(new BigDecimal(Long.toUnsignedString(value)), 20, 0)
              : Decimal.apply(value, 20, 0);
        };
      case "enum":
        Map<Integer, UTF8String> names = new HashMap<>();
        for (Map.Entry<String, JsonNode> each : given.get("names").properties()) {
          UTF8String name = UTF8String.fromString(each.getValue().asText());
          names.put(Integer.valueOf(each.getKey()), name);
        }
        return in -> {
          int value = (int) whole.read(in);
          UTF8String name = names.get(value);
          return name == null ? UTF8String.fromString(Integer.toString(value)) : name;
        };
      case "boolean":
        return in -> in.varint() != 0;
      case "float":
        return in -> Float.intBitsToFloat(in.fixed32());
      case "double":
        return type.equals("float")
            ? in -> (double) Float.intBitsToFloat(in.fixed32())
            : in -> Double.longBitsToDouble(in.fixed64());
      case "string":
        return in -> {
          UTF8String text = in.text();
          if (text == null) {
            throw new Misfit("the value of " + path + " is not valid UTF-8");
          }
          return text;
        };
      default:
        return Wire::bytes;
    }
  }

  interface Whole {
    long read(Wire in) throws Misfit;
  }

  private static Whole whole(String type) {
    return switch (type) {
      case "int32", "enum" -> in -> (int) in.varint();
      case "uint32" -> in -> in.varint() & 0xffffffffL;
      case "sint32" -> in -> Wire.zigzag(in.varint() & 0xffffffffL);
      case "sint64" -> in -> Wire.zigzag(in.varint());
      case "fixed32" -> in -> in.fixed32() & 0xffffffffL;
      case "sfixed32" -> Wire::fixed32;
      case "fixed64", "sfixed64" -> Wire::fixed64;
      default -> Wire::varint;
    };
  }
}

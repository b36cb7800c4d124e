package io.dagsterkafkaflip;

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

  static int wireType(String type) {
    return switch (type) {
      case "double", "fixed64", "sfixed64" -> Wire.FIXED64;
      case "float", "fixed32", "sfixed32" -> Wire.FIXED32;
      case "string", "bytes", "message" -> Wire.BYTES;
      case "group" -> Wire.GROUP;
      default -> Wire.VARINT;
    };
  }

  /** What reads the values of a field that is no message. */
  static ProtobufScalar of(ProtobufMessage.FieldPlan field) {
    Whole whole = whole(field.type());
    return switch (field.as()) {
      case "int" -> in -> (int) whole.read(in);
      case "bigint" -> whole::read;
      case "decimal" -> {
        boolean isUnsigned = field.type().equals("uint64") || field.type().equals("fixed64");
        yield in -> {
          long value = whole.read(in);
          return isUnsigned && value < 0
              ? Decimal.apply(new BigDecimal(Long.toUnsignedString(value)), 20, 0)
              : Decimal.apply(value, 20, 0);
        };
      }
      case "enum" -> {
        Map<Integer, UTF8String> names = new HashMap<>();
        field.names().forEach((number, name) -> names.put(number, UTF8String.fromString(name)));
        yield in -> {
          int value = (int) whole.read(in);
          UTF8String name = names.get(value);
          return name == null ? UTF8String.fromString(Integer.toString(value)) : name;
        };
      }
      case "boolean" -> in -> in.varint() != 0;
      case "float" -> in -> Float.intBitsToFloat(in.fixed32());
      case "double" ->
          field.type().equals("float")
              ? in -> (double) Float.intBitsToFloat(in.fixed32())
              : in -> Double.longBitsToDouble(in.fixed64());
      case "string" ->
          in -> {
            UTF8String text = in.text(in.size());
            if (text == null) {
              throw new Misfit("the value of " + field.path() + " is not valid UTF-8");
            }
            return text;
          };
      default -> in -> in.bytes(in.size());
    };
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

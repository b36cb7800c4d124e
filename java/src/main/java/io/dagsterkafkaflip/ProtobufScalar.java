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
    Whole whole = whole(field);
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
      case "boolean" -> in -> fitting(in, 1, field) == 1;
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

  /** Protobuf's libraries cut a longer number, which is another one then. */
  private static long fitting(Wire in, long most, ProtobufMessage.FieldPlan field) throws Misfit {
    long value = in.varint();
    if (Long.compareUnsigned(value, most) > 0) {
      throw new Misfit("the value of " + field.path() + " does not fit " + field.type());
    }
    return value;
  }

  private static Whole whole(ProtobufMessage.FieldPlan field) {
    return switch (field.type()) {
      case "int32", "enum" ->
          in -> {
            long value = in.varint();
            if (value != (int) value) {
              throw new Misfit("the value of " + field.path() + " does not fit " + field.type());
            }
            return value;
          };
      case "uint32" -> in -> fitting(in, 0xffffffffL, field);
      case "sint32" -> in -> Wire.zigzag(fitting(in, 0xffffffffL, field));
      case "sint64" -> in -> Wire.zigzag(in.varint());
      case "fixed32" -> in -> in.fixed32() & 0xffffffffL;
      case "sfixed32" -> Wire::fixed32;
      case "fixed64", "sfixed64" -> Wire::fixed64;
      default -> Wire::varint;
    };
  }
}

package io.dagsterkafkaflip;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.unsafe.types.UTF8String;

/** Reads the values of one place of a writer's schema, as Spark holds those of the reader's. */
@FunctionalInterface
interface AvroReader {
  /** The next value; null for a null. */
  Object read(AvroInput input) throws Misfit;

  /** Reads what is not made of other values; a TIMESTAMP may be in milliseconds. */
  static AvroReader plain(Schema writer, DataType target, boolean isMillis) {
    boolean isInt = writer.getType() == Schema.Type.INT;
    String name = Types.name(target);
    return switch (writer.getType()) {
      case BOOLEAN -> AvroInput::readBoolean;
      case INT, LONG -> {
        AvroReader whole = isInt ? input -> (long) input.readInt() : AvroInput::readLong;
        yield switch (name) {
          case "double" -> input -> (double) (long) whole.read(input);
          case "float" -> input -> (float) (long) whole.read(input);
          case "timestamp", "timestamp_ntz" ->
              isMillis ? input -> micros((long) whole.read(input)) : whole;
          default -> isInt && !name.equals("long") ? AvroInput::readInt : whole;
        };
      }
      case FLOAT ->
          name.equals("double")
              ? input -> (double) Float.intBitsToFloat(input.fixed32())
              : input -> Float.intBitsToFloat(input.fixed32());
      case DOUBLE -> input -> Double.longBitsToDouble(input.fixed64());
      case STRING, BYTES, FIXED -> {
        int size = writer.getType() == Schema.Type.FIXED ? writer.getFixedSize() : -1;
        if (target instanceof DecimalType decimal) {
          yield input -> input.decimal(size < 0 ? input.length() : size, decimal);
        }
        boolean isText = writer.getType() == Schema.Type.STRING;
        if (isText && name.equals("binary")) {
          yield input -> input.text().getBytes();
        }
        yield isText || size < 0 && name.equals("string")
            ? AvroInput::text
            : input -> input.bytes(size < 0 ? input.length() : size);
      }
      default -> input -> null;
    };
  }

  private static long micros(long millis) throws Misfit {
    long micros = millis * 1_000;
    if (micros / 1_000 != millis) {
      throw new AvroInput.Unplaced("is beyond the range of TIMESTAMP");
    }
    return micros;
  }

  static AvroReader symbol(Schema writer, Schema reader) {
    UTF8String other = UTF8String.fromString(reader.getEnumDefault());
    UTF8String[] symbols =
        writer.getEnumSymbols().stream()
            .map(each -> reader.hasEnumSymbol(each) ? UTF8String.fromString(each) : other)
            .toArray(UTF8String[]::new);
    return input -> {
      UTF8String symbol = symbols[input.number(symbols.length)];
      if (symbol == null) {
        throw new AvroInput.Unplaced("has a symbol that the reader's enum lacks");
      }
      return symbol;
    };
  }

  /** Reads an array, or a map. */
  static AvroReader several(AvroReader element, boolean isMap) {
    return input -> {
      List<UTF8String> keys = new ArrayList<>();
      List<Object> values = new ArrayList<>();
      for (long left; (left = input.block()) > 0; ) {
        for (; left > 0; left--) {
          if (isMap) {
            keys.add(input.text());
          }
          values.add(element.read(input));
        }
      }
      if (isMap && new HashSet<>(keys).size() < keys.size()) {
        throw new AvroInput.Unplaced("has a key twice");
      }
      return isMap ? Types.map(keys, values) : Types.array(values);
    };
  }

  /**
   * Reads a record's fields in the writer's order.
   *
   * @param places where the value of each goes in the reader's record, or -1; null for nowhere
   * @param paths how an error names each; null for what is around the record
   * @param defaults the values of the reader's fields that the writer lacks
   */
  static AvroReader record(AvroReader[] readers, int[] places, String[] paths, Object[] defaults) {
    return input -> {
      Object[] values = defaults.clone();
      int each = 0;
      try {
        input.enter();
        for (; each < readers.length; each++) {
          Object value = readers[each].read(input);
          if (places != null && places[each] >= 0) {
            values[places[each]] = value;
          }
        }
      } catch (AvroInput.Unplaced unplaced) {
        if (paths == null) {
          throw unplaced;
        }
        throw new Misfit("the value of " + paths[each] + " " + unplaced.getMessage());
      }
      input.depth--;
      return Types.row(values);
    };
  }

  /** A field's default in Avro's encoding. Python has looked at whether it fits. */
  static AvroInput defaultOf(Schema.Field field) {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    BinaryEncoder encoder = EncoderFactory.get().directBinaryEncoder(bytes, null);
    try {
      Object value = GenericData.get().getDefaultValue(field);
      new GenericDatumWriter<>(field.schema()).write(value, encoder);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    AvroInput input = new AvroInput();
    input.open(bytes.toByteArray(), 0);
    return input;
  }
}

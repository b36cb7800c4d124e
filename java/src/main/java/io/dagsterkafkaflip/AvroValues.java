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
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.unsafe.types.UTF8String;

/** The readers of single types. */
final class AvroValues {
  private AvroValues() {}

  /**
   * Reads what is not made of other values.
   *
   * @param isMillis whether a TIMESTAMP is written in milliseconds
   */
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
          name.equals("double") ? input -> (double) input.readFloat() : AvroInput::readFloat;
      case DOUBLE -> AvroInput::readDouble;
      case STRING, BYTES -> {
        if (target instanceof DecimalType decimal) {
          yield input -> input.decimal(input.length(), decimal);
        }
        boolean isText = writer.getType() == Schema.Type.STRING;
        if (isText && name.equals("binary")) {
          yield input -> input.text().getBytes();
        }
        yield isText || name.equals("string")
            ? AvroInput::text
            : input -> input.bytes(input.length());
      }
      case FIXED -> {
        int size = writer.getFixedSize();
        yield target instanceof DecimalType decimal
            ? input -> input.decimal(size, decimal)
            : input -> input.bytes(size);
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

  static AvroReader union(AvroReader[] branches) {
    return input -> branches[input.number(branches.length)].read(input);
  }

  static AvroReader array(AvroReader element) {
    return input -> {
      List<Object> values = new ArrayList<>();
      long count;
      while ((count = input.block()) > 0) {
        for (long each = 0; each < count; each++) {
          values.add(element.read(input));
        }
      }
      return Types.array(values.toArray());
    };
  }

  static AvroReader map(AvroReader value) {
    return input -> {
      List<UTF8String> keys = new ArrayList<>();
      List<Object> values = new ArrayList<>();
      long count;
      while ((count = input.block()) > 0) {
        for (long each = 0; each < count; each++) {
          keys.add(input.text());
          values.add(value.read(input));
        }
      }
      if (new HashSet<>(keys).size() < keys.size()) {
        throw new AvroInput.Unplaced("has a key twice");
      }
      return new ArrayBasedMapData(Types.array(keys.toArray()), Types.array(values.toArray()));
    };
  }

  /**
   * Reads a record's fields in the writer's order.
   *
   * @param readers of each of the writer's fields
   * @param places where its value goes in the reader's record; -1 for nowhere
   * @param paths how an error names it; null for what is around the record
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
          if (places[each] >= 0) {
            values[places[each]] = value;
          }
        }
      } catch (AvroInput.Unplaced unplaced) {
        if (paths == null) {
          throw unplaced;
        }
        throw new Misfit("the value of " + paths[each] + " " + unplaced.getMessage());
      }
      input.leave();
      return Types.row(values);
    };
  }

  /** A field's default in Avro's encoding. Python has looked at whether it fits. */
  static AvroInput defaultOf(Schema.Field field) {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
    try {
      Object value = GenericData.get().getDefaultValue(field);
      new GenericDatumWriter<>(field.schema()).write(value, encoder);
      encoder.flush();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    AvroInput input = new AvroInput();
    input.open(bytes.toByteArray(), 0);
    return input;
  }
}

package io.dagsterkafkaflip;

import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;

/** Readers of what only the writer has. Their values are null. */
final class AvroSkips {
  private final Map<Schema, AvroReader> records = new IdentityHashMap<>();

  AvroReader of(Schema schema) {
    return switch (schema.getType()) {
      case NULL -> input -> null;
      case BOOLEAN -> AvroInput::readBoolean;
      case INT -> AvroInput::readInt;
      case LONG -> AvroInput::readLong;
      case FLOAT -> input -> input.skip(Float.BYTES);
      case DOUBLE -> input -> input.skip(Double.BYTES);
      case STRING, BYTES -> input -> input.skip(input.length());
      case FIXED -> input -> input.skip(schema.getFixedSize());
      case ENUM -> input -> input.number(schema.getEnumSymbols().size());
      case ARRAY -> elements(of(schema.getElementType()));
      case MAP -> {
        AvroReader value = of(schema.getValueType());
        yield elements(
            input -> {
              input.skip(input.length());
              return value.read(input);
            });
      }
      case UNION -> {
        AvroReader[] branches = schema.getTypes().stream().map(this::of).toArray(AvroReader[]::new);
        yield input -> branches[input.number(branches.length)].read(input);
      }
      case RECORD -> record(schema);
    };
  }

  private static AvroReader elements(AvroReader element) {
    return input -> {
      long count;
      while ((count = input.block()) > 0) {
        for (long each = 0; each < count; each++) {
          element.read(input);
        }
      }
      return null;
    };
  }

  private AvroReader record(Schema schema) {
    AvroReader known = records.get(schema);
    if (known != null) {
      return known;
    }
    List<Schema.Field> fields = schema.getFields();
    AvroReader[] readers = new AvroReader[fields.size()];
    AvroReader made =
        input -> {
          input.enter();
          for (AvroReader each : readers) {
            each.read(input);
          }
          input.leave();
          return null;
        };
    // Before those inside of it, which may refer to it.
    records.put(schema, made);
    for (int place = 0; place < readers.length; place++) {
      readers[place] = of(fields.get(place).schema());
    }
    return made;
  }
}

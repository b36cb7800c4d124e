package io.dagsterkafkaflip;

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.stream.Stream;
import org.apache.avro.AvroRuntimeException;
import org.apache.avro.JsonProperties;
import org.apache.avro.Schema;
import org.apache.avro.Schema.Type;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * Decides which types of a reader's schema a writer's are read as, by the Avro specification's
 * section "Schema Resolution".
 *
 * <p>Avro does not compare logical types: it would read a time in milliseconds as one in
 * microseconds, a decimal of scale 2 as one of scale 4, and the bytes of a decimal as a text. Here
 * such schemas don't fit. Debezium's times have a name in place of a logical type.
 */
final class AvroResolution {
  /** On a reader's record that records of every name are read as; the same text as in Python. */
  private static final String ANY_NAME = "dagster_kafka_flip_any_name";

  /** Each is promoted to those behind it. */
  private static final List<Type> NUMBERS = List.of(Type.INT, Type.LONG, Type.FLOAT, Type.DOUBLE);

  private static final Set<Type> NAMED = Set.of(Type.RECORD, Type.ENUM, Type.FIXED);
  private static final String DEBEZIUM_TIME = "io.debezium.time.";
  private static final Map<String, String> AS_AVRO =
      Map.of(
          DEBEZIUM_TIME + "Date", "date",
          DEBEZIUM_TIME + "Time", "time-millis",
          DEBEZIUM_TIME + "MicroTime", "time-micros",
          DEBEZIUM_TIME + "Timestamp", "timestamp-millis",
          DEBEZIUM_TIME + "MicroTimestamp", "timestamp-micros",
          DEBEZIUM_TIME + "NanoTimestamp", "timestamp-nanos");

  private final Map<String, AvroReader> skipped = new HashMap<>();

  private static Misfit mismatch(String path, String why) {
    return new Misfit((path.isEmpty() ? "" : path + ": ") + why);
  }

  AvroReader of(Schema writer, Schema reader, DataType target, String path) throws Misfit {
    if (writer.getType() != Type.UNION) {
      return branch(writer, reader, target, path);
    }
    AvroReader[] branches = new AvroReader[writer.getTypes().size()];
    Misfit last = mismatch(path, "an empty union");
    boolean isReadable = false;
    for (int number = 0; number < branches.length; number++) {
      try {
        branches[number] = branch(writer.getTypes().get(number), reader, target, path);
        isReadable = true;
      } catch (Misfit misfit) {
        // Each record shows whether its branch fits.
        branches[number] =
            input -> {
              throw misfit;
            };
        last = misfit;
      }
    }
    if (!isReadable) {
      throw last;
    }
    return input -> branches[input.number(branches.length)].read(input);
  }

  private AvroReader branch(Schema writer, Schema reader, DataType target, String path)
      throws Misfit {
    if (reader.getType() != Type.UNION) {
      return single(writer, reader, target, path);
    }
    List<Schema> readers = reader.getTypes();
    // The first of those that are most alike; else the first that the type may be promoted to.
    Schema found =
        readers.stream()
            .filter(each -> likeness(writer, each) > 0 || readers.size() == 1)
            .reduce((one, other) -> likeness(writer, other) > likeness(writer, one) ? other : one)
            .or(() -> readers.stream().filter(each -> promotes(writer, each)).findFirst())
            .orElse(null);
    if (found == null) {
      throw mismatch(path, "no branch of the reader's union matches " + shown(writer));
    }
    List<Schema> members = readers.stream().filter(each -> each.getType() != Type.NULL).toList();
    int place = members.indexOf(found);
    // Two numbers have one column, which is no STRUCT.
    if (place < 0 || members.size() == 1 || !(target instanceof StructType struct)) {
      return single(writer, found, target, path);
    }
    AvroReader member = single(writer, found, struct.fields()[place].dataType(), path);
    return input -> {
      Object[] values = new Object[members.size()];
      values[place] = member.read(input);
      return Types.row(values);
    };
  }

  private AvroReader single(Schema writer, Schema reader, DataType target, String path)
      throws Misfit {
    if (writer.getType() != reader.getType() && !promotes(writer, reader)) {
      throw mismatch(path, shown(writer) + " can't be read as " + shown(reader));
    }
    checkLogical(writer, reader, path);
    if (likeness(writer, reader) == 0 && !promotes(writer, reader)) {
      String why =
          "the %s is not the reader's %s (if it is, the reader's needs that name among its"
              + " aliases)";
      throw mismatch(path, why.formatted(shown(writer), reader.getFullName()));
    }
    boolean isFixed = reader.getType() == Type.FIXED;
    if (isFixed && writer.getFixedSize() != reader.getFixedSize()) {
      String why = writer.getFixedSize() + " bytes can't be read as " + reader.getFixedSize();
      throw mismatch(path, why);
    }
    DataType inner = Types.inside(target);
    return switch (reader.getType()) {
      case RECORD ->
          target instanceof StructType struct
              ? record(writer, reader, struct, path)
              : skippedRecord(writer);
      case ARRAY ->
          AvroReader.several(
              of(writer.getElementType(), reader.getElementType(), inner, path + "[]"), false);
      case MAP ->
          AvroReader.several(
              of(writer.getValueType(), reader.getValueType(), inner, path + "{}"), true);
      case ENUM -> AvroReader.symbol(writer, reader);
      default ->
          AvroReader.plain(writer, target, Objects.toString(logical(reader)).endsWith("-millis"));
    };
  }

  private AvroReader record(Schema writer, Schema reader, StructType target, String path)
      throws Misfit {
    int size = writer.getFields().size();
    AvroReader[] readers = new AvroReader[size];
    String[] paths = new String[size];
    int[] places = new int[size];
    Arrays.fill(places, -1);
    for (Schema.Field field : writer.getFields()) {
      readers[field.pos()] = skipped(field.schema());
      paths[field.pos()] = inside(path, field.name());
    }
    Object[] defaults = new Object[reader.getFields().size()];
    for (Schema.Field field : reader.getFields()) {
      String inner = inside(path, field.name());
      DataType type = target.fields()[field.pos()].dataType();
      // A name comes before all aliases, and a field is read once.
      Stream<String> names =
          writer.getField(field.name()) != null
              ? Stream.of(field.name())
              : field.aliases().stream().filter(each -> reader.getField(each) == null);
      List<Schema.Field> found = names.map(writer::getField).filter(Objects::nonNull).toList();
      if (found.isEmpty()) {
        defaults[field.pos()] = defaultOf(field, type, inner);
        continue;
      }
      int number = found.get(0).pos();
      if (found.size() > 1 || places[number] >= 0) {
        throw mismatch(
            inner, "by the aliases, several fields would be read as one, or one as several");
      }
      readers[number] = of(found.get(0).schema(), field.schema(), type, inner);
      paths[number] = inner;
      places[number] = field.pos();
    }
    return AvroReader.record(readers, places, paths, defaults);
  }

  /** A reader of what only the writer has: as itself, but not as a column. */
  private AvroReader skipped(Schema schema) throws Misfit {
    return of(schema, schema, DataTypes.NullType, "");
  }

  private AvroReader skippedRecord(Schema schema) throws Misfit {
    AvroReader known = skipped.get(schema.getFullName());
    if (known != null) {
      return known;
    }
    AvroReader[] readers = new AvroReader[schema.getFields().size()];
    AvroReader made = AvroReader.record(readers, null, null, new Object[0]);
    // Before those inside of it, which may refer to it.
    skipped.put(schema.getFullName(), made);
    for (Schema.Field field : schema.getFields()) {
      readers[field.pos()] = skipped(field.schema());
    }
    return made;
  }

  private Object defaultOf(Schema.Field field, DataType type, String path) throws Misfit {
    if (!field.hasDefaultValue()) {
      throw mismatch(path, "the writer lacks this field, and the reader has no default for it");
    }
    if (isNull(field)) {
      return null;
    }
    try {
      return of(field.schema(), field.schema(), type, path).read(AvroReader.defaultOf(field));
    } catch (AvroInput.Unplaced unplaced) {
      throw mismatch(path, "the reader's default " + unplaced.getMessage());
    }
  }

  /** Whether a field's default is null, of which Avro may make an array, a map or a record. */
  private static boolean isNull(Schema.Field field) {
    try {
      return field.defaultVal() == JsonProperties.NULL_VALUE;
    } catch (AvroRuntimeException error) {
      // Such as of a default that is an array, where the union's first branch is none.
      return false;
    }
  }

  private static String inside(String path, String name) {
    return path.isEmpty() ? name : path + "." + name;
  }

  private static boolean promotes(Schema writer, Schema reader) {
    Type from = writer.getType();
    Type to = reader.getType();
    boolean isWider = NUMBERS.contains(from) && NUMBERS.indexOf(from) < NUMBERS.indexOf(to);
    return isWider
        || from == Type.STRING && to == Type.BYTES
        || from == Type.BYTES && to == Type.STRING;
  }

  /** How well a type fits without a promotion: 0 not at all, more by name than by alias. */
  private static int likeness(Schema writer, Schema reader) {
    if (writer.getType() != reader.getType()) {
      return 0;
    }
    if (!NAMED.contains(reader.getType()) || writer.getFullName().equals(reader.getFullName())) {
      return 3;
    }
    String name = writer.getName();
    if (name.equals(reader.getName())) {
      return 2;
    }
    boolean isAlias =
        reader.getAliases().stream()
            .anyMatch(each -> each.substring(each.lastIndexOf('.') + 1).equals(name));
    return isAlias || Boolean.TRUE.equals(reader.getObjectProp(ANY_NAME)) ? 1 : 0;
  }

  private static void checkLogical(Schema writer, Schema reader, String path) throws Misfit {
    String written = logical(writer);
    String read = logical(reader);
    if ((written + read).contains("decimal") && writer.getType() != reader.getType()) {
      throw mismatch(path, shown(writer) + " can't be read as " + shown(reader));
    }
    if (written != null && read != null && !areSame(written, read)) {
      String declare = "; the reader schema must declare " + written;
      throw mismatch(path, "a " + written + " would be read as a " + read + declare);
    }
  }

  /** The logical type, or the name of Debezium's time; null if there is none. */
  private static String logical(Schema schema) {
    String type = schema.getProp("logicalType");
    if ("decimal".equals(type)) {
      return type + " of scale " + Objects.requireNonNullElse(schema.getObjectProp("scale"), 0);
    }
    String name = schema.getProp("connect.name");
    return type != null || name == null || !name.startsWith(DEBEZIUM_TIME) ? type : name;
  }

  /** Whether two logical types mean the same. Debezium's have no zone, so local ones fit them. */
  private static boolean areSame(String written, String read) {
    String one = AS_AVRO.getOrDefault(written, written);
    String other = AS_AVRO.getOrDefault(read, read);
    boolean isDebezium = !one.equals(written) || !other.equals(read);
    return one.equals(other)
        || isDebezium && one.replace("local-", "").equals(other.replace("local-", ""));
  }

  private static String shown(Schema schema) {
    String logical = logical(schema);
    String more = NAMED.contains(schema.getType()) ? " " + schema.getFullName() : "";
    return schema.getType().getName() + more + (logical == null ? "" : " (" + logical + ")");
  }
}

package io.dagsterkafkaflip;

import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Where a format has what all formats of changes have.
 *
 * @param name what a record of it is, as an error names it
 * @param kind the field that says what a change does
 * @param ops what each of its values does
 * @param expected its values, as an error names them
 * @param events its values for records without a row
 * @param after the field with the row after a change
 * @param before the field with the row before it
 * @param isPartial whether `before` has only what an update changed; then a deleted row is in
 *     `after`
 * @param unitsOfSecond the unit of times that are numbers
 * @param parts what may land with a row
 */
record ChangeFormat(
    String name,
    String kind,
    Map<String, UTF8String> ops,
    String expected,
    Map<String, String> events,
    String after,
    String before,
    boolean isPartial,
    long unitsOfSecond,
    List<Part> parts) {

  static final UTF8String INSERT = UTF8String.fromString("insert");
  static final UTF8String UPDATE = UTF8String.fromString("update");
  static final UTF8String DELETE = UTF8String.fromString("delete");
  static final UTF8String READ = UTF8String.fromString("read");
  static final UTF8String TRUNCATE = UTF8String.fromString("truncate");

  private static final DataType TEXT = DataTypes.StringType;
  private static final DataType TEXTS = DataTypes.createArrayType(TEXT);
  private static final DataType PROPERTIES = DataTypes.createMapType(TEXT, TEXT);
  private static final DataType TIME = DataTypes.TimestampType;
  private static final DataType CLOCK = DataTypes.TimestampNTZType;

  static final ChangeFormat DEBEZIUM =
      new ChangeFormat(
          "an event of Debezium",
          "op",
          Map.of("c", INSERT, "u", UPDATE, "d", DELETE, "r", READ, "t", TRUNCATE),
          "c, u, d, r, t or m",
          Map.of("m", "message"),
          "after",
          "before",
          false,
          1_000,
          List.of(
              new Part("ingestion_timestamp", "ts_ms", TIME),
              new Part("source_timestamp", "source.ts_ms", TIME),
              new Part("source_database", "source.db", TEXT),
              new Part("source_schema", "source.schema", TEXT),
              new Part("source_table", "source.table", TEXT),
              new Part("source_snapshot", "source.snapshot", TEXT),
              new Part("source_lsn", "source.lsn", DataTypes.LongType),
              new Part("source_pos", "source.pos", DataTypes.LongType),
              new Part("source_gtid", "source.gtid", TEXT),
              new Part("source_tx_id", "source.txId", TEXT),
              new Part("source_properties", "source", PROPERTIES)));

  static final ChangeFormat MAXWELL =
      new ChangeFormat(
          "a change of Maxwell",
          "type",
          Map.of("insert", INSERT, "update", UPDATE, "delete", DELETE, "bootstrap-insert", READ),
          "insert, update, delete, bootstrap-insert",
          Map.of(
              "bootstrap-start", "bootstrap",
              "bootstrap-complete", "bootstrap",
              "database-create", "schema change",
              "database-alter", "schema change",
              "database-drop", "schema change",
              "table-create", "schema change",
              "table-alter", "schema change",
              "table-drop", "schema change"),
          "data",
          "old",
          true,
          1,
          List.of(
              new Part("source_database", "database", TEXT),
              new Part("source_table", "table", TEXT),
              new Part("source_timestamp", "ts", TIME),
              new Part("primary_key", "primary_key_columns", TEXTS)));

  static final ChangeFormat CANAL =
      new ChangeFormat(
          "a change of Canal",
          "type",
          Map.of("INSERT", INSERT, "UPDATE", UPDATE, "DELETE", DELETE, "TRUNCATE", TRUNCATE),
          "INSERT, UPDATE, DELETE, TRUNCATE",
          Map.of(),
          "data",
          "old",
          true,
          1_000,
          List.of(
              new Part("source_database", "database", TEXT),
              new Part("source_table", "table", TEXT),
              new Part("source_timestamp", "es", TIME),
              new Part("ingestion_timestamp", "ts", TIME),
              new Part("primary_key", "pkNames", TEXTS)));

  static final ChangeFormat OGG =
      new ChangeFormat(
          "a change of Ogg",
          "op_type",
          Map.of("I", INSERT, "U", UPDATE, "D", DELETE, "T", TRUNCATE),
          "I, U, D, T",
          Map.of(),
          "after",
          "before",
          false,
          1,
          List.of(
              new Part("source_table", "table", TEXT),
              new Part("source_timestamp", "op_ts", CLOCK),
              new Part("ingestion_timestamp", "current_ts", CLOCK),
              new Part("primary_key", "primary_keys", TEXTS)));

  /**
   * What may land with a row.
   *
   * @param name its column
   * @param field the field that has it, perhaps one of those in `source`
   * @param type its type
   */
  record Part(String name, String field, DataType type) {
    /** The field at the record's top that it is in. */
    String top() {
      return field.startsWith("source.") ? "source" : field;
    }

    /** How that field is read from JSON. */
    DataType written() {
      return top().equals("source") ? PROPERTIES : type == TEXTS ? TEXTS : TEXT;
    }

    /** Its value; null if what is written does not fit. */
    private Object value(Object written, long unitsOfSecond) {
      if (type == TEXTS || type == PROPERTIES) {
        return written;
      }
      boolean isPlain =
          written instanceof UTF8String || written instanceof Number || written instanceof Boolean;
      if (!isPlain || type == TEXT) {
        return isPlain ? UTF8String.fromString(written.toString()) : null;
      }
      if (type == CLOCK) {
        char[] text = written.toString().toCharArray();
        TimeText time = new TimeText();
        return time.read(text, 0, text.length) && !time.hasOffset ? time.local() : null;
      }
      long number;
      try {
        number = Long.parseLong(written.toString());
      } catch (NumberFormatException error) {
        return null;
      }
      if (type == TIME && !Types.isInYears(Math.floorDiv(number, unitsOfSecond))) {
        return null;
      }
      return type == TIME ? number * (1_000_000 / unitsOfSecond) : number;
    }
  }

  StructType result(StructType declared) {
    return Found.type(type(declared, PROPERTIES), declared);
  }

  /**
   * The columns of a change.
   *
   * @param declared those of its row
   * @param source the type of Debezium's `source` as a whole
   */
  StructType type(StructType declared, DataType source) {
    DataType row = Types.nullable(declared);
    StructType both = new StructType().add(Types.field("row", row)).add(Types.field("before", row));
    StructType about = new StructType();
    for (Part part : parts) {
      about = about.add(Types.field(part.name, part.type == PROPERTIES ? source : part.type));
    }
    StructType type = new StructType().add(Types.field("event", TEXT)).add(Types.field("op", TEXT));
    if (this == DEBEZIUM) {
      type = type.add(both.apply("row")).add(both.apply("before"));
      type = type.add(Types.field("unavailable", TEXTS));
    } else {
      type = type.add(Types.field("rows", DataTypes.createArrayType(both)));
    }
    return type.add(Types.field("about", about));
  }

  /** Which event without a row a record is; null if it is a change, or unknown. */
  String event(String kind, Options options) {
    return ops.get(kind) == TRUNCATE && options.is("skip_truncate") ? "truncate" : events.get(kind);
  }

  /** What a change does. */
  UTF8String op(String kind) throws Misfit {
    if (kind == null) {
      throw new Misfit("not " + name + ": it has no " + this.kind);
    }
    UTF8String op = ops.get(kind);
    if (op == null) {
      String unknown = "not %s: its %s is unknown (expected %s)";
      throw new Misfit(unknown.formatted(name, this.kind, expected));
    }
    return op;
  }

  /** The field with the row that a change lands. */
  String shown(UTF8String op) {
    return op == DELETE && !isPartial ? before : after;
  }

  static Misfit wrong(UTF8String op, String what) {
    return new Misfit("the " + op + " event " + what);
  }

  /** What is asked for of a change's parts, by the values of their fields. */
  InternalRow about(Options options, Function<String, Object> fields) throws Misfit {
    Object[] values = new Object[parts.size()];
    for (int place = 0; place < values.length; place++) {
      Part part = parts.get(place);
      Object written = options.asksFor(part.name) ? fields.apply(part.field) : null;
      values[place] = written == null ? null : part.value(written, unitsOfSecond);
      if (written != null && values[place] == null) {
        throw new Misfit(part.field + " does not fit " + part.name);
      }
    }
    return Types.row(values);
  }
}

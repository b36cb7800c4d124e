package io.dagsterkafkaflip;

import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.function.Predicate;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Where a format has what all formats of changes have.
 *
 * @param kind the field that says what a change does: one of `ops`, or of `events` without a row
 * @param expected all of them, as an error names them
 * @param events by regular expressions
 * @param isPartial whether `before` has only what an update changed; then a deleted row is in
 *     `after`
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
              "bootstrap-(start|complete)", "bootstrap",
              "(database|table)-(create|alter|drop)", "schema change"),
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

  /** A column that may land with a row, and the field that has it, perhaps inside of `source`. */
  record Part(String name, String field, DataType type) {
    String top() {
      return field.startsWith("source.") ? "source" : field;
    }

    DataType written() {
      return top().equals("source") ? PROPERTIES : type == TEXTS ? TEXTS : TEXT;
    }

    /** Its value; null if what is written does not fit. */
    private Object value(Object written, long unitsOfSecond) {
      if (type == TEXTS || type == PROPERTIES) {
        return written;
      }
      String text = written.toString();
      if (!(written instanceof UTF8String
          || written instanceof Number
          || written instanceof Boolean)) {
        return null;
      }
      if (type == TEXT) {
        return UTF8String.fromString(text);
      }
      if (type == CLOCK) {
        TimeText time = new TimeText();
        return time.read(text.toCharArray(), 0, text.length()) && !time.hasOffset
            ? time.local()
            : null;
      }
      try {
        long number = Long.parseLong(text);
        if (type != TIME) {
          return number;
        }
        boolean fits = Types.isInYears(Math.floorDiv(number, unitsOfSecond));
        return fits ? number * (1_000_000 / unitsOfSecond) : null;
      } catch (NumberFormatException error) {
        return null;
      }
    }
  }

  StructType result(StructType declared) {
    return Found.type(type(declared, PROPERTIES), declared);
  }

  /** The columns of a change whose row has declared ones; `source` is of Debezium's as a whole. */
  StructType type(StructType declared, DataType source) {
    DataType row = Types.nullable(declared);
    StructType both = new StructType().add("row", row).add("before", row);
    StructType about = new StructType();
    for (Part part : parts) {
      about = about.add(part.name, part.type == PROPERTIES ? source : part.type);
    }
    StructType type = new StructType().add("event", TEXT).add("op", TEXT);
    return (this == DEBEZIUM
            ? type.add("row", row).add("before", row).add("unavailable", TEXTS)
            : type.add("rows", DataTypes.createArrayType(both)))
        .add("about", about);
  }

  /** Which event without a row a record is; null if it is a change, or unknown. */
  String event(String kind, Options options) {
    if (ops.containsKey(kind)) {
      return ops.get(kind) == TRUNCATE && options.is("skip_truncate") ? "truncate" : null;
    }
    return lookUp(events, kind::matches);
  }

  static String lookUp(Map<String, String> map, Predicate<String> fits) {
    return map.keySet().stream().filter(fits).findFirst().map(map::get).orElse(null);
  }

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

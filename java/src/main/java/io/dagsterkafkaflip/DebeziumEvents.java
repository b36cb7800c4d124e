package io.dagsterkafkaflip;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** What Debezium's events mean, however they are encoded. */
final class DebeziumEvents {
  /** How many columns an event has before the problem. */
  static final int WIDTH = 6;

  private static final String PROPERTIES = "source_properties";

  /** The metadata, the fields that they are in (of `source` but for the first), and their types. */
  private static final Object[][] ABOUT = {
    {"ingestion_timestamp", "ts_ms", DataTypes.TimestampType},
    {"source_timestamp", "ts_ms", DataTypes.TimestampType},
    {"source_database", "db", DataTypes.StringType},
    {"source_schema", "schema", DataTypes.StringType},
    {"source_table", "table", DataTypes.StringType},
    {"source_snapshot", "snapshot", DataTypes.StringType},
    {"source_lsn", "lsn", DataTypes.LongType},
    {"source_pos", "pos", DataTypes.LongType},
    {"source_gtid", "gtid", DataTypes.StringType},
    {"source_tx_id", "txId", DataTypes.StringType},
  };

  private static final Map<String, UTF8String> OPS =
      Map.of(
          "c", ChangeDecoder.INSERT,
          "u", ChangeDecoder.UPDATE,
          "d", ChangeDecoder.DELETE,
          "r", ChangeDecoder.READ,
          "t", ChangeDecoder.TRUNCATE);

  private final StructType declared;
  private final Options options;
  private final Placeholder placeholder;

  DebeziumEvents(StructType declared, Options options) {
    this.declared = declared;
    this.options = options;
    placeholder = new Placeholder(options.text("placeholder"));
  }

  /**
   * The columns of an event.
   *
   * @param declared those of its row
   * @param source the type of `source` as a whole
   */
  static StructType type(StructType declared, DataType source) {
    DataType row = Types.nullable(declared);
    StructType about = new StructType();
    for (Object[] each : ABOUT) {
      about = about.add(Types.field((String) each[0], (DataType) each[2]));
    }
    return new StructType()
        .add(Types.field("event", DataTypes.StringType))
        .add(Types.field("op", DataTypes.StringType))
        .add(Types.field("row", row))
        .add(Types.field("before", row))
        .add(Types.field("unavailable", DataTypes.createArrayType(DataTypes.StringType)))
        .add(Types.field("about", about.add(Types.field(PROPERTIES, source))));
  }

  boolean needsTime() {
    return options.asksFor((String) ABOUT[0][0]);
  }

  boolean needsSource() {
    return options.asksForAny("source_");
  }

  /** Which event without a row an op is; null if it is a change, or unknown. */
  String event(String letter) {
    if (letter.equals("t") && options.is("skip_truncate")) {
      return "truncate";
    }
    return letter.equals("m") ? "message" : null;
  }

  /** What a change does. */
  static UTF8String op(String letter) throws Misfit {
    if (letter == null) {
      throw new Misfit("not an event of Debezium: it has no op");
    }
    UTF8String op = OPS.get(letter);
    if (op == null) {
      throw new Misfit("not an event of Debezium: its op is unknown (expected c, u, d, r, t or m)");
    }
    return op;
  }

  static Misfit lacksRow(UTF8String op) {
    return ChangeDecoder.wrong(op, "has no " + (op == ChangeDecoder.DELETE ? "before" : "after"));
  }

  /**
   * The columns of a change. The row and the one before it get nulls in place of placeholders.
   *
   * @param about from `about`
   */
  Object[] change(UTF8String op, InternalRow row, InternalRow earlier, InternalRow about) {
    Object unavailable = row == null ? null : withoutPlaceholders(row);
    if (earlier != null && earlier != row) {
      withoutPlaceholders(earlier);
    }
    InternalRow before = options.asksFor("before") ? earlier : null;
    return new Object[] {null, op, row, before, unavailable, about};
  }

  /**
   * Makes nulls of placeholders, and returns the names of these columns; null if there are none.
   */
  private Object withoutPlaceholders(InternalRow row) {
    StructField[] columns = declared.fields();
    List<UTF8String> names = new ArrayList<>();
    for (int place = 0; place < columns.length; place++) {
      DataType type = columns[place].dataType();
      if (placeholder.is(type, row.get(place, type))) {
        row.update(place, null);
        names.add(UTF8String.fromString(columns[place].name()));
      }
    }
    return names.isEmpty() ? null : Types.array(names.toArray());
  }

  /**
   * The metadata of a change.
   *
   * @param time the event's `ts_ms`
   * @param source gives the fields of its `source`
   * @param properties all of `source`
   */
  InternalRow about(Object time, Function<String, Object> source, Object properties) throws Misfit {
    Object[] about = new Object[ABOUT.length + 1];
    for (int place = 0; place < ABOUT.length; place++) {
      String name = (String) ABOUT[place][0];
      if (options.asksFor(name)) {
        String field = (String) ABOUT[place][1];
        Object written = place == 0 ? time : source.apply(field);
        about[place] = written == null ? null : value(written, (DataType) ABOUT[place][2]);
        if (written != null && about[place] == null) {
          throw new Misfit((place == 0 ? "" : "source.") + field + " does not fit " + name);
        }
      }
    }
    about[ABOUT.length] = options.asksFor(PROPERTIES) ? properties : null;
    return Types.row(about);
  }

  /** A value of metadata; null if what is written does not fit the type. */
  private static Object value(Object written, DataType type) {
    boolean isPlain =
        written instanceof UTF8String || written instanceof Number || written instanceof Boolean;
    String text = isPlain ? written.toString() : null;
    if (text == null || type == DataTypes.StringType) {
      return text == null ? null : UTF8String.fromString(text);
    }
    try {
      long number = Long.parseLong(text);
      return type == DataTypes.LongType ? (Object) number : ChangeDecoder.moment(number, 1_000);
    } catch (NumberFormatException error) {
      return null;
    }
  }
}

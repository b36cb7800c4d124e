package io.dagsterkafkaflip;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Decodes Debezium's change events in JSON, at the top of a record or behind their schema. */
final class DebeziumDecoder extends ChangeDecoder {
  private static final DataType SOURCE =
      DataTypes.createMapType(DataTypes.StringType, DataTypes.StringType);

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
      Map.of("c", INSERT, "u", UPDATE, "d", DELETE, "r", READ, "t", TRUNCATE);
  private static final Set<String> TIMES = Set.of("ts_ms", "ts_us", "ts_ns");
  private static final Set<String> MARKER =
      Set.of("status", "id", "event_count", "data_collections");

  private final Event top = new Event(fields);
  private final Event payload = new Event(new Fields("payload"));
  private final Placeholder placeholder;

  /** An event's fields and the row on both sides. */
  private final class Event {
    final Fields fields;
    final Image before;
    final Image after;

    Event(Fields fields) {
      this.fields = fields;
      String prefix = fields.path.isEmpty() ? "" : fields.path + ".";
      before = new Image(prefix + "before", declared, readers);
      after = new Image(prefix + "after", declared, readers);
      fields.add("before", before);
      fields.add("after", after);
      fields.add("op", readers.of("op", DataTypes.StringType));
      if (options.asksFor((String) ABOUT[0][0])) {
        fields.add("ts_ms", readers.of("ts_ms", DataTypes.LongType));
      }
      if (options.asksForAny("source_")) {
        fields.add("source", readers.of("source", SOURCE));
      }
    }

    void clear() {
      fields.clear();
      before.clear();
      after.clear();
    }
  }

  DebeziumDecoder(StructType declared, Options options) {
    super(declared, options, 6);
    fields.add("payload", payload.fields);
    placeholder =
        new Placeholder(options.texts("placeholder_texts"), options.text("placeholder_uuid"));
  }

  /** The type of what it decodes to. */
  static StructType result(StructType declared) {
    DataType row = Types.nullable(declared);
    StructType about = new StructType();
    for (Object[] each : ABOUT) {
      about = about.add(Types.field((String) each[0], (DataType) each[2]));
    }
    StructType result =
        new StructType()
            .add(Types.field("event", DataTypes.StringType))
            .add(Types.field("op", DataTypes.StringType))
            .add(Types.field("row", row))
            .add(Types.field("before", row))
            .add(Types.field("unavailable", DataTypes.createArrayType(DataTypes.StringType)))
            .add(Types.field("about", about.add(Types.field(PROPERTIES, SOURCE))));
    return Found.type(result, declared);
  }

  @Override
  void clear() {
    top.clear();
    payload.clear();
  }

  /** The event in hand, behind its schema or at the top. */
  private Event found() {
    return fields.get("payload") == null ? top : payload;
  }

  /** A field of the event; null if there is none. */
  private Object picked(String name) {
    return found().fields.get(name);
  }

  private String letter() {
    Object letter = picked("op");
    return letter == null ? null : letter.toString();
  }

  @Override
  String event() {
    String letter = letter();
    if (letter == null) {
      return eventOf(found().fields.names);
    }
    if (letter.equals("t") && options.is("skip_truncate")) {
      return "truncate";
    }
    return letter.equals("m") ? "message" : null;
  }

  /** Which event has such fields, and no op; null if it is unknown. */
  private static String eventOf(Set<String> names) {
    if (names.contains("ts_ms") && TIMES.containsAll(names)) {
      return "heartbeat";
    }
    boolean isMarker =
        names.stream().allMatch(each -> MARKER.contains(each) || TIMES.contains(each));
    if (names.containsAll(MARKER) && isMarker) {
      return "transaction";
    }
    return names.containsAll(Set.of("source", "ddl", "tableChanges")) ? "schema change" : null;
  }

  @Override
  InternalRow change() throws Misfit {
    String letter = letter();
    if (letter == null) {
      throw new Misfit("not an event of Debezium: it has no op");
    }
    UTF8String op = OPS.get(letter);
    if (op == null) {
      throw new Misfit("not an event of Debezium: its op is unknown (expected c, u, d, r, t or m)");
    }
    Image after = found().after;
    Image before = found().before;
    boolean hasBefore = options.asksFor("before");
    // Of no use in another change, it may have a type that a column once had.
    InternalRow earlier = hasBefore || op == DELETE ? before.row() : null;
    after.row();
    Image shown = op == DELETE ? before : after;
    InternalRow row = shown.row();
    if (row == null && op != TRUNCATE) {
      throw wrong(op, "has no " + (op == DELETE ? "before" : "after"));
    }
    InternalRow about = about();
    if (row != null && shown.found.isEmpty()) {
      throw wrong(op, "has an empty row");
    }
    if (op != DELETE) {
      shown.checkRequired();
    }
    Object unavailable = row == null ? null : withoutPlaceholders(row);
    if (earlier != null && earlier != row) {
      withoutPlaceholders(earlier);
    }
    return shown.found.result(null, op, row, hasBefore ? earlier : null, unavailable, about);
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

  private InternalRow about() throws Misfit {
    Object[] about = new Object[ABOUT.length + 1];
    MapData source = (MapData) picked("source");
    for (int place = 0; place < ABOUT.length; place++) {
      String name = (String) ABOUT[place][0];
      if (options.asksFor(name)) {
        String field = (String) ABOUT[place][1];
        Object written = place == 0 ? picked(field) : of(source, field);
        about[place] = written == null ? null : value(written, (DataType) ABOUT[place][2]);
        if (written != null && about[place] == null) {
          throw new Misfit((place == 0 ? "" : "source.") + field + " does not fit " + name);
        }
      }
    }
    about[ABOUT.length] = options.asksFor(PROPERTIES) ? source : null;
    return new GenericInternalRow(about);
  }

  private static Object of(MapData source, String field) {
    UTF8String key = UTF8String.fromString(field);
    for (int at = 0; source != null && at < source.numElements(); at++) {
      if (key.equals(source.keyArray().get(at, DataTypes.StringType))) {
        return source.valueArray().get(at, DataTypes.StringType);
      }
    }
    return null;
  }

  /** A value of metadata; null if what is written does not fit the type. */
  private static Object value(Object written, DataType type) {
    if (type == DataTypes.StringType) {
      return written;
    }
    try {
      long number = Long.parseLong(written.toString());
      return type == DataTypes.LongType ? (Object) number : moment(number, 1_000);
    } catch (NumberFormatException error) {
      return null;
    }
  }
}

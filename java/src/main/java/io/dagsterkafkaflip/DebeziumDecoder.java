package io.dagsterkafkaflip;

import java.util.Objects;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Decodes Debezium's change events in JSON, at the top of a record or behind their schema. */
final class DebeziumDecoder extends ChangeDecoder {
  private static final DataType SOURCE =
      DataTypes.createMapType(DataTypes.StringType, DataTypes.StringType);

  private static final Set<String> TIMES = Set.of("ts_ms", "ts_us", "ts_ns");
  private static final Set<String> MARKER =
      Set.of("status", "id", "event_count", "data_collections");

  private final Event top;
  private final Event payload;
  private final DebeziumEvents events;

  /** An event's fields and the row on both sides. */
  private final class Event {
    final Fields fields;
    final Image before;
    final Image after;

    Event(Fields fields) {
      this.fields = fields;
      String prefix = fields.path.isEmpty() ? "" : fields.path + ".";
      before = image(prefix + "before");
      after = image(prefix + "after");
      fields.add("before", before);
      fields.add("after", after);
      fields.add("op", readers.of("op", DataTypes.StringType));
      if (events.needsTime()) {
        fields.add("ts_ms", readers.of("ts_ms", DataTypes.LongType));
      }
      if (events.needsSource()) {
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
    super(declared, options, DebeziumEvents.WIDTH);
    events = new DebeziumEvents(declared, options);
    top = new Event(fields);
    payload = new Event(new Fields("payload"));
    fields.add("payload", payload.fields);
  }

  /** The type of what it decodes to. */
  static StructType result(StructType declared) {
    return Found.type(DebeziumEvents.type(declared, SOURCE), declared);
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
    return Objects.toString(picked("op"), null);
  }

  @Override
  String event() {
    String letter = letter();
    return letter == null ? eventOf(found().fields.names) : events.event(letter);
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
    UTF8String op = DebeziumEvents.op(letter());
    Image after = found().after;
    Image before = found().before;
    // Of no use in another change, it may have a type that a column once had.
    InternalRow earlier = options.asksFor("before") || op == DELETE ? before.row() : null;
    after.row();
    Image shown = op == DELETE ? before : after;
    InternalRow row = shown.row();
    if (row == null && op != TRUNCATE) {
      throw DebeziumEvents.lacksRow(op);
    }
    MapData source = (MapData) picked("source");
    InternalRow about = events.about(picked("ts_ms"), field -> of(source, field), source);
    if (row != null && shown.found.isEmpty()) {
      throw wrong(op, "has an empty row");
    }
    if (op != DELETE) {
      shown.checkRequired();
    }
    return shown.found.result(events.change(op, row, earlier, about));
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
}

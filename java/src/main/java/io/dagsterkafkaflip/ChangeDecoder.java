package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonToken;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.StringJoiner;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Decodes the changes of a database's rows, an object of JSON a record. */
final class ChangeDecoder implements Decoder {
  private static final Set<String> TIMES = Set.of("ts_ms", "ts_us", "ts_ns");
  private static final Set<String> MARKER =
      Set.of("status", "id", "event_count", "data_collections");
  private static final List<String> TABLE = List.of("database", "table");

  private final StructType declared;
  private final Options options;
  private final ChangeFormat format;
  private final boolean isDebezium;
  private final boolean isCanal;
  private final Readers readers;
  private final Fields fields = new Fields("");
  private final Scan scan;
  private final Found nothing;
  private final Placeholder placeholder;

  ChangeDecoder(StructType declared, Options options, ChangeFormat format) {
    this.declared = declared;
    this.options = options;
    this.format = format;
    isDebezium = format == ChangeFormat.DEBEZIUM;
    isCanal = format == ChangeFormat.CANAL;
    readers = new Readers(options.zone());
    scan = new Scan(options.is("show_values"));
    nothing = new Found(declared);
    placeholder = isDebezium ? new Placeholder(options.text("placeholder"), declared) : null;
    addParts(fields);
    if (isDebezium) {
      // A record may have its schema beside the event.
      Fields payload = new Fields("payload");
      addParts(payload);
      fields.add("payload", payload);
    }
    if (isCanal) {
      TABLE.forEach(name -> fields.add(name, readers.of(name, DataTypes.StringType)));
      fields.add("isDdl", readers.of("isDdl", DataTypes.BooleanType));
    }
  }

  private void addParts(Fields event) {
    String inside = event.path.isEmpty() ? "" : event.path + ".";
    event.add(format.kind(), readers.of(format.kind(), DataTypes.StringType));
    for (String side : List.of(format.after(), format.before())) {
      // Canal's records have any number of rows, whose values are texts.
      Image.Reader row = new Image.Reader(readers.top(inside + side, declared, isCanal), nothing);
      event.add(side, isCanal ? new Collections.Array(side, row) : row);
    }
    for (ChangeFormat.Part part : format.parts()) {
      if (options.asksFor(part.name())) {
        event.add(part.top(), readers.of(part.top(), part.written()));
      }
    }
  }

  @Override
  public InternalRow decode(byte[] data) throws Misfit {
    scan.run(data, 0, () -> fields.read(scan, JsonToken.START_OBJECT));
    Fields event = fields.get("payload") instanceof Fields payload ? payload : fields;
    String kind = event.text(format.kind());
    String without = without(event, kind);
    if (without != null) {
      Object[] values = new Object[isDebezium ? 6 : 4];
      values[0] = UTF8String.fromString(without);
      return nothing.result(values);
    }
    UTF8String op = format.op(kind);
    InternalRow about = format.about(options, name -> part(event, name));
    checkTable(event);
    Image[] after = images(event, format.after(), op);
    Image[] before = images(event, format.before(), op);
    if (op == ChangeFormat.UPDATE && after.length != before.length) {
      throw noPreviousValues();
    }
    Object[] rows = new Object[after.length];
    for (int place = 0; place < rows.length; place++) {
      rows[place] = change(op, after[place], place < before.length ? before[place] : null);
    }
    Image first = shown(op, after[0], before[0]);
    Found found = first == null ? nothing : first.found;
    if (!isDebezium) {
      return found.result(null, op, Types.array(rows), about);
    }
    InternalRow row = ((InternalRow) rows[0]).getStruct(0, 0);
    InternalRow earlier = ((InternalRow) rows[0]).getStruct(1, 0);
    Object unavailable = placeholder.takenFrom(row, earlier);
    return found.result(
        null, op, row, options.asksFor("before") ? earlier : null, unavailable, about);
  }

  /** Which event a record without a row is; null for a change. */
  private String without(Fields event, String kind) {
    if (isCanal) {
      for (String name : TABLE) {
        String wanted = options.text(name);
        String found = event.text(name);
        if (wanted != null && found != null && !found.equals(wanted)) {
          return "other table";
        }
      }
      boolean isDdl = Boolean.TRUE.equals(event.get("isDdl")) && event.get(format.after()) == null;
      if (isDdl && !"TRUNCATE".equals(kind)) {
        return "schema change";
      }
    }
    if (kind == null) {
      return isDebezium ? eventOf(event.names) : null;
    }
    return format.event(kind, options);
  }

  /** Which event of Debezium has such fields, and no op; null if it is unknown. */
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

  private static Object part(Fields event, String name) {
    if (!name.startsWith("source.")) {
      return event.get(name);
    }
    UTF8String key = UTF8String.fromString(name.substring("source.".length()));
    MapData source = (MapData) event.get("source");
    for (int at = 0; source != null && at < source.numElements(); at++) {
      if (key.equals(source.keyArray().getUTF8String(at))) {
        return source.valueArray().get(at, DataTypes.StringType);
      }
    }
    return null;
  }

  private void checkTable(Fields event) throws Misfit {
    for (String name : TABLE) {
      if (isCanal && options.text(name) != null && event.get(name) == null) {
        throw new Misfit("the record names no " + name);
      }
    }
  }

  /** The rows on one side of a change; one that is null if there are none. */
  private static Image[] images(Fields event, String side, UTF8String op) {
    Object found = op == ChangeFormat.TRUNCATE ? null : event.get(side);
    if (found instanceof ArrayData rows && rows.numElements() > 0) {
      return Arrays.stream(rows.array()).toArray(Image[]::new);
    }
    return new Image[] {found instanceof Image image ? image : null};
  }

  private Image shown(UTF8String op, Image after, Image before) {
    return format.shown(op).equals(format.after()) ? after : before;
  }

  /** A row, and what it was before. */
  private InternalRow change(UTF8String op, Image after, Image before) throws Misfit {
    if (op == ChangeFormat.TRUNCATE) {
      return Types.row(null, null);
    }
    Image shown = shown(op, after, before);
    if (shown == null) {
      throw ChangeFormat.wrong(op, "has no " + format.shown(op));
    }
    InternalRow row = shown.row();
    InternalRow earlier = before != null && needsBefore(op) ? before.row() : null;
    if (shown.found.isEmpty()) {
      throw ChangeFormat.wrong(op, "has an empty row");
    }
    if (op != ChangeFormat.DELETE) {
      shown.found.checkRequired();
    }
    if (op == ChangeFormat.UPDATE && !isDebezium) {
      if (earlier == null) {
        throw noPreviousValues();
      }
      checkWhole(after.found);
    }
    if (format.isPartial()) {
      earlier =
          op == ChangeFormat.UPDATE
              ? merged(earlier, before.found, row)
              : op == ChangeFormat.DELETE ? row : null;
    }
    return Types.row(row, earlier);
  }

  /** Whether anything is taken from the row before: else it may have types that it once had. */
  private boolean needsBefore(UTF8String op) {
    if (format.isPartial()) {
      return op == ChangeFormat.UPDATE;
    }
    return !isDebezium || op == ChangeFormat.DELETE || options.asksFor("before");
  }

  private Misfit noPreviousValues() {
    String why = "the update has no previous values (%s), so it is unknown whether its key changed";
    return new Misfit(why.formatted(format.before()));
  }

  /** Checks that an update has all columns: nulls in their place would replace values. */
  private void checkWhole(Found found) throws Misfit {
    StringJoiner lacks = new StringJoiner(", ");
    for (int place = 0; place < declared.fields().length; place++) {
      if (!found.has(place)) {
        lacks.add(declared.fields()[place].name());
      }
    }
    if (lacks.length() > 0) {
      throw new Misfit(
          "the update lacks the column " + lacks + "; the connector must write whole rows");
    }
  }

  /** A row with the values of an earlier one where that has any. */
  private InternalRow merged(InternalRow earlier, Found found, InternalRow row) {
    Object[] values = new Object[declared.fields().length];
    for (int place = 0; place < values.length; place++) {
      values[place] = (found.has(place) ? earlier : row).get(place, null);
    }
    return Types.row(values);
  }
}

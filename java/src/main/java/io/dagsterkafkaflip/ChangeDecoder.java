package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
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
    scan = new Scan(options.is("show_values"));
    nothing = new Found(declared);
    placeholder = isDebezium ? new Placeholder(options.text("placeholder"), declared) : null;
    addParts(fields, "");
    if (isDebezium) {
      // A record may have its schema beside the event.
      Fields payload = new Fields("payload");
      addParts(payload, "payload.");
      fields.readers.put("payload", payload);
    }
    if (isCanal) {
      TABLE.forEach(name -> fields.readers.put(name, new Scalars.Text(name, DataTypes.StringType)));
      fields.readers.put("isDdl", new Scalars.Truth("isDdl", DataTypes.BooleanType));
    }
  }

  private void addParts(Fields event, String prefix) {
    event.readers.put(format.kind(), new Scalars.Text(format.kind(), DataTypes.StringType));
    for (String side : List.of(format.after(), format.before())) {
      // Canal's records have any number of rows, whose values are texts.
      ValueReader row =
          new ImageReader(
              new StructReader(prefix + side, declared, options.zone(), 0, true, isCanal));
      event.readers.put(side, isCanal ? new CollectionReader(side, row) : row);
    }
    for (ChangeFormat.Part part : format.parts()) {
      if (options.asksFor(part.name())) {
        ValueReader reader = ValueReader.of(part.top(), part.written(), options.zone());
        event.readers.put(part.top(), reader);
      }
    }
  }

  /** The fields of an envelope by name: what reads them, and their values in the record in hand. */
  private static final class Fields extends ValueReader {
    final Map<String, ValueReader> readers = new HashMap<>();
    final Map<String, Object> values = new HashMap<>();
    final Set<String> names = new HashSet<>();

    Fields(String path) {
      super(path, new StructType());
    }

    String text(String name) {
      return Objects.toString(values.get(name), null);
    }

    @Override
    Object read(Scan scan, JsonToken token) throws IOException, Misfit {
      if (token != JsonToken.START_OBJECT) {
        throw misfit(scan);
      }
      values.clear();
      names.clear();
      String name;
      while ((name = scan.parser.nextFieldName()) != null) {
        boolean isFirst = names.add(name);
        JsonToken first = scan.parser.nextToken();
        ValueReader reader = readers.get(name);
        if (reader == null) {
          scan.parser.skipChildren();
        } else if (isFirst) {
          values.put(name, reader.readOrNull(scan, first));
        } else {
          // Parts of two events would be one.
          throw new Misfit("the field " + reader.path + " is there twice");
        }
      }
      return this;
    }
  }

  private record Image(Found found, InternalRow fields, Misfit misfit) {
    InternalRow row() throws Misfit {
      if (misfit != null) {
        throw misfit;
      }
      return fields;
    }
  }

  /** Keeps what is wrong with a row: only the whole record shows whether it matters. */
  private final class ImageReader extends ValueReader {
    private final StructReader row;

    ImageReader(StructReader row) {
      super(row.path, row.type);
      this.row = row;
    }

    @Override
    Image read(Scan scan, JsonToken token) throws IOException {
      JsonParser parser = scan.parser;
      int depth = parser.getParsingContext().getNestingDepth();
      Found found = new Found(nothing);
      scan.found = found;
      try {
        return new Image(found, row.read(scan, token), null);
      } catch (Misfit misfit) {
        while (token.isStructStart() && parser.getParsingContext().getNestingDepth() >= depth) {
          parser.nextToken();
        }
        return new Image(found, null, misfit);
      }
    }
  }

  @Override
  public InternalRow decode(byte[] data) throws Misfit {
    scan.run(data, 0, fields);
    Fields event = fields.values.get("payload") instanceof Fields payload ? payload : fields;
    String kind = event.text(format.kind());
    String without = without(event, kind);
    if (without != null) {
      Object[] values = new Object[isDebezium ? 6 : 4];
      values[0] = UTF8String.fromString(without);
      return nothing.result(values);
    }
    UTF8String op = format.op(kind);
    InternalRow about = format.about(options, name -> part(event, name));
    for (String name : TABLE) {
      if (options.text(name) != null && event.text(name) == null) {
        throw new Misfit("the record names no " + name);
      }
    }
    Image[] after = images(event, format.after(), op);
    Image[] before = images(event, format.before(), op);
    if (op == ChangeFormat.UPDATE && after.length != before.length) {
      throw noPreviousValues();
    }
    InternalRow[] rows = new InternalRow[after.length];
    for (int place = 0; place < rows.length; place++) {
      rows[place] = change(op, after[place], place < before.length ? before[place] : null);
    }
    Image first = shown(op, after[0], before[0]);
    Found found = first == null ? nothing : first.found;
    if (!isDebezium) {
      return found.result(null, op, Types.array(Arrays.asList(rows)), about);
    }
    InternalRow row = rows[0].getStruct(0, 0);
    InternalRow earlier = rows[0].getStruct(1, 0);
    Object unavailable = placeholder.takenFrom(row, earlier);
    return found.result(
        null, op, row, options.asksFor("before") ? earlier : null, unavailable, about);
  }

  /** Which event a record without a row is; null for a change. */
  private String without(Fields event, String kind) {
    for (String name : TABLE) {
      String wanted = options.text(name);
      String found = event.text(name);
      if (wanted != null && found != null && !found.equals(wanted)) {
        return "other table";
      }
    }
    boolean isDdl = Boolean.TRUE.equals(event.values.get("isDdl"));
    if (isDdl && event.values.get(format.after()) == null && !"TRUNCATE".equals(kind)) {
      return "schema change";
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
      return event.values.get(name);
    }
    UTF8String key = UTF8String.fromString(name.substring("source.".length()));
    MapData source = (MapData) event.values.get("source");
    for (int at = 0; source != null && at < source.numElements(); at++) {
      if (key.equals(source.keyArray().getUTF8String(at))) {
        return source.valueArray().get(at, DataTypes.StringType);
      }
    }
    return null;
  }

  /** The rows on one side of a change; one that is null if there are none. */
  private static Image[] images(Fields event, String side, UTF8String op) {
    Object found = op == ChangeFormat.TRUNCATE ? null : event.values.get(side);
    if (found instanceof ArrayData rows && rows.numElements() > 0) {
      return Arrays.stream(rows.array()).toArray(Image[]::new);
    }
    return new Image[] {found instanceof Image image ? image : null};
  }

  private Image shown(UTF8String op, Image after, Image before) {
    return format.shown(op).equals(format.after()) ? after : before;
  }

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
      boolean isDelete = op == ChangeFormat.DELETE;
      earlier =
          op == ChangeFormat.UPDATE ? merged(earlier, before.found, row) : isDelete ? row : null;
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

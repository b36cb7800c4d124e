package io.dagsterkafkaflip;

import java.util.Map;
import java.util.Objects;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DatetimeType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Decodes Debezium's change events in Avro. The declared fields are those of the whole event. */
final class DebeziumAvroDecoder implements Decoder {
  private static final ChangeFormat FORMAT = ChangeFormat.DEBEZIUM;

  /** The names of the schemas of events without a row, or their ends. */
  private static final Map<String, String> EVENTS =
      Map.of(
          "io.debezium.connector.common.Heartbeat", "heartbeat",
          "io.debezium.connector.common.TransactionMetadataValue", "transaction",
          ".SchemaChangeValue", "schema change");

  private final StructType declared;
  private final Options options;
  private final AvroDecoder records;
  private final Placeholder placeholder;

  DebeziumAvroDecoder(StructType declared, Options options) {
    this.declared = declared;
    this.options = options;
    records = new AvroDecoder(declared, options);
    placeholder = new Placeholder(options.text("placeholder"), structOf(declared, "after"));
  }

  static StructType result(StructType declared) {
    boolean hasSource = declared.getFieldIndex("source").isDefined();
    DataType source = hasSource ? declared.apply("source").dataType() : DataTypes.NullType;
    return FORMAT
        .type(structOf(declared, "after"), Types.nullable(source))
        .add("problem", DataTypes.StringType);
  }

  private static StructType structOf(StructType declared, String name) {
    return (StructType) declared.apply(name).dataType();
  }

  @Override
  public InternalRow decode(byte[] data) throws Misfit {
    String without = ChangeFormat.lookUp(EVENTS, records.schemaOf(data)::endsWith);
    InternalRow event = without == null ? records.row(data) : null;
    String kind = event == null ? null : Objects.toString(field(event, declared, "op"), null);
    without = kind == null ? without : FORMAT.event(kind, options);
    if (without != null) {
      return Types.row(UTF8String.fromString(without), null, null, null, null, null, null);
    }
    UTF8String op = FORMAT.op(kind);
    InternalRow before = (InternalRow) field(event, declared, "before");
    InternalRow after = (InternalRow) field(event, declared, "after");
    InternalRow row = op == ChangeFormat.DELETE ? before : after;
    if (row == null && op != ChangeFormat.TRUNCATE) {
      throw ChangeFormat.wrong(op, "has no " + FORMAT.shown(op));
    }
    InternalRow about = FORMAT.about(options, name -> part(event, name));
    Object unavailable = placeholder.takenFrom(row, before);
    InternalRow asked = options.asksFor("before") ? before : null;
    return Types.row(null, op, row, asked, unavailable, about, null);
  }

  private Object part(InternalRow event, String name) {
    if (!name.startsWith("source.")) {
      return field(event, declared, name);
    }
    String inner = name.substring("source.".length());
    return field(event, declared, "source") instanceof InternalRow source
        ? field(source, structOf(declared, "source"), inner)
        : null;
  }

  private static Object field(InternalRow row, StructType type, String name) {
    scala.Option<Object> place = type.getFieldIndex(name);
    Object value = place.isEmpty() ? null : row.get((Integer) place.get(), null);
    // Else its number would be taken for milliseconds. A row fits no metadata.
    boolean isTime = value != null && type.apply(name).dataType() instanceof DatetimeType;
    return isTime ? Types.row(value) : value;
  }
}

package io.dagsterkafkaflip;

import java.util.Arrays;
import java.util.Map;
import java.util.Objects;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DatetimeType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Decodes Debezium's change events in Avro. The declared fields are those of the whole event. */
final class DebeziumAvroDecoder implements Decoder {
  /** The names of the schemas of events without a row, or their ends. */
  private static final Map<String, String> EVENTS =
      Map.of(
          "io.debezium.connector.common.Heartbeat", "heartbeat",
          "io.debezium.connector.common.TransactionMetadataValue", "transaction",
          ".SchemaChangeValue", "schema change");

  private final StructType declared;
  private final AvroDecoder records;
  private final DebeziumEvents events;

  DebeziumAvroDecoder(StructType declared, Options options) {
    this.declared = declared;
    records = new AvroDecoder(declared, options);
    events = new DebeziumEvents(rowOf(declared), options);
  }

  /** The type of what it decodes to. */
  static StructType result(StructType declared) {
    boolean hasSource = Arrays.asList(declared.fieldNames()).contains("source");
    DataType source = hasSource ? declared.apply("source").dataType() : DataTypes.NullType;
    return DebeziumEvents.type(rowOf(declared), Types.nullable(source))
        .add(Types.field("problem", DataTypes.StringType));
  }

  private static StructType rowOf(StructType declared) {
    return (StructType) declared.apply("after").dataType();
  }

  @Override
  public InternalRow decode(byte[] data) {
    if (data == null) {
      return null;
    }
    Object[] result = new Object[DebeziumEvents.WIDTH];
    String problem = null;
    try {
      String event = eventOf(records.schemaOf(data));
      InternalRow row = event == null ? records.row(data) : null;
      String letter = row == null ? null : Objects.toString(field(row, declared, "op"), null);
      event = letter == null ? event : events.event(letter);
      result[0] = UTF8String.fromString(event);
      result = event == null ? change(row, DebeziumEvents.op(letter)) : result;
    } catch (Misfit misfit) {
      problem = misfit.getMessage();
    }
    Object[] all = Arrays.copyOf(result, DebeziumEvents.WIDTH + 1);
    all[DebeziumEvents.WIDTH] = UTF8String.fromString(problem);
    return Types.row(all);
  }

  /** Which event without a row the records of a schema are; null if they are changes. */
  private static String eventOf(String schema) {
    return EVENTS.keySet().stream()
        .filter(schema::endsWith)
        .findFirst()
        .map(EVENTS::get)
        .orElse(null);
  }

  private Object[] change(InternalRow event, UTF8String op) throws Misfit {
    InternalRow before = (InternalRow) field(event, declared, "before");
    InternalRow after = (InternalRow) field(event, declared, "after");
    InternalRow row = op == ChangeDecoder.DELETE ? before : after;
    if (row == null && op != ChangeDecoder.TRUNCATE) {
      throw DebeziumEvents.lacksRow(op);
    }
    Object source = field(event, declared, "source");
    Function<String, Object> of =
        source instanceof InternalRow fields
            ? name -> field(fields, (StructType) declared.apply("source").dataType(), name)
            : name -> null;
    return events.change(
        op, row, before, events.about(field(event, declared, "ts_ms"), of, source));
  }

  private static Object field(InternalRow row, StructType type, String name) {
    scala.Option<Object> place = type.getFieldIndex(name);
    Object value = place.isEmpty() ? null : row.get((Integer) place.get(), null);
    // Else its number would be taken for milliseconds. A row fits no metadata.
    boolean isTime = value != null && type.apply(name).dataType() instanceof DatetimeType;
    return isTime ? Types.row(value) : value;
  }
}

package io.dagsterkafkaflip;

import java.util.Arrays;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
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
  private final AvroRecords records;
  private final DebeziumEvents events;

  DebeziumAvroDecoder(StructType declared, Options options) {
    this.declared = declared;
    records = new AvroRecords(declared, options);
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
    DataType after = declared.apply("after").dataType();
    if (!after.equals(declared.apply("before").dataType())) {
      throw new IllegalArgumentException("the types of before and after differ");
    }
    return (StructType) after;
  }

  @Override
  public InternalRow decode(byte[] data) {
    if (data == null) {
      return null;
    }
    Object[] result = new Object[DebeziumEvents.WIDTH];
    String problem = null;
    try {
      String event = eventOf(records.writtenWith(data).fullName);
      InternalRow row = event == null ? records.row(data) : null;
      String letter = row == null ? null : text(field(row, declared, "op"));
      event = letter == null ? event : events.event(letter);
      if (event == null) {
        result = change(row, letter);
      } else {
        result[0] = UTF8String.fromString(event);
      }
    } catch (Misfit misfit) {
      problem = misfit.getMessage();
    }
    Object[] all = Arrays.copyOf(result, DebeziumEvents.WIDTH + 1);
    all[DebeziumEvents.WIDTH] = UTF8String.fromString(problem);
    return Types.row(all);
  }

  private static String eventOf(String schema) {
    for (Map.Entry<String, String> each : EVENTS.entrySet()) {
      if (schema.endsWith(each.getKey())) {
        return each.getValue();
      }
    }
    return null;
  }

  private Object[] change(InternalRow event, String letter) throws Misfit {
    UTF8String op = DebeziumEvents.op(letter);
    InternalRow before = (InternalRow) field(event, declared, "before");
    InternalRow row =
        op == ChangeDecoder.DELETE ? before : (InternalRow) field(event, declared, "after");
    if (row == null && op != ChangeDecoder.TRUNCATE) {
      throw DebeziumEvents.lacksRow(op);
    }
    InternalRow source = (InternalRow) field(event, declared, "source");
    InternalRow about =
        events.about(
            field(event, declared, "ts_ms"),
            name -> source == null ? null : field(source, sourceType(), name),
            source);
    return events.change(op, row, before, about);
  }

  private StructType sourceType() {
    return (StructType) declared.apply("source").dataType();
  }

  private static Object field(InternalRow row, StructType type, String name) {
    scala.Option<Object> place = type.getFieldIndex(name);
    return place.isEmpty() ? null : row.get((Integer) place.get(), null);
  }

  private static String text(Object value) {
    return value == null ? null : value.toString();
  }
}

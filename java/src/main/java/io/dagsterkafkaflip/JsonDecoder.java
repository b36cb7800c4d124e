package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Decodes JSON objects, one a record. */
final class JsonDecoder implements Decoder {
  private final StructReader fields;
  private final Frame frame;
  private final Scan scan;
  private Object row;

  JsonDecoder(StructType declared, Options options) {
    fields = new Readers(options.zone()).top("", declared);
    frame = Frame.of(options);
    scan = new Scan(Readers.leavesOf(declared), options.showValues());
  }

  /** The type of what it decodes to. */
  static StructType result(StructType declared) {
    StructType result =
        new StructType()
            .add(Types.field("row", Types.nullable(declared)))
            .add(Types.field("problem", DataTypes.StringType));
    return withSeen(result, declared);
  }

  /** Adds what is known of a record's names. */
  static StructType withSeen(StructType result, StructType declared) {
    for (int word = 0; word < Scan.words(Readers.leavesOf(declared)); word++) {
      result =
          result.add(new StructField("seen" + word, DataTypes.LongType, false, Metadata.empty()));
    }
    return result.add(Types.field("undeclared", DataTypes.createArrayType(DataTypes.StringType)));
  }

  @Override
  public InternalRow decode(byte[] data) {
    if (data == null) {
      return null;
    }
    try {
      scan.run(data, frame == null ? 0 : frame.end(data), this::read);
      if (scan.missing != null) {
        throw new Misfit("the required field " + scan.missing + " is missing or null");
      }
    } catch (Misfit misfit) {
      return result(null, UTF8String.fromString(misfit.getMessage()));
    }
    return result(row, null);
  }

  private void read(Scan scan) throws IOException, Misfit {
    row = fields.read(scan, JsonToken.START_OBJECT);
  }

  private InternalRow result(Object row, UTF8String problem) {
    Object[] values = new Object[3 + scan.seen.length];
    values[0] = row;
    values[1] = problem;
    for (int word = 0; word < scan.seen.length; word++) {
      values[2 + word] = row == null ? 0L : scan.seen[word];
    }
    values[values.length - 1] = row == null ? null : scan.undeclared.array();
    return new GenericInternalRow(values);
  }
}

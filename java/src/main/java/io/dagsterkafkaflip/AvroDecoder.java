package io.dagsterkafkaflip;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Decodes Avro's binary encoding. A value that is no record is the only field of its row. */
final class AvroDecoder implements Decoder {
  private final AvroRecords records;

  AvroDecoder(StructType declared, Options options) {
    records = new AvroRecords(declared, options);
  }

  /** The type of what it decodes to. */
  static StructType result(StructType declared) {
    return new StructType()
        .add(Types.field("row", Types.nullable(declared)))
        .add(Types.field("problem", DataTypes.StringType));
  }

  @Override
  public InternalRow decode(byte[] data) {
    if (data == null) {
      return null;
    }
    try {
      return Types.row(records.row(data), null);
    } catch (Misfit misfit) {
      return Types.row(null, UTF8String.fromString(misfit.getMessage()));
    }
  }
}

package io.dagsterkafkaflip;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** A function that encodes a struct in Protobuf. Spark calls `invoke` in the code that it makes. */
public final class EncodeFunction implements ScalarFunction<byte[]> {
  private static final long serialVersionUID = 1L;

  static final String NAME = "encode_protobuf";

  private final StructType struct;
  private final String version = VersionFunction.version();

  private transient ProtobufEncoder encoder;

  EncodeFunction(StructType given) {
    if (given.fields().length != 2
        || !(given.fields()[0].dataType() instanceof StructType struct)
        || !given.fields()[1].dataType().equals(DataTypes.StringType)) {
      throw new UnsupportedOperationException(
          NAME + " takes (STRUCT<...>, STRING), not " + given.catalogString());
    }
    this.struct = struct;
  }

  /**
   * Encodes a row.
   *
   * @param row the row
   * @param plan how its fields are written, as JSON; the same for all rows
   */
  public byte[] invoke(InternalRow row, UTF8String plan) {
    if (row == null) {
      return null;
    }
    ProtobufEncoder encoder = this.encoder;
    if (encoder == null) {
      VersionFunction.check(version);
      encoder = new ProtobufEncoder(struct, new Options(plan).node("fields"));
      this.encoder = encoder;
    }
    return encoder.encode(row);
  }

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {struct, DataTypes.StringType};
  }

  @Override
  public DataType resultType() {
    return DataTypes.BinaryType;
  }

  /** Else Spark would evaluate it again for each column. */
  @Override
  public boolean isDeterministic() {
    return false;
  }

  @Override
  public String name() {
    return NAME;
  }

  /** Spark's plans show it. */
  @Override
  public String toString() {
    return NAME;
  }
}

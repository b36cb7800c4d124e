package io.dagsterkafkaflip;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Decodes bytes as declared. Spark calls `invoke` in the code that it generates. */
public final class DecodeFunction implements ScalarFunction<InternalRow> {
  private static final long serialVersionUID = 1L;

  private final Decoder.Kind kind;
  private final StructType declared;
  private final StructType result;
  private final String version = VersionFunction.version();

  /** One object: each of several threads that call this sees a whole one, its own or another's. */
  private transient Made made;

  private record Made(Thread thread, UTF8String options, Decoder decoder) {}

  DecodeFunction(Decoder.Kind kind, StructType given) {
    this.kind = kind;
    declared = (StructType) given.fields()[1].dataType();
    result = kind.result.apply(declared);
  }

  /** Decodes a record, by the fields in the type of a null and by what the format sets, as JSON. */
  public InternalRow invoke(byte[] data, InternalRow typed, UTF8String options) {
    if (data == null) {
      return null;
    }
    Made made = this.made;
    if (made == null
        || made.thread != Thread.currentThread()
        || made.options != options && !made.options.equals(options)) {
      VersionFunction.check(version);
      Decoder decoder = kind.decoder.apply(declared, new Options(options));
      made = new Made(Thread.currentThread(), options, decoder);
      this.made = made;
    }
    try {
      return made.decoder.decode(data);
    } catch (Misfit misfit) {
      return rejected(misfit);
    }
  }

  /** A record that can't be decoded has a problem, and nothing else. */
  private InternalRow rejected(Misfit misfit) {
    InternalRow row = new GenericInternalRow(result.fields().length);
    for (int place = 0; place < result.fields().length; place++) {
      // Bits of the fields that are there.
      row.update(place, result.fields()[place].nullable() ? null : 0L);
    }
    row.update(result.fieldIndex("problem"), UTF8String.fromString(misfit.getMessage()));
    return row;
  }

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {DataTypes.BinaryType, declared, DataTypes.StringType};
  }

  @Override
  public DataType resultType() {
    return result;
  }

  /** Else Spark would evaluate it again for each column and each filter. */
  @Override
  public boolean isDeterministic() {
    return false;
  }

  @Override
  public String name() {
    return kind.sqlName();
  }

  @Override
  public String toString() {
    return name();
  }
}

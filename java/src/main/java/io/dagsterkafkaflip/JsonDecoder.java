package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonToken;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;

/** Decodes JSON objects, one a record. */
final class JsonDecoder implements Decoder {
  private final StructReader fields;
  private final Frame frame;
  private final Scan scan;
  private final Found found;
  private Object row;

  JsonDecoder(StructType declared, Options options) {
    fields = new Readers(options.zone()).top("", declared);
    frame = new Frame(options);
    scan = new Scan(options.showValues());
    found = new Found(declared);
  }

  /** The type of what it decodes to. */
  static StructType result(StructType declared) {
    return Found.type(new StructType().add(Types.field("row", Types.nullable(declared))), declared);
  }

  @Override
  public InternalRow decode(byte[] data) {
    if (data == null) {
      return null;
    }
    found.clear();
    scan.found = found;
    try {
      scan.run(data, frame.end(data), () -> row = fields.read(scan, JsonToken.START_OBJECT));
      if (found.missing != null) {
        throw Misfit.missing(found.missing);
      }
    } catch (Misfit misfit) {
      return found.rejected(1, misfit);
    }
    return found.result(row);
  }
}

package io.dagsterkafkaflip;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;

/** Decodes JSON objects, one a record. */
final class JsonDecoder implements Decoder {
  private final StructReader fields;
  private final Frame frame;
  private final Scan scan;
  private final Found nothing;

  JsonDecoder(StructType declared, Options options) {
    fields = new StructReader("", declared, options.zone(), 0, true, false);
    frame = new Frame(options);
    scan = new Scan(options.is("show_values"));
    nothing = new Found(declared);
  }

  static StructType result(StructType declared) {
    return Found.type(new StructType().add("row", Types.nullable(declared)), declared);
  }

  @Override
  public InternalRow decode(byte[] data) throws Misfit {
    Found found = new Found(nothing);
    scan.found = found;
    Object row = scan.run(data, frame.end(data), fields);
    found.checkRequired();
    return found.result(row);
  }
}

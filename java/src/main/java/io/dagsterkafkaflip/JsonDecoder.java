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

  JsonDecoder(StructType declared, Options options) {
    fields = new Readers(options.zone()).top("", declared, false);
    frame = new Frame(options);
    scan = new Scan(options.is("show_values"));
    found = new Found(declared);
  }

  static StructType result(StructType declared) {
    return Found.type(new StructType().add(Types.field("row", Types.nullable(declared))), declared);
  }

  @Override
  public InternalRow decode(byte[] data) throws Misfit {
    found.clear();
    scan.found = found;
    Object row = scan.run(data, frame.end(data), () -> fields.read(scan, JsonToken.START_OBJECT));
    found.checkRequired();
    return found.result(row);
  }
}

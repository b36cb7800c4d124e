package io.dagsterkafkaflip;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Decodes CSV, one row a record. */
final class CsvDecoder implements Decoder {
  private final StructField[] fields;
  private final ValueReader[] readers;
  private final String nullLiteral;
  private final CsvRow cut;
  private final Scan scan = new Scan(false);

  CsvDecoder(StructType declared, Options options) {
    fields = declared.fields();
    readers = new ValueReader[fields.length];
    Readers types = new Readers(options.zone());
    for (int place = 0; place < fields.length; place++) {
      readers[place] = types.of(fields[place].name(), fields[place].dataType());
    }
    nullLiteral = options.text("null_literal");
    cut = new CsvRow(options);
  }

  @Override
  public InternalRow decode(byte[] data) throws Misfit {
    try {
      return Types.row(row(cut.fields(data)), null);
    } catch (IOException error) {
      // Only a parser of JSON has them.
      throw new UncheckedIOException(error);
    }
  }

  private InternalRow row(List<String> texts) throws IOException, Misfit {
    if (texts.size() != fields.length) {
      throw new Misfit("has " + texts.size() + " fields, but " + fields.length + " are declared");
    }
    InternalRow row = new GenericInternalRow(fields.length);
    for (int place = 0; place < fields.length; place++) {
      String text = texts.get(place);
      if (!text.equals(nullLiteral)) {
        row.update(place, readers[place].ofText(scan, text));
      } else if (!fields[place].nullable()) {
        throw new Misfit("the required field " + fields[place].name() + " is null");
      }
    }
    return row;
  }
}

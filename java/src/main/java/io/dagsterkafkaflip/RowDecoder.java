package io.dagsterkafkaflip;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Decodes the records of Maxwell and GoldenGate: one row each, whose values have the types of JSON.
 */
final class RowDecoder extends EnvelopeDecoder {
  private final Image after;
  private final Image before;

  RowDecoder(StructType declared, Options options, Terms terms) {
    super(declared, options, terms);
    after = image(terms.images()[0]);
    before = image(terms.images()[1]);
    fields.add(after.path, after);
    fields.add(before.path, before);
  }

  @Override
  void clear() {
    after.clear();
    before.clear();
  }

  @Override
  InternalRow change() throws Misfit {
    UTF8String op = op();
    InternalRow about = about();
    Image shown = terms == OGG && op == DELETE ? before : after;
    after.row();
    InternalRow earlier = before.row();
    InternalRow row = shown.row();
    if (row == null && op != TRUNCATE) {
      throw wrong(op, "has no row");
    }
    if (row != null && shown.found.isEmpty()) {
      throw wrong(op, "has an empty row");
    }
    if (op != DELETE) {
      shown.checkRequired();
    }
    if (op == UPDATE && earlier == null) {
      throw noPreviousValues();
    }
    if (op == UPDATE) {
      checkWhole(after.found);
    }
    if (terms == MAXWELL) {
      // It has of the row before only what changed.
      earlier = op == UPDATE ? merged(earlier, before.found, row) : op == DELETE ? row : null;
    }
    return shown.found.result(null, op, Types.array(new Object[] {Types.row(row, earlier)}), about);
  }
}

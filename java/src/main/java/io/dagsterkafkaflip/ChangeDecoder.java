package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonToken;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Decodes the changes of a database's rows, an object a record. */
abstract class ChangeDecoder implements Decoder {
  static final UTF8String INSERT = UTF8String.fromString("insert");
  static final UTF8String UPDATE = UTF8String.fromString("update");
  static final UTF8String DELETE = UTF8String.fromString("delete");
  static final UTF8String READ = UTF8String.fromString("read");
  static final UTF8String TRUNCATE = UTF8String.fromString("truncate");

  final StructType declared;
  final Options options;
  final Readers readers;
  final Fields fields = new Fields("");
  private final Scan scan;
  private final Found nothing;
  private final int width;

  /** Makes a decoder, whose result has so many columns before the problem. */
  ChangeDecoder(StructType declared, Options options, int width) {
    this.declared = declared;
    this.options = options;
    this.width = width;
    readers = new Readers(options.zone());
    scan = new Scan(options.showValues());
    nothing = new Found(declared);
  }

  /** Forgets the images of the record before. */
  abstract void clear();

  /** What a record without a row is; null for a change. */
  abstract String event() throws Misfit;

  /** What the change of the record in hand is. */
  abstract InternalRow change() throws Misfit;

  @Override
  public final InternalRow decode(byte[] data) {
    if (data == null) {
      return null;
    }
    clear();
    try {
      scan.run(data, 0, () -> fields.read(scan, JsonToken.START_OBJECT));
      String event = event();
      if (event == null) {
        return change();
      }
      Object[] values = new Object[width];
      values[0] = UTF8String.fromString(event);
      nothing.clear();
      return nothing.result(values);
    } catch (Misfit misfit) {
      return nothing.rejected(width, misfit);
    }
  }

  /** A reader of the row on one side of a change. */
  final Image image(String path) {
    return new Image(path, declared, readers.top(path, declared));
  }

  static Misfit wrong(UTF8String op, String what) {
    return new Misfit("the " + op + " event " + what);
  }

  /** Microseconds since 1970 of a number; null if it is not in the years 1 to 9999. */
  static Long moment(long number, long unitsOfSecond) {
    boolean isIn = Types.isInYears(Math.floorDiv(number, unitsOfSecond));
    return isIn ? (Long) (number * (1_000_000 / unitsOfSecond)) : null;
  }

  /** A row with the values of an earlier one where that has any. */
  final InternalRow merged(InternalRow earlier, Found found, InternalRow row) {
    Object[] values = new Object[declared.fields().length];
    for (int place = 0; place < values.length; place++) {
      values[place] = (found.has(place) ? earlier : row).get(place, null);
    }
    return Types.row(values);
  }
}

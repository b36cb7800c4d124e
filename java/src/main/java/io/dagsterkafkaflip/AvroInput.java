package io.dagsterkafkaflip;

import java.math.BigDecimal;
import java.math.BigInteger;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.unsafe.types.UTF8String;

/** The bytes of one record in Avro's binary encoding. Used again for each record. */
final class AvroInput extends ByteInput {
  /** Levels of a record inside of itself, which only a field that is left out may have. */
  private static final int DEEPEST = 500;

  /** Elements without bytes, such as nulls, in addition to those with any. */
  private static final int MOST_EMPTY = 100_000;

  private static final int LONGEST = 10;
  private static final int MOST_OF_LONG = 18;
  private static final int MOST_BITS = 127;

  int depth;
  private long elements;

  /** A misfit of a value whose place is not known yet: the text follows the place. */
  static final class Unplaced extends Misfit {
    private static final long serialVersionUID = 1L;

    Unplaced(String what) {
      super(what);
    }
  }

  void open(byte[] data, int from) {
    this.data = data;
    at = from;
    end = data.length;
    depth = 0;
    elements = (long) data.length - from + MOST_EMPTY;
  }

  @Override
  Misfit tooShort() {
    return new Unplaced("is truncated");
  }

  @Override
  Misfit tooLong() {
    return new Unplaced("is beyond the range of a long");
  }

  boolean readBoolean() throws Misfit {
    byte found = data[skip(1)];
    if (found >>> 1 != 0) {
      throw new Unplaced("is neither true nor false");
    }
    return found == 1;
  }

  int readInt() throws Misfit {
    long found = readLong();
    if (found != (int) found) {
      throw new Unplaced("is beyond the range of an int");
    }
    return (int) found;
  }

  long readLong() throws Misfit {
    int from = at;
    long found = varint(LONGEST);
    if (at - from == LONGEST && data[at - 1] >>> 1 != 0) {
      throw tooLong();
    }
    return zigzag(found);
  }

  /** The length of bytes or of a text, which are there. */
  int length() throws Misfit {
    long found = readLong();
    if (found < 0 || found > rest()) {
      throw new Unplaced("claims a length that the record does not have");
    }
    return (int) found;
  }

  UTF8String text() throws Misfit {
    UTF8String text = text(length());
    if (text == null) {
      throw new Unplaced("is not valid UTF-8");
    }
    return text;
  }

  Decimal decimal(int length, DecimalType type) throws Misfit {
    if (length == 0) {
      throw new Unplaced("has no bytes, but is a " + Types.shown(type));
    }
    int from = skip(length);
    if (length <= Long.BYTES && type.precision() <= MOST_OF_LONG) {
      long unscaled = data[from];
      for (int each = from + 1; each < at; each++) {
        unscaled = unscaled << 8 | data[each] & 0xff;
      }
      long limit = DecimalReader.POWERS[type.precision()];
      if (unscaled < limit && unscaled > -limit) {
        return Decimal.createUnsafe(unscaled, type.precision(), type.scale());
      }
    } else {
      BigInteger unscaled = new BigInteger(data, from, length);
      // Looked at first: it takes long to count the digits of a long number.
      if (unscaled.bitLength() <= MOST_BITS) {
        BigDecimal number = new BigDecimal(unscaled, type.scale());
        if (number.precision() <= type.precision()) {
          return Decimal.apply(number, type.precision(), type.scale());
        }
      }
    }
    throw new Unplaced("has more digits than " + Types.shown(type) + " holds");
  }

  int number(int all) throws Misfit {
    long found = readLong();
    if (found < 0 || found >= all) {
      throw new Unplaced("has a number beyond the " + all + " that the schema has");
    }
    return (int) found;
  }

  /** How many elements the next block of an array or a map has; 0 at its end. */
  long block() throws Misfit {
    long count = readLong();
    if (count < 0) {
      // The block's length in bytes.
      readLong();
      count = -count;
    }
    elements -= count;
    if (count < 0 || elements < 0) {
      throw new Unplaced("claims more elements than the record has bytes");
    }
    return count;
  }

  void enter() throws Misfit {
    if (++depth > DEEPEST) {
      throw new Unplaced("is nested more than " + DEEPEST + " levels deep");
    }
  }
}

package io.dagsterkafkaflip;

import java.util.Arrays;
import org.apache.spark.unsafe.types.UTF8String;

/** A record's bytes, with the numbers and texts that binary formats share. */
abstract class ByteInput {
  byte[] data;
  int at;
  int end;

  abstract Misfit tooShort();

  abstract Misfit tooLong();

  final int rest() {
    return end - at;
  }

  /** Moves behind so many bytes, and returns where they begin. */
  final int skip(long bytes) throws Misfit {
    int from = at;
    if (bytes < 0 || bytes > end - from) {
      throw tooShort();
    }
    at = (int) (from + bytes);
    return from;
  }

  /** A number in groups of seven bits, of so many bytes at most. */
  final long varint(int most) throws Misfit {
    long value = 0;
    for (int place = 0; place < most; place++) {
      byte next = data[skip(1)];
      value |= (next & 0x7fL) << 7 * place;
      if (next >= 0) {
        return value;
      }
    }
    throw tooLong();
  }

  static long zigzag(long value) {
    return value >>> 1 ^ -(value & 1);
  }

  final int fixed32() throws Misfit {
    int from = skip(Integer.BYTES);
    return data[from] & 0xff
        | (data[from + 1] & 0xff) << 8
        | (data[from + 2] & 0xff) << 16
        | data[from + 3] << 24;
  }

  final long fixed64() throws Misfit {
    return fixed32() & 0xffffffffL | (long) fixed32() << 32;
  }

  final byte[] bytes(int length) throws Misfit {
    int from = skip(length);
    return Arrays.copyOfRange(data, from, from + length);
  }

  /** A text, without a copy of its bytes; null if they are not UTF-8. */
  final UTF8String text(int length) throws Misfit {
    int from = skip(length);
    return Types.isUtf8(data, from, at) ? UTF8String.fromBytes(data, from, length) : null;
  }
}

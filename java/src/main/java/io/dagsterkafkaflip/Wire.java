package io.dagsterkafkaflip;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Protobuf's wire format: a record's bytes, no further than the message in hand. Like Google's upb,
 * it refuses tags and sizes of more than 32 bits.
 */
final class Wire {
  static final int VARINT = 0;
  static final int FIXED64 = 1;
  static final int BYTES = 2;
  static final int GROUP = 3;
  static final int GROUP_END = 4;
  static final int FIXED32 = 5;

  private final ByteBuffer bytes;
  private final String subject;

  /** As many as Protobuf's libraries allow. */
  private int levels = 100;

  /** Two bytes of an empty message become a whole STRUCT: megabytes would take all memory. */
  private int values = 5_000_000;

  /**
   * Begins at a place.
   *
   * @param subject what is wrong if the bytes are, in words that a reason follows
   */
  Wire(byte[] data, int start, String subject) {
    bytes = ByteBuffer.wrap(data, start, data.length - start).order(ByteOrder.LITTLE_ENDIAN);
    this.subject = subject;
  }

  Misfit broken(String why) {
    return new Misfit(subject + ": " + why);
  }

  int at() {
    return bytes.position();
  }

  boolean hasMore() {
    return bytes.hasRemaining();
  }

  long varint() throws Misfit {
    return varint(10);
  }

  private long varint(int most) throws Misfit {
    long value = 0;
    for (int place = 0; place < most; place++) {
      need(1);
      byte next = bytes.get();
      value |= (next & 0x7fL) << 7 * place;
      if (next >= 0) {
        return value;
      }
    }
    throw broken("a number has too many bytes");
  }

  /** A number whose sign is in its last bit. */
  static long zigzag(long value) {
    return value >>> 1 ^ -(value & 1);
  }

  int fixed32() throws Misfit {
    need(Integer.BYTES);
    return bytes.getInt();
  }

  long fixed64() throws Misfit {
    need(Long.BYTES);
    return bytes.getLong();
  }

  /** A field's number and, in the last three bits, how its value is written. */
  int tag() throws Misfit {
    long tag = varint(5);
    if (tag >>> 32 != 0 || tag >>> 3 == 0) {
      throw broken("a field has the number " + (tag >>> 3));
    }
    return (int) tag;
  }

  private int size() throws Misfit {
    long size = varint(5);
    need(size);
    return (int) size;
  }

  private void need(long count) throws Misfit {
    if (bytes.remaining() < count) {
      throw broken("the bytes end too early");
    }
  }

  byte[] bytes() throws Misfit {
    byte[] found = new byte[size()];
    bytes.get(found);
    return found;
  }

  /** A text, whose bytes are those of the record; null if they are not UTF-8. */
  UTF8String text() throws Misfit {
    int size = size();
    int start = at();
    bytes.position(start + size);
    UTF8String text = UTF8String.fromBytes(bytes.array(), start, size);
    for (int place = start; place < start + size; place++) {
      if (bytes.get(place) < 0) {
        return text.isValid() ? text : null;
      }
    }
    return text;
  }

  /** Reads no further than the size that comes next; returns what `leave` needs. */
  int enter() throws Misfit {
    int size = size();
    int before = bytes.limit();
    bytes.limit(at() + size);
    return before;
  }

  void leave(int before) {
    bytes.limit(before);
  }

  /** Goes a level deeper, or back by -1. */
  void descend(int by) throws Misfit {
    levels -= by;
    if (levels < 0) {
      throw broken("it is nested more than 100 levels deep");
    }
  }

  /** Counts values that a record has. */
  void take(int count) throws Misfit {
    values -= count;
    if (values < 0) {
      throw new Misfit("it has more than 5,000,000 values");
    }
  }

  /** Passes over the value behind a tag. */
  void skip(int tag) throws Misfit {
    switch (tag & 7) {
      case VARINT -> varint();
      case FIXED64 -> fixed64();
      case BYTES -> bytes.position(size() + at());
      case GROUP -> {
        descend(1);
        int inner;
        while (((inner = tag()) & 7) != GROUP_END) {
          skip(inner);
        }
        end(inner, tag >>> 3);
        descend(-1);
      }
      case FIXED32 -> fixed32();
      default -> throw broken("a field has the unknown wire type " + (tag & 7));
    }
  }

  /** Checks that the end of a group belongs to it. */
  void end(int tag, int group) throws Misfit {
    if (tag >>> 3 != group) {
      throw broken("the end of group " + (tag >>> 3) + " is out of place");
    }
  }
}

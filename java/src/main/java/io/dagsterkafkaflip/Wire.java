package io.dagsterkafkaflip;

/** Protobuf's wire format. Like Google's upb, it refuses tags and sizes of more than 32 bits. */
final class Wire extends ByteInput {
  static final int VARINT = 0;
  static final int FIXED64 = 1;
  static final int BYTES = 2;
  static final int GROUP = 3;
  static final int GROUP_END = 4;
  static final int FIXED32 = 5;

  private final String subject;

  /** As many as Protobuf's libraries allow. */
  private int levels = 100;

  /** Two bytes of an empty message become a whole STRUCT: megabytes would take all memory. */
  private int values = 5_000_000;

  /** Begins at a place. The subject is what is wrong if the bytes are. */
  Wire(byte[] data, int start, String subject) {
    this.data = data;
    at = start;
    end = data.length;
    this.subject = subject;
  }

  Misfit broken(String why) {
    return new Misfit(subject + ": " + why);
  }

  @Override
  Misfit tooShort() {
    return broken("the bytes end too early");
  }

  @Override
  Misfit tooLong() {
    return broken("a number has too many bytes");
  }

  long varint() throws Misfit {
    return varint(10);
  }

  /** A field's number and, in the last three bits, how its value is written. */
  int tag() throws Misfit {
    long tag = varint(5);
    if (tag >>> 32 != 0 || tag >>> 3 == 0) {
      throw broken("a field has the number " + (tag >>> 3));
    }
    return (int) tag;
  }

  /** How many bytes follow, which are there. */
  int size() throws Misfit {
    long size = varint(5);
    if (size > rest()) {
      throw tooShort();
    }
    return (int) size;
  }

  /** Reads no further than the size that comes next; returns the end to go back to. */
  int enter() throws Misfit {
    int size = size();
    int before = end;
    end = at + size;
    return before;
  }

  /** Goes a level deeper, or back by -1. */
  void descend(int by) throws Misfit {
    levels -= by;
    if (levels < 0) {
      throw broken("it is nested more than 100 levels deep");
    }
  }

  void take(int count) throws Misfit {
    values -= count;
    if (values < 0) {
      throw new Misfit("it has more than 5,000,000 values");
    }
  }

  /** Passes over the value behind a tag. */
  void skipValue(int tag) throws Misfit {
    switch (tag & 7) {
      case VARINT -> varint();
      case FIXED64 -> fixed64();
      case BYTES -> skip(size());
      case GROUP -> {
        descend(1);
        int inner;
        while (((inner = tag()) & 7) != GROUP_END) {
          skipValue(inner);
        }
        end(inner, tag >>> 3);
        descend(-1);
      }
      case FIXED32 -> fixed32();
      default -> throw broken("a field has the unknown wire type " + (tag & 7));
    }
  }

  void end(int tag, int group) throws Misfit {
    if (tag >>> 3 != group) {
      throw broken("the end of group " + (tag >>> 3) + " is out of place");
    }
  }
}

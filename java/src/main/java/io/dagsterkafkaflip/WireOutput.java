package io.dagsterkafkaflip;

import java.io.ByteArrayOutputStream;

/** Writes Protobuf's wire format. */
final class WireOutput extends ByteArrayOutputStream {
  void tag(int number, int wireType) {
    varint((long) number << 3 | wireType);
  }

  void varint(long value) {
    long left = value;
    while ((left & ~0x7fL) != 0) {
      write((int) left & 0x7f | 0x80);
      left >>>= 7;
    }
    write((int) left);
  }

  /** The lowest bytes of a number, the last one first. */
  void fixed(long value, int bytes) {
    for (int place = 0; place < bytes; place++) {
      write((int) (value >>> 8 * place));
    }
  }

  void bytes(byte[] content) {
    varint(content.length);
    write(content, 0, content.length);
  }

  void addTo(WireOutput other) {
    other.write(buf, 0, count);
  }

  /** Whether all bytes are zero, as those of a field that is not there. */
  boolean isZero() {
    for (int place = 0; place < count; place++) {
      if (buf[place] != 0) {
        return false;
      }
    }
    return true;
  }
}

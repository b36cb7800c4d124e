package io.dagsterkafkaflip;

import java.util.Arrays;
import java.util.HexFormat;

/** The bytes before a payload that name its schema in a registry. */
final class Frame {
  private static final int NUMBER = 5;
  private static final int GUID = 17;

  /** Before a header that holds no frame; the same bytes as in frames.py. */
  private static final byte[] NO_FRAME =
      HexFormat.of().parseHex("f3b1d07c5e29486a9c04e7fb8216d35a");

  final boolean isThere;
  final boolean isInHeaders;

  Frame(Options options) {
    String place = options.text("schema_id_in");
    isThere = place != null;
    isInHeaders = "headers".equals(place);
  }

  int end(byte[] data) throws Misfit {
    if (!isThere) {
      return 0;
    }
    int first = data.length == 0 ? -1 : data[0];
    if (first == 0 && data.length >= NUMBER) {
      return NUMBER;
    }
    if (first == 1 && data.length >= GUID) {
      return GUID;
    }
    String also = isInHeaders ? ", and no header has a schema id" : "";
    int mismatch = Arrays.mismatch(data, NO_FRAME);
    if (mismatch < 0 || mismatch == NO_FRAME.length) {
      int size = data.length - NO_FRAME.length;
      throw new Misfit("its header for the schema id has " + size + " bytes, which are not an id");
    }
    if (data.length == 0) {
      throw new Misfit("it is empty" + also);
    }
    if (first == 0) {
      throw new Misfit("its " + data.length + " bytes are too few for a schema id (5)" + also);
    }
    String why =
        "its first byte is 0x%02X, not the magic byte 0x00 of a schema registry's serializer";
    throw new Misfit(why.formatted(data[0]) + also);
  }
}

package io.dagsterkafkaflip;

import static java.nio.charset.StandardCharsets.US_ASCII;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;
import org.apache.spark.sql.catalyst.InternalRow;

/** Decodes Protobuf with the schemas that records were written with. */
final class ProtobufDecoder implements Decoder {
  /** Digits behind each payload, if ids may be in headers: how many of its bytes were in one. */
  private static final int LENGTH = 10;

  private static final int MOST_INDEXES = 100;

  private final Book<Schema> book;

  ProtobufDecoder(Options options) {
    book = new Book<>(options, Schema::of);
  }

  @Override
  public InternalRow decode(byte[] data) throws Misfit {
    boolean isInHeaders = book.frame.isInHeaders;
    byte[] payload = isInHeaders ? Arrays.copyOf(data, data.length - LENGTH) : data;
    int start = book.frame.end(payload);
    Schema schema = book.of(payload, start);
    if (schema.problem != null) {
      throw new Misfit(schema.problem);
    }
    if (book.frame.isThere) {
      String digits = new String(data, payload.length, data.length - payload.length, US_ASCII);
      start = schema.content(payload, start, isInHeaders ? Integer.parseInt(digits) : 0);
    }
    return Types.row(schema.row(payload, start), null);
  }

  /**
   * How the records of a schema are read.
   *
   * @param problem why they can't be; null if some can
   * @param reasons why a message is not the reader's, by message indexes; null if it is
   */
  private record Schema(
      String problem, String prefix, String subject, ProtobufMessage message, JsonNode reasons) {
    static Schema of(JsonNode given) {
      return new Schema(
          given.path("problem").asText(null),
          given.has("name") ? given.get("name").asText() + ": " : "",
          "it is not " + given.path("message").asText(),
          given.path("plan").isEmpty() ? null : ProtobufMessage.of(given.get("plan")),
          given.path("reasons"));
    }

    Object row(byte[] payload, int start) throws Misfit {
      Wire in = new Wire(payload, start, subject);
      try {
        Object[] values = message.make(in);
        message.read(in, values, 0);
        return message.value(in, values, "");
      } catch (Misfit misfit) {
        throw new Misfit(prefix + misfit.getMessage());
      }
    }

    /** Where the message begins: the indexes before it say which one it is. */
    int content(byte[] payload, int start, int inHeader) throws Misfit {
      // What a header lacks is not taken from the payload.
      byte[] bytes = inHeader > 0 ? Arrays.copyOf(payload, inHeader) : payload;
      Wire in = new Wire(bytes, start, prefix + "its message indexes are wrong");
      String indexes = indexes(in);
      if (inHeader > 0 && in.rest() > 0) {
        throw new Misfit(prefix + "extra bytes follow the message indexes in its header");
      }
      JsonNode reason = reasons.get(indexes);
      if (reason == null) {
        throw new Misfit(prefix + "its message indexes " + indexes + " match no message in it");
      }
      if (!reason.isNull()) {
        throw new Misfit(reason.asText());
      }
      return in.at;
    }

    private static String indexes(Wire in) throws Misfit {
      long count = Wire.zigzag(in.varint());
      if (count == 0) {
        return "[0]";
      }
      if (count < 0 || count > MOST_INDEXES) {
        throw in.broken("their number is not one of 0 to " + MOST_INDEXES);
      }
      long[] indexes = new long[(int) count];
      for (int place = 0; place < count; place++) {
        indexes[place] = Wire.zigzag(in.varint());
      }
      return Arrays.toString(indexes);
    }
  }
}

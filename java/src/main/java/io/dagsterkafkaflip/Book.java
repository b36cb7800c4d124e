package io.dagsterkafkaflip;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.function.Function;

/** What is made of the schemas that records name, which the driver asked a registry for. */
final class Book<T> {
  /** Ends the read: the driver then asks for the schema. The same text as in schema_book.py. */
  private static final String UNKNOWN = "[dagster-kafka-flip: schema not asked for yet] ";

  final Frame frame;
  private final JsonNode writers;
  private final Function<JsonNode, T> maker;
  private final Map<String, T> made = new HashMap<>();
  private byte[] last = {};
  private T lastMade;

  Book(Options options, Function<JsonNode, T> maker) {
    this.frame = new Frame(options);
    this.writers = options.node("writers");
    this.maker = maker;
  }

  T of(byte[] data, int start) {
    if (lastMade == null || !Arrays.equals(data, 0, start, last, 0, last.length)) {
      lastMade =
          made.computeIfAbsent(
              HexFormat.of().withUpperCase().formatHex(data, 0, start), this::made);
      last = Arrays.copyOf(data, start);
    }
    return lastMade;
  }

  private T made(String digits) {
    JsonNode writer = writers.get(digits);
    if (writer == null) {
      throw new IllegalStateException(UNKNOWN + digits);
    }
    return maker.apply(writer);
  }
}

package io.dagsterkafkaflip;

import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;

/**
 * What is made of the schemas that records name, once for each. The driver asked a registry for
 * them.
 */
final class Book<T> {
  /** Ends the read: the driver then asks for the schema. The same text as in schema_book.py. */
  private static final String UNKNOWN = "[dagster-kafka-flip: schema not asked for yet] ";

  private final Options options;
  final Frame frame;
  private final Maker<T> maker;
  private final Map<String, T> made = new HashMap<>();
  private byte[] last = {};
  private T lastMade;

  /** Makes what decodes the records of a schema. */
  @FunctionalInterface
  interface Maker<T> {
    /** Makes it of a schema's name, and its text or why it can't be used. */
    T make(String name, String text, String problem);
  }

  Book(Options options, Maker<T> maker) {
    this.options = options;
    this.frame = new Frame(options);
    this.maker = maker;
  }

  /** What is made of the schema that the bytes before the payload name. */
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
    if (!options.has("writers", digits)) {
      throw new IllegalStateException(UNKNOWN + digits);
    }
    return maker.make(
        options.text("writers", digits, "name"),
        options.text("writers", digits, "schema"),
        options.text("writers", digits, "problem"));
  }
}

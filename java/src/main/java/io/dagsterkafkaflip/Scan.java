package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonFactoryBuilder;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.core.StreamReadFeature;
import com.fasterxml.jackson.core.exc.StreamConstraintsException;
import com.fasterxml.jackson.core.io.IOContext;
import com.fasterxml.jackson.core.json.UTF8StreamJsonParser;
import com.fasterxml.jackson.core.sym.ByteQuadsCanonicalizer;
import java.io.IOException;
import java.util.Arrays;
import org.apache.spark.unsafe.types.UTF8String;

/** The scan of one record. Used again for each. */
final class Scan {
  static final String NOT_JSON = "not valid JSON";
  private static final int DEEPEST = 1_000;
  private static final int LONGEST_NUMBER = 1_000;
  private static final int LONGEST_QUOTE = 40;
  private static final int MOST_NAMES = 1_000;

  private final boolean showValues;
  private Parsers parsers = new Parsers();
  private byte[] data;
  private int start;
  JsonParser parser;
  Found found;

  Scan(boolean showValues) {
    this.showValues = showValues;
  }

  /** Makes parsers, and keeps the names that they meet. */
  private static final class Parsers extends JsonFactory {
    private static final long serialVersionUID = 1L;

    private int first;

    Parsers() {
      super(
          new JsonFactoryBuilder()
              // Kafka bounds a record, and so its texts and names.
              .streamReadConstraints(
                  StreamReadConstraints.builder()
                      .maxNestingDepth(DEEPEST)
                      .maxNumberLength(LONGEST_NUMBER)
                      .maxStringLength(Integer.MAX_VALUE)
                      .maxNameLength(Integer.MAX_VALUE)
                      .build())
              .enable(StreamReadFeature.USE_FAST_DOUBLE_PARSER)
              .disable(JsonFactory.Feature.INTERN_FIELD_NAMES));
    }

    @Override
    protected JsonParser _createParser(byte[] data, int from, int length, IOContext context) {
      return new Parser(
          context,
          _parserFeatures,
          _byteSymbolCanonicalizer.makeChild(_factoryFeatures),
          data,
          from,
          from + length);
    }

    /** Whether they have met so many names, beyond those of their first record, that few return. */
    boolean isFull() {
      int names = _byteSymbolCanonicalizer.size();
      first = first == 0 ? names : first;
      return names > MOST_NAMES + 2 * first;
    }
  }

  /** A parser of UTF-8, which has been checked. */
  private static final class Parser extends UTF8StreamJsonParser {
    private static final long ONES = 0x0101010101010101L;
    private static final long SPACES = ' ' * ONES;

    Parser(
        IOContext context,
        int features,
        ByteQuadsCanonicalizer names,
        byte[] data,
        int from,
        int end) {
      super(context, features, null, null, names, data, from, end, 0, false);
    }

    /** The text in hand without a copy, if it has no escapes; else null. */
    UTF8String plainText() {
      if (!_tokenIncomplete) {
        // A number. Behind it, the next quote may be far away.
        return null;
      }
      int from = _inputPtr;
      int at = from;
      while (at + Long.BYTES <= _inputEnd && !ends((long) Types.EIGHT.get(_inputBuffer, at))) {
        at += Long.BYTES;
      }
      while (at < _inputEnd && !ends(_inputBuffer[at] & 0xff | SPACES << Byte.SIZE)) {
        at++;
      }
      if (at == _inputEnd || _inputBuffer[at] != '"') {
        return null;
      }
      // As Jackson leaves it behind a text.
      _inputPtr = at + 1;
      _tokenIncomplete = false;
      return UTF8String.fromBytes(_inputBuffer, from, at - from);
    }

    /** Whether one of eight bytes is a quote, a backslash or a control character. */
    private static boolean ends(long eight) {
      long quotes = eight ^ '"' * ONES;
      long slashes = eight ^ '\\' * ONES;
      // A byte below another one borrows from its highest bit, which it did not have.
      long found = quotes - ONES & ~quotes | slashes - ONES & ~slashes | eight - SPACES & ~eight;
      return (found & Types.HIGHEST) != 0;
    }
  }

  /** Scans an object from its brace to the end of the bytes, once. */
  Object run(byte[] bytes, int from, ValueReader reader) throws Misfit {
    data = bytes;
    start = from;
    checkUtf8(bytes, from);
    if (parsers.isFull()) {
      // A parser that meets a new name copies all others.
      parsers = new Parsers();
    }
    try (JsonParser opened = parsers.createParser(bytes, start, bytes.length - start)) {
      parser = opened;
      if (!isNext(JsonToken.START_OBJECT)) {
        throw new Misfit("not a JSON object");
      }
      Object value = reader.read(this, JsonToken.START_OBJECT);
      if (!isNext(null)) {
        throw new Misfit(NOT_JSON + ": text follows the object");
      }
      return value;
    } catch (StreamConstraintsException error) {
      String why = "nested more than %d levels deep, or with a number of more than %d characters";
      throw new Misfit(why.formatted(DEEPEST, LONGEST_NUMBER));
    } catch (IOException error) {
      throw new Misfit(NOT_JSON);
    }
  }

  static void checkUtf8(byte[] bytes, int from) throws Misfit {
    if (!Types.isUtf8(bytes, from, bytes.length)) {
      throw new Misfit("not valid UTF-8");
    }
  }

  /** Whether a token comes next, and nothing that is no JSON; null for the end. */
  private boolean isNext(JsonToken token) {
    try {
      return parser.nextToken() == token;
    } catch (IOException error) {
      return false;
    }
  }

  /** The current value's own text, an object's or an array's too; leaves the parser at its end. */
  UTF8String ownText() throws IOException {
    int from = start + (int) parser.currentTokenLocation().getByteOffset();
    parser.skipChildren();
    int to = start + (int) parser.currentLocation().getByteOffset();
    return UTF8String.fromBytes(Arrays.copyOfRange(data, from, to));
  }

  /** The text of a string or a number, which a reader wants. */
  UTF8String text(ValueReader reader) throws IOException, Misfit {
    UTF8String plain = ((Parser) parser).plainText();
    return plain == null ? UTF8String.fromString(reader.whole(this, parser.getText())) : plain;
  }

  static boolean hasHalfPair(String text) {
    int each;
    for (int at = 0; at < text.length(); at += Character.charCount(each)) {
      each = text.codePointAt(at);
      if (each >= Character.MIN_SURROGATE && each <= Character.MAX_SURROGATE) {
        return true;
      }
    }
    return false;
  }

  /** The start of the current value, to follow an error; empty if no values are shown. */
  String quoted() throws IOException {
    JsonToken token = showValues ? parser.currentToken() : null;
    if (token == null || token.isStructEnd()) {
      return "";
    }
    boolean isText = token == JsonToken.VALUE_STRING || token == JsonToken.FIELD_NAME;
    String text = isText ? parser.getText() : ownText().toString();
    int length = text.codePointCount(0, text.length());
    return ": "
        + (length <= LONGEST_QUOTE
            ? text
            : text.substring(0, text.offsetByCodePoints(0, LONGEST_QUOTE)) + "...");
  }
}

package io.dagsterkafkaflip;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Decodes CSV, one row a record. It refuses what parsers of CSV read differently. */
final class CsvDecoder implements Decoder {
  private static final int NONE = -1;

  private final StructField[] fields;
  private final List<ValueReader> readers = new ArrayList<>();
  private final Scan scan = new Scan(false);
  private final String nullLiteral;
  private final int delimiter;
  private final int quote;
  private final int escape;
  private final boolean allowsComments;
  private String text;
  private int at;
  private int end;

  CsvDecoder(StructType declared, Options options) {
    fields = declared.fields();
    for (StructField field : fields) {
      readers.add(ValueReader.of(field.name(), field.dataType(), options.zone()));
    }
    nullLiteral = options.text("null_literal");
    delimiter = character(options, "delimiter");
    quote = character(options, "quote");
    escape = character(options, "escape");
    allowsComments = options.is("allow_comments");
  }

  private static int character(Options options, String name) {
    String given = options.text(name);
    return given == null ? NONE : given.charAt(0);
  }

  @Override
  public InternalRow decode(byte[] data) throws Misfit {
    List<String> texts = texts(data);
    if (texts.size() != fields.length) {
      throw new Misfit("has " + texts.size() + " fields, but " + fields.length + " are declared");
    }
    InternalRow row = new GenericInternalRow(fields.length);
    for (int place = 0; place < fields.length; place++) {
      if (texts.get(place).equals(nullLiteral)) {
        if (!fields[place].nullable()) {
          throw new Misfit("the required field " + fields[place].name() + " is null");
        }
        continue;
      }
      try {
        row.update(place, readers.get(place).ofText(scan, texts.get(place)));
      } catch (IOException error) {
        // Only a parser of JSON has them.
        throw new UncheckedIOException(error);
      }
    }
    return Types.row(row, null);
  }

  private List<String> texts(byte[] data) throws Misfit {
    findRow(data);
    List<String> found = new ArrayList<>(fields.length);
    found.add(field());
    while (at < end) {
      if (text.charAt(at++) != delimiter) {
        throw notOneRow();
      }
      found.add(field());
    }
    return found;
  }

  /** Leaves out comments before the row and a line break behind it. */
  private void findRow(byte[] data) throws Misfit {
    Scan.checkUtf8(data, 0);
    text = new String(data, StandardCharsets.UTF_8);
    if (text.startsWith("\ufeff")) {
      throw new Misfit("begins with a byte order mark");
    }
    at = 0;
    end = text.length();
    while (allowsComments && at < end && text.charAt(at) == '#') {
      while (at < end && text.charAt(at) != '\r' && text.charAt(at) != '\n') {
        at++;
      }
      // To some parsers a carriage return by itself ends the comment, too: then no row follows
      // here.
      at += text.startsWith("\r\n", at) ? 2 : text.startsWith("\n", at) ? 1 : 0;
    }
    if (at < end && text.charAt(end - 1) == '\n') {
      end--;
      end -= at < end && text.charAt(end - 1) == '\r' ? 1 : 0;
    }
    if (at == end) {
      throw new Misfit(allowsComments ? "has no row" : "empty");
    }
    // UTF-16 has it, and would else be taken for text.
    if (text.indexOf('\0', at) >= 0) {
      throw new Misfit("contains U+0000");
    }
  }

  private String field() throws Misfit {
    return at < end && text.charAt(at) == quote ? quoted() : plain();
  }

  private String plain() throws Misfit {
    int start = at;
    boolean isBlank = true;
    for (; at < end && text.charAt(at) != delimiter; at++) {
      char each = text.charAt(at);
      // Some parsers take a quote behind spaces for the start of a quoted field.
      if (each == '\r' || each == '\n' || each == escape || each == quote && isBlank) {
        throw notOneRow();
      }
      isBlank &= each <= ' ';
    }
    return text.substring(start, at);
  }

  private String quoted() throws Misfit {
    StringBuilder found = new StringBuilder();
    for (at++; at < end; at++) {
      char each = text.charAt(at);
      if (isPair(each)) {
        at++;
        each = text.charAt(at);
      } else if (each == quote) {
        at++;
        return found.toString();
      } else if (each == escape) {
        break;
      }
      found.append(each);
    }
    throw notOneRow();
  }

  /** Whether the character stands before one that it makes a part of the text. */
  private boolean isPair(char each) {
    int next = at + 1 < end ? text.charAt(at + 1) : NONE;
    return escape == NONE
        ? each == quote && next == quote
        : each == escape && (next == quote || next == escape);
  }

  private static Misfit notOneRow() {
    return new Misfit("not one row of CSV");
  }
}

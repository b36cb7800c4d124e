package io.dagsterkafkaflip;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * Cuts one row of CSV into the texts of its fields. It refuses what parsers of CSV read
 * differently.
 */
final class CsvRow {
  private static final int NONE = -1;

  private final int delimiter;
  private final int quote;
  private final int escape;
  private final boolean allowsComments;
  private final List<String> fields = new ArrayList<>();
  private String text;
  private int at;
  private int end;

  CsvRow(Options options) {
    delimiter = character(options, "delimiter");
    quote = character(options, "quote");
    escape = character(options, "escape");
    allowsComments = options.is("allow_comments");
  }

  private static int character(Options options, String name) {
    String given = options.text(name);
    return given == null ? NONE : given.charAt(0);
  }

  /** The fields of a record, which hold until the next one. */
  List<String> fields(byte[] data) throws Misfit {
    findRow(data);
    fields.clear();
    fields.add(field());
    while (at < end) {
      if (text.charAt(at++) != delimiter) {
        throw notOneRow();
      }
      fields.add(field());
    }
    return fields;
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
    for (; at < end; at++) {
      char each = text.charAt(at);
      if (each == delimiter) {
        break;
      }
      // Some parsers take a quote behind spaces for the start of a quoted field.
      if (each == '\r' || each == '\n' || each == escape || each == quote && isBlank) {
        throw notOneRow();
      }
      isBlank &= each <= ' ';
    }
    return text.substring(start, at);
  }

  private String quoted() throws Misfit {
    StringBuilder before = null;
    int start = ++at;
    for (; at < end; at++) {
      char each = text.charAt(at);
      if (each != quote && each != escape) {
        continue;
      }
      if (isPair(each)) {
        before = before == null ? new StringBuilder() : before;
        before.append(text, start, at);
        start = ++at;
      } else if (each == quote) {
        String rest = text.substring(start, at++);
        return before == null ? rest : before.append(rest).toString();
      } else {
        break;
      }
    }
    throw notOneRow();
  }

  /** Whether the character stands before one that it makes a part of the text. */
  private boolean isPair(char each) {
    int next = at + 1 < end ? text.charAt(at + 1) : NONE;
    return escape == NONE ? next == quote : each == escape && (next == quote || next == escape);
  }

  private static Misfit notOneRow() {
    return new Misfit("not one row of CSV");
  }
}

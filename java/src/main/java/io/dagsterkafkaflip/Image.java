package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;

/**
 * A row on one side of a change. What is wrong with it is kept: only the whole record shows whether
 * it matters.
 */
final class Image extends ValueReader {
  private final StructReader fields;
  private Misfit misfit;
  private InternalRow row;

  /** What the row has. */
  final Found found;

  Image(String path, StructType declared, StructReader fields) {
    super(path, declared);
    this.fields = fields;
    found = new Found(fields.leaves, declared.fields().length);
  }

  void clear() {
    found.clear();
    misfit = null;
    row = null;
  }

  @Override
  Object read(Scan scan, JsonToken token) throws IOException, Misfit {
    clear();
    JsonParser parser = scan.parser;
    int depth = parser.getParsingContext().getNestingDepth();
    Found outer = scan.found;
    scan.found = found;
    try {
      row = fields.read(scan, token);
    } catch (Misfit wrong) {
      misfit = wrong;
      while (token.isStructStart() && parser.getParsingContext().getNestingDepth() >= depth) {
        parser.nextToken();
      }
    } finally {
      scan.found = outer;
    }
    return row;
  }

  /** The row; null if there is none. */
  InternalRow row() throws Misfit {
    if (misfit != null) {
      throw misfit;
    }
    return row;
  }

  void checkRequired() throws Misfit {
    if (found.missing != null) {
      throw Misfit.missing(found.missing.substring(path.isEmpty() ? 0 : path.length() + 1));
    }
  }
}

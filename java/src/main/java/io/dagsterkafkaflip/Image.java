package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;

/**
 * A row on one side of a change. What is wrong with it is kept: only the whole record shows whether
 * it matters.
 */
final class Image {
  final Found found;

  private InternalRow row;
  private Misfit misfit;

  private Image(Found found) {
    this.found = found;
  }

  InternalRow row() throws Misfit {
    if (misfit != null) {
      throw misfit;
    }
    return row;
  }

  /** Reads one. */
  static final class Reader extends ValueReader {
    private final StructReader fields;
    private final Found nothing;

    Reader(StructReader fields, Found nothing) {
      super(fields.path, fields.type);
      this.fields = fields;
      this.nothing = nothing;
    }

    @Override
    Image read(Scan scan, JsonToken token) throws IOException {
      Image image = new Image(nothing.another());
      JsonParser parser = scan.parser;
      int depth = parser.getParsingContext().getNestingDepth();
      Found outer = scan.found;
      scan.found = image.found;
      try {
        image.row = fields.read(scan, token);
      } catch (Misfit misfit) {
        image.misfit = misfit;
        while (token.isStructStart() && parser.getParsingContext().getNestingDepth() >= depth) {
          parser.nextToken();
        }
      } finally {
        scan.found = outer;
      }
      return image;
    }
  }
}

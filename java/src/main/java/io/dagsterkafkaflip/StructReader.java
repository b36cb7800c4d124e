package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.io.SerializedString;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Reads a STRUCT from an object. Of a name that occurs twice the last value counts. */
final class StructReader extends ValueReader {
  private static final int NONE = -1;
  private static final int END = -2;

  /** How many leaves it has if it is a record's. */
  final int leaves;

  private final Field[] fields;
  private final boolean isTop;
  private final boolean isOfTexts;
  private final Map<String, Integer> places = new HashMap<>();

  /**
   * A declared field.
   *
   * @param leaf the number of the bit that says that it is there, or NONE
   */
  private record Field(SerializedString name, ValueReader reader, boolean isRequired, int leaf) {}

  /**
   * Makes a reader.
   *
   * @param isWatched whether its leaves are noted
   * @param isTop whether its undeclared names are noted
   * @param isOfTexts whether its values are texts, as in CSV, and no name may be there twice
   */
  StructReader(
      String path,
      StructType type,
      Readers readers,
      boolean isWatched,
      boolean isTop,
      boolean isOfTexts) {
    super(path, type);
    this.isTop = isTop;
    this.isOfTexts = isOfTexts;
    fields = new Field[type.fields().length];
    for (int place = 0; place < fields.length; place++) {
      StructField field = type.fields()[place];
      boolean isInner = field.dataType() instanceof StructType inner && inner.fields().length > 0;
      int leaf = isWatched && !isInner ? readers.nextLeaf() : NONE;
      String inside = path.isEmpty() ? field.name() : path + "." + field.name();
      ValueReader reader = readers.of(inside, field.dataType(), isWatched);
      fields[place] =
          new Field(new SerializedString(field.name()), reader, !field.nullable(), leaf);
      places.put(field.name(), place);
    }
    leaves = readers.leaves();
  }

  @Override
  InternalRow read(Scan scan, JsonToken token) throws IOException, Misfit {
    if (token != JsonToken.START_OBJECT) {
      throw misfit(scan);
    }
    JsonParser parser = scan.parser;
    Object[] values = new Object[fields.length];
    int expected = 0;
    int place;
    while ((place = nextPlace(parser, expected)) != END) {
      String undeclared = place == NONE && isTop ? parser.currentName() : null;
      JsonToken first = parser.nextToken();
      if (place == NONE) {
        if (isTop) {
          scan.found.namesUndeclared(undeclared);
        }
        parser.skipChildren();
        continue;
      }
      Field field = fields[place];
      if (isTop) {
        if (isOfTexts && scan.found.has(place)) {
          throw new Misfit("the field " + field.reader.path + " is there twice");
        }
        scan.found.names(place);
      }
      values[place] =
          isOfTexts && first != JsonToken.VALUE_NULL
              ? field.reader.ofText(scan, textOf(scan, first))
              : field.reader.readOrNull(scan, first);
      if (field.leaf != NONE && values[place] != null) {
        scan.found.sees(field.leaf);
      }
      expected = place + 1;
    }
    for (place = 0; place < values.length; place++) {
      if (values[place] == null && fields[place].isRequired) {
        scan.found.lacks(fields[place].reader.path);
      }
    }
    return Types.row(values);
  }

  private static String textOf(Scan scan, JsonToken first) throws IOException {
    return first.isScalarValue() ? scan.parser.getText() : scan.ownText().toString();
  }

  /** Where the next name is declared, NONE or END. Most records have the fields in their order. */
  private int nextPlace(JsonParser parser, int expected) throws IOException {
    // Compares bytes, which is faster than to look for a name.
    if (expected < fields.length && parser.nextFieldName(fields[expected].name)) {
      return expected;
    }
    if (expected >= fields.length) {
      parser.nextToken();
    }
    return parser.currentToken() == JsonToken.FIELD_NAME
        ? places.getOrDefault(parser.currentName(), NONE)
        : END;
  }
}

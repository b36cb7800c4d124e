package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.io.SerializedString;
import java.io.IOException;
import java.time.ZoneId;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Reads a STRUCT from an object. Of a name that occurs twice the last value counts. */
final class StructReader extends ValueReader {
  static final int NONE = -1;
  private static final int END = -2;

  private final Field[] fields;
  private final boolean isTop;
  private final boolean isOfTexts;
  private final Map<String, Integer> places = new HashMap<>();

  /** A declared field, with the number of the bit that says that it is there, or NONE. */
  private record Field(SerializedString name, ValueReader reader, boolean isRequired, int leaf) {}

  /**
   * Makes a reader.
   *
   * @param leaf the number of its first leaf; NONE if they are not noted
   * @param isTop whether its undeclared names are noted
   * @param isOfTexts whether its values are texts, as in CSV, and no name may be there twice
   */
  StructReader(
      String path, StructType type, ZoneId zone, int leaf, boolean isTop, boolean isOfTexts) {
    super(path, type);
    this.isTop = isTop;
    this.isOfTexts = isOfTexts;
    fields = new Field[type.length()];
    for (int place = 0; place < fields.length; place++) {
      StructField each = type.fields()[place];
      String inside = path.isEmpty() ? each.name() : path + "." + each.name();
      ValueReader reader = of(inside, each.dataType(), zone, leaf);
      int own = isInner(each.dataType()) ? NONE : leaf;
      fields[place] = new Field(new SerializedString(each.name()), reader, !each.nullable(), own);
      places.put(each.name(), place);
      leaf += leaf == NONE ? 0 : leaves(each.dataType());
    }
  }

  private static boolean isInner(DataType type) {
    return type instanceof StructType struct && struct.length() > 0;
  }

  /** How many leaves a field has: a STRUCT has those inside of it. */
  static int leaves(DataType type) {
    return isInner(type)
        ? Arrays.stream(((StructType) type).fields())
            .mapToInt(each -> leaves(each.dataType()))
            .sum()
        : 1;
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
      if (place == NONE) {
        if (isTop) {
          scan.found.namesUndeclared(parser.currentName());
        }
        parser.nextToken();
        parser.skipChildren();
        continue;
      }
      JsonToken first = parser.nextToken();
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

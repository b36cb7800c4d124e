package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.DataType;

/** Reads a STRUCT from an object. Of a name that occurs twice the last value counts. */
final class StructReader extends ValueReader {
  /** A leaf that is not watched. */
  static final int NONE = -1;

  private final String[] names;
  private final ValueReader[] readers;
  private final boolean[] isRequired;
  private final int[] leaves;
  private final boolean isTop;
  private final Map<String, Integer> places = new HashMap<>();

  /**
   * Makes a reader of fields in their order.
   *
   * @param leaves of each field the number of the bit that says that it is there, or NONE
   * @param isTop whether its undeclared names are noted
   */
  StructReader(
      String path,
      DataType type,
      String[] names,
      ValueReader[] readers,
      boolean[] isRequired,
      int[] leaves,
      boolean isTop) {
    super(path, type);
    this.names = names;
    this.readers = readers;
    this.isRequired = isRequired;
    this.leaves = leaves;
    this.isTop = isTop;
    for (int place = 0; place < names.length; place++) {
      places.put(names[place], place);
    }
  }

  @Override
  InternalRow read(Scan scan, JsonToken token) throws IOException, Misfit {
    if (token != JsonToken.START_OBJECT) {
      throw misfit(scan);
    }
    JsonParser parser = scan.parser;
    Object[] values = new Object[names.length];
    int expected = 0;
    String name;
    while ((name = parser.nextFieldName()) != null) {
      int place = placeOf(name, expected);
      JsonToken first = parser.nextToken();
      if (place < 0) {
        if (isTop) {
          scan.found.namesUndeclared(name);
        }
        parser.skipChildren();
        continue;
      }
      if (isTop) {
        scan.found.names(place);
      }
      values[place] = readers[place].readOrNull(scan, first);
      if (leaves[place] != NONE && values[place] != null) {
        scan.found.sees(leaves[place]);
      }
      expected = place + 1;
    }
    for (int place = 0; place < isRequired.length; place++) {
      if (isRequired[place] && values[place] == null) {
        scan.found.lacks(readers[place].path);
      }
    }
    return new GenericInternalRow(values);
  }

  /** Where a name is declared; -1 if it is not. Most records have the fields in their order. */
  private int placeOf(String name, int expected) {
    if (expected < names.length && names[expected].equals(name)) {
      return expected;
    }
    Integer place = places.get(name);
    return place == null ? -1 : place;
  }
}

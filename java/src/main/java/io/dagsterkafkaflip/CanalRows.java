package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Reads the rows of a record of Canal, whose values are texts. */
final class CanalRows extends ValueReader {
  private static final DataType ROWS =
      DataTypes.createArrayType(
          DataTypes.createMapType(DataTypes.StringType, DataTypes.StringType));

  private final ValueReader[] columns;
  private final Map<String, Integer> places = new HashMap<>();

  /** A row, what it has, and what is wrong with it. */
  static final class Row {
    final GenericInternalRow values;
    final Found found;
    private Misfit misfit;

    Row(int columns) {
      values = new GenericInternalRow(columns);
      found = new Found(columns, columns);
    }

    void check() throws Misfit {
      if (misfit != null) {
        throw misfit;
      }
    }
  }

  /**
   * Makes a reader.
   *
   * @param path where the rows are
   * @param prefix before the name of a column in an error
   */
  CanalRows(String path, String prefix, StructType declared, Readers readers) {
    super(path, ROWS);
    StructField[] fields = declared.fields();
    columns = new ValueReader[fields.length];
    for (int place = 0; place < fields.length; place++) {
      columns[place] = readers.of(prefix + fields[place].name(), fields[place].dataType());
      places.put(fields[place].name(), place);
    }
  }

  /** The rows, null for each null. */
  @Override
  List<Row> read(Scan scan, JsonToken token) throws IOException, Misfit {
    if (token != JsonToken.START_ARRAY) {
      throw misfit(scan);
    }
    List<Row> rows = new ArrayList<>();
    JsonToken first;
    while ((first = scan.parser.nextToken()) != JsonToken.END_ARRAY) {
      if (first != JsonToken.VALUE_NULL && first != JsonToken.START_OBJECT) {
        throw misfit(scan);
      }
      rows.add(first == JsonToken.VALUE_NULL ? null : row(scan));
    }
    return rows;
  }

  private Row row(Scan scan) throws IOException {
    Row row = new Row(columns.length);
    String name;
    while ((name = scan.parser.nextFieldName()) != null) {
      JsonToken first = scan.parser.nextToken();
      Integer place = places.get(name);
      if (place == null) {
        row.found.namesUndeclared(name);
        scan.parser.skipChildren();
        continue;
      }
      try {
        if (row.found.has(place)) {
          throw wrong(scan, path + "[]", "has a key twice");
        }
        row.found.names(place);
        if (first != JsonToken.VALUE_NULL) {
          String text = first.isScalarValue() ? scan.parser.getText() : scan.ownText().toString();
          row.values.update(place, columns[place].ofText(scan, text));
          row.found.sees(place);
        }
      } catch (Misfit misfit) {
        row.misfit = row.misfit == null ? misfit : row.misfit;
        scan.parser.skipChildren();
      }
    }
    return row;
  }
}

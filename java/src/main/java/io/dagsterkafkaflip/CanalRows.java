package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** Reads the rows of a record of Canal, whose values are texts. */
final class CanalRows extends ValueReader {
  private static final DataType ROWS =
      DataTypes.createArrayType(
          DataTypes.createMapType(DataTypes.StringType, DataTypes.StringType));

  private final StructReader columns;
  private final StructType declared;

  /** Makes a reader of the rows at a path; errors name a column with a prefix. */
  CanalRows(String path, String prefix, StructType declared, Readers readers) {
    super(path, ROWS);
    this.declared = declared;
    columns = readers.ofTexts(prefix, declared);
  }

  /** The rows, null for each null. */
  @Override
  List<Image> read(Scan scan, JsonToken token) throws IOException, Misfit {
    if (token != JsonToken.START_ARRAY) {
      throw misfit(scan);
    }
    List<Image> rows = new ArrayList<>();
    JsonToken first;
    while ((first = scan.parser.nextToken()) != JsonToken.END_ARRAY) {
      if (first != JsonToken.VALUE_NULL && first != JsonToken.START_OBJECT) {
        throw misfit(scan);
      }
      Image row = first == JsonToken.VALUE_NULL ? null : new Image(columns.path, declared, columns);
      rows.add(row);
      if (row != null) {
        row.read(scan, first);
      }
    }
    return rows;
  }
}

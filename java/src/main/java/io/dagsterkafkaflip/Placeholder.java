package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.io.JsonStringEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.IntegralType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.types.variant.Variant;
import org.apache.spark.types.variant.VariantUtil;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.unsafe.types.VariantVal;

/** What Debezium writes for a value that the database did not send, in its form in each type. */
final class Placeholder {
  private final Set<UTF8String> texts;
  private final byte[] bytes;
  private final UTF8String uuid;
  private final StructField[] columns;

  /** Makes one of its text, for rows with such columns. */
  Placeholder(String text, StructType row) {
    columns = row.fields();
    bytes = text.getBytes(StandardCharsets.UTF_8);
    uuid = UTF8String.fromString(UUID.nameUUIDFromBytes(bytes).toString());
    String quoted = '"' + new String(JsonStringEncoder.getInstance().quoteAsString(text)) + '"';
    // Of an HSTORE, and by the connector's binary.handling.mode.
    String hstore = "{" + quoted + ":" + quoted + "}";
    String base64 = Base64.getEncoder().encodeToString(bytes);
    String ofUrls = Base64.getUrlEncoder().encodeToString(bytes);
    texts =
        Stream.of(text, hstore, base64, ofUrls, HexFormat.of().formatHex(bytes))
            .map(UTF8String::fromString)
            .collect(Collectors.toSet());
  }

  /**
   * Makes nulls of the placeholders in a row and the one before it, and returns the names of the
   * row's columns that had one; null if there are none. Both may be null.
   */
  Object takenFrom(InternalRow row, InternalRow earlier) {
    if (earlier != null && earlier != row) {
      namesIn(earlier);
    }
    List<UTF8String> names = row == null ? List.of() : namesIn(row);
    return names.isEmpty() ? null : Types.array(names);
  }

  private List<UTF8String> namesIn(InternalRow row) {
    List<UTF8String> names = new ArrayList<>();
    for (int place = 0; place < columns.length; place++) {
      DataType type = columns[place].dataType();
      if (is(type, row.get(place, type))) {
        row.update(place, null);
        names.add(UTF8String.fromString(columns[place].name()));
      }
    }
    return names;
  }

  private boolean is(DataType type, Object value) {
    if (value instanceof byte[] data) {
      return Arrays.equals(data, bytes);
    }
    if (value instanceof VariantVal variant) {
      Variant found = new Variant(variant.getValue(), variant.getMetadata());
      return found.getType() == VariantUtil.Type.STRING
          && texts.contains(UTF8String.fromString(found.getString()));
    }
    if (value instanceof MapData map) {
      UTF8String text = UTF8String.fromBytes(bytes);
      return map.numElements() == 1
          && text.equals(map.keyArray().get(0, DataTypes.StringType))
          && text.equals(map.valueArray().get(0, null));
    }
    return value instanceof ArrayData array
        ? isArray(((ArrayType) type).elementType(), array)
        : texts.contains(value);
  }

  private boolean isArray(DataType type, ArrayData array) {
    if (type instanceof IntegralType) {
      return array.numElements() == bytes.length
          && Arrays.toString(array.array()).equals(Arrays.toString(bytes));
    }
    if (array.numElements() != 1 || !(type instanceof StringType || type instanceof BinaryType)) {
      return false;
    }
    Object only = array.get(0, type);
    return uuid.equals(only) || is(type, only);
  }
}

package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.unsafe.types.UTF8String;

/** Reads an ARRAY, or a MAP, whose keys are STRINGs: Python has looked at that. */
final class CollectionReader extends ValueReader {
  private final ValueReader element;
  private final boolean isMap;
  private final boolean mayLack;

  CollectionReader(String path, DataType type, ZoneId zone) {
    super(path, type);
    isMap = type instanceof MapType;
    element = of(path + (isMap ? "{}" : "[]"), Types.inside(type), zone);
    mayLack =
        type instanceof MapType map ? map.valueContainsNull() : ((ArrayType) type).containsNull();
  }

  /** One of arrays whose elements may be null. */
  CollectionReader(String path, ValueReader element) {
    super(path, new ArrayType(element.type, true));
    this.element = element;
    isMap = false;
    mayLack = true;
  }

  @Override
  Object read(Scan scan, JsonToken token) throws IOException, Misfit {
    if (token != (isMap ? JsonToken.START_OBJECT : JsonToken.START_ARRAY)) {
      throw misfit(scan);
    }
    List<Object> keys = new ArrayList<>();
    List<Object> values = new ArrayList<>();
    for (JsonToken next; !(next = scan.parser.nextToken()).isStructEnd(); ) {
      if (isMap) {
        keys.add(UTF8String.fromString(whole(scan, scan.parser.currentName())));
        next = scan.parser.nextToken();
      }
      Object value = element.readOrNull(scan, next);
      if (value == null && !mayLack) {
        scan.found.lacks(element.path);
      }
      values.add(value);
    }
    if (!isMap) {
      return Types.array(values);
    }
    if (new HashSet<>(keys).size() < keys.size()) {
      throw wrong(scan, "has a key twice");
    }
    return Types.map(keys, values);
  }
}

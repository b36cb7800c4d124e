package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.unsafe.types.UTF8String;

/** Readers of ARRAY and MAP. */
abstract class Collections extends ValueReader {
  private final ValueReader element;
  private final boolean mayLack;

  private Collections(String path, DataType type, ValueReader element, boolean mayLack) {
    super(path, type);
    this.element = element;
    this.mayLack = mayLack;
  }

  final Object element(Scan scan, JsonToken token) throws IOException, Misfit {
    Object value = element.readOrNull(scan, token);
    if (value == null && !mayLack) {
      scan.found.lacks(element.path);
    }
    return value;
  }

  static final class Array extends Collections {
    Array(String path, ArrayType type, Readers readers) {
      super(path, type, readers.of(path + "[]", type.elementType()), type.containsNull());
    }

    Array(String path, ValueReader element) {
      super(path, new ArrayType(element.type, true), element, true);
    }

    @Override
    Object read(Scan scan, JsonToken token) throws IOException, Misfit {
      if (token != JsonToken.START_ARRAY) {
        throw misfit(scan);
      }
      List<Object> values = new ArrayList<>();
      JsonToken next;
      while ((next = scan.parser.nextToken()) != JsonToken.END_ARRAY) {
        values.add(element(scan, next));
      }
      return Types.array(values.toArray());
    }
  }

  /** MAP, whose keys are STRINGs. */
  static final class Map extends Collections {
    Map(String path, MapType type, Readers readers) {
      super(path, type, readers.of(path + "{}", type.valueType()), type.valueContainsNull());
      if (!(type.keyType() instanceof StringType)) {
        throw Readers.unreadable(path, type);
      }
    }

    @Override
    Object read(Scan scan, JsonToken token) throws IOException, Misfit {
      if (token != JsonToken.START_OBJECT) {
        throw misfit(scan);
      }
      List<UTF8String> keys = new ArrayList<>();
      List<Object> values = new ArrayList<>();
      String name;
      while ((name = scan.parser.nextFieldName()) != null) {
        keys.add(UTF8String.fromString(whole(scan, name)));
        values.add(element(scan, scan.parser.nextToken()));
      }
      if (new HashSet<>(keys).size() < keys.size()) {
        throw wrong(scan, "has a key twice");
      }
      return new ArrayBasedMapData(Types.array(keys.toArray()), Types.array(values.toArray()));
    }
  }
}

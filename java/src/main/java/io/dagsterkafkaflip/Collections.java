package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.unsafe.types.UTF8String;

/** Readers of ARRAY and MAP. */
final class Collections {
  private Collections() {}

  /** ARRAY. */
  static final class Array extends ValueReader {
    private final ValueReader element;
    private final boolean mayLack;

    Array(String path, DataType type, ValueReader element, boolean mayLack) {
      super(path, type);
      this.element = element;
      this.mayLack = mayLack;
    }

    @Override
    Object read(Scan scan, JsonToken token) throws IOException, Misfit {
      if (token != JsonToken.START_ARRAY) {
        throw misfit(scan);
      }
      List<Object> values = new ArrayList<>();
      JsonToken next;
      while ((next = scan.parser.nextToken()) != JsonToken.END_ARRAY) {
        Object value = element.readOrNull(scan, next);
        if (value == null && !mayLack) {
          scan.found.lacks(element.path);
        }
        values.add(value);
      }
      return new GenericArrayData(values.toArray());
    }
  }

  /** MAP, whose keys are STRINGs. */
  static final class Map extends ValueReader {
    private final ValueReader value;
    private final boolean mayLack;

    Map(String path, DataType type, ValueReader value, boolean mayLack) {
      super(path, type);
      this.value = value;
      this.mayLack = mayLack;
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
        UTF8String key = Scan.utf8(name);
        if (key == null) {
          throw wrong(scan, "has half of a surrogate pair");
        }
        Object found = value.readOrNull(scan, scan.parser.nextToken());
        if (found == null && !mayLack) {
          scan.found.lacks(value.path);
        }
        keys.add(key);
        values.add(found);
      }
      if (new HashSet<>(keys).size() < keys.size()) {
        throw wrong(scan, "has a key twice");
      }
      return new ArrayBasedMapData(
          new GenericArrayData(keys.toArray()), new GenericArrayData(values.toArray()));
    }
  }
}

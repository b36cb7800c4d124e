package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.apache.spark.sql.types.StructType;

/** The fields of an envelope by name: what reads them, and their values in the record in hand. */
final class Fields extends ValueReader {
  private final Map<String, ValueReader> readers = new HashMap<>();
  private final Map<String, Object> values = new HashMap<>();

  /** The names of all fields that the object has. */
  final Set<String> names = new HashSet<>();

  Fields(String path) {
    super(path, new StructType());
  }

  void add(String name, ValueReader reader) {
    readers.put(name, reader);
  }

  Object get(String name) {
    return values.get(name);
  }

  /** The text of a field; null if there is none. */
  String text(String name) {
    return Objects.toString(values.get(name), null);
  }

  @Override
  Object read(Scan scan, JsonToken token) throws IOException, Misfit {
    if (token != JsonToken.START_OBJECT) {
      throw misfit(scan);
    }
    values.clear();
    names.clear();
    String name;
    while ((name = scan.parser.nextFieldName()) != null) {
      boolean isFirst = names.add(name);
      JsonToken first = scan.parser.nextToken();
      ValueReader reader = readers.get(name);
      if (reader == null) {
        scan.parser.skipChildren();
      } else if (isFirst) {
        values.put(name, reader.readOrNull(scan, first));
      } else {
        // Parts of two events would be one.
        throw new Misfit("the field " + reader.path + " is there twice");
      }
    }
    return this;
  }
}

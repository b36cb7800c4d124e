package io.dagsterkafkaflip;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Objects;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Names that are not declared. Records of one topic mostly have the same, so their array is kept.
 */
final class Names {
  private final List<String> found = new ArrayList<>();
  private List<String> kept = List.of();
  private ArrayData keptArray;

  void clear() {
    found.clear();
  }

  void add(String name) {
    found.add(name);
  }

  /** The names, each once; null if there are none. */
  ArrayData array() {
    if (found.isEmpty()) {
      return null;
    }
    if (!found.equals(kept)) {
      kept = List.copyOf(found);
      keptArray =
          new GenericArrayData(
              new LinkedHashSet<>(found)
                  .stream().map(Scan::utf8).filter(Objects::nonNull).toArray(UTF8String[]::new));
    }
    return keptArray;
  }
}

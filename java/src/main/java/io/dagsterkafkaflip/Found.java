package io.dagsterkafkaflip;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Which declared and undeclared fields an object has. */
final class Found {
  /** Of a BIGINT, without its sign. */
  private static final int BITS = 63;

  private final long[] seen;
  private final boolean[] isNamed;
  private boolean isEmpty = true;

  /** The path of the first NOT NULL field without a value; null if there is none. */
  private String missing;

  private final List<String> undeclared = new ArrayList<>();

  /** The one that keeps an array: records of one topic mostly have the same undeclared names. */
  private final Found keeper;

  private List<String> keptNames = List.of();
  private ArrayData kept;

  Found(StructType declared) {
    seen = new long[words(declared)];
    isNamed = new boolean[declared.fields().length];
    keeper = this;
  }

  Found(Found keeper) {
    seen = new long[keeper.seen.length];
    isNamed = new boolean[keeper.isNamed.length];
    this.keeper = keeper;
  }

  private static int words(StructType declared) {
    return (StructReader.leaves(declared) + BITS - 1) / BITS;
  }

  /** Adds the columns that `result` adds. */
  static StructType type(StructType values, StructType declared) {
    StructType type = values.add("problem", DataTypes.StringType);
    for (int word = 0; word < words(declared); word++) {
      type = type.add("seen" + word, DataTypes.LongType, false);
    }
    return type.add("undeclared", DataTypes.createArrayType(DataTypes.StringType));
  }

  InternalRow result(Object... values) {
    Object[] all = Arrays.copyOf(values, values.length + 2 + seen.length);
    for (int word = 0; word < seen.length; word++) {
      all[values.length + 1 + word] = seen[word];
    }
    all[all.length - 1] = undeclared.isEmpty() ? null : keeper.array(undeclared);
    return Types.row(all);
  }

  void names(int place) {
    isNamed[place] = true;
    isEmpty = false;
  }

  void namesUndeclared(String name) {
    undeclared.add(name);
    isEmpty = false;
  }

  void sees(int leaf) {
    seen[leaf / BITS] |= 1L << leaf % BITS;
  }

  void lacks(String path) {
    missing = missing == null ? path : missing;
  }

  void checkRequired() throws Misfit {
    if (missing != null) {
      throw new Misfit("the required field " + missing + " is missing or null");
    }
  }

  boolean has(int place) {
    return isNamed[place];
  }

  boolean isEmpty() {
    return isEmpty;
  }

  private ArrayData array(List<String> names) {
    if (!names.equals(keptNames)) {
      keptNames = names;
      kept =
          Types.array(
              names.stream()
                  .distinct()
                  .filter(name -> !Scan.hasHalfPair(name))
                  .map(UTF8String::fromString)
                  .toList());
    }
    return kept;
  }
}

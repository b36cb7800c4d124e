package io.dagsterkafkaflip;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Which declared and undeclared fields an object has. Used again for each record. */
final class Found {
  /** Fields per BIGINT of bits, without the sign. */
  private static final int BITS = 63;

  private final long[] seen;
  private final boolean[] isNamed;
  private int names;

  /** The path of the first NOT NULL field without a value; null if there is none. */
  String missing;

  private final List<String> undeclared = new ArrayList<>();

  // Records of one topic mostly have the same undeclared names, so their array is kept.
  private List<String> kept = List.of();
  private ArrayData keptArray;

  Found(StructType declared) {
    this(Readers.leavesOf(declared), declared.fields().length);
  }

  Found(int leaves, int fields) {
    seen = new long[words(leaves)];
    isNamed = new boolean[fields];
  }

  private static int words(int leaves) {
    return Math.max(1, (leaves + BITS - 1) / BITS);
  }

  /** Adds the columns that `result` adds. */
  static StructType type(StructType values, StructType declared) {
    StructType type = values.add(Types.field("problem", DataTypes.StringType));
    for (int word = 0; word < words(Readers.leavesOf(declared)); word++) {
      type = type.add(new StructField("seen" + word, DataTypes.LongType, false, Metadata.empty()));
    }
    return type.add(Types.field("undeclared", DataTypes.createArrayType(DataTypes.StringType)));
  }

  /** Values with what was found. */
  InternalRow result(Object... values) {
    Object[] all = Arrays.copyOf(values, values.length + 2 + seen.length);
    for (int word = 0; word < seen.length; word++) {
      all[values.length + 1 + word] = seen[word];
    }
    all[all.length - 1] = undeclaredNames();
    return Types.row(all);
  }

  /** The result of a record with a problem, which has no values. */
  InternalRow rejected(int values, Misfit misfit) {
    clear();
    InternalRow result = result(new Object[values]);
    result.update(values, UTF8String.fromString(misfit.getMessage()));
    return result;
  }

  void clear() {
    Arrays.fill(seen, 0);
    Arrays.fill(isNamed, false);
    names = 0;
    missing = null;
    undeclared.clear();
  }

  /** Notes that the object has a declared field, which may be null. */
  void names(int place) {
    isNamed[place] = true;
    names++;
  }

  void namesUndeclared(String name) {
    undeclared.add(name);
    names++;
  }

  /** Notes that a leaf has a value. */
  void sees(int leaf) {
    seen[leaf / BITS] |= 1L << leaf % BITS;
  }

  /** Notes that a NOT NULL field has no value. */
  void lacks(String path) {
    missing = missing == null ? path : missing;
  }

  boolean has(int place) {
    return isNamed[place];
  }

  boolean isEmpty() {
    return names == 0;
  }

  private ArrayData undeclaredNames() {
    if (undeclared.isEmpty()) {
      return null;
    }
    if (!undeclared.equals(kept)) {
      kept = List.copyOf(undeclared);
      keptArray =
          Types.array(
              new LinkedHashSet<>(kept)
                  .stream()
                      .filter(name -> !Scan.hasHalfPair(name))
                      .map(UTF8String::fromString)
                      .toArray());
    }
    return keptArray;
  }
}

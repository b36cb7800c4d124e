package io.dagsterkafkaflip;

import java.util.ArrayList;
import java.util.Arrays;
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
  private String missing;

  private final List<String> undeclared = new ArrayList<>();
  private final Kept kept;

  /** Records of one topic mostly have the same undeclared names, so their array is kept. */
  private static final class Kept {
    List<String> names = List.of();
    ArrayData array;
  }

  Found(StructType declared) {
    this(words(Readers.leavesOf(declared)), declared.fields().length, new Kept());
  }

  private Found(int words, int fields, Kept kept) {
    seen = new long[words];
    isNamed = new boolean[fields];
    this.kept = kept;
  }

  /** An empty one for the same fields. */
  Found another() {
    return new Found(seen.length, isNamed.length, kept);
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

  void checkRequired() throws Misfit {
    if (missing != null) {
      throw new Misfit("the required field " + missing + " is missing or null");
    }
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
    if (!undeclared.equals(kept.names)) {
      kept.names = List.copyOf(undeclared);
      kept.array =
          Types.array(
              undeclared.stream()
                  .distinct()
                  .filter(name -> !Scan.hasHalfPair(name))
                  .map(UTF8String::fromString)
                  .toArray());
    }
    return kept.array;
  }
}

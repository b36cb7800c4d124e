package io.dagsterkafkaflip;

import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** Decodes the flat JSON of Canal: any number of rows a record, whose values are texts. */
final class CanalDecoder extends EnvelopeDecoder {
  private final Found none;

  CanalDecoder(StructType declared, Options options) {
    super(declared, options, CANAL);
    none = new Found(declared);
    fields.add("data", new CanalRows("data", "", declared, readers));
    fields.add("old", new CanalRows("old", "old", declared, readers));
    fields.add("isDdl", readers.of("isDdl", DataTypes.BooleanType));
  }

  @Override
  void clear() {}

  @Override
  String event() throws Misfit {
    for (String name : new String[] {"database", "table"}) {
      String wanted = options.text(name);
      String found = fields.text(name);
      if (wanted != null && found != null && !found.equals(wanted)) {
        return "other table";
      }
    }
    boolean isDdl = Boolean.TRUE.equals(fields.get("isDdl")) && fields.get("data") == null;
    boolean isTruncate = "TRUNCATE".equals(fields.text("type"));
    return isDdl && !isTruncate ? "schema change" : super.event();
  }

  @Override
  InternalRow change() throws Misfit {
    UTF8String op = op();
    InternalRow about = about();
    for (String name : new String[] {"database", "table"}) {
      if (options.text(name) != null && fields.get(name) == null) {
        throw new Misfit("the record names no " + name);
      }
    }
    if (op == TRUNCATE) {
      return none.result(null, op, Types.array(new Object[] {Types.row(null, null)}), about);
    }
    List<Image> rows = rows("data");
    if (rows.isEmpty()) {
      throw wrong(op, "has no row");
    }
    List<Image> old = op == UPDATE ? rows("old") : List.of();
    Object[] changes = new Object[rows.size()];
    for (int place = 0; place < changes.length; place++) {
      Image before = place < old.size() ? old.get(place) : null;
      changes[place] = change(op, rows.get(place), before);
    }
    if (op == UPDATE && (old.size() != rows.size() || old.contains(null))) {
      throw noPreviousValues();
    }
    return rows.get(0).found.result(null, op, Types.array(changes), about);
  }

  @SuppressWarnings("unchecked")
  private List<Image> rows(String name) {
    Object rows = fields.get(name);
    return rows == null ? List.of() : (List<Image>) rows;
  }

  private InternalRow change(UTF8String op, Image row, Image before) throws Misfit {
    if (row == null) {
      throw new Misfit("a row is null");
    }
    if (row.found.isEmpty()) {
      throw wrong(op, "has an empty row");
    }
    InternalRow values = row.row();
    InternalRow earlier = before == null ? null : before.row();
    if (op == DELETE) {
      return Types.row(values, values);
    }
    row.checkRequired();
    if (op == UPDATE) {
      checkWhole(row.found);
    }
    return Types.row(values, before == null ? null : merged(earlier, before.found, values));
  }
}

package io.dagsterkafkaflip;

import java.util.Map;
import java.util.StringJoiner;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** What Maxwell's, Canal's and GoldenGate's records share: a kind of change, metadata, and rows. */
abstract class EnvelopeDecoder extends ChangeDecoder {
  private static final String[] ABOUT = {
    "source_database", "source_table", "source_timestamp", "ingestion_timestamp", "primary_key"
  };

  /**
   * The names that a format has for what all have.
   *
   * @param name the format, as an error names it
   * @param kind the field that says what a change does
   * @param ops what each of its values does
   * @param expected these values, as an error names them
   * @param about the fields of the metadata, in the order of `ABOUT`
   * @param unitsOfSecond the unit of times; 0 if they are texts
   * @param images the fields with the rows after and before a change
   */
  record Terms(
      String name,
      String kind,
      Map<String, UTF8String> ops,
      String expected,
      String[] about,
      long unitsOfSecond,
      String... images) {}

  static final Terms MAXWELL =
      new Terms(
          "Maxwell",
          "type",
          Map.of("insert", INSERT, "update", UPDATE, "delete", DELETE, "bootstrap-insert", READ),
          "insert, update, delete, bootstrap-insert",
          new String[] {"database", "table", "ts", null, "primary_key_columns"},
          1,
          "data",
          "old");
  static final Terms CANAL =
      new Terms(
          "Canal",
          "type",
          Map.of("INSERT", INSERT, "UPDATE", UPDATE, "DELETE", DELETE, "TRUNCATE", TRUNCATE),
          "INSERT, UPDATE, DELETE, TRUNCATE",
          new String[] {"database", "table", "es", "ts", "pkNames"},
          1_000,
          "data",
          "old");
  static final Terms OGG =
      new Terms(
          "Ogg",
          "op_type",
          Map.of("I", INSERT, "U", UPDATE, "D", DELETE, "T", TRUNCATE),
          "I, U, D, T",
          new String[] {null, "table", "op_ts", "current_ts", "primary_keys"},
          0,
          "after",
          "before");

  final Terms terms;
  private final TimeText time = new TimeText();

  EnvelopeDecoder(StructType declared, Options options, Terms terms) {
    super(declared, options, 4);
    this.terms = terms;
    fields.add(terms.kind, readers.of(terms.kind, DataTypes.StringType));
    for (int place = 0; place < ABOUT.length; place++) {
      String field = terms.about[place];
      if (field != null) {
        fields.add(field, readers.of(field, typeOf(place, terms)));
      }
    }
  }

  private static DataType typeOf(int place, Terms terms) {
    if (place == 4) {
      return DataTypes.createArrayType(DataTypes.StringType);
    }
    return place > 1 && terms.unitsOfSecond > 0 ? DataTypes.LongType : DataTypes.StringType;
  }

  /** The type of what it decodes to. */
  static StructType result(StructType declared, Terms terms) {
    DataType row = Types.nullable(declared);
    StructType both = new StructType().add(Types.field("row", row)).add(Types.field("before", row));
    StructType about = new StructType();
    for (int place = 0; place < ABOUT.length; place++) {
      boolean isTime = place == 2 || place == 3;
      DataType time =
          terms.unitsOfSecond == 0 ? DataTypes.TimestampNTZType : DataTypes.TimestampType;
      about = about.add(Types.field(ABOUT[place], isTime ? time : typeOf(place, terms)));
    }
    StructType result =
        new StructType()
            .add(Types.field("event", DataTypes.StringType))
            .add(Types.field("op", DataTypes.StringType))
            .add(Types.field("rows", DataTypes.createArrayType(both)))
            .add(Types.field("about", about));
    return Found.type(result, declared);
  }

  @Override
  String event() throws Misfit {
    String kind = fields.text(terms.kind);
    if (kind == null) {
      return null;
    }
    if (options.is("skip_truncate") && terms.ops.get(kind) == TRUNCATE) {
      return "truncate";
    }
    if (terms != MAXWELL) {
      return null;
    }
    return switch (kind) {
      case "bootstrap-start", "bootstrap-complete" -> "bootstrap";
      case "database-create",
          "database-alter",
          "database-drop",
          "table-create",
          "table-alter",
          "table-drop" ->
          "schema change";
      default -> null;
    };
  }

  /** What the change does. */
  final UTF8String op() throws Misfit {
    String kind = fields.text(terms.kind);
    String none = "not a change of " + terms.name + ": ";
    if (kind == null) {
      throw new Misfit(none + "it has no " + terms.kind);
    }
    UTF8String op = terms.ops.get(kind);
    if (op == null) {
      throw new Misfit(
          none + "its " + terms.kind + " is unknown (expected " + terms.expected + ")");
    }
    return op;
  }

  /** The metadata of the change. */
  final InternalRow about() throws Misfit {
    Object[] about = new Object[ABOUT.length];
    for (int place = 0; place < about.length; place++) {
      String field = terms.about[place];
      Object value = field == null ? null : fields.get(field);
      boolean isTime = place == 2 || place == 3;
      about[place] = isTime && value != null ? time(value) : value;
      if (value != null && about[place] == null && options.asksFor(ABOUT[place])) {
        throw new Misfit(field + " does not fit " + ABOUT[place]);
      }
    }
    return Types.row(about);
  }

  private Long time(Object written) {
    if (written instanceof Long number) {
      return moment(number, terms.unitsOfSecond);
    }
    char[] text = written.toString().toCharArray();
    return time.read(text, 0, text.length) && !time.hasOffset ? time.local() : null;
  }

  final Misfit noPreviousValues() {
    return new Misfit(
        "the update has no previous values ("
            + terms.images[1]
            + "), so it is unknown whether its key changed");
  }

  /** Checks that an update has all columns: nulls in their place would replace values. */
  final void checkWhole(Found found) throws Misfit {
    StringJoiner lacks = new StringJoiner(", ");
    for (int place = 0; place < declared.fields().length; place++) {
      if (!found.has(place)) {
        lacks.add(declared.fields()[place].name());
      }
    }
    if (lacks.length() > 0) {
      throw new Misfit(
          "the update lacks the column " + lacks + "; the connector must write whole rows");
    }
  }
}

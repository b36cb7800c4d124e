package io.dagsterkafkaflip;

import org.apache.avro.AvroRuntimeException;
import org.apache.avro.NameValidator;
import org.apache.avro.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** Reads Avro's records, each with the schema that it was written with, as those of one schema. */
final class AvroRecords {
  private final AvroInput input = new AvroInput();
  private final StructType declared;
  private final String readersText;
  private final Book<Written> book;
  private Schema reader;

  /** What reads the records of a schema, or why nothing does. */
  static final class Written {
    private final String prefix;
    private AvroReader values;
    private String problem;

    /** The schema's name, if it is known; else empty. */
    String fullName = "";

    Written(String prefix, String problem) {
      this.prefix = prefix;
      this.problem = problem;
    }
  }

  AvroRecords(StructType declared, Options options) {
    this.declared = declared;
    readersText = options.text("reader");
    book = new Book<>(options, this::written);
  }

  private Written written(String name, String text, String problem) {
    Written written = new Written(name == null ? "" : name + ": ", problem);
    if (problem != null) {
      return written;
    }
    try {
      reader = reader == null ? parsed(readersText) : reader;
      Schema writer = text == null ? reader : parsed(text);
      boolean isNamed = writer.getType() == Schema.Type.RECORD;
      written.fullName = isNamed ? writer.getFullName() : "";
      DataType target =
          reader.getType() == Schema.Type.RECORD ? declared : declared.fields()[0].dataType();
      written.values = new AvroResolution().of(writer, reader, target, "");
    } catch (Misfit misfit) {
      String shown = name == null ? "the schema" : name;
      written.problem = shown + " can't be read as the reader schema: " + misfit.getMessage();
    } catch (AvroRuntimeException error) {
      written.problem = written.prefix + "invalid Avro schema: " + error.getMessage();
    }
    return written;
  }

  private static Schema parsed(String text) {
    // Python has looked at the names, and a default matters where it is used.
    return new Schema.Parser(NameValidator.NO_VALIDATION).setValidateDefaults(false).parse(text);
  }

  /** What reads a record. */
  Written writtenWith(byte[] data) throws Misfit {
    return book.of(data, book.start(data));
  }

  /** A record's row. */
  InternalRow row(byte[] data) throws Misfit {
    int start = book.start(data);
    Written written = book.of(data, start);
    if (written.problem != null) {
      throw new Misfit(written.problem);
    }
    input.open(data, start);
    Object value;
    try {
      value = written.values.read(input);
      if (input.rest() > 0) {
        throw new Misfit("it has extra bytes at the end");
      }
    } catch (AvroInput.Unplaced unplaced) {
      throw new Misfit(written.prefix + "the value " + unplaced.getMessage());
    } catch (Misfit misfit) {
      throw new Misfit(written.prefix + misfit.getMessage());
    }
    return reader.getType() == Schema.Type.RECORD ? (InternalRow) value : Types.row(value);
  }
}

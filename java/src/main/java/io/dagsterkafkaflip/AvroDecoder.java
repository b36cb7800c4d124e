package io.dagsterkafkaflip;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.avro.NameValidator;
import org.apache.avro.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** Decodes Avro's binary encoding. A value that is no record is the only field of its row. */
final class AvroDecoder implements Decoder {
  private final AvroInput input = new AvroInput();
  private final StructType declared;
  private final String reader;
  private final Book<Written> book;

  /** What reads the records of a schema, or why nothing does. Errors begin with the prefix. */
  private record Written(String prefix, String name, AvroReader rows, String problem) {}

  AvroDecoder(StructType declared, Options options) {
    this.declared = declared;
    reader = options.text("reader");
    book = new Book<>(options, this::written);
  }

  private Written written(JsonNode writer) {
    String shown = writer.path("name").asText(null);
    String text = writer.path("schema").asText(null);
    String problem = writer.path("problem").asText(null);
    String prefix = shown == null ? "" : shown + ": ";
    if (problem != null) {
      return new Written(prefix, null, null, problem);
    }
    String name = null;
    try {
      Schema read = parsed(reader);
      Schema written = text == null ? read : parsed(text);
      name = written.getFullName();
      boolean isRecord = read.getType() == Schema.Type.RECORD;
      DataType target = isRecord ? declared : declared.fields()[0].dataType();
      AvroReader value = new AvroResolution().of(written, read, target, "");
      AvroReader row = isRecord ? value : input -> Types.row(value.read(input));
      return new Written(prefix, name, row, null);
    } catch (Misfit misfit) {
      String why = shown + " can't be read as the reader schema: " + misfit.getMessage();
      return new Written(prefix, name, null, why);
    } catch (RuntimeException error) {
      // Avro has no class of its own for some, such as a field's unknown order.
      return new Written(prefix, name, null, prefix + "invalid Avro schema: " + error.getMessage());
    }
  }

  private static Schema parsed(String text) {
    // Python has looked at the names, and a default matters where it is used.
    return new Schema.Parser(NameValidator.NO_VALIDATION).setValidateDefaults(false).parse(text);
  }

  String schemaOf(byte[] data) throws Misfit {
    String name = book.of(data, book.frame.end(data)).name;
    return name == null ? "" : name;
  }

  InternalRow row(byte[] data) throws Misfit {
    int start = book.frame.end(data);
    Written written = book.of(data, start);
    if (written.problem != null) {
      throw new Misfit(written.problem);
    }
    input.open(data, start);
    try {
      InternalRow row = (InternalRow) written.rows.read(input);
      if (input.rest() > 0) {
        throw new Misfit("it has extra bytes at the end");
      }
      return row;
    } catch (Misfit misfit) {
      String subject = misfit instanceof AvroInput.Unplaced ? "the value " : "";
      throw new Misfit(written.prefix + subject + misfit.getMessage());
    }
  }

  @Override
  public InternalRow decode(byte[] data) throws Misfit {
    return Types.row(row(data), null);
  }
}

package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.Set;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.types.variant.Variant;
import org.apache.spark.types.variant.VariantBuilder;
import org.apache.spark.types.variant.VariantSizeLimitException;
import org.apache.spark.unsafe.types.VariantVal;

/** Reads a VARIANT as Spark does, but refuses what Spark would change. */
final class Variants extends ValueReader {
  private static final int MOST_DIGITS = 38;

  Variants(String path, DataType type) {
    super(path, type);
  }

  @Override
  Object read(Scan scan, JsonToken token) throws IOException, Misfit {
    VariantBuilder builder = new VariantBuilder(false);
    try {
      append(builder, scan, token);
      Variant variant = builder.result();
      return new VariantVal(variant.getValue(), variant.getMetadata());
    } catch (VariantSizeLimitException error) {
      throw wrong(scan, "is too large for a VARIANT");
    }
  }

  /** A null of JSON is a value of a VARIANT. */
  @Override
  Object readOrNull(Scan scan, JsonToken token) throws IOException, Misfit {
    return read(scan, token);
  }

  private void append(VariantBuilder builder, Scan scan, JsonToken token)
      throws IOException, Misfit {
    switch (token) {
      case START_OBJECT -> appendObject(builder, scan);
      case START_ARRAY -> appendArray(builder, scan);
      case VALUE_STRING -> builder.appendString(whole(scan, scan.parser.getText()));
      case VALUE_NUMBER_INT, VALUE_NUMBER_FLOAT -> appendNumber(builder, scan);
      case VALUE_TRUE -> builder.appendBoolean(true);
      case VALUE_FALSE -> builder.appendBoolean(false);
      default -> builder.appendNull();
    }
  }

  private void appendObject(VariantBuilder builder, Scan scan) throws IOException, Misfit {
    ArrayList<VariantBuilder.FieldEntry> fields = new ArrayList<>();
    Set<String> names = new HashSet<>();
    int start = builder.getWritePos();
    String name;
    while ((name = scan.parser.nextFieldName()) != null) {
      if (!names.add(whole(scan, name))) {
        throw wrong(scan, "has a key twice");
      }
      int id = builder.addKey(name);
      fields.add(new VariantBuilder.FieldEntry(name, id, builder.getWritePos() - start));
      append(builder, scan, scan.parser.nextToken());
    }
    builder.finishWritingObject(start, fields);
  }

  private void appendArray(VariantBuilder builder, Scan scan) throws IOException, Misfit {
    ArrayList<Integer> offsets = new ArrayList<>();
    int start = builder.getWritePos();
    JsonToken token;
    while ((token = scan.parser.nextToken()) != JsonToken.END_ARRAY) {
      offsets.add(builder.getWritePos() - start);
      append(builder, scan, token);
    }
    builder.finishWritingArray(start, offsets);
  }

  private void appendNumber(VariantBuilder builder, Scan scan) throws IOException, Misfit {
    JsonParser parser = scan.parser;
    String text = parser.getText();
    boolean isWhole = parser.currentToken() == JsonToken.VALUE_NUMBER_INT;
    if (isWhole && parser.getNumberType() != JsonParser.NumberType.BIG_INTEGER) {
      builder.appendLong(parser.getLongValue());
      return;
    }
    if (text.indexOf('e') < 0 && text.indexOf('E') < 0) {
      BigDecimal number = new BigDecimal(text);
      if (number.precision() <= MOST_DIGITS && number.scale() <= MOST_DIGITS) {
        builder.appendDecimal(number);
        return;
      }
    }
    double number = parser.getDoubleValue();
    if (Double.isInfinite(number) || number == 0 && !Scalars.isZero(text)) {
      throw wrong(scan, "has a number beyond the range of DOUBLE");
    }
    builder.appendDouble(number);
  }
}

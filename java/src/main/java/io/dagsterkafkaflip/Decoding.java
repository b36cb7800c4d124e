package io.dagsterkafkaflip;

import java.util.Locale;
import java.util.function.BiFunction;
import java.util.function.UnaryOperator;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** The decoding functions, each by its name in SQL. */
enum Decoding {
  DECODE_JSON(JsonDecoder::result, JsonDecoder::new),
  DECODE_CSV(Decoding::row, CsvDecoder::new),
  DECODE_AVRO(Decoding::row, AvroDecoder::new),
  DECODE_PROTOBUF(Decoding::row, ProtobufDecoder::new),
  DECODE_DEBEZIUM(ChangeFormat.DEBEZIUM),
  DECODE_DEBEZIUM_AVRO(DebeziumAvroDecoder::result, DebeziumAvroDecoder::new),
  DECODE_MAXWELL(ChangeFormat.MAXWELL),
  DECODE_OGG(ChangeFormat.OGG),
  DECODE_CANAL(ChangeFormat.CANAL);

  private final UnaryOperator<StructType> result;
  private final BiFunction<StructType, Options, Decoder> decoder;

  Decoding(UnaryOperator<StructType> result, BiFunction<StructType, Options, Decoder> decoder) {
    this.result = result;
    this.decoder = decoder;
  }

  Decoding(ChangeFormat format) {
    this(format::result, (declared, options) -> new ChangeDecoder(declared, options, format));
  }

  /** The type of a row, and of why there is none. */
  private static StructType row(StructType declared) {
    return new StructType()
        .add(Types.field("row", Types.nullable(declared)))
        .add(Types.field("problem", DataTypes.StringType));
  }

  String sqlName() {
    return name().toLowerCase(Locale.ROOT);
  }

  StructType result(StructType declared) {
    return result.apply(declared);
  }

  Decoder decoder(StructType declared, Options options) {
    return decoder.apply(declared, options);
  }
}

package io.dagsterkafkaflip;

import java.util.Locale;
import java.util.function.BiFunction;
import java.util.function.UnaryOperator;
import org.apache.spark.sql.types.StructType;

/** The decoding functions, each by its name in SQL. */
enum Decoding {
  DECODE_JSON(JsonDecoder::result, JsonDecoder::new),
  DECODE_CSV(JsonDecoder::result, CsvDecoder::new),
  DECODE_AVRO(AvroDecoder::result, AvroDecoder::new),
  DECODE_PROTOBUF(ProtobufDecoder::result, ProtobufDecoder::new),
  DECODE_DEBEZIUM(DebeziumDecoder::result, DebeziumDecoder::new),
  DECODE_DEBEZIUM_AVRO(DebeziumAvroDecoder::result, DebeziumAvroDecoder::new),
  DECODE_MAXWELL(
      declared -> EnvelopeDecoder.result(declared, EnvelopeDecoder.MAXWELL),
      (declared, options) -> new RowDecoder(declared, options, EnvelopeDecoder.MAXWELL)),
  DECODE_OGG(
      declared -> EnvelopeDecoder.result(declared, EnvelopeDecoder.OGG),
      (declared, options) -> new RowDecoder(declared, options, EnvelopeDecoder.OGG)),
  DECODE_CANAL(
      declared -> EnvelopeDecoder.result(declared, EnvelopeDecoder.CANAL), CanalDecoder::new);

  private final UnaryOperator<StructType> result;
  private final BiFunction<StructType, Options, Decoder> decoder;

  Decoding(UnaryOperator<StructType> result, BiFunction<StructType, Options, Decoder> decoder) {
    this.result = result;
    this.decoder = decoder;
  }

  String sqlName() {
    return name().toLowerCase(Locale.ROOT);
  }

  /** The type of what it decodes to. */
  StructType result(StructType declared) {
    return result.apply(declared);
  }

  Decoder decoder(StructType declared, Options options) {
    return decoder.apply(declared, options);
  }
}

package io.dagsterkafkaflip;

import java.util.Locale;
import java.util.function.BiFunction;
import java.util.function.UnaryOperator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** Decodes one record after the other, in one thread. */
interface Decoder {
  InternalRow decode(byte[] data) throws Misfit;

  enum Kind {
    DECODE_JSON(JsonDecoder::result, JsonDecoder::new),
    DECODE_CSV(Kind::row, CsvDecoder::new),
    DECODE_AVRO(Kind::row, AvroDecoder::new),
    DECODE_PROTOBUF(Kind::row, (declared, options) -> new ProtobufDecoder(options)),
    DECODE_DEBEZIUM(ChangeFormat.DEBEZIUM),
    DECODE_DEBEZIUM_AVRO(DebeziumAvroDecoder::result, DebeziumAvroDecoder::new),
    DECODE_MAXWELL(ChangeFormat.MAXWELL),
    DECODE_OGG(ChangeFormat.OGG),
    DECODE_CANAL(ChangeFormat.CANAL);

    final UnaryOperator<StructType> result;
    final BiFunction<StructType, Options, Decoder> decoder;

    Kind(UnaryOperator<StructType> result, BiFunction<StructType, Options, Decoder> decoder) {
      this.result = result;
      this.decoder = decoder;
    }

    Kind(ChangeFormat format) {
      this(format::result, (declared, options) -> new ChangeDecoder(declared, options, format));
    }

    /** The type of a row, and of why there is none. */
    private static StructType row(StructType declared) {
      return new StructType()
          .add("row", Types.nullable(declared))
          .add("problem", DataTypes.StringType);
    }

    String sqlName() {
      return name().toLowerCase(Locale.ROOT);
    }
  }
}

package io.dagsterkafkaflip;

import java.util.Locale;
import org.apache.spark.sql.types.StructType;

/** The decoding functions, each by its name in SQL. */
enum Decoding {
  DECODE_JSON;

  String sqlName() {
    return name().toLowerCase(Locale.ROOT);
  }

  StructType result(StructType declared) {
    return JsonDecoder.result(declared);
  }

  Decoder decoder(StructType declared, Options options) {
    return new JsonDecoder(declared, options);
  }
}

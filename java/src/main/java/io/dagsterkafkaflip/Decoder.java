package io.dagsterkafkaflip;

import org.apache.spark.sql.catalyst.InternalRow;

/** Decodes one record after the other, in one thread. */
interface Decoder {
  /** What is in a record. */
  InternalRow decode(byte[] data) throws Misfit;
}

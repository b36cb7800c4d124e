package io.dagsterkafkaflip;

/** Reads the values of one place of a writer's schema, as Spark holds those of the reader's. */
@FunctionalInterface
interface AvroReader {
  /** The next value; null for a null. */
  Object read(AvroInput input) throws Misfit;
}

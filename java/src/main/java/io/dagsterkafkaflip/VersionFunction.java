package io.dagsterkafkaflip;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;

/** The version of this library, which the build writes into its jar. */
public final class VersionFunction implements ScalarFunction<UTF8String> {
  private static final long serialVersionUID = 1L;
  static final String NAME = "version";

  public UTF8String invoke() {
    return UTF8String.fromString(version());
  }

  static String version() {
    try (InputStream file = VersionFunction.class.getResourceAsStream("version.txt")) {
      return new String(file.readAllBytes(), StandardCharsets.UTF_8);
    } catch (IOException error) {
      throw new IllegalStateException("the library's version can't be read from its jar", error);
    }
  }

  /** Checks that an executor has the driver's library: its class path may have another one. */
  static void check(String version) {
    String found = version();
    if (!found.equals(version)) {
      String why =
          "an executor has the Java library of another version of dagster-kafka-flip (%s; the"
              + " driver has %s). Nothing was written. Remove or replace the copy on the executor's"
              + " class path";
      throw new IllegalStateException(why.formatted(found, version));
    }
  }

  @Override
  public DataType[] inputTypes() {
    return new DataType[0];
  }

  @Override
  public DataType resultType() {
    return DataTypes.StringType;
  }

  @Override
  public String name() {
    return NAME;
  }
}

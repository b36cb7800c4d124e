package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.ZoneId;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.unsafe.types.UTF8String;

/** What a format sets, as a JSON object. */
final class Options {
  private final JsonNode given;

  Options(UTF8String text) {
    try {
      given = new ObjectMapper().readTree(text.toString());
    } catch (JsonProcessingException error) {
      throw new IllegalArgumentException("the options are not JSON: " + text, error);
    }
  }

  /** A text; null if it is not set. */
  String text(String name) {
    return given.path(name).asText(null);
  }

  boolean is(String name) {
    return given.path(name).asBoolean();
  }

  /** The session's time zone. */
  ZoneId zone() {
    return DateTimeUtils.getZoneId(given.path("zone").asText("UTC"));
  }

  boolean showValues() {
    return is("show_values");
  }
}

package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.ZoneId;
import java.util.HashSet;
import java.util.Set;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.unsafe.types.UTF8String;

/** What a format sets, as a JSON object. */
final class Options {
  static final ObjectMapper MAPPER = new ObjectMapper();

  private final JsonNode given;
  private final Set<String> metadata = new HashSet<>();

  Options(UTF8String text) {
    try {
      given = MAPPER.readTree(text.toString());
    } catch (JsonProcessingException error) {
      throw new IllegalArgumentException("the options are not JSON: " + text, error);
    }
    given.path("metadata").forEach(each -> metadata.add(each.asText()));
  }

  JsonNode node(String name) {
    return given.path(name);
  }

  String text(String name) {
    return given.path(name).asText(null);
  }

  boolean is(String name) {
    return given.path(name).asBoolean();
  }

  /** Whether a part of a change is to land with its row. */
  boolean asksFor(String part) {
    return metadata.contains(part);
  }

  ZoneId zone() {
    return DateTimeUtils.getZoneId(given.path("zone").asText("UTC"));
  }
}

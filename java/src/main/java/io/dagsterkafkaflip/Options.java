package io.dagsterkafkaflip;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.util.DateTimeUtils;
import org.apache.spark.unsafe.types.UTF8String;

/** What a format sets, as a JSON object. */
final class Options {
  private final JsonNode given;
  private final List<String> metadata;

  Options(UTF8String text) {
    try {
      given = new ObjectMapper().readTree(text.toString());
    } catch (JsonProcessingException error) {
      throw new IllegalArgumentException("the options are not JSON: " + text, error);
    }
    metadata = texts("metadata");
  }

  /** A text, by its name or those of the objects around it too; null if it is not set. */
  String text(String... path) {
    return at(path).asText(null);
  }

  boolean has(String... path) {
    return !at(path).isMissingNode();
  }

  private JsonNode at(String... path) {
    JsonNode found = given;
    for (String name : path) {
      found = found.path(name);
    }
    return found;
  }

  boolean is(String name) {
    return given.path(name).asBoolean();
  }

  /** What is set, of any kind. */
  JsonNode node(String name) {
    return given.path(name);
  }

  /** A list of texts; empty if it is not set. */
  List<String> texts(String name) {
    List<String> texts = new ArrayList<>();
    given.path(name).forEach(each -> texts.add(each.asText()));
    return texts;
  }

  /** Whether a part of a change is to land with its row. */
  boolean asksFor(String part) {
    return metadata.contains(part);
  }

  boolean asksForAny(String prefix) {
    return metadata.stream().anyMatch(each -> each.startsWith(prefix));
  }

  /** The session's time zone. */
  ZoneId zone() {
    return DateTimeUtils.getZoneId(given.path("zone").asText("UTC"));
  }

  boolean showValues() {
    return is("show_values");
  }
}

package io.dagsterkafkaflip;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;

/** A field of a writer's message. */
final class ProtobufField {
  final int number;

  /** Where its value is in the message's array; -1 if it is only checked. */
  final int place;

  private final String path;
  private final int wireType;
  private final boolean isRepeated;
  private final boolean isMap;
  private final boolean isRequired;
  private final boolean hasDefault;

  /** The places of the fields that it excludes. */
  private final List<Integer> others = new ArrayList<>();

  /** What its values are; null for a scalar. */
  private final ProtobufMessage message;

  /** What reads its values; null for a message. */
  private final ProtobufScalar scalar;

  /** The value where there is none; null until then. */
  private Object absent;

  ProtobufField(JsonNode given, List<ProtobufMessage> all) {
    String type = given.get("type").asText();
    String shape = given.get("shape").asText();
    String presence = given.get("presence").asText();
    number = given.get("number").asInt();
    place = given.get("place").asInt();
    path = given.get("path").asText();
    wireType = ProtobufScalar.wireType(type);
    isRepeated = !shape.equals("single");
    isMap = shape.equals("map");
    isRequired = presence.equals("required");
    hasDefault = presence.equals("always");
    given.get("others").forEach(each -> others.add(each.asInt()));
    message = given.has("message") ? all.get(given.get("message").asInt()) : null;
    scalar = message == null ? ProtobufScalar.of(type, given, path) : null;
  }

  /** Whether a value that is written in a way is one of the field. */
  boolean takes(int written) {
    return written == wireType || isPacked(written);
  }

  private boolean isPacked(int written) {
    return written == Wire.BYTES && isRepeated && wireType != Wire.BYTES && message == null;
  }

  /** Reads a value, or several, into the message's array. */
  void read(Wire in, int written, Object[] values) throws Misfit {
    for (int other : others) {
      values[other] = null;
    }
    if (!isRepeated) {
      Object before = place < 0 ? null : values[place];
      Object value = message == null ? scalar.read(in) : inner(in, before);
      if (place >= 0) {
        values[place] = value;
      }
    } else if (isPacked(written)) {
      int before = in.enter();
      while (in.hasMore()) {
        add(in, scalar.read(in), values);
      }
      in.leave(before);
    } else {
      add(in, message == null ? scalar.read(in) : message.value(in, inner(in, null), path), values);
    }
  }

  /** Reads a message: one that is there already gets more. */
  private Object[] inner(Wire in, Object before) throws Misfit {
    Object[] values = before == null ? message.make(in) : (Object[]) before;
    in.descend(1);
    if (wireType == Wire.GROUP) {
      message.read(in, values, number);
    } else {
      int limit = in.enter();
      message.read(in, values, 0);
      in.leave(limit);
    }
    in.descend(-1);
    return values;
  }

  @SuppressWarnings("unchecked")
  private void add(Wire in, Object value, Object[] values) throws Misfit {
    if (place < 0) {
      return;
    }
    if (isMap) {
      values[place] = values[place] == null ? new LinkedHashMap<>() : values[place];
      Object[] entry = (Object[]) value;
      ((Map<Object, Object>) values[place]).put(entry[0], entry[1]);
    } else {
      in.take(1);
      values[place] = values[place] == null ? new ArrayList<>() : values[place];
      ((List<Object>) values[place]).add(value);
    }
  }

  /** The column's value of what is in the message's array. */
  Object value(Wire in, Object found) throws Misfit {
    if (isMap) {
      Map<?, ?> map = found == null ? Map.of() : (Map<?, ?>) found;
      return new ArrayBasedMapData(
          Types.array(map.keySet().toArray()), Types.array(map.values().toArray()));
    }
    if (isRepeated) {
      return Types.array(found == null ? new Object[0] : ((List<?>) found).toArray());
    }
    if (found == null && isRequired) {
      throw new Misfit("the required field " + path + " is missing");
    }
    if (message != null && (found != null || hasDefault)) {
      return message.value(in, found == null ? message.make(in) : (Object[]) found, path);
    }
    if (found == null && hasDefault) {
      absent = absent == null ? scalar.absent() : absent;
      return absent;
    }
    return found;
  }
}

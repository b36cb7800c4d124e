package io.dagsterkafkaflip;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * A message of a writer's schema. One that is read is an array: first its columns, then what only
 * Protobuf's rules need.
 */
final class ProtobufMessage {
  private final ProtobufMeaning meaning;
  private final int columns;
  private final int places;
  private final List<ProtobufField> fields = new ArrayList<>();
  private final Map<Integer, ProtobufField> byNumber = new HashMap<>();

  private ProtobufMessage(JsonNode given) {
    meaning = ProtobufMeaning.valueOf(given.get("meaning").asText().toUpperCase(Locale.ROOT));
    columns = given.get("columns").asInt();
    places = given.get("places").asInt();
  }

  /** The first of the messages that protobuf_plan.py describes. */
  static ProtobufMessage of(JsonNode given) {
    List<ProtobufMessage> all = new ArrayList<>();
    given.forEach(each -> all.add(new ProtobufMessage(each)));
    for (int index = 0; index < all.size(); index++) {
      ProtobufMessage message = all.get(index);
      for (JsonNode each : given.get(index).get("fields")) {
        ProtobufField field = new ProtobufField(each, all);
        message.fields.add(field);
        message.byNumber.put(field.number, field);
      }
    }
    return all.get(0);
  }

  /** An empty one. */
  Object[] make(Wire in) throws Misfit {
    in.take(Math.max(1, columns));
    return new Object[places];
  }

  /** Adds what the bytes have, up to their limit or the end of the group with a number. */
  void read(Wire in, Object[] values, int group) throws Misfit {
    int next = 0;
    while (group > 0 || in.hasMore()) {
      int tag = in.tag();
      if ((tag & 7) == Wire.GROUP_END) {
        in.end(tag, group);
        return;
      }
      int number = tag >>> 3;
      // Writers have the fields in the order of their numbers.
      while (next < fields.size() && fields.get(next).number < number) {
        next++;
      }
      boolean isNext = next < fields.size() && fields.get(next).number == number;
      ProtobufField field = isNext ? fields.get(next) : byNumber.get(number);
      if (field == null || !field.takes(tag & 7)) {
        if (meaning == ProtobufMeaning.ENTRY) {
          // Some of Protobuf's libraries leave such an entry out, others don't.
          throw in.broken("an entry of a map has the unknown field " + number);
        }
        in.skipValue(tag);
      } else {
        field.read(in, tag & 7, values);
      }
    }
  }

  /** The value of one that is read. */
  Object value(Wire in, Object[] values, String path) throws Misfit {
    for (ProtobufField field : fields) {
      if (field.place >= 0) {
        values[field.place] = field.value(in, values[field.place]);
      }
    }
    return meaning.of(columns == places ? values : Arrays.copyOf(values, columns), path);
  }
}

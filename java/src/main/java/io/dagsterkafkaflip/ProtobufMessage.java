package io.dagsterkafkaflip;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A message. One that is read is an array: its columns, then what only Protobuf's rules need. */
final class ProtobufMessage {
  private final Plan plan;
  private final boolean isRow;
  private final List<Field> fields = new ArrayList<>();
  private final Map<Integer, Field> byNumber = new HashMap<>();

  private record Plan(String meaning, int columns, int places, List<FieldPlan> fields) {}

  private ProtobufMessage(Plan plan) {
    this.plan = plan;
    isRow = plan.meaning.equals("row");
  }

  /** The first of the messages that protobuf_plan.py describes. */
  static ProtobufMessage of(JsonNode given) {
    Plan[] plans = Options.MAPPER.convertValue(given, Plan[].class);
    List<ProtobufMessage> all = Arrays.stream(plans).map(ProtobufMessage::new).toList();
    for (ProtobufMessage message : all) {
      for (FieldPlan each : message.plan.fields) {
        Field field = new Field(each, all);
        message.fields.add(field);
        message.byNumber.put(each.number(), field);
      }
    }
    return all.get(0);
  }

  Object[] make(Wire in) throws Misfit {
    in.take(Math.max(1, plan.columns));
    return new Object[plan.places];
  }

  /** Adds what the bytes have, up to their limit or the end of the group with a number. */
  void read(Wire in, Object[] values, int group) throws Misfit {
    int next = 0;
    while (group > 0 || in.rest() > 0) {
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
      Field field = isNext ? fields.get(next) : byNumber.get(number);
      if (field != null && field.takes(tag & 7)) {
        field.read(in, tag & 7, values);
      } else if (field != null) {
        // Protobuf's libraries take it for an unknown field, and the column would have a value that
        // nobody wrote.
        throw new Misfit(
            "the value of " + field.plan.path + " is not written as " + field.plan.type);
      } else if (plan.meaning.equals("entry")) {
        // Some of Protobuf's libraries leave such an entry out, others don't.
        throw in.broken("an entry of a map has the unknown field " + number);
      } else {
        in.skipValue(tag);
      }
    }
  }

  Object value(Wire in, Object[] values, String path) throws Misfit {
    for (Field field : fields) {
      int place = field.place;
      if (place >= 0) {
        values[place] = field.value(in, values[place]);
      }
    }
    boolean isWhole = plan.columns == plan.places;
    Object[] columns = isWhole ? values : Arrays.copyOf(values, plan.columns);
    return isRow ? Types.row(columns) : ProtobufMeaning.of(plan.meaning, columns, path);
  }

  /**
   * What protobuf_plan.py says of a field.
   *
   * @param place where its value is in the message's array; -1 if it is only checked
   * @param others the places of the fields that it excludes
   * @param as what the column's values are
   * @param names of an enum, by number
   */
  record FieldPlan(
      int number,
      int place,
      String path,
      String type,
      String shape,
      String presence,
      int[] others,
      Integer message,
      String as,
      Map<Integer, String> names) {}

  static final class Field {
    final int number;
    final int place;
    private final FieldPlan plan;
    private final int wireType;
    private final boolean isRepeated;
    private final boolean isMap;
    private final boolean hasDefault;
    private final boolean isRequired;

    /** What its values are; one of both is null. */
    private final ProtobufMessage message;

    private final ProtobufScalar scalar;

    /** The value where there is none; null until then. */
    private Object absent;

    Field(FieldPlan plan, List<ProtobufMessage> all) {
      this.plan = plan;
      number = plan.number;
      place = plan.place;
      wireType = ProtobufScalar.wireType(plan.type);
      isRepeated = !plan.shape.equals("single");
      isMap = plan.shape.equals("map");
      hasDefault = plan.presence.equals("always");
      isRequired = plan.presence.equals("required");
      message = plan.message == null ? null : all.get(plan.message);
      scalar = message == null ? ProtobufScalar.of(plan) : null;
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
      for (int other : plan.others) {
        values[other] = null;
      }
      if (isPacked(written)) {
        int before = in.enter();
        while (in.rest() > 0) {
          add(in, scalar.read(in), values);
        }
        in.end = before;
        return;
      }
      Object before = isRepeated || place < 0 ? null : values[place];
      Object value = message == null ? scalar.read(in) : inner(in, before);
      if (isRepeated) {
        add(in, message == null ? value : message.value(in, (Object[]) value, plan.path), values);
      } else if (place >= 0) {
        values[place] = value;
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
        in.end = limit;
      }
      in.descend(-1);
      return values;
    }

    @SuppressWarnings("unchecked")
    private void add(Wire in, Object value, Object[] values) throws Misfit {
      if (place < 0) {
        return;
      }
      if (values[place] == null) {
        values[place] = isMap ? new LinkedHashMap<>() : new ArrayList<>();
      }
      if (isMap) {
        Object[] entry = (Object[]) value;
        ((Map<Object, Object>) values[place]).put(entry[0], entry[1]);
      } else {
        in.take(1);
        ((List<Object>) values[place]).add(value);
      }
    }

    Object value(Wire in, Object found) throws Misfit {
      if (isMap) {
        Map<?, ?> map = found == null ? Map.of() : (Map<?, ?>) found;
        return Types.map(map.keySet(), map.values());
      }
      if (isRepeated) {
        return Types.array(found == null ? List.of() : (List<?>) found);
      }
      if (found == null && isRequired) {
        throw new Misfit("the required field " + plan.path + " is missing");
      }
      if (message != null && (found != null || hasDefault)) {
        return message.value(in, found == null ? message.make(in) : (Object[]) found, plan.path);
      }
      if (found == null && hasDefault) {
        absent = absent == null ? scalar.absent() : absent;
        return absent;
      }
      return found;
    }
  }
}

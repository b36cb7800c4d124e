package io.dagsterkafkaflip;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A catalogue of this library's functions, which a setting adds to a running session. */
public final class FlipCatalog implements FunctionCatalog {
  private final Map<String, Function<StructType, BoundFunction>> functions = new LinkedHashMap<>();
  private String name;

  public FlipCatalog() {
    functions.put(VersionFunction.NAME, given -> new VersionFunction());
    functions.put(EncodeFunction.NAME, EncodeFunction::new);
    for (Decoder.Kind each : Decoder.Kind.values()) {
      functions.put(each.sqlName(), given -> new DecodeFunction(each, given));
    }
  }

  private record Unbound(String name, Function<StructType, BoundFunction> binding)
      implements UnboundFunction {
    @Override
    public BoundFunction bind(StructType given) {
      return binding.apply(given);
    }

    @Override
    public String description() {
      return name + ": a function of dagster-kafka-flip";
    }
  }

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Identifier[] listFunctions(String[] namespace) {
    return functions.keySet().stream()
        .map(each -> Identifier.of(namespace, each))
        .toArray(Identifier[]::new);
  }

  @Override
  public UnboundFunction loadFunction(Identifier ident) throws NoSuchFunctionException {
    Function<StructType, BoundFunction> binding = functions.get(ident.name());
    if (ident.namespace().length > 0 || binding == null) {
      throw new NoSuchFunctionException(ident);
    }
    return new Unbound(ident.name(), binding);
  }
}

// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.Metrics;
import org.apache.iceberg.PartitionField;
import org.apache.iceberg.PartitionSpec;
import org.apache.iceberg.PartitionSpecParser;
import org.apache.iceberg.Schema;
import org.apache.iceberg.SchemaParser;
import org.apache.iceberg.SingleValueParser;
import org.apache.iceberg.StructLike;
import org.apache.iceberg.Table;
import org.apache.iceberg.expressions.Expression;
import org.apache.iceberg.expressions.ExpressionParser;
import org.apache.iceberg.hadoop.HadoopTables;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.transforms.Transform;
import org.apache.iceberg.types.Conversions;
import org.apache.iceberg.types.Type;

/**
 * Writes tables with Iceberg's Java library and plans scans of them.
 *
 * <pre>PlanFiles REQUEST RESPONSE</pre>
 *
 * <p>REQUEST is JSON: tables, each with folder, schema, spec, version, files and filters. All files are of one row, and
 * each has a value, in Iceberg's JSON form, of the column with id 2. The response has for each table its metadata file and,
 * for each filter, the files that Java plans to read.
 */
public final class PlanFiles {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final int COLUMN = 2;

  private final Table table;
  private final Type type;

  private PlanFiles(JsonNode wanted) {
    Schema schema = SchemaParser.fromJson(wanted.get("schema"));
    PartitionSpec spec = PartitionSpecParser.fromJson(schema, wanted.get("spec"));
    Map<String, String> properties = new HashMap<>();
    properties.put("format-version", wanted.get("version").asText());
    properties.put("commit.manifest-merge.enabled", "false");
    this.table = new HadoopTables(new Configuration()).create(schema, spec, properties, wanted.get("folder").asText());
    this.type = schema.findType(COLUMN);
  }

  public static void main(String[] args) throws Exception {
    JsonNode request = JSON.readTree(Path.of(args[0]).toFile());
    ArrayNode response = JSON.createArrayNode();
    for (JsonNode wanted : request) {
      response.add(new PlanFiles(wanted).answer(wanted));
    }
    Files.write(Path.of(args[1]), JSON.writeValueAsBytes(response));
  }

  private ObjectNode answer(JsonNode wanted) throws Exception {
    for (JsonNode commit : wanted.get("commits")) {
      AppendFiles append = table.newFastAppend();
      for (JsonNode file : commit) {
        append.appendFile(dataFile(file));
      }
      append.commit();
    }
    ObjectNode answer = JSON.createObjectNode();
    answer.put("metadata", ((BaseTable) table).operations().current().metadataFileLocation());
    ArrayNode plans = answer.putArray("plans");
    for (JsonNode filter : wanted.get("filters")) {
      Expression expression = expression(filter.toString());
      ArrayNode plan = plans.addArray();
      Set<String> seen = new HashSet<>();
      try (CloseableIterable<FileScanTask> tasks = table.newScan().filter(expression).planFiles()) {
        for (FileScanTask task : tasks) {
          String path = task.file().location();
          if (seen.add(path)) {
            plan.add(path);
          }
        }
      }
    }
    return answer;
  }

  /** With a schema Java takes the numbers that it makes of nanoseconds for microseconds, so these remain text. */
  private Expression expression(String json) {
    boolean nanos = type.typeId() == Type.TypeID.TIMESTAMP_NANO;
    return nanos ? ExpressionParser.fromJson(json) : ExpressionParser.fromJson(json, table.schema());
  }

  private DataFile dataFile(JsonNode file) {
    Object value = file.get("value").isNull() ? null : SingleValueParser.fromJson(type, file.get("value"));
    DataFiles.Builder builder =
        DataFiles.builder(table.spec())
            .withPath(file.get("path").asText())
            .withFormat("PARQUET")
            .withFileSizeInBytes(file.get("size").asLong())
            .withRecordCount(1);
    if (table.spec().isPartitioned()) {
      builder = builder.withPartition(partition(value, file.get("old").asBoolean()));
    }
    if (file.get("metrics").asBoolean()) {
      builder = builder.withMetrics(metrics(value, file));
    }
    return builder.build();
  }

  /** The partition of a value, as a current writer makes it, or one before Iceberg 0.10. */
  private StructLike partition(Object value, boolean old) {
    Object[] values = new Object[table.spec().fields().size()];
    for (int i = 0; i < values.length; i++) {
      values[i] = transformed(table.spec().fields().get(i), value, old);
    }
    return new Tuple(values);
  }

  @SuppressWarnings("unchecked")
  private Object transformed(PartitionField field, Object value, boolean old) {
    Transform<Object, Object> transform = (Transform<Object, Object>) field.transform();
    Object result = transform.bind(type).apply(value);
    boolean time = Set.of("year", "month", "day", "hour").contains(transform.toString());
    if (!old || !time || result == null || (Integer) result >= 0) {
      return result;
    }
    // old writers rounded towards 1970 instead of down
    Object before = value instanceof Integer i ? (Object) (i - 1) : (Object) ((Long) value - 1);
    boolean exact = !transform.bind(type).apply(before).equals(result);
    return exact ? result : (Integer) result + 1;
  }

  private Metrics metrics(Object value, JsonNode file) {
    boolean nan = value instanceof Float f && f.isNaN() || value instanceof Double d && d.isNaN();
    Map<Integer, ByteBuffer> lower = new HashMap<>();
    Map<Integer, ByteBuffer> upper = new HashMap<>();
    if (value != null && !nan) {
      lower.put(COLUMN, Conversions.toByteBuffer(type, bound(file, "lower", value)));
      upper.put(COLUMN, Conversions.toByteBuffer(type, bound(file, "upper", value)));
    }
    Map<Integer, Long> nans = new HashMap<>();
    if (type.typeId() == Type.TypeID.FLOAT || type.typeId() == Type.TypeID.DOUBLE) {
      nans.put(COLUMN, nan ? 1L : 0L);
    }
    return new Metrics(1L, null, Map.of(COLUMN, 1L), Map.of(COLUMN, value == null ? 1L : 0L), nans, lower, upper);
  }

  private Object bound(JsonNode file, String name, Object value) {
    return file.has(name) ? SingleValueParser.fromJson(type, file.get(name)) : value;
  }

  /** A partition's values. */
  private record Tuple(Object[] values) implements StructLike {
    @Override
    public int size() {
      return values.length;
    }

    @Override
    public <T> T get(int at, Class<T> as) {
      return as.cast(values[at]);
    }

    @Override
    public <T> void set(int at, T value) {
      values[at] = value;
    }
  }
}

// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

import java.io.ByteArrayInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.arrow.flight.CallOption;
import org.apache.arrow.flight.FlightClient;
import org.apache.arrow.flight.FlightDescriptor;
import org.apache.arrow.flight.FlightEndpoint;
import org.apache.arrow.flight.FlightInfo;
import org.apache.arrow.flight.FlightStream;
import org.apache.arrow.flight.Location;
import org.apache.arrow.flight.grpc.CredentialCallOption;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;

/**
 * Reads from a cache as any Java program would, and writes what came to files of Arrow's stream format.
 *
 * <pre>FlightRead URI FOLDER [ca FILE] [login TOKEN] (get COMMAND | take COMMAND ROW TIMES)...</pre>
 *
 * <p>COMMAND is a descriptor's JSON. Each endpoint's stream of the n-th request goes to FOLDER/n-endpoint.arrows; take asks
 * the first endpoint for the row so many times, in one batch. With a PEM file of the CA, servers must have a certificate for
 * the name datacache; login sends the token as the password of a user, and the bearer token of the answer with later requests.
 */
public final class FlightRead implements AutoCloseable {
  private final BufferAllocator memory = new RootAllocator();
  private final Map<Location, FlightClient> clients = new HashMap<>();
  private final Path folder;
  private byte[] authority;
  private CallOption[] credentials = {};
  private final Location head;

  private FlightRead(String uri, Path folder) throws Exception {
    this.head = new Location(uri);
    this.folder = folder;
  }

  public static void main(String[] args) throws Exception {
    try (FlightRead reader = new FlightRead(args[0], Path.of(args[1]))) {
      int request = 0;
      for (int i = 2; i < args.length; i += 2) {
        switch (args[i]) {
          case "ca" -> reader.authority = Files.readAllBytes(Path.of(args[i + 1]));
          case "login" -> reader.login(args[i + 1]);
          case "get" -> reader.get(request++, args[i + 1]);
          case "take" -> {
            reader.take(request++, args[i + 1], Long.parseLong(args[i + 2]), Integer.parseInt(args[i + 3]));
            i += 2;
          }
          default -> throw new IllegalArgumentException("ca, login, get or take, not " + args[i]);
        }
      }
    }
  }

  private void login(String token) {
    Optional<CredentialCallOption> bearer = client(head).authenticateBasicToken("anybody", token);
    credentials = new CallOption[] {bearer.orElseThrow()};
  }

  private void get(int request, String command) throws Exception {
    int number = 0;
    for (FlightEndpoint endpoint : info(command).getEndpoints()) {
      try (FlightStream stream = node(endpoint).getStream(endpoint.getTicket())) {
        save(stream, request, number++);
      }
    }
  }

  private void take(int request, String command, long row, int times) throws Exception {
    FlightEndpoint endpoint = info(command).getEndpoints().get(0);
    FlightDescriptor ticket = FlightDescriptor.command(endpoint.getTicket().getBytes());
    Schema schema = new Schema(List.of(Field.nullable("row", new ArrowType.Int(64, true))));
    try (FlightClient.ExchangeReaderWriter both = node(endpoint).doExchange(ticket);
        VectorSchemaRoot rows = VectorSchemaRoot.create(schema, memory)) {
      BigIntVector column = (BigIntVector) rows.getVector(0);
      column.allocateNew(times);
      for (int i = 0; i < times; i++) {
        column.set(i, row);
      }
      rows.setRowCount(times);
      both.getWriter().start(rows);
      both.getWriter().putNext();
      both.getWriter().completed();
      save(both.getReader(), request, 0);
    }
  }

  private FlightInfo info(String command) {
    return client(head).getInfo(FlightDescriptor.command(command.getBytes(StandardCharsets.UTF_8)), credentials);
  }

  private FlightClient node(FlightEndpoint endpoint) {
    return client(endpoint.getLocations().get(0));
  }

  private FlightClient client(Location at) {
    return clients.computeIfAbsent(at, this::connect);
  }

  private FlightClient connect(Location at) {
    FlightClient.Builder builder = FlightClient.builder(memory, at);
    if (authority != null) {
      builder.trustedCertificates(new ByteArrayInputStream(authority)).overrideHostname("datacache");
    }
    return builder.build();
  }

  private void save(FlightStream stream, int request, int endpoint) throws IOException {
    Path file = folder.resolve(request + "-" + endpoint + ".arrows");
    try (FileOutputStream out = new FileOutputStream(file.toFile());
        ArrowStreamWriter writer = new ArrowStreamWriter(stream.getRoot(), null, out.getChannel())) {
      writer.start();
      while (stream.next()) {
        writer.writeBatch();
      }
      writer.end();
    }
  }

  @Override
  public void close() throws Exception {
    for (FlightClient client : clients.values()) {
      client.close();
    }
    memory.close(); // throws if anything is still allocated
  }
}

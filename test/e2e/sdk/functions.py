# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions that the tests' TrainJobs run. The SDK sends only a function's source, so each must contain its imports.

They write JSON lines: the row ids in the order in which training gets them, and measurements.
"""


def sample_client(chunk_rows: int = 128) -> None:
    """Read this rank's shard as the sample client of Kubeflow's enhancement proposal 2655 does.

    One PATH descriptor with rank and world size; all locations of all endpoints in order; batches cut to equal sizes.
    """
    import json
    import os
    import time

    import pyarrow as pa
    from pyarrow import flight

    def cut(batches, rows):
        rest = None
        for batch in batches:
            if rest is not None:
                columns = [pa.concat_arrays([rest.column(i), batch.column(i)]) for i in range(batch.num_columns)]
                batch = pa.RecordBatch.from_arrays(columns, batch.schema.names)
            whole = batch.num_rows - batch.num_rows % rows
            for begin in range(0, whole, rows):
                yield batch.slice(begin, rows)
            rest = batch.slice(whole) if whole < batch.num_rows else None
        if rest is not None:
            yield rest

    def say(**fields):
        print(json.dumps(fields), flush=True)

    began = time.time()
    rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
    head = flight.connect(f"grpc://{os.environ['TRAIN_JOB_NAME']}-cache-service:50051")
    info = head.get_flight_info(flight.FlightDescriptor.for_path(rank, world))
    rows = 0
    for endpoint in info.endpoints:
        for location in endpoint.locations:
            reader = flight.connect(location.uri).do_get(endpoint.ticket)
            for chunk in cut((message.data for message in reader), chunk_rows):
                if rows == 0:
                    say(first_batch=time.time())
                columns = chunk.to_pydict()
                for row, content, label in zip(columns["id"], columns["content"], columns["label"], strict=True):
                    if not content.startswith(f"review {row} ") or label != row % 5:
                        raise ValueError(f"row {row} has the label {label} and begins with {content[:40]!r}")
                rows += chunk.num_rows
                say(ids=columns["id"])
    say(rank=int(rank), rows=rows, seconds=time.time() - began)


def kep_training(sample: str, epochs: int = 3) -> None:
    """Train a small BERT on the batches of the sample code that Kubeflow's enhancement proposal 2655 prints, unchanged.

    Two workers a rank read. Writes the ids of each batch, which its contents begin with, and each step's mean loss.
    """
    import json
    import os

    import pyarrow.flight  # noqa: F401  # the sample uses it without importing it
    import torch
    import torch.distributed as dist
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.trainers import WordLevelTrainer
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    def say(**fields):  # in one write, on a line of its own: several processes write to one pipe
        os.write(1, f"\n{json.dumps(fields)}\n".encode())

    names = {}
    exec(sample, names)

    class Texts(names["ArrowCacheDataset"]):
        def from_arrow_rb_to_tensor(self, chunk):
            yield from chunk.column("content").to_pylist()

    words = Tokenizer(WordLevel(unk_token="[UNK]"))  # of which the same texts always make the same
    words.pre_tokenizer = Whitespace()
    trainer = WordLevelTrainer(vocab_size=500, special_tokens=["[PAD]", "[UNK]"], show_progress=False)
    words.train_from_iterator(iter(Texts()), trainer)  # all texts, as there are no ranks yet
    own = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    dist.init_process_group("gloo")

    def tokenizer(texts, **options):
        say(ids=[int(text.split()[0]) for text in texts])
        return own(texts, **options)

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=500, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=128,
        max_position_embeddings=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = DistributedDataParallel(BertForSequenceClassification(config))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    dataset = names["AmazonReviewDataset"](tokenizer)
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        with Join([model]):  # ranks may have one batch more than others
            for step, batch in enumerate(DataLoader(dataset, batch_size=None, num_workers=2)):
                loss = model(**batch).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                say(epoch=epoch, step=step, loss=loss.item())
    dist.destroy_process_group()


def loader(
    batch: int = 100,
    seed: int = 7,
    pause: float = 0.0,
    checkpoint_every: int = 10,
    state: str = "",
    order: bool = False,
    ahead: int = 64 << 20,
    epochs: int = 1,
) -> None:
    """Train epochs with the loader, from a checkpoint if there is one; save one every few steps.

    pause: the duration of a step in seconds. order: whether rank 0 first writes all ids in row order. ahead: the
    loader's prefetch limit in bytes.
    """
    import json
    import time

    from kubeflow_datacache import DataCache, World

    def say(**fields):
        print(json.dumps(fields), flush=True)

    began = time.time()
    cache = DataCache.from_env()
    rank = World.detect().rank
    if order and rank == 0:
        for part in cache.loader(global_batch_size=1000, shuffle=False, tail="keep", columns=["id"], world=World(0, 1)):
            say(order=part.arrow()["id"].to_pylist())
    columns = ["id", "content"]
    rows = cache.loader(global_batch_size=batch, seed=seed, tail="keep", columns=columns, prefetch_bytes=ahead)
    if state:
        rows.load_state_dict(json.loads(state))
    count = 0
    for epoch in range(epochs):
        for step in rows:
            if count == 0:
                say(first_batch=time.time())
            count += step.num_rows
            say(epoch=epoch, step=step.step, at=time.time(), ids=step.arrow()["id"].to_pylist())
            if rank == 0 and (step.step + 1) % checkpoint_every == 0:
                say(checkpoint=step.step + 1, state=json.dumps(rows.state_dict()))
            time.sleep(pause)  # noqa: TID251 - a training step, in a pod without the kit
    say(rank=rank, rows=count, seconds=time.time() - began)


def renewals(count: int, batch: int = 1000, pause: float = 0.25) -> None:
    """Train epochs with the loader until the token has been renewed so many times, then try with the first one.

    pause: the duration of a step in seconds. Each epoch asks the head.
    """
    import base64
    import json
    import time
    from pathlib import Path

    from kubeflow_datacache import DataCache, DataCacheError

    def say(**fields):
        print(json.dumps(fields), flush=True)

    def token():
        return Path("/var/run/secrets/datacache/own/token").read_text()

    def expiry(text):
        return json.loads(base64.urlsafe_b64decode(text.split(".")[1] + "=="))["exp"]

    first = token()
    rows = DataCache.from_env().loader(global_batch_size=batch, seed=7, tail="keep", columns=["id"])
    ends, epoch = [expiry(first)], 0
    while len(ends) <= count:
        ids = []
        for step in rows:
            ids += step.arrow()["id"].to_pylist()
            time.sleep(pause)  # noqa: TID251 - a training step, in a pod without the kit
        if sorted(ids) != list(range(len(ids))):
            raise ValueError(f"epoch {epoch} has other rows than each once")
        if (end := expiry(token())) != ends[-1]:
            ends.append(end)
        say(epoch=epoch, rows=len(ids), at=time.time(), expires=ends[-1])
        epoch += 1
    try:
        say(text=str(DataCache.from_env(token=lambda: first, retry_seconds=1).status()))
    except DataCacheError as error:
        say(text=str(error))


def files(folder: str) -> None:
    """Write the content of every file below the folder, and when the first byte was read."""
    import json
    import time
    from pathlib import Path

    print(f"files below {folder}:", flush=True)  # Kubernetes' Python client changes a log that is a single JSON value
    for path in sorted(Path(folder).rglob("*")):
        if not path.is_file():
            continue
        with path.open() as file:
            text = file.read(1)
            now = time.time()
            text += file.read()
        print(json.dumps({"file": str(path), "text": text, "first_byte": now}), flush=True)


def tokens(batch, sign):
    """Rows like those of tables.py of those rows, which are counted: the function of a step (Derive)."""
    import pyarrow as pa

    print(f"tokenised {batch.num_rows} rows {sign}\n", end="", flush=True)
    return pa.table({"id": batch["id"], "content": batch["content"]})

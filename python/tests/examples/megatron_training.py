# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The data side of trainings with Megatron: of two data-parallel ranks, then of other numbers from consumed samples.

Prints the row ids of all steps of each, and the epochs that were verified, as JSON. The groups and RerunDataIterator
are Megatron-core's; its training loop wants CUDA. With the folder of Megatron-Bridge's package as the last argument,
its own DatasetProvider, callbacks and build_pretraining_data_loader make the iterator, without its package's root,
which imports every model, and without its tokenizers.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

from forked import EPOCHS, SAVED, run_ranks
from megatron.core import parallel_state
from megatron.core.rerun_state_machine import RerunDataIterator

from frameworks import Proved
from kubeflow_datacache import DataCache, StateError
from kubeflow_datacache.torch.megatron import megatron_batches

LENGTH, MICRO, ROWS = 499, 2, 161


def bridge_iterator(endpoint: str, group: int, folder: str, package: str, consumed: int, seed: int = 9) -> Any:
    """What Megatron-Bridge makes of a CacheProvider, after its checkpoint was loaded; then it saves one."""
    for name, path in (("megatron.bridge", package), ("megatron.bridge.data", f"{package}/data")):
        sys.modules[name] = module = types.ModuleType(name)
        module.__path__ = [path]
    tokenizer: Any = types.ModuleType("megatron.bridge.training.tokenizers.tokenizer")
    tokenizer.MegatronTokenizer = object  # only annotations name it; its module needs a newer megatron-core
    sys.modules[tokenizer.__name__] = tokenizer
    from kubeflow_datacache.torch.megatron_bridge import CacheProvider

    base: Any = __import__("megatron.bridge.data.base", fromlist=["_"])
    callbacks: Any = __import__("megatron.bridge.training.callbacks", fromlist=["_"])
    samplers: Any = __import__("megatron.bridge.data.samplers", fromlist=["_"])
    names = types.SimpleNamespace
    provider: Any = CacheProvider(seq_length=LENGTH, seed=seed, column="tokens", endpoint=endpoint, verify=True)
    config = names(
        train=names(global_batch_size=group, micro_batch_size=MICRO), checkpoint=names(load=folder, save=folder)
    )
    manager = callbacks.normalize_callbacks([provider.callback()])
    state = names(train_state=names(consumed_train_samples=consumed), cfg=config)
    context = callbacks.CallbackContext(state=state, model=[])
    manager.fire("on_data_init_start", context)
    groups = names(dp=parallel_state.get_data_parallel_group())
    train, *others = provider.build_datasets(base.DatasetBuildContext(0, 0, 0, pg_collection=groups))
    assert others == [None, None]
    assert provider.dataloader_type == "external"
    manager.fire("on_checkpoint_save", context)
    return samplers.build_pretraining_data_loader(train, consumed, "external", MICRO, 0, True)


def train(
    endpoint: str, group: int, tensor_parallel: int, consumed: int, folder: str, package: str | None
) -> tuple[int, list[list[int]], list[Any]]:
    """The data-parallel rank, the ids of its steps from the consumed samples to the end of the last epoch, and the
    epochs that were verified."""
    parallel_state.initialize_model_parallel(tensor_parallel)
    proved = Proved()
    ranks = parallel_state.get_data_parallel_world_size()
    if package is not None:
        batches = bridge_iterator(endpoint, group, folder, package, consumed)
    else:
        batches = megatron_batches(
            DataCache(endpoint), consumed_samples=consumed, global_batch_size=group, micro_batch_size=MICRO,
            seq_length=LENGTH, seed=9, column="tokens", verify=True,
        )  # fmt: skip
    data, steps = RerunDataIterator(batches), list[list[int]]()
    while consumed < EPOCHS * (ROWS // group) * group:
        ids: list[int] = []
        for _ in range(group // ranks // MICRO):
            item = next(data)
            assert {value.shape for value in item.values()} == {(MICRO, LENGTH)}
            assert (item["tokens"][:, 1:] == item["labels"][:, :-1]).all()
            ids += (item["tokens"][:, 0] // 31).tolist()
        steps.append(ids)
        consumed += group
    return parallel_state.get_data_parallel_rank(), steps, proved.epochs


def refusals(endpoint: str, group: int, folder: str, package: str | None) -> list[str]:
    """What is said of samples within a step, and of another dataset than the checkpoint's."""
    parallel_state.initialize_model_parallel(1)
    said: list[str] = []
    try:
        megatron_batches(
            DataCache(endpoint), consumed_samples=group + 1, global_batch_size=group, micro_batch_size=MICRO,
            seq_length=LENGTH, seed=9,
        )  # fmt: skip
    except ValueError as error:
        said.append(str(error))
    if package is not None:
        try:
            bridge_iterator(endpoint, group, folder, package, group, seed=10)
        except StateError as error:
            said.append(str(error))
    return said


def main() -> None:
    """Runs the trainings that the command line describes: (key, ranks, tensor-parallel size, whether resumed)."""
    endpoint, group, folder, trainings, package = json.loads(sys.argv[1])
    Path(folder).mkdir()
    done: dict[str, Any] = {}
    for key, world, tensor_parallel, resumed in trainings:
        consumed = SAVED * group if resumed else 0
        done[key] = run_ranks(world, train, endpoint, group, tensor_parallel, consumed, folder, package)
    (done["refusals"],) = run_ranks(1, refusals, endpoint, group, folder, package)
    print(json.dumps(done))


if __name__ == "__main__":
    main()

# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""The step that makes a dataset of a table's rows before a TrainJob trains on it."""

import builtins
import contextlib
import dis
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from kubeflow_datacache.sdk.quantity import quantity

_SCRIPT = """from __future__ import annotations
import functools
from kubeflow_datacache import DataCache, derive
{source}
with DataCache.from_env() as cache:
    fn = functools.partial({name}, **{parameters!r})
    made = derive(cache, fn, {dataset!r}, columns={columns!r}, parts={parts!r}, recipe={recipe!r})
print("dataset", made.name, "was there" if made.existed else f"has {{made.rows}} rows")
"""


@dataclass(frozen=True, kw_only=True)
class Derive:
    """A dataset that is made of a table's rows once, on CPUs, and which TrainJobs read in place of the table.

    `workers` pods make it when the table is in memory. TrainJobs wait for it in their first step, without their GPUs.
    All TrainJobs of the namespace that ask for the same rows and the same dataset, image, function or command and env
    share a cache with it, unless cache_scope is "job": of a sweep, the first trial makes it, and the others read it.

    Args:
        dataset: its name.
        image: of the pods, with Python and kubeflow_datacache. The command runs as user 65532, with the home /tmp.
        fn: makes record batches of record batches, row by row, as in kubeflow_datacache.derive. Its source text is
            sent, so that it must import what it uses inside of itself.
        columns: those that fn gets; None is all.
        parameters: keyword arguments of fn: texts, numbers, and lists and mappings of them.
        parts: in how many pieces fn makes the rows; those that are finished are not made again after a crash.
        command: what to run instead of fn, such as ["python3", "tokenize.py"]: it calls
            kubeflow_datacache.derive(DataCache.from_env(), ..., dataset). Without both, the image's own command runs.
        env: variables of the pods.
        workers: how many pods share the work.
        cpu: CPU of each pod, a Kubernetes quantity such as "4".
        memory: memory of each pod, such as "8Gi".

    Raises:
        ValueError: fn can't be sent, or an argument excludes another one; the message says what is expected.
    """

    dataset: str
    image: str
    fn: Callable[..., Any] | None = None
    columns: Sequence[str] | None = None
    parameters: Mapping[str, Any] | None = None
    parts: int = 64
    command: Sequence[str] | None = None
    env: Mapping[str, str] | None = None
    workers: int = 1
    cpu: str | None = None
    memory: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for arguments that exclude each other, and for a function that can't be sent."""
        if self.fn is None and (self.columns or self.parameters):
            raise ValueError("columns and parameters are given without fn: a command chooses its columns itself")
        if self.fn is not None and self.command:
            raise ValueError(f"fn and command = {self.command!r} are given: leave one of them out")
        self.variable()

    def variable(self) -> str:
        """The value of the variable DERIVE, which is spec.arrow.derive of a DataCache as JSON."""
        requests = {"cpu": quantity("cpu", self.cpu), "memory": quantity("memory", self.memory)}
        step = {
            "dataset": self.dataset,
            "image": self.image,
            "command": self.command if self.fn is None else ["python3", "-c", self._script(self.fn)],
            "env": [{"name": name, "value": value} for name, value in (self.env or {}).items()],
            "workers": self.workers,
            "resources": {"requests": {name: value for name, value in requests.items() if value}},
        }
        return json.dumps({name: value for name, value in step.items() if value is not None})

    def _script(self, fn: Callable[..., Any]) -> str:
        name, source = getattr(fn, "__name__", ""), ""
        with contextlib.suppress(OSError, TypeError):
            source = textwrap.dedent(inspect.getsource(fn))
        if not source or not name.isidentifier() or not inspect.isfunction(fn):
            raise ValueError(f"fn is {fn!r}: it must be a function with a source text, defined by def")
        if used := sorted(_from_around(fn.__code__) - {name, *dir(builtins)}):
            raise ValueError(
                f"fn uses {', '.join(used)} from around it, which pods of the step don't have: import or define it"
                f" inside of {name}, or pass its value by parameters"
            )
        try:
            parameters = json.loads(json.dumps(self.parameters or {}))
        except TypeError as e:
            raise ValueError(f"parameters = {self.parameters!r} can't be sent: {e}") from None
        script = _SCRIPT.format(
            source=source,
            name=name,
            parameters=parameters,
            dataset=self.dataset,
            columns=self.columns and list(self.columns),
            parts=self.parts,
            recipe=hashlib.sha256(json.dumps([source, parameters]).encode()).hexdigest(),
        )
        return script.replace("$", "$$")  # Kubernetes replaces $(NAME) in commands, and $$ by $


def _from_around(code: CodeType) -> set[str]:
    """The names that a function and those inside of it take from its module or from the functions around it."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"} | set(code.co_freevars)
    inner = (_from_around(each) - {*code.co_cellvars} for each in code.co_consts if isinstance(each, CodeType))
    return names.union(*inner)

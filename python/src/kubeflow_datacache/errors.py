# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exceptions of this package. Each message says what to do."""

from __future__ import annotations


class DataCacheError(Exception):
    """Base class of the exceptions about the cache, its responses or its data."""


class UnreachableError(DataCacheError):
    """The head or a data node did not answer before the deadline. The message says what was tried, how often and how
    long."""


class CacheFailedError(DataCacheError):
    """The cache failed to load the table; waiting does not help. The message contains the server's reason."""


class RefusedError(DataCacheError):
    """The server rejected the request; retrying does not help. The message contains the server's reason."""


class DatasetChangedError(DataCacheError):
    """The cache now serves another dataset: row positions of the old one are invalid in the new one.

    A new loader or table of the same DataCache reads the new dataset.
    """


class ForkedError(DataCacheError):
    """This process is a forked child of one that had connected, and gRPC does not work here. The message gives
    alternatives."""


class RowsError(DataCacheError):
    """Rows of an epoch were never trained on, or more than once. The message names ranks and steps."""


class StateError(DataCacheError, ValueError):
    """A loader state that does not fit the loader. The message names the field and both values."""


class TransformError(DataCacheError):
    """A transform raised an exception, which is __cause__. The message names the step, its rows and the transform."""


class ColumnError(DataCacheError, TypeError):
    """A column does not exist, or cannot be represented as requested, such as integers with nulls in numpy."""

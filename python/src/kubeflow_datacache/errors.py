# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as classes that a caller may want to tell apart. Each message says what to do."""

from __future__ import annotations


class DataCacheError(Exception):
    """Anything that this package raises about the cache, its answers or its data."""


class UnreachableError(DataCacheError):
    """Head or data nodes did not answer until the deadline. The message says what was tried, how often and how long."""


class CacheFailedError(DataCacheError):
    """The cache could not load the table and says so; waiting does not help. The message has the server's reason."""


class RefusedError(DataCacheError):
    """The server refused the request itself; trying again does not help. The message has the server's reason."""


class DatasetChangedError(DataCacheError):
    """The cache now serves other rows than before: positions of one mean nothing in the other.

    A new loader or table of the same DataCache reads the rows that are served now.
    """


class ForkedError(DataCacheError):
    """This process was forked from one that had connected, where gRPC can't work. The message says what can."""


class StateError(DataCacheError, ValueError):
    """A loader state that does not belong here. The message names the field and both values."""


class TransformError(DataCacheError):
    """A transform raised. The message names the step, its rows and the transform; __cause__ is what it raised."""


class ColumnError(DataCacheError, TypeError):
    """A column that is not there, or that the asked representation can't hold, such as integers with nulls in numpy."""

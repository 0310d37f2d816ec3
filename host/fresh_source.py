"""A Python file as it is now: the bytecode that Python keeps is told from older one by second and size alone."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from types import CodeType


class FreshSource(SourceFileLoader):
    """Compiles the file whenever it is loaded, and keeps no bytecode beside it."""

    def get_code(self, fullname: str) -> CodeType:
        """Raises: SyntaxError, OSError"""
        return self.source_to_code(self.get_data(self.path), self.path)

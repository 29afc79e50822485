"""Facts about models, their tokenizers and their locks."""

from __future__ import annotations

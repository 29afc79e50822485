"""What a launch needs of each GPU, by formula."""

from __future__ import annotations

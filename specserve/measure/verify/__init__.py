"""Whether a live server's text is still its target's own, found out from outside."""

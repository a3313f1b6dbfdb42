"""What the campaigns did, for the summary at the end of a run of pytest."""

from collections import Counter

COUNTS: Counter[str] = Counter()

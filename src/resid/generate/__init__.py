"""G-stage: generators write the next item's ID code by code; decoding turns their probabilities into items."""

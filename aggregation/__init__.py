"""Arithmetic on tensors: fragments, outer gradients, codecs, accumulation, outer optimizer and merge. No I/O."""

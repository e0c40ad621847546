//! Protocol accelerators, one folder each, and the contract they keep.

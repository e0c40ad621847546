//! For tests only: a virtual clock and pairs of machines over an emulated path.

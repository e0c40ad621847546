//! The project's own checks: `cargo xtask check`.

fn main() {}

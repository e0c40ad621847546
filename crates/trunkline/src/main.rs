//! The one binary: a file per subcommand, and nothing else.

fn main() {}

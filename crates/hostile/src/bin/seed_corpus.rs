//! Writes the good messages of every entry into `fuzz/corpus`.
//!
//! Run it from the workspace as `cargo run --package hostile --bin seed-corpus` after a format has
//! changed. Files that a fuzzer has found are left where they are.

use std::io;
use std::path::Path;
use std::{fs, process::ExitCode};

fn main() -> ExitCode {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    match write_all(&corpus) {
        Ok(count) => {
            println!("{count} files in {}", corpus.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}: {error}", corpus.display());
            ExitCode::FAILURE
        }
    }
}

fn write_all(corpus: &Path) -> io::Result<usize> {
    let mut count = 0;
    for entry in hostile::ENTRIES {
        let folder = corpus.join(entry.name);
        fs::create_dir_all(&folder)?;
        for (name, bytes) in (entry.seeds)() {
            fs::write(folder.join(name), bytes)?;
            count += 1;
        }
    }
    Ok(count)
}

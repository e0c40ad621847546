//! Fuzz entry of `lab` for the plan of a campaign: text that a person wrote or downloaded.
//!
//! A plan is refused with a message, or its cells have names of their own and can be counted,
//! sized and put into series.

use std::collections::BTreeSet;

use lab::cells::{self, CellPlan, CellSizes, SeriesEstimate};

use crate::seed::{CorpusSeed, seed};

/// Cells of a plan that are put into series; the work for them grows with the square.
const SERIES_MOST: usize = 200;

/// A plan file with anything in it is understood or refused with a message.
pub(crate) fn plan(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let plan = match CellPlan::parse(text) {
        Ok(plan) => plan,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let all = cells::expand(&plan);
    let keys: BTreeSet<String> = all.iter().map(cells::PlannedCell::key).collect();
    assert_eq!(keys.len(), all.len(), "cells share a name");
    let some = &all[..all.len().min(SERIES_MOST)];
    let series = cells::series(&plan, some, &all);
    let in_series: usize = series.iter().map(|series| series.cells.len()).sum();
    assert!(in_series >= some.len());
    for sizes in [
        CellSizes::of(&plan, false, false),
        CellSizes::of(&plan, false, true),
        CellSizes::Document,
    ] {
        for cell in some {
            assert!(sizes.bytes(cell) <= CellSizes::Document.bytes(cell));
        }
        for series in &series {
            let _ = SeriesEstimate::of(&plan, series, sizes);
        }
    }
}

/// Good inputs for [`plan`].
pub(crate) fn plan_seeds() -> Vec<CorpusSeed> {
    let small = r#"title = "small"
repeats = 2
span = "5s"

[[link]]
name = "a"
settings = "rate=1Mbit,delay=20ms"
document = "1MB"

[[group]]
protocol = "HTTP"
workload = "http-download"
links = ["a"]
one_way_delays = ["0s", "30ms"]
losses = ["0%", "1%"]
modes = ["baseline", "transport"]
fec = ["off", "auto"]
"#;
    let files = small
        .replace("document = \"1MB\"\n", "")
        .replace("rate=1Mbit,delay=20ms", "preset=lte")
        + "caches = [\"cold\", \"warm\", \"edited\"]\nfiles = [\"1M.doc\"]\n";
    vec![
        seed("small", small),
        seed("files", files),
        seed("unknown-key", small.replace("losses", "lossses")),
        seed("unknown-link", small.replace("[\"a\"]", "[\"b\"]")),
        seed("twice", small.replace("[\"a\"]", "[\"a\", \"a\"]")),
        seed("mailbox", small.replace("http-download", "mapi-xp")),
        seed("no-toml", "[[link\n= é\n"),
    ]
}

//! The demo's page load: a page of a hundred objects in a browser, beside the demo's files.

use std::fmt::Write as _;

use anyhow::Result;
use bench::http::{self, PageDemo};
use lab::campaign::LabLink;
use serde_json::{Value, json};

use crate::environment::environment;
use crate::progress::progress;

/// The name among the demo's workloads.
pub(crate) const PAGE_LOAD: &str = "page-load";

/// Loads the page over this link, so many times in each state.
///
/// # Errors
/// When the lab cannot be built, or an object does not arrive identical.
pub(crate) fn load(link: &LabLink, repeats: u32) -> Result<PageDemo> {
    let display = progress();
    let loaded = http::demonstrate(&environment()?, link, repeats as usize, &display);
    display.finish();
    loaded
}

/// Rows for results in JSON.
pub(crate) fn json(page: &PageDemo) -> Value {
    json!({
        "client": page.client,
        "objects": page.objects,
        "bytes": page.bytes,
        "rows": page.rows,
    })
}

/// A table of at most 80 columns.
pub(crate) fn table(page: &PageDemo) -> String {
    let megabytes = page.bytes as f64 / 1e6;
    let mut text = format!(
        "page-load: {} objects, {megabytes:.1} MB, [http] mode = \"on\"\nloaded by {}\n{:<36}{:>10}{:>14}\n",
        page.objects, page.client, "", "load s", "link bytes"
    );
    for row in &page.rows {
        let state = match row.state {
            "lan" => "on a LAN",
            "without" => "over the link, without Trunkline",
            "cold" => "with Trunkline, nothing stored",
            "warm" => "by a second client",
            other => other,
        };
        let (load_s, bytes) = (row.load_s, row.wan_bytes);
        let _ = writeln!(text, "  {state:<34}{load_s:>10.2}{bytes:>14.0}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::http::PageDemoRow;

    #[test]
    fn the_table_names_the_client_and_every_state() {
        let row = |state, load_s| PageDemoRow {
            state,
            load_s,
            wan_bytes: 1_400_000.0,
        };
        let page = PageDemo {
            client: "Chromium".to_owned(),
            objects: 100,
            bytes: 1_394_640,
            rows: vec![
                row("lan", 0.4),
                row("without", 2.5),
                row("cold", 1.5),
                row("warm", 0.5),
            ],
        };
        let text = table(&page);
        assert!(text.contains("loaded by Chromium"), "{text}");
        assert!(text.contains("by a second client"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert_eq!(json(&page)["rows"][3]["state"], "warm");
    }
}

//! The demo's HTTPS download: a large file, decrypted by the nodes with the operator's consent.

use std::fmt::Write as _;

use anyhow::Result;
use bench::http::{self, DownloadDemo};
use lab::campaign::LabLink;
use serde_json::{Value, json};

use crate::environment::environment;
use crate::progress::progress;

/// The name among the demo's workloads.
pub(crate) const HTTPS_DOWNLOAD: &str = "https-download";

/// Downloads the file over this link, so many times in each state.
///
/// # Errors
/// When the lab cannot be built, or the file does not arrive identical.
pub(crate) fn download(link: &LabLink, repeats: u32) -> Result<DownloadDemo> {
    let display = progress();
    let downloaded = http::download_by_https(&environment()?, link, repeats as usize, &display);
    display.finish();
    downloaded
}

/// Rows for results in JSON.
pub(crate) fn json(download: &DownloadDemo) -> Value {
    json!({ "bytes": download.bytes, "rows": download.rows })
}

/// A table of at most 80 columns.
pub(crate) fn table(download: &DownloadDemo) -> String {
    let megabytes = download.bytes as f64 / 1e6;
    let mut text = format!(
        "https-download: {megabytes:.1} MB by curl, [http.tls] intercept names the server\n{:<36}{:>10}{:>14}\n",
        "", "load s", "link bytes"
    );
    for row in &download.rows {
        let state = match row.state {
            "without" => "over the link, without Trunkline",
            "cold" => "with Trunkline, nothing stored",
            "warm" => "again",
            other => other,
        };
        let (load_s, bytes) = (row.download_s, row.wan_bytes);
        let _ = writeln!(text, "  {state:<34}{load_s:>10.2}{bytes:>14.0}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::http::DownloadDemoRow;

    #[test]
    fn the_table_has_every_state() {
        let row = |state, download_s| DownloadDemoRow {
            state,
            download_s,
            wan_bytes: 10_400_000.0,
        };
        let download = DownloadDemo {
            bytes: 10_000_000,
            rows: vec![row("without", 9.1), row("cold", 8.9), row("warm", 0.3)],
        };
        let text = table(&download);
        assert!(text.contains("again"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert_eq!(json(&download)["rows"][2]["state"], "warm");
    }
}

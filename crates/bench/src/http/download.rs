//! One large download by HTTPS: over the link, and through nodes that intercept it by consent, first and again.
//!
//! curl trusts one authority each time: that of the origin without nodes, and the operator's through them. So a download
//! that is not intercepted fails.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::origin::SITE_NAME;
use super::page::intercepting_tables;
use super::stand::{HttpStand, NodeHttpMode};
use host::ProgramEnvironment;
use host::median::median;
use host::progress::ProgressReporter;
use host::{command, kernel};
use lab::campaign::LabLink;
use lab::recording::WanCrossings;
use lab::topology::{LabSite, OffloadMode};

/// Bytes of the file, which no compression shortens: eight seconds of the demo's link.
const FILE_BYTES: usize = 10_000_000;
/// The file's path; it is fresh for an hour.
const FILE_PATH: &str = "/fresh/download";
const TLS_PORT: u16 = 443;
/// How long a download may take, in seconds: an hour is many times what the slowest published link needs.
const DOWNLOAD_LIMIT: &str = "3600";

/// Result of the HTTPS download in the demonstration.
#[derive(Clone, Debug, PartialEq)]
pub struct DownloadDemo {
    /// Bytes of the file.
    pub bytes: usize,
    /// A row for each state.
    pub rows: Vec<DownloadDemoRow>,
}

/// The download in one state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DownloadDemoRow {
    /// `without` nodes, `cold` or `warm`.
    pub state: &'static str,
    /// Median of the times.
    pub download_s: f64,
    /// Median of the bytes on the link, IP headers included.
    pub wan_bytes: f64,
}

/// Downloads a file by HTTPS over this link: without nodes, through nodes with nothing stored, and once more.
///
/// # Errors
/// When the lab cannot be built, a certificate is not the expected one, or the file does not arrive identical.
pub fn download_by_https(
    environment: &ProgramEnvironment,
    link: &LabLink,
    repeats: usize,
    progress: &dyn ProgressReporter,
) -> Result<DownloadDemo> {
    let step = |text: &str| progress.step(1.0, &format!("HTTPS download: {text}"));
    let mut stand = HttpStand::create(environment, OffloadMode::Off, true)?;
    let content = stand.origin().publish(FILE_PATH, FILE_BYTES, 1)?;
    let origin = stand.origin().authority();
    let origin = origin.context("the origin has a certificate")?.to_owned();
    stand.set_link(link)?;
    let mut without = Vec::new();
    for repeat in 1..=repeats {
        step(&format!("without {repeat}"));
        without.push(download(&mut stand, "without", repeat, &origin, &content)?);
    }
    let (tables, authority) = intercepting_tables(&stand)?;
    stand.start_nodes(NodeHttpMode::On, &tables)?;
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    for repeat in 1..=repeats {
        stand.empty()?;
        for (state, downloads) in [("cold", &mut cold), ("warm", &mut warm)] {
            step(&format!("{state} {repeat}"));
            downloads.push(download(&mut stand, state, repeat, &authority, &content)?);
        }
    }
    let states = [("without", without), ("cold", cold), ("warm", warm)];
    let row = |(state, downloads): (&'static str, Vec<(f64, WanCrossings)>)| {
        let seconds = median(downloads.iter().map(|(seconds, _)| *seconds));
        let bytes = median(downloads.iter().map(|(_, wan)| wan.bytes() as f64));
        Ok(DownloadDemoRow {
            state,
            download_s: seconds.context("nothing was downloaded")?,
            wan_bytes: bytes.context("nothing was downloaded")?,
        })
    };
    Ok(DownloadDemo {
        bytes: FILE_BYTES,
        rows: states.into_iter().map(row).collect::<Result<_>>()?,
    })
}

/// Downloads the file once and compares it; gives its seconds.
fn download(
    stand: &mut HttpStand,
    state: &str,
    repeat: usize,
    authority: &Path,
    expected: &[u8],
) -> Result<(f64, WanCrossings)> {
    let label = format!("https-{state}-{repeat}");
    let target = authority.with_extension("download");
    let namespace = stand.client().namespace().to_owned();
    let fetch = |_: &mut HttpStand| {
        let address = LabSite::Far.host_address();
        let resolve = format!("{SITE_NAME}:{TLS_PORT}:{address}");
        let mut curl = command::new("curl");
        curl.args(["--disable", "--silent", "--show-error", "--fail"])
            .args(["--noproxy", "*", "--max-time", DOWNLOAD_LIMIT])
            .args(["--resolve", &resolve, "--write-out", "%{time_total}"])
            .arg("--cacert")
            .arg(authority)
            .arg("--output")
            .arg(&target)
            .arg(format!("https://{SITE_NAME}{FILE_PATH}"));
        kernel::prepare_child(&mut curl, Some(&namespace))?;
        command::finish("curl", &mut curl, None)
    };
    let (said, crossings) = stand.record(&label, fetch).with_context(|| label.clone())?;
    let arrived = fs::read(&target).with_context(|| format!("reading {}", target.display()))?;
    fs::remove_file(&target)?;
    ensure!(arrived == expected, "{label}: the file arrived altered");
    let seconds = said.trim().parse().context("curl says its time")?;
    Ok((seconds, crossings))
}

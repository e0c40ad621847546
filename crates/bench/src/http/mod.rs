//! `trunkline bench http`: what HTTP clients get over the emulated WAN, without Trunkline and with it.
//!
//! ```text
//!  Chromium, or a client of our own ── near ══ emulator ══ far ── nginx
//! ```
//! A cell is what can be measured alone: the load of a page, the bytes that an object costs, many clients that ask at
//! once, a large download, idle connections, and the two public suites. Each has a place made for it (`stand.rs`) and
//! gives some of the figures (`report.rs`). A cell that fails costs no other: its figures are null, with the reason.
//!
//! `download.rs` and a part of `page.rs` are for the demo.
//! `page.rs` times a browser, `scripted.rs` loads a page without one, `client.rs` is a client that reads messages by
//! their lengths, and `suites.rs` runs the scripts that run the public suites.

mod client;
mod crowd;
mod download;
mod idle;
mod objects;
mod origin;
mod page;
mod report;
mod scripted;
mod stand;
mod suites;
mod throughput;

use std::fmt;
use std::path::PathBuf;

use anyhow::Result;

use host::progress::ProgressReporter;
use host::{ProgramEnvironment, kernel, rootless};
use lab::preflight::{self, CaptureMode, InterceptionMode, LabRequirements};
use lab::servers::ServerKind;

pub use download::{DownloadDemo, DownloadDemoRow, download_by_https};
pub use page::{PageDemo, PageDemoRow, demonstrate};
pub use report::{FIGURES, HttpReport, MissingFigure};

/// Clients that ask for one object at once, as the figure's name says.
pub const CLIENTS: usize = 1_000;
/// Objects of which the bytes on the WAN are the mean.
pub const OBJECTS: usize = 1_000;
/// Loads of a page of which times are medians.
pub const REPEATS: usize = 15;

/// A part of the bench that can be run alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HttpCell {
    /// A browser loads a page by HTTP/1.1.
    Page,
    /// A browser loads a page by HTTP/2 over TLS that the near node intercepts.
    PageByTls,
    /// Bytes on the WAN for stored objects, fresh and to be revalidated.
    Objects,
    /// Many clients ask for one object at once.
    Crowd,
    /// One large download with the accelerator and without.
    Throughput,
    /// Memory of idle connections.
    Idle,
    /// The public suite of caches.
    CacheTests,
    /// The public suite of HTTP/2 servers.
    H2spec,
}

impl HttpCell {
    /// All cells, in the order in which they run.
    pub const ALL: [Self; 8] = [
        Self::Page,
        Self::PageByTls,
        Self::Objects,
        Self::Crowd,
        Self::Throughput,
        Self::Idle,
        Self::CacheTests,
        Self::H2spec,
    ];

    /// The name on the command line and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::PageByTls => "page-h2-tls",
            Self::Objects => "objects",
            Self::Crowd => "clients",
            Self::Throughput => "throughput",
            Self::Idle => "idle",
            Self::CacheTests => "cache-tests",
            Self::H2spec => "h2spec",
        }
    }
}

impl fmt::Display for HttpCell {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// Cells to measure, and their sizes.
#[derive(Clone, Debug)]
pub struct HttpChoice {
    /// The cells.
    pub cells: Vec<HttpCell>,
    /// Loads of a page in each state, and downloads.
    pub repeats: usize,
    /// Clients that ask at once; the figure is of [`CLIENTS`].
    pub clients: usize,
    /// Objects of each kind.
    pub objects: usize,
    /// Idle connections.
    pub connections: usize,
    /// The directory of the scripts that run the public suites.
    pub scripts: PathBuf,
    /// A checkout of cache-tests.
    pub cache_tests: Option<PathBuf>,
}

/// Measures what was chosen, until the lab is interrupted.
///
/// # Errors
/// When something is missing that every cell needs.
pub fn measure(
    environment: &ProgramEnvironment,
    choice: &HttpChoice,
    progress: &dyn ProgressReporter,
) -> Result<HttpReport> {
    let privileges = rootless::obtain(environment)?;
    progress.note(privileges.explain());
    let needs = LabRequirements {
        servers: vec![ServerKind::Http],
        clients: vec![],
        interception: InterceptionMode::Transparent,
        captures: CaptureMode::Taken,
    };
    preflight::check(&needs, privileges)?;
    let mut report = HttpReport::new();
    for (index, cell) in choice.cells.iter().enumerate() {
        let done = index as f64 / choice.cells.len() as f64;
        let step = |text: &str| progress.step(done, &format!("{cell}: {text}"));
        step("begins");
        let measured = match cell {
            HttpCell::Page => page::measure(environment, choice, page::PageScheme::Http, &step),
            HttpCell::PageByTls => {
                page::measure(environment, choice, page::PageScheme::Https, &step)
            }
            HttpCell::Objects => objects::measure(environment, choice, &step),
            HttpCell::Crowd => crowd::measure(environment, choice, &step),
            HttpCell::Throughput => throughput::measure(environment, choice, &step),
            HttpCell::Idle => idle::measure(environment, choice, &step),
            HttpCell::CacheTests => suites::cache_tests(environment, choice),
            HttpCell::H2spec => suites::h2spec(environment, choice),
        };
        match measured {
            Ok(measured) => report.take(*cell, measured),
            Err(error) => report.miss(*cell, &format!("{error:#}")),
        }
        if kernel::interrupted() {
            break;
        }
    }
    report.finish(kernel::interrupted());
    Ok(report)
}

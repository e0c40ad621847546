//! A browser loads a page: on a LAN, over the WAN without nodes, through nodes with nothing stored, and by a second
//! browser when the first has loaded it.
//!
//! Each load has a browser with a fresh profile, so no connection, no object and no TLS session is there before.
//!
//! ```text
//!  ratio = (load − LAN load) / (load without nodes − LAN load)        of medians
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use super::HttpChoice;
use super::origin::SITE_NAME;
use super::report::{CellFigures, interval};
use super::scripted;
use super::stand::{HttpStand, LAN_LINK, NodeHttpMode, WAN_LINK, WAN_ROUND_TRIP};
use host::ProgramEnvironment;
use host::median::median;
use host::progress::ProgressReporter;
use lab::browser::{self, HeadlessBrowser, LoadedPage};
use lab::campaign::LabLink;
use lab::recording::WanCrossings;
use lab::topology::OffloadMode;
use lab::workload::{PAGE_PATH, WebPage};

/// Packets with less payload are acknowledgements and signs of life, for which no client waits. A request that is
/// the shortest between two nodes has some 130 bytes, an acknowledgement at most 90.
const ROUND_TRIP_PAYLOAD: u64 = 100;

/// How pages are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageScheme {
    /// HTTP/1.1 in clear.
    Http,
    /// HTTP/2 over TLS, which the near node intercepts.
    Https,
}

impl PageScheme {
    fn url(self) -> String {
        match self {
            Self::Http => format!("http://{SITE_NAME}{PAGE_PATH}"),
            Self::Https => format!("https://{SITE_NAME}{PAGE_PATH}"),
        }
    }

    /// The beginning of the figures' names.
    fn prefix(self) -> &'static str {
        match self {
            Self::Http => "http1",
            Self::Https => "h2_tls",
        }
    }

    /// The protocol that ALPN names.
    fn protocol(self) -> &'static str {
        match self {
            Self::Http => "http/1.1",
            Self::Https => "h2",
        }
    }
}

/// A state in which the page is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LoadState {
    Lan,
    Without,
    Cold,
    Warm,
}

impl LoadState {
    const ALL: [Self; 4] = [Self::Lan, Self::Without, Self::Cold, Self::Warm];

    fn name(self) -> &'static str {
        match self {
            Self::Lan => "lan",
            Self::Without => "without",
            Self::Cold => "cold",
            Self::Warm => "warm",
        }
    }
}

/// One load.
struct PageLoad {
    state: LoadState,
    page: LoadedPage,
    crossings: WanCrossings,
}

/// Measures the cell.
///
/// # Errors
/// When there is no browser, or a load fails.
pub(super) fn measure(
    environment: &ProgramEnvironment,
    choice: &HttpChoice,
    scheme: PageScheme,
    step: &dyn Fn(&str),
) -> Result<CellFigures> {
    browser::find().context("there is no Chromium (apt-get install chromium)")?;
    let has_tls = scheme == PageScheme::Https;
    let mut stand = HttpStand::create(environment, OffloadMode::Off, has_tls)?;
    let page = WebPage::generate(u64::from(std::process::id()));
    let link: LabLink = WAN_LINK.parse()?;
    let what = (scheme, PageClient::Browser);
    let loads = load_all(&mut stand, what, &page, choice.repeats, (&link, step))?;
    figures(&page, scheme, &loads)
}

/// Tables of the nodes' configuration that make them intercept TLS to the site, and the certificate of the operator's
/// authority.
pub(super) fn intercepting_tables(stand: &HttpStand) -> Result<(Vec<String>, PathBuf)> {
    let origin = stand.origin().authority();
    let origin = origin.context("the origin has no certificate")?;
    let authority = stand.make_authority()?;
    let certificate = authority.join("ca.pem");
    let path = |path: &Path| path.display().to_string();
    let tables = vec![
        "[http.tls]".to_owned(),
        format!("intercept = [\"{SITE_NAME}\"]"),
        format!("ca_certificate = {:?}", path(&certificate)),
        format!("ca_key = {:?}", path(&authority.join("ca.key"))),
        format!("roots = {:?}", path(origin)),
        "store_decrypted = true".to_owned(),
    ];
    Ok((tables, certificate))
}

/// Client that loads pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageClient {
    Browser,
    Scripted,
}

/// Result of a page load in the demonstration.
#[derive(Clone, Debug, PartialEq)]
pub struct PageDemo {
    /// Client that loaded the page.
    pub client: String,
    /// Objects of the page, and their bytes.
    pub objects: usize,
    /// Bytes of all objects.
    pub bytes: usize,
    /// A row for each state.
    pub rows: Vec<PageDemoRow>,
}

/// The load of a page in one state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PageDemoRow {
    /// `lan`, `without` nodes, `cold` or `warm`.
    pub state: &'static str,
    /// Median of the load times.
    pub load_s: f64,
    /// Median of the bytes on the link, IP headers included.
    pub wan_bytes: f64,
}

/// Loads a page over this link by a browser, or where none is installed by a client of our own: on a LAN, without
/// nodes, with nothing stored, and by a second client.
///
/// # Errors
/// When the lab cannot be built, or an object does not arrive identical.
pub fn demonstrate(
    environment: &ProgramEnvironment,
    link: &LabLink,
    repeats: usize,
    progress: &dyn ProgressReporter,
) -> Result<PageDemo> {
    let client = match browser::find() {
        Some(_) => PageClient::Browser,
        None => PageClient::Scripted,
    };
    let step = |text: &str| progress.step(1.0, &format!("page load: {text}"));
    let mut stand = HttpStand::create(environment, OffloadMode::Off, false)?;
    let page = WebPage::generate(u64::from(std::process::id()));
    let scheme = PageScheme::Http;
    let loads = load_all(&mut stand, (scheme, client), &page, repeats, (link, &step))?;
    let mut rows = Vec::new();
    for state in LoadState::ALL {
        let of = || loads.iter().filter(|load| load.state == state);
        let seconds = median(of().map(|load| load.page.seconds));
        let bytes = median(of().map(|load| load.crossings.bytes() as f64));
        rows.push(PageDemoRow {
            state: state.name(),
            load_s: seconds.context("no load was measured")?,
            wan_bytes: bytes.context("no load was measured")?,
        });
    }
    Ok(PageDemo {
        client: match client {
            PageClient::Browser => "Chromium".to_owned(),
            PageClient::Scripted => "a scripted client, for there is no Chromium".to_owned(),
        },
        objects: page.objects().len(),
        bytes: page.objects().values().map(Vec::len).sum(),
        rows,
    })
}

/// Loads the page in every state, so many times each.
fn load_all(
    stand: &mut HttpStand,
    (scheme, client): (PageScheme, PageClient),
    page: &WebPage,
    repeats: usize,
    (link, step): (&LabLink, &dyn Fn(&str)),
) -> Result<Vec<PageLoad>> {
    page.write_to(stand.origin().files())?;
    let mut loads = Vec::new();
    let lan: LabLink = LAN_LINK.parse()?;
    for (state, link) in [(LoadState::Lan, &lan), (LoadState::Without, link)] {
        stand.set_link(link)?;
        for repeat in 1..=repeats {
            step(&format!("{} {repeat}", state.name()));
            loads.push(load(stand, (scheme, client), state, repeat, page)?);
        }
    }
    let tables = match scheme {
        PageScheme::Http => Vec::new(),
        PageScheme::Https => intercepting_tables(stand)?.0,
    };
    stand.start_nodes(NodeHttpMode::On, &tables)?;
    for repeat in 1..=repeats {
        stand.empty()?;
        for state in [LoadState::Cold, LoadState::Warm] {
            step(&format!("{} {repeat}", state.name()));
            loads.push(load(stand, (scheme, client), state, repeat, page)?);
        }
    }
    Ok(loads)
}

fn load(
    stand: &mut HttpStand,
    (scheme, client): (PageScheme, PageClient),
    state: LoadState,
    repeat: usize,
    expected: &WebPage,
) -> Result<PageLoad> {
    let label = format!("{}-{}-{repeat}", scheme.prefix(), state.name());
    let objects = expected.objects().len();
    let (page, crossings) = match client {
        PageClient::Browser => {
            // The browser is there before the load is timed and captured.
            let place = stand.browser_place(scheme == PageScheme::Https);
            let mut browser = HeadlessBrowser::start(&place, &label)?;
            stand.record(&label, |_| browser.load(&scheme.url(), objects))
        }
        PageClient::Scripted => {
            stand.record(&label, |stand| scripted::load(stand.client(), PAGE_PATH))
        }
    }
    .with_context(|| label.clone())?;
    page.compare(expected.objects())
        .with_context(|| label.clone())?;
    let other = page
        .objects
        .values()
        .find(|object| object.protocol != scheme.protocol());
    ensure!(
        other.is_none(),
        "{label}: an object came by {:?}",
        other.map(|object| &object.protocol)
    );
    Ok(PageLoad {
        state,
        page,
        crossings,
    })
}

fn figures(page: &WebPage, scheme: PageScheme, loads: &[PageLoad]) -> Result<CellFigures> {
    let prefix = scheme.prefix();
    let of = |state: LoadState| loads.iter().filter(move |load| load.state == state);
    let seconds = |state| -> Vec<f64> { of(state).map(|load| load.page.seconds).collect() };
    let mut figures = CellFigures::default();
    let mut medians = BTreeMap::new();
    for state in LoadState::ALL {
        let seconds = seconds(state);
        figures.add_median(&format!("{prefix}_{}_load_s", state.name()), &seconds);
        medians.insert(state, median(seconds).context("no load was measured")?);
    }
    if scheme == PageScheme::Http {
        figures.add_median("lan_load_s", &seconds(LoadState::Lan));
    }
    let (lan, without) = (medians[&LoadState::Lan], medians[&LoadState::Without]);
    ensure!(
        without > lan,
        "the WAN costs nothing: {without} s, on the LAN {lan} s"
    );
    let ratio = |seconds: f64| (seconds - lan) / (without - lan);
    for state in [LoadState::Cold, LoadState::Warm] {
        let name = format!("{prefix}_{}_ratio", state.name());
        figures.add(&name, ratio(medians[&state]));
        let interval = interval(&seconds(state)).map(|ends| ends.map(ratio));
        figures.add(&format!("{name}_interval"), interval);
    }
    let trips = |state| -> Vec<f64> {
        let trips = |load: &PageLoad| {
            load.crossings
                .round_trips(WAN_ROUND_TRIP * 19 / 20, ROUND_TRIP_PAYLOAD)
        };
        of(state).map(|load| f64::from(trips(load))).collect()
    };
    figures.add_median(
        &format!("{prefix}_warm_round_trips"),
        &trips(LoadState::Warm),
    );
    figures.add_median(
        &format!("{prefix}_cold_round_trips"),
        &trips(LoadState::Cold),
    );
    figures.add_median(
        &format!("{prefix}_without_round_trips"),
        &trips(LoadState::Without),
    );
    for state in [LoadState::Without, LoadState::Cold, LoadState::Warm] {
        let bytes: Vec<f64> = of(state)
            .map(|load| load.crossings.bytes() as f64)
            .collect();
        figures.add(
            &format!("{prefix}_{}_wan_bytes", state.name()),
            median(bytes),
        );
    }
    let first = loads.first().map(|load| &load.page.screenshot);
    let different: Vec<&str> = loads
        .iter()
        .filter(|load| Some(&load.page.screenshot) != first)
        .map(|load| load.state.name())
        .collect();
    if !different.is_empty() {
        let fault = format!(
            "pictures differ from the first one's: {}",
            different.join(", ")
        );
        figures.faults.push(fault);
    }
    figures.raw = raw(page, loads);
    Ok(figures)
}

fn raw(page: &WebPage, loads: &[PageLoad]) -> Value {
    let load = |load: &PageLoad| {
        json!({
            "state": load.state.name(),
            "seconds": load.page.seconds,
            "wan_bytes": load.crossings.bytes(),
            "round_trips": load.crossings.round_trips(WAN_ROUND_TRIP * 19 / 20, ROUND_TRIP_PAYLOAD),
            "issuers": load.page.issuers,
        })
    };
    let bytes: usize = page.objects().values().map(Vec::len).sum();
    json!({
        "objects": page.objects().len(),
        "object_bytes": bytes,
        "link": WAN_LINK,
        "loads": loads.iter().map(load).collect::<Vec<_>>(),
    })
}

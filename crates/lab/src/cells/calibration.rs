//! Calibration of the emulated link within a campaign: tables 20 to 23 of the 2006 report again.
//!
//! | quantity | how |
//! | --- | --- |
//! | bandwidth | curl fetches a random file for some seconds; payload over time, from a capture |
//! | delay | datagrams that the server returns; half of the median round trip |
//! | loss | 10,000 datagrams from client to server; the share that does not arrive |
//!
//! No node runs. The first rows are the path without an emulator, and the first further row of each quantity is
//! the emulator without any setting (table 20): what the machine and the emulator themselves add.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::topology::{LabSite, LabTopology, LinkArguments};
use host::kernel;
use host::median::median;

/// Port on which the server returns or counts datagrams.
const ECHO_PORT: u16 = 7007;
/// Datagrams that measure a delay.
const PINGS: u64 = 100;
/// Interval between them.
const PING_INTERVAL: Duration = Duration::from_millis(20);
/// Datagrams that measure a loss.
const LOSS_DATAGRAMS: u64 = 10_000;
/// Datagrams that are sent in one go; the queue of every calibrated link holds more.
const LOSS_BURST: u64 = 10;
/// Interval between such bursts.
const LOSS_INTERVAL: Duration = Duration::from_millis(4);
/// Size of a datagram's payload.
const DATAGRAM_BYTES: usize = 64;
/// Time after the last datagram in which answers may arrive, beside the round trip.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Transfer time of a bandwidth.
pub(super) const BANDWIDTH_SPAN: Duration = Duration::from_secs(5);
/// Payload of a full segment.
pub(super) const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;

/// Quantity that is calibrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CalibratedQuantity {
    /// Bits per second.
    Bandwidth,
    /// One-way delay in milliseconds.
    Delay,
    /// Share of lost packets.
    Loss,
}

/// One row of a calibration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationRow {
    /// Quantity.
    pub quantity: CalibratedQuantity,
    /// Setting: bit/s, milliseconds or a share; `None` for the emulator without any setting, and without one.
    pub configured: Option<f64>,
    /// True if no emulator ran: packets are routed from one side to the other.
    #[serde(default)]
    pub is_without_emulator: bool,
    /// Measurement in the same unit; for a bandwidth the payload.
    pub measured: f64,
    /// Measurement that a perfect link gives, in the same unit.
    pub expected: Option<f64>,
}

/// Calibration of a campaign.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkCalibration {
    /// Start time, RFC 3339.
    pub started: String,
    /// Rows in the order of the tables.
    pub rows: Vec<CalibrationRow>,
}

impl CalibratedQuantity {
    /// All, in the published order.
    pub(super) const ALL: [Self; 3] = [Self::Bandwidth, Self::Delay, Self::Loss];
}

/// Settings of the calibration, in the published order.
pub(super) fn settings() -> Vec<(CalibratedQuantity, Option<f64>)> {
    let rates = [64e3, 256e3, 1_024e3, 4_096e3, 10e6, 51.84e6, 100e6];
    let delays = [0.0, 2.0, 10.0, 40.0, 100.0, 200.0, 2_000.0];
    let losses = [0.0, 0.0005, 0.001, 0.005, 0.01, 0.05];
    let mut all = Vec::new();
    for (quantity, values) in [
        (CalibratedQuantity::Bandwidth, &rates[..]),
        (CalibratedQuantity::Delay, &delays[..]),
        (CalibratedQuantity::Loss, &losses[..]),
    ] {
        all.push((quantity, None));
        all.extend(values.iter().map(|value| (quantity, Some(*value))));
    }
    all
}

/// Name of the captures of the bandwidth without an emulator.
pub(super) const DIRECT_CAPTURE: &str = "calibration-no-emulator";

/// Name of the captures of a bandwidth.
pub(super) fn capture_name(configured: Option<f64>) -> String {
    match configured {
        Some(rate) => format!("calibration-{rate:.0}"),
        None => "calibration-none".to_owned(),
    }
}

/// Time to start and stop the emulator for one setting, and to start and read a bandwidth's captures.
const SETUP: Duration = Duration::from_secs(1);
const CAPTURES: Duration = Duration::from_secs(2);

/// Time that a calibration is expected to take.
pub(super) fn expected_time() -> Duration {
    let of = |(quantity, configured): (CalibratedQuantity, Option<f64>)| match quantity {
        CalibratedQuantity::Bandwidth => BANDWIDTH_SPAN + CAPTURES,
        CalibratedQuantity::Delay => {
            let delay = Duration::from_secs_f64(configured.unwrap_or(0.0) / 1e3);
            PING_INTERVAL * PINGS as u32 + 2 * delay
        }
        CalibratedQuantity::Loss => {
            LOSS_INTERVAL * (LOSS_DATAGRAMS / LOSS_BURST) as u32 + ANSWER_LIMIT
        }
    };
    let direct = CalibratedQuantity::ALL.map(|quantity| (quantity, None));
    let all = direct.into_iter().chain(settings());
    all.map(|each| SETUP + of(each)).sum()
}

/// Arguments of the emulator for a setting.
pub(super) fn arguments(
    quantity: CalibratedQuantity,
    configured: Option<f64>,
    seed: u64,
) -> LinkArguments {
    let mut words = Vec::new();
    if let Some(value) = configured {
        let (name, word) = match quantity {
            CalibratedQuantity::Bandwidth => ("--rate", format!("{value}bit")),
            CalibratedQuantity::Delay => ("--delay", format!("{value}ms")),
            CalibratedQuantity::Loss => ("--loss", format!("{}%", value * 100.0)),
        };
        words.extend([name.to_owned(), word]);
    }
    words.extend(["--seed".to_owned(), seed.to_string(), "--json".to_owned()]);
    LinkArguments(words)
}

/// A thread at the server that returns or counts datagrams; dropping it ends it.
struct DatagramServer {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

impl DatagramServer {
    fn start(topology: &LabTopology, returns: bool) -> Result<Self> {
        let address = (LabSite::Far.host_address(), ECHO_PORT);
        let socket = kernel::in_network_namespace(&topology.namespace_file("server"), || {
            UdpSocket::bind(address)
        })
        .context("opening the calibration's port at the server")?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let stop = Arc::new(AtomicBool::new(false));
        let count = Arc::new(AtomicU64::new(0));
        let (stops, counts) = (Arc::clone(&stop), Arc::clone(&count));
        let thread = thread::spawn(move || {
            let mut buffer = [0; 2048];
            while !stops.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    counts.fetch_add(1, Ordering::Relaxed);
                    if returns {
                        // A lost answer shows as one.
                        let _ = socket.send_to(&buffer[..length], from);
                    }
                }
            }
        });
        Ok(Self {
            stop,
            count,
            thread: Some(thread),
        })
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for DatagramServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn client_socket(topology: &LabTopology) -> Result<UdpSocket> {
    kernel::in_network_namespace(&topology.namespace_file("client"), || {
        let socket = UdpSocket::bind((LabSite::Near.host_address(), 0))?;
        socket.connect((LabSite::Far.host_address(), ECHO_PORT))?;
        Ok(socket)
    })
    .context("opening the calibration's socket at the client")
}

/// Half of the median round trip, in milliseconds.
pub(super) fn measure_delay(topology: &LabTopology, expected: Duration) -> Result<f64> {
    let _server = DatagramServer::start(topology, true)?;
    let socket = client_socket(topology)?;
    socket.set_read_timeout(Some(Duration::from_millis(1)))?;
    let began = Instant::now();
    let end = PING_INTERVAL * PINGS as u32 + 2 * expected + ANSWER_LIMIT;
    let mut sent: Vec<Instant> = Vec::new();
    let mut round_trips = Vec::new();
    let mut buffer = [0; DATAGRAM_BYTES];
    while began.elapsed() < end && round_trips.len() < PINGS as usize {
        let due = sent.len() as u64;
        if due < PINGS && began.elapsed() >= PING_INTERVAL * due as u32 {
            let mut datagram = [0; DATAGRAM_BYTES];
            datagram[..8].copy_from_slice(&due.to_le_bytes());
            sent.push(Instant::now());
            socket.send(&datagram)?;
        }
        if let Ok(length) = socket.recv(&mut buffer)
            && let Some(number) = buffer[..length].first_chunk::<8>()
            && let Some(at) = sent.get(u64::from_le_bytes(*number) as usize)
        {
            round_trips.push(at.elapsed().as_secs_f64() * 1e3);
        }
    }
    ensure!(
        round_trips.len() as u64 > PINGS / 2,
        "only {} of {PINGS} datagrams came back",
        round_trips.len()
    );
    Ok(median(round_trips).unwrap_or_default() / 2.0)
}

/// Share of datagrams from client to server that do not arrive.
pub(super) fn measure_loss(topology: &LabTopology) -> Result<f64> {
    let server = DatagramServer::start(topology, false)?;
    let socket = client_socket(topology)?;
    let datagram = [0; DATAGRAM_BYTES];
    for number in 0..LOSS_DATAGRAMS {
        socket.send(&datagram)?;
        if number % LOSS_BURST == LOSS_BURST - 1 {
            thread::sleep(LOSS_INTERVAL);
        }
    }
    let last = Instant::now();
    while last.elapsed() < ANSWER_LIMIT && server.count() < LOSS_DATAGRAMS {
        thread::sleep(LOSS_INTERVAL);
    }
    Ok(1.0 - server.count() as f64 / LOSS_DATAGRAMS as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_of_settings_have_different_names() {
        let rates = settings().into_iter();
        let rates = rates.filter(|(quantity, _)| *quantity == CalibratedQuantity::Bandwidth);
        let mut names: Vec<String> = rates.map(|(_, rate)| capture_name(rate)).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 8);
    }

    #[test]
    fn settings_are_those_of_the_report() {
        let all = settings();
        assert_eq!(all.len(), 7 + 7 + 6 + 3);
        let LinkArguments(words) = arguments(CalibratedQuantity::Loss, Some(0.0005), 3);
        assert_eq!(words.join(" "), "--loss 0.05% --seed 3 --json");
        let LinkArguments(words) = arguments(CalibratedQuantity::Bandwidth, Some(51.84e6), 3);
        assert_eq!(words.join(" "), "--rate 51840000bit --seed 3 --json");
        let LinkArguments(words) = arguments(CalibratedQuantity::Delay, None, 3);
        assert_eq!(words.join(" "), "--seed 3 --json");
    }
}

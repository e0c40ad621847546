//! Captures on the client's and the WAN's interface, and their evaluation.
//!
//! A [`PacketRecorder`] runs two tcpdumps for a pass. Before and after each workload the client
//! sends a *marker*: a UDP packet to the server's discard port whose payload names what begins or
//! ends. It crosses both interfaces, so a capture file that holds the end marker holds everything
//! before it, and no waiting is needed; the markers also explain the files to a later reader. Nodes
//! bypass markers (UDP is not intercepted), and markers are not counted.
//!
//! [`transfers`] turns the packets between two markers into one [`FileTransfer`] per file, and [`crossings`] says what
//! crossed the WAN between them and in how many round trips.

mod crossings;
mod marker;
mod measured_files;
mod ping;
mod traffic;
mod transfers;

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::topology::{LabSite, LabTopology, TUN_NEAR};
use host::kernel::{self, ProcessSignal};
use host::process::{LaunchConfig, RunningProcess};
use host::run::LabRun;
use host::wait;

pub use crossings::{WanCrossing, WanCrossings, crossings};
pub use marker::{MarkerEdge, WorkloadMarker};
pub use measured_files::{MeasuredFile, measured_files};
pub use ping::ping;
pub use traffic::{TrafficCounts, dropped_data, traffic};
pub use transfers::{FileTransfer, OfficeTimes, transfers};

/// Bytes kept of each packet: enough for all headers and an SMB2 CREATE with its file name.
const SNAPSHOT_BYTES: u32 = 256;
/// The kernel's buffer for one capture, KiB; at snapshot length it holds some 60,000 packets.
const BUFFER_KIBIBYTES: u32 = 16_384;
/// Time limit for a marker: the longest emulated delay and a full queue, with room.
const MARKER_LIMIT: Duration = Duration::from_secs(60);
/// A marker may be lost on a lossy link; it is sent again this often.
const MARKER_INTERVAL: Duration = Duration::from_millis(500);
/// Time limit for tcpdump to open its interface.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Paths of the two captures of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureFiles {
    /// The client's interface.
    pub client: PathBuf,
    /// The emulator's near device: both directions of the WAN.
    pub wan: PathBuf,
}

/// Sockets for markers, the same for a whole run, so that a late marker still finds an open port: a
/// closed one would send an ICMP answer over the measured link.
#[derive(Debug)]
pub struct MarkerPath {
    sender: UdpSocket,
    /// Socket that is never read; markers that do not fit into its buffer are dropped.
    _sink: UdpSocket,
}

impl MarkerPath {
    /// Opens both ends.
    ///
    /// # Errors
    /// When a socket cannot be opened.
    pub fn open(topology: &LabTopology) -> Result<Self> {
        let discard = (LabSite::Far.host_address(), marker::PORT);
        let sink = kernel::in_network_namespace(&topology.namespace_file("server"), || {
            UdpSocket::bind(discard)
        })
        .context("opening the server's discard port")?;
        let sender = kernel::in_network_namespace(&topology.namespace_file("client"), || {
            let socket = UdpSocket::bind((LabSite::Near.host_address(), 0))?;
            socket.connect(discard)?;
            Ok(socket)
        })
        .context("opening the marker's socket in the client's namespace")?;
        Ok(Self {
            sender,
            _sink: sink,
        })
    }
}

/// Two running captures.
#[derive(Debug)]
pub struct PacketRecorder {
    files: CaptureFiles,
    client: RunningProcess,
    wan: RunningProcess,
}

impl PacketRecorder {
    /// Starts both captures.
    ///
    /// # Errors
    /// When tcpdump does not start.
    pub fn start(
        run: &LabRun,
        topology: &LabTopology,
        directory: &Path,
        logs: &Path,
        name: &str,
    ) -> Result<Self> {
        Self::start_at(TUN_NEAR, run, topology, directory, logs, name)
    }

    /// Starts both captures, the one in the WAN's namespace at this device.
    ///
    /// # Errors
    /// When tcpdump does not start.
    pub fn start_at(
        wan_device: &str,
        run: &LabRun,
        topology: &LabTopology,
        directory: &Path,
        logs: &Path,
        name: &str,
    ) -> Result<Self> {
        let files = CaptureFiles {
            client: directory.join(format!("{name}-client.pcap")),
            wan: directory.join(format!("{name}-wan.pcap")),
        };
        let client = start_tcpdump(run, topology, logs, "client", "lan0", &files.client)?;
        let wan = start_tcpdump(run, topology, logs, "wan", wan_device, &files.wan)?;
        Ok(Self { files, client, wan })
    }

    /// Sends a marker and waits until both captures hold it.
    ///
    /// # Errors
    /// When a capture ends, or the marker does not show up.
    pub fn mark(&mut self, markers: &MarkerPath, edge: MarkerEdge, label: &str) -> Result<()> {
        let marker = WorkloadMarker {
            edge,
            label: label.to_owned(),
        };
        let payload = marker.payload();
        let mut client = TextWatch::new(&self.files.client, payload.as_bytes());
        let mut wan = TextWatch::new(&self.files.wan, payload.as_bytes());
        let mut last_sent: Option<std::time::Instant> = None;
        let what = format!("the marker `{payload}` to be captured");
        wait::until(MARKER_LIMIT, &what, || {
            if last_sent.is_none_or(|sent| sent.elapsed() >= MARKER_INTERVAL) {
                // What cannot be sent now can be in a moment; the limit tells if it never can.
                let _ = markers.sender.send(payload.as_bytes());
                last_sent = Some(std::time::Instant::now());
            }
            self.client.check()?;
            self.wan.check()?;
            let both = client.look()? & wan.look()?;
            Ok(both.then_some(()))
        })
    }

    /// Ends the captures.
    ///
    /// # Errors
    /// Fails when tcpdump cannot be stopped, or reports lost packets.
    pub fn finish(mut self) -> Result<CaptureFiles> {
        for process in [&mut self.client, &mut self.wan] {
            process.stop(ProcessSignal::Interrupt)?;
            let log = process.log_end();
            let lost = log
                .lines()
                .find(|line| line.ends_with("packets dropped by kernel"))
                .is_some_and(|line| !line.starts_with("0 "));
            if lost {
                anyhow::bail!("the capture is not whole, so no figure can be trusted:\n{log}");
            }
        }
        Ok(self.files)
    }
}

fn start_tcpdump(
    run: &LabRun,
    topology: &LabTopology,
    logs: &Path,
    role: &str,
    device: &str,
    file: &Path,
) -> Result<RunningProcess> {
    let name = file
        .file_stem()
        .map(|stem| format!("tcpdump-{}", stem.to_string_lossy()))
        .unwrap_or_default();
    let launch = LaunchConfig {
        name: &name,
        namespace: &topology.namespace(role),
        program: Path::new("tcpdump"),
        logs,
    };
    let snapshot = SNAPSHOT_BYTES.to_string();
    let buffer = BUFFER_KIBIBYTES.to_string();
    // --immediate-mode: otherwise packets wait in the kernel's block until it is full, and the
    // last block is lost. -Z: Debian's tcpdump would give root away and could not write here.
    let file_name = file.display().to_string();
    let arguments = [
        "-i",
        device,
        "-n",
        "-U",
        "--immediate-mode",
        "-p",
        "-B",
        &buffer,
        "-s",
        &snapshot,
        "-Z",
        "root",
        "-w",
        &file_name,
    ];
    let mut process = RunningProcess::start(run, &launch, arguments)?;
    let log = process.log().to_owned();
    process.wait_ready(START_LIMIT, "to listen", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        Ok(text.contains("listening on"))
    })?;
    Ok(process)
}

/// Search for a text in data that is appended to a file.
struct TextWatch<'a> {
    path: &'a Path,
    text: &'a [u8],
    offset: u64,
    seen: bool,
}

impl<'a> TextWatch<'a> {
    fn new(path: &'a Path, text: &'a [u8]) -> Self {
        // What is there already was written before the marker was sent.
        let offset = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        Self {
            path,
            text,
            offset,
            seen: false,
        }
    }

    fn look(&mut self) -> Result<bool> {
        use std::io::{Read, Seek, SeekFrom};
        if self.seen {
            return Ok(true);
        }
        let mut file = std::fs::File::open(self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        self.seen = bytes
            .windows(self.text.len())
            .any(|window| window == self.text);
        // The text may be only half written: the next look starts that much earlier.
        let keep = self.text.len().min(bytes.len());
        self.offset += (bytes.len() - keep) as u64;
        Ok(self.seen)
    }
}

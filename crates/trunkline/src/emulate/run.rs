//! `trunkline emulate run`: the link itself, between two devices of this machine.
//!
//! It prints `ready` on standard output when the link is up, relays until SIGTERM, SIGINT or
//! SIGHUP, then prints its counters. New devices vanish with the process; bridged interfaces are no
//! longer bridged.

use std::env;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use emulator::link::control::{
    ControlSocket, ControlTarget, ControlledLink, LinkStart, UnprovenRate,
};
use emulator::link::packet_log::{LogFiles, LogReports};
use emulator::link::settings::{LinkSettings, SettingDirection};
use emulator::link::{
    BridgeEnd, BridgeIo, DirectionConfig, InvalidRequest, LinkDevices, LinkEndpoint, LinkReport,
    NetworkNamespace, OffloadSetting, StopSignals, metrics, stand_apart,
};

use vocab::parse_duration;

use super::account;
use super::around;
use super::calibrate;
use super::device::{DeviceArguments, DeviceRun};
use super::flags::SettingFlags;
use crate::output::StandardOutput;

/// Arguments of `trunkline emulate run`.
#[derive(Debug, Args)]
pub(super) struct EmulateRunArguments {
    #[command(flatten)]
    ends: LinkEndArguments,
    /// Emulates a device instead of a link: the device model in this file or of this preset, between
    /// the interfaces of --bridge, one for each port of the model. The page
    /// docs/formats/device-model.md describes the file, and `trunkline profile fit` writes one.
    #[arg(
        long,
        value_name = "MODEL.toml",
        requires = "bridge",
        help_heading = "Devices"
    )]
    device: Option<PathBuf>,
    /// Keeps the device's thread awake for this time after each packet. A thread that sleeps wakes some 50
    /// us late, which is more than the delay of a fast router. Needs a processor of its own.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = parse_duration,
        requires = "device",
        help_heading = "Devices"
    )]
    busy_poll: Option<Duration>,
    /// Ends after this time, as after Ctrl-C.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    run_time: Option<Duration>,
    #[command(flatten)]
    watched: WatchArguments,
    #[command(flatten)]
    settings: SettingFlags,
    #[command(flatten)]
    force: ForceArguments,
    /// Prints the counters of the emulated link as one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    around: around::CommandArguments,
}

/// Option that sets a rate although this host was not seen to carry it.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct ForceArguments {
    /// Sets a rate even if no measurement shows that this host is fast enough for the rate, and
    /// marks the link as forced in every table, JSON object, metric, log and certificate. Without
    /// --force, Trunkline refuses a rate that no measurement supports.
    #[arg(long)]
    force: bool,
}

impl ForceArguments {
    pub(super) fn unheld(self) -> UnprovenRate {
        if self.force {
            UnprovenRate::Force
        } else {
            UnprovenRate::Refuse
        }
    }
}

/// Devices at the ends of the link.
#[derive(Debug, Args)]
#[command(next_help_heading = "Devices")]
struct LinkEndArguments {
    /// Sets the name of the new TUN device at end A.
    #[arg(long, value_name = "NAME", default_value = "wan-a")]
    device_a: String,
    /// Sets the name of the new TUN device at end B.
    #[arg(long, value_name = "NAME", default_value = "wan-b")]
    device_b: String,
    /// Puts end A into this network namespace, given by name or path [default: the current
    /// namespace].
    #[arg(long, value_name = "NAMESPACE")]
    namespace_a: Option<String>,
    /// Puts end B into this network namespace, given by name or path [default: the current
    /// namespace].
    #[arg(long, value_name = "NAMESPACE")]
    namespace_b: Option<String>,
    /// Joins two existing network interfaces as a transparent bridge, and creates no devices. The
    /// first interface is end A of the emulated link, and the second interface is end B. With
    /// --device, names one interface for each port of the model, as INTERFACE or
    /// INTERFACE@NAMESPACE.
    #[arg(long, value_name = "A,B", conflicts_with_all = ["device_a", "device_b"])]
    bridge: Option<String>,
    /// Selects how a bridge receives and sends packets [default: packet].
    #[arg(long, value_enum, requires = "bridge")]
    io: Option<BridgeIoOption>,
    /// Switches segmentation offload off at the TUN devices. Without segmentation offload, the
    /// emulated link carries a lower rate, but packet captures at the devices show single packets.
    #[arg(long, conflicts_with = "bridge")]
    no_offloads: bool,
}

/// Packet interface of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BridgeIoOption {
    /// Uses AF_PACKET.
    Packet,
    /// Uses AF_XDP.
    Xdp,
}

/// Options for logs, metrics and control of the link.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Observing and changing the link")]
pub(super) struct WatchArguments {
    /// Writes a log with one row for each packet and the packet's fate: delivered or dropped. The
    /// page docs/formats/packet-log.md describes the log, and `trunkline emulate replay` reads the
    /// log.
    #[arg(long, value_name = "FILE.csv")]
    log: Option<PathBuf>,
    /// Writes a packet capture that contains each packet at both ends of the emulated link, with
    /// the packet's fate (delivered or dropped) as a comment.
    #[arg(long, value_name = "FILE.pcapng")]
    pcapng: Option<PathBuf>,
    /// Creates the control socket for `status` and `set` at this path. The directory of the path
    /// must exist [default: emulate-DEVICE_A.sock in /run/trunkline or in
    /// $XDG_RUNTIME_DIR/trunkline].
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Serves Prometheus metrics at this address. If you give only a port, Trunkline uses the
    /// loopback address.
    #[arg(long, value_name = "ADDRESS", value_parser = metrics_address)]
    metrics: Option<SocketAddr>,
}

impl WatchArguments {
    /// Tells whether an option is given that only a link has.
    fn is_of_a_link(&self) -> bool {
        self.log.is_some() || self.pcapng.is_some() || self.metrics.is_some()
    }
}

impl EmulateRunArguments {
    /// Checks combinations of flags that the argument parser accepts although they contradict each
    /// other.
    fn check(&self) -> Result<()> {
        // Nothing else ends in it: what follows another `--` is a command.
        if env::args_os().next_back().is_some_and(|last| last == "--") {
            return Err(InvalidRequest::because(anyhow!(
                "no command follows --; write a command, as in `trunkline emulate run --delay 50ms -- curl \
                 …`, or remove -- for a link between two devices"
            )));
        }
        if self.around.has_options() {
            return Err(InvalidRequest::because(anyhow!(
                "--gateway, --report and --report-to need a command that runs behind the link; add -- COMMAND"
            )));
        }
        if self.run_time.is_some() && self.around.is_given() {
            return Err(InvalidRequest::because(anyhow!(
                "--for ends a link between two devices; a link around a command ends with the command"
            )));
        }
        if self.ends.io.is_some() && self.ends.bridge.is_none() {
            return Err(InvalidRequest::because(anyhow!(
                "--io needs a bridge; add --bridge A,B"
            )));
        }
        Ok(())
    }

    pub(super) fn run(self) -> Result<()> {
        if self.device.is_some() {
            self.check()?;
            return self.run_device();
        }
        if self.around.is_given() && self.run_time.is_none() {
            let settings = self.settings.settings();
            let offloads = self.ends.offloads();
            let unheld = self.force.unheld();
            self.around
                .run(settings, unheld, &self.watched, offloads, self.json);
        }
        self.check()?;
        // Before any thread starts, so that all of them leave the signals to this one.
        let signals = StopSignals::block()?;
        stand_apart();
        let (devices, ends) = self.ends.devices()?;
        let running = RunningLink::start(
            devices,
            ends,
            self.settings.settings()?,
            self.force.unheld(),
            &self.watched,
            SettingsAnnouncement::Yes,
        )?;
        let mut out = StandardOutput::new();
        writeln!(out, "ready")?;
        out.flush()?;

        wait_for_end(&signals, self.run_time, || running.link.is_running());
        let ends = running.link.ends().map(str::to_owned);
        let (report, log) = running.stop()?;
        if self.json {
            serde_json::to_writer(&mut out, &report)?;
            writeln!(out)?;
        } else {
            account::print(
                &mut out,
                (&ends[0], &ends[1]),
                &serde_json::to_value(&report)?,
            )?;
        }
        warn(&report, &log);
        Ok(())
    }
}

impl EmulateRunArguments {
    fn run_device(self) -> Result<()> {
        let settings = self.settings.settings()?;
        let is_link = settings != LinkSettings::default()
            || self.force.force
            || self.around.is_given()
            || self.ends.namespace_a.is_some()
            || self.ends.namespace_b.is_some();
        if is_link || self.watched.is_of_a_link() {
            return Err(InvalidRequest::because(anyhow!(
                "--device takes everything from its model; of the other options, only --bridge, --io, --busy-poll, --control, --for and --json go with it"
            )));
        }
        DeviceRun::new(DeviceArguments {
            model: self.device.expect("it is given"),
            interfaces: self.ends.bridge.unwrap_or_default(),
            io: bridge_io(self.ends.io),
            control: self.watched.control,
            run_time: self.run_time,
            busy_poll: self.busy_poll.unwrap_or_default(),
            is_json: self.json,
        })?
        .run()
    }
}

/// Waits for a signal, for the end of the run's time, or until `is_running` says no.
pub(super) fn wait_for_end(
    signals: &StopSignals,
    run_time: Option<Duration>,
    is_running: impl Fn() -> bool,
) {
    let started = Instant::now();
    while is_running() {
        let left = run_time.map_or(Duration::MAX, |time| time.saturating_sub(started.elapsed()));
        if left.is_zero() || signals.wait(left.min(LOOK_AGAIN_AFTER)) {
            return;
        }
    }
}

/// Announcement of a link's settings on standard error when it is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SettingsAnnouncement {
    /// Prints them.
    Yes,
    /// Prints nothing, because standard error belongs to another program.
    No,
}

/// A running link, with everything that watches it.
pub(super) struct RunningLink {
    pub(super) link: Arc<ControlledLink>,
    /// Control socket, removed together with the link.
    control: Option<ControlSocket>,
}

impl RunningLink {
    /// Starts the link and prints its settings on standard error.
    pub(super) fn start(
        devices: LinkDevices,
        ends: [String; 2],
        settings: LinkSettings,
        unheld: UnprovenRate,
        watched: &WatchArguments,
        announce: SettingsAnnouncement,
    ) -> Result<Self> {
        let config = settings.resolve().map_err(InvalidRequest::because)?.config;
        let lines = [
            describe(
                (&ends[0], &ends[1]),
                &settings,
                SettingDirection::Forward,
                &config.forward,
            )?,
            describe(
                (&ends[1], &ends[0]),
                &settings,
                SettingDirection::Back,
                &config.back,
            )?,
        ];
        let host_check = calibrate::host_check(&devices);
        let link = ControlledLink::start(LinkStart {
            devices,
            ends: ends.clone(),
            settings,
            log: LogFiles {
                csv: watched.log.clone(),
                pcapng: watched.pcapng.clone(),
            },
            host_check,
            unheld,
        })?;
        let link = Arc::new(link);
        // Whoever measures over the link must know it, whoever else writes on standard error.
        if let Some(forced) = link.forced() {
            remark!(
                "trunkline: warning: {forced}; results over this link may show the limits of this host"
            );
        }
        if announce == SettingsAnnouncement::Yes {
            for line in lines {
                remark!("{line}");
            }
        }
        let control = match &watched.control {
            Some(path) => Some(ControlSocket::listen(path, link.clone())?),
            None => {
                let target: Arc<dyn ControlTarget> = link.clone();
                let control = ControlSocket::listen_in(&control_directories(), &ends[0], &target);
                let name = control.as_ref().and_then(ControlSocket::name);
                match name {
                    None => tracing::debug!(
                        "no directory for the control socket was found; name a socket \
                                             with --control"
                    ),
                    Some(name) if name != ends[0] && announce == SettingsAnnouncement::Yes => {
                        remark!(
                            "another link already has the name {}; this link has the name {name}, as in \
                             `trunkline emulate status --name {name}`",
                            ends[0]
                        )
                    }
                    Some(_) => {}
                }
                control
            }
        };
        if let Some(address) = watched.metrics {
            let address = metrics::serve(address, Arc::clone(&link))?;
            remark!("metrics at http://{address}/metrics");
        }
        Ok(Self { link, control })
    }

    /// Stops the link; returns its counters and the reports about its log.
    pub(super) fn stop(self) -> Result<(LinkReport, LogReports)> {
        drop(self.control);
        self.link.stop()
    }
}

/// Interval of the check for a deleted device. Signals are noticed at once.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(200);

impl LinkEndArguments {
    fn offloads(&self) -> OffloadSetting {
        if self.no_offloads {
            OffloadSetting::Off
        } else {
            OffloadSetting::On
        }
    }

    /// The devices, and the names of the two ends.
    fn devices(self) -> Result<(LinkDevices, [String; 2])> {
        let offloads = self.offloads();
        let namespace = |name: Option<String>| name.map(NetworkNamespace::new);
        let (a, b) = (namespace(self.namespace_a), namespace(self.namespace_b));
        let Some(bridge) = self.bridge else {
            if self.device_a == self.device_b && a == b {
                return Err(InvalidRequest::because(anyhow!(
                    "both ends have the name {}; change one name with --device-a or --device-b",
                    self.device_a
                )));
            }
            let ends = [self.device_a.clone(), self.device_b.clone()];
            let end = |device, namespace| LinkEndpoint { device, namespace };
            let devices = LinkDevices::Tun {
                a: end(self.device_a, a),
                b: end(self.device_b, b),
                offloads,
            };
            return Ok((devices, ends));
        };
        let Some((first, second)) = bridge.split_once(',') else {
            return Err(InvalidRequest::because(anyhow!(
                "--bridge needs two interfaces, as in --bridge eth1,eth2"
            )));
        };
        if first == second && a == b {
            return Err(InvalidRequest::because(anyhow!(
                "both ends of the bridge are {first}; name two different interfaces"
            )));
        }
        let ends = [first.to_owned(), second.to_owned()];
        let end = |interface: &str, namespace| BridgeEnd {
            interface: interface.to_owned(),
            namespace,
        };
        let devices = LinkDevices::Bridge {
            a: end(first, a),
            b: end(second, b),
            io: bridge_io(self.io),
        };
        Ok((devices, ends))
    }
}

fn bridge_io(option: Option<BridgeIoOption>) -> BridgeIo {
    match option {
        None | Some(BridgeIoOption::Packet) => BridgeIo::Packet,
        Some(BridgeIoOption::Xdp) => BridgeIo::Xdp,
    }
}

/// Directories of control sockets: the system's, then the user's own.
pub(super) fn control_directories() -> Vec<PathBuf> {
    let own = env::var_os("XDG_RUNTIME_DIR").map(|own| PathBuf::from(own).join("trunkline"));
    [PathBuf::from("/run/trunkline")]
        .into_iter()
        .chain(own)
        .collect()
}

fn metrics_address(text: &str) -> Result<SocketAddr> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    text.parse().map_err(|_| {
        anyhow!(
            "`{text}` is not an address; write a port such as 9101, or an address with a \
                              port such as 127.0.0.1:9101"
        )
    })
}

fn describe(
    (from, to): (&str, &str),
    settings: &LinkSettings,
    way: SettingDirection,
    config: &DirectionConfig,
) -> Result<String> {
    let words: Vec<String> = settings
        .in_force(way, config)?
        .into_iter()
        .map(|(name, word)| format!("{name} {word}"))
        .collect();
    let lines = account::in_lines(&format!("{from} to {to}: "), 2, words);
    Ok(lines.trim_end().to_owned())
}

/// Prints on standard error each reason to doubt a measurement over this run.
pub(super) fn warn(report: &LinkReport, logs: &LogReports) {
    let lost = report.lost_outside_the_model();
    let offered = report.forward.offered_packets + report.back.offered_packets;
    if lost > 0 {
        remark!(
            "warning: this host lost {lost} packets outside the emulation, which processed {offered} \
             packets; the host was too slow, or a device was down, so results of this run do not show the \
             link"
        );
    }
    for (way, account) in [("forward", &report.forward), ("back", &report.back)] {
        if let Some(reason) = &account.not_held {
            remark!(
                "warning: {way}, the link did not follow its settings in {} s of its run; last reason: {reason}",
                account.not_held_seconds
            );
        }
    }
    for (name, log) in logs.named() {
        if let Some(error) = &log.error {
            remark!("warning: the {name} ended early: {error}");
        }
        if log.lost_records > 0 {
            remark!(
                "warning: the {name} lacks {} records and has {}",
                log.lost_records,
                log.records
            );
        }
    }
}

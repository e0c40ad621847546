//! An emulated link in real time, between two devices of this machine.
//!
//! ```text
//!   device A ──read──► emulate::Link forward ──write──► device B
//!            ◄─write── emulate::Link back    ◄──read──
//! ```
//!
//! One thread (`driver.rs`) reads packets that come to a device, hands them to the model with the
//! time, and hands them to the other device when the model says so. The devices are two new TUN
//! devices (`tun.rs`), between whatever routes packets into them, or two interfaces that are there
//! already and between which the link is a bridge (`bridge.rs`).
//!
//! TUN devices come up without an address; the owner of the namespaces assigns one. They may be
//! opened in different namespaces, or moved later: the file descriptor stays with them. They need
//! /dev/net/tun and CAP_NET_ADMIN, no kernel module beyond tun, and no netem.
//!
//! A link that ends, even when its process is killed, behaves like a cable that is pulled out:
//! packets in queues or in flight are lost, new packets arrive nowhere, and no packet bypasses the
//! link. TUN devices vanish with their last file descriptor, and the addresses and routes that name
//! them with them, so that senders get "unreachable" at once; a bridge's interfaces stay up, but
//! nothing relays between them. A device that is deleted under a running link ends it with an
//! error.
//!
//! Every deviation is reported: packets delivered late and packets that the kernel dropped before
//! they were read are in the [`LinkReport`], because a figure measured over a link that could not
//! keep up is worthless. If the link does not keep its settings any more, it warns at once
//! (`watch.rs`).

mod bridge;
pub mod control;
mod driver;
pub mod metrics;
pub(crate) mod pace;
pub mod packet_log;
mod pcapng;
pub mod presets;
pub(crate) mod processor;
mod record;
pub mod replay;
pub(crate) mod report;
pub mod settings;
mod signals;
pub(crate) mod watch;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow};
pub use emulate::{DirectionConfig, LineConfig, LinkConfig, LossModel};
pub use host::invalid_request::InvalidRequest;
use host::packets::device::LinkDevice;
pub use host::packets::namespace::NetworkNamespace;
pub use host::packets::offload;
use host::packets::system::{self, ThreadWaker};
use host::packets::tun::TunDevice;
pub use host::packets::{LinkEndpoint, OffloadSetting};

pub use bridge::{BridgeEnd, BridgeIo};
use driver::{DriverCommand, LinkDriver};
pub use record::{LinkRecord, PacketDirection, RecordSink};
pub use report::{DirectionReport, LinkReport};
pub use signals::StopSignals;

/// Devices that a link carries packets between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkDevices {
    /// Two new TUN devices: packets of the network layer.
    Tun {
        /// One end.
        a: LinkEndpoint,
        /// The other.
        b: LinkEndpoint,
        /// Permission for packets to come and go as segmentation-offloaded runs.
        offloads: OffloadSetting,
    },
    /// Two interfaces that are there already: frames of the link layer.
    Bridge {
        /// One end.
        a: BridgeEnd,
        /// The other.
        b: BridgeEnd,
        /// Packet interface of the bridge.
        io: BridgeIo,
    },
}

impl LinkDevices {
    fn open(&self) -> Result<[Box<dyn LinkDevice>; 2]> {
        match self {
            LinkDevices::Tun { a, b, offloads } => Ok([
                Box::new(TunDevice::create(a, *offloads)?),
                Box::new(TunDevice::create(b, *offloads)?),
            ]),
            LinkDevices::Bridge { a, b, io } => bridge::open(a, b, *io),
        }
    }
}

/// Gives a link of this process its share of processor time beside busy programs of the same
/// session; for a process that only runs a link, before it starts one. It does nothing where this
/// process must receive signals of a terminal's keys, which would no longer reach it.
pub fn stand_apart() {
    if !system::start_own_session() {
        tracing::debug!("the link shares its part of the processors with its session");
    }
}

/// A running link; dropping it stops it and removes its devices.
#[derive(Debug)]
pub struct LinkHandle {
    commands: mpsc::Sender<DriverCommand>,
    waker: ThreadWaker,
    started_at: SystemTime,
    thread: Option<thread::JoinHandle<Result<LinkReport>>>,
}

impl LinkHandle {
    /// Opens both devices and starts to relay. `forward` in `config` is from `a` to `b`.
    ///
    /// # Errors
    /// Fails when the settings are out of bounds, or the devices cannot be made; the message names
    /// the requirement and the remedy.
    pub fn start(devices: &LinkDevices, config: LinkConfig) -> Result<Self> {
        Self::start_recorded(devices, config, None)
    }

    /// The same, and hands the record of every packet, from the first on, to a sink.
    ///
    /// # Errors
    /// As [`LinkHandle::start`].
    pub fn start_recorded(
        devices: &LinkDevices,
        config: LinkConfig,
        records: Option<Box<dyn RecordSink>>,
    ) -> Result<Self> {
        config.check()?;
        let devices = devices.open()?;
        let waker = ThreadWaker::new().context("cannot create an eventfd")?;
        let (commands, receiver) = mpsc::channel();
        let (start, started_at) = (Instant::now(), SystemTime::now());
        let mut driver = LinkDriver::new(devices, config, receiver, waker.try_clone()?, start);
        driver.record(records);
        let thread = thread::Builder::new()
            .name("link".to_owned())
            .spawn(move || driver.run())
            .context("cannot start the link's thread")?;
        Ok(Self {
            commands,
            waker,
            started_at,
            thread: Some(thread),
        })
    }

    /// Counters so far.
    ///
    /// # Errors
    /// Fails when the link has ended by itself; [`LinkHandle::stop`] gives the reason.
    pub fn report(&self) -> Result<LinkReport> {
        let (sender, receiver) = mpsc::channel();
        self.send(DriverCommand::Report(sender))?;
        receiver
            .recv_timeout(ANSWER_WITHIN)
            .context("the link does not answer")
    }

    /// Takes other settings without losing a packet; the seed stays the first one's.
    ///
    /// # Errors
    /// When the settings are out of bounds or the link has ended by itself.
    pub fn set_config(&self, config: LinkConfig) -> Result<()> {
        config.check()?;
        self.send(DriverCommand::Configure(Box::new(config)))
    }

    /// The time of day at which the link's own time began: the zero of a record's times.
    #[must_use]
    pub fn started_at(&self) -> SystemTime {
        self.started_at
    }

    /// Tells whether the link still relays; false after one of its devices was deleted.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }

    /// Stops relaying, removes both devices, and gives the final account. Packets still queued
    /// or under way are gone, and counted as such.
    ///
    /// # Errors
    /// When the link had ended by itself: the reason.
    pub fn stop(mut self) -> Result<LinkReport> {
        self.end()
            .unwrap_or_else(|| Err(anyhow!("the link was stopped before")))
    }

    fn send(&self, command: DriverCommand) -> Result<()> {
        self.commands
            .send(command)
            .map_err(|_| anyhow!("the link has ended; stop it to learn why"))?;
        self.waker.wake();
        Ok(())
    }

    fn end(&mut self) -> Option<Result<LinkReport>> {
        let thread = self.thread.take()?;
        // It fails only when the thread has ended, which is what it is for.
        let _ = self.send(DriverCommand::Stop);
        Some(
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow!("the link's thread panicked"))),
        )
    }
}

impl Drop for LinkHandle {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.end() {
            tracing::warn!(error = format!("{error:#}"), "link ended early");
        }
    }
}

/// A link's thread answers between two batches of packets, well within a millisecond; a host so
/// busy that it takes this long cannot run an emulation.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

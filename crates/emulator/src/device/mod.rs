//! An emulated device in real time: the model of a router or switch between interfaces.
//!
//! ```text
//!   interface ──read──► switch ──► emulate::EmulatedDevice ──write──► interface
//!   (port 0)            output?    queues, servers, lines              (port n)
//! ```
//!
//! Each port of the model is an interface that is there already, as with a bridge (see
//! [`link`](crate::link)). One thread (`driver.rs`) forwards between them: it learns which address is
//! behind which port (`switch.rs`), and the model of `emulate` decides what each packet waits for and
//! whether it is dropped, as in virtual time. Nothing of a frame is changed.
//!
//! When the process ends, however it does, nothing is forwarded any more. A deleted interface ends
//! the device with an error.

mod driver;
pub mod presets;
mod report;
mod switch;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use host::invalid_request::InvalidRequest;
use host::packets::device::LinkDevice;
use host::packets::interface::ClaimedInterface;
use host::packets::interface_system::OffloadFeature;
use host::packets::packet_socket::PacketSocket;
use host::packets::system::ThreadWaker;
use host::packets::xdp::XdpSocket;
use serde_json::{Value, json};
use vocab::DeviceModel;

use crate::link::control::{ControlRequest, ControlTarget};
use crate::link::{BridgeEnd, BridgeIo};
use driver::{DeviceCommand, DeviceDriver};

pub use report::{DeviceReport, PortReport};

/// Greatest number of ports of a device in real time: one thread polls them all.
pub const PORTS_MAX: usize = 64;

/// The thread answers between two batches of frames; a host so busy that it takes this long cannot
/// run an emulation.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Parameters with which a device is started.
#[derive(Clone, Debug)]
pub struct DeviceStart {
    /// The model; it has been checked.
    pub model: DeviceModel,
    /// The interfaces of the ports, in the order of their numbers.
    pub ports: Vec<BridgeEnd>,
    /// Packet interface of all ports.
    pub io: BridgeIo,
    /// Seed of the random numbers of active queue management.
    pub seed: u64,
    /// Time for which the thread stays awake after each packet; zero leaves it to the thread.
    pub busy_poll: Duration,
}

/// A device at work, which several threads can query; dropping it stops it.
pub struct DeviceHandle {
    commands: Mutex<mpsc::Sender<DeviceCommand>>,
    waker: ThreadWaker,
    thread: Mutex<Option<thread::JoinHandle<Result<DeviceReport>>>>,
    model: DeviceModel,
    seed: u64,
    started: Instant,
    /// Path of its control socket, once it has one.
    control: OnceLock<PathBuf>,
}

impl DeviceHandle {
    /// Opens all interfaces and begins to forward.
    ///
    /// # Errors
    /// When the model has another number of ports than there are interfaces ([`InvalidRequest`]), or an
    /// interface cannot be used; nothing has been changed then, or it has been put back.
    pub fn start(start: DeviceStart) -> Result<Self> {
        let DeviceStart {
            model,
            ports,
            io,
            seed,
            busy_poll,
        } = start;
        check(&model, &ports).map_err(InvalidRequest::because)?;
        let interfaces = open(&ports, io)?;
        let waker = ThreadWaker::new().context("cannot create an eventfd")?;
        let (commands, receiver) = mpsc::channel();
        let started = Instant::now();
        let driver = DeviceDriver::new(
            interfaces,
            (model.clone(), seed),
            receiver,
            waker.try_clone()?,
            started,
        )
        .with_busy_poll(busy_poll);
        let thread = thread::Builder::new()
            .name("device".to_owned())
            .spawn(move || driver.run())
            .context("cannot start the device's thread")?;
        Ok(Self {
            commands: Mutex::new(commands),
            waker,
            thread: Mutex::new(Some(thread)),
            model,
            seed,
            started,
            control: OnceLock::new(),
        })
    }

    /// The model that it runs.
    #[must_use]
    pub fn model(&self) -> &DeviceModel {
        &self.model
    }

    /// Tells whether it still forwards; false after one of its interfaces was deleted.
    #[must_use]
    pub fn is_running(&self) -> bool {
        lock(&self.thread)
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }

    /// Counters so far.
    ///
    /// # Errors
    /// When it has ended by itself; [`DeviceHandle::stop`] gives the reason.
    pub fn report(&self) -> Result<DeviceReport> {
        let (sender, receiver) = mpsc::channel();
        self.send(DeviceCommand::Report(sender))?;
        receiver
            .recv_timeout(ANSWER_WITHIN)
            .context("the device does not answer")
    }

    /// All there is to know of it, as `trunkline emulate status --json` prints it.
    ///
    /// # Errors
    /// When it has ended.
    pub fn status(&self) -> Result<Value> {
        let report = self.report()?;
        let interfaces: Vec<&str> = report
            .ports
            .iter()
            .map(|port| port.interface.as_str())
            .collect();
        Ok(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "process": std::process::id(),
            "ends": interfaces,
            "control": self.control.get(),
            "uptime_s": self.started.elapsed().as_secs(),
            "seed": self.seed,
            "model": self.model,
            "held": report.not_held.is_none(),
            "not_held": report.not_held,
            "lost_outside_the_model_packets": report.lost_outside_the_model(),
            "device": report,
        }))
    }

    /// Stops forwarding and gives the final account. Packets still in the device are gone, and
    /// counted as held.
    ///
    /// # Errors
    /// When it had ended by itself: the reason.
    pub fn stop(&self) -> Result<DeviceReport> {
        self.end()
            .unwrap_or_else(|| Err(anyhow!("the device was stopped before")))
    }

    fn send(&self, command: DeviceCommand) -> Result<()> {
        lock(&self.commands)
            .send(command)
            .map_err(|_| anyhow!("the device has ended; stop it to learn why"))?;
        self.waker.wake();
        Ok(())
    }

    fn end(&self) -> Option<Result<DeviceReport>> {
        let thread = lock(&self.thread).take()?;
        // It fails only when the thread has ended, which is what it is for.
        let _ = self.send(DeviceCommand::Stop);
        Some(
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow!("the device's thread panicked"))),
        )
    }
}

impl Drop for DeviceHandle {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.end() {
            tracing::warn!(error = format!("{error:#}"), "device ended early");
        }
    }
}

impl ControlTarget for DeviceHandle {
    fn answer(&self, line: &str) -> Value {
        let answered = match serde_json::from_str::<ControlRequest>(line) {
            Err(error) => Err(InvalidRequest::because(anyhow!(
                "the request cannot be read: {error}"
            ))),
            Ok(ControlRequest::Status) => self.status(),
            Ok(ControlRequest::Set { .. }) => Err(InvalidRequest::because(anyhow!(
                "the settings of a device do not change while it runs; stop it, and start it with another model"
            ))),
        };
        answered.unwrap_or_else(
            |error| json!({ "error": format!("{error:#}"), "refused": InvalidRequest::is_cause_of(&error) }),
        )
    }

    fn is_asked_at(&self, socket: &Path) {
        self.control.get_or_init(|| socket.to_owned());
    }
}

/// Reads a device model from a file, or takes that of a preset if no file has this name.
///
/// # Errors
/// When the file cannot be read, or the model cannot be used; the message names the key.
pub fn read_model(path: &Path) -> Result<DeviceModel> {
    let preset = path.to_str().and_then(presets::find);
    if let Some(preset) = preset
        && !path.exists()
    {
        return preset.model();
    }
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the device model {}", path.display()))?;
    toml::from_str(&text).map_err(|error| anyhow!("{}: {error}", path.display()))
}

/// Compares the ports of the model with the interfaces.
fn check(model: &DeviceModel, ports: &[BridgeEnd]) -> Result<()> {
    if ports.len() != usize::from(model.ports) {
        bail!(
            "the model has {} ports and {} interfaces are given; name one interface for each port, or change `ports` in the model",
            model.ports,
            ports.len()
        );
    }
    if !(2..=PORTS_MAX).contains(&ports.len()) {
        bail!(
            "a device in real time has 2 to {PORTS_MAX} ports, and the model has {}",
            ports.len()
        );
    }
    Ok(())
}

fn open(ports: &[BridgeEnd], io: BridgeIo) -> Result<Vec<Box<dyn LinkDevice>>> {
    let mut found: Vec<(ClaimedInterface, &BridgeEnd)> = Vec::new();
    for (number, end) in ports.iter().enumerate() {
        let interface = ClaimedInterface::find(&end.interface, end.namespace.as_ref())
            .with_context(|| format!("port {number}"))?;
        if let Some(other) = found
            .iter()
            .position(|(other, _)| other.is_same_as(&interface))
        {
            return Err(InvalidRequest::because(anyhow!(
                "ports {other} and {number} are both {}; name a different interface for each port",
                interface.name()
            )));
        }
        if let Some((first, _)) = found.first()
            && first.mtu() != interface.mtu()
        {
            bail!(
                "{} has an MTU of {} and {} one of {}, and longer frames would not pass; make them equal with `ip link set NAME mtu N`",
                first.name(),
                first.mtu(),
                interface.name(),
                interface.mtu()
            );
        }
        found.push((interface, end));
    }
    found
        .into_iter()
        .map(|(interface, end)| open_one(interface, end, io))
        .collect()
}

/// Opens a port so that frames come and go one by one, as the model counts them.
fn open_one(
    mut interface: ClaimedInterface,
    end: &BridgeEnd,
    io: BridgeIo,
) -> Result<Box<dyn LinkDevice>> {
    let namespace = end.namespace.as_ref();
    interface
        .take(
            namespace,
            &[OffloadFeature::LargeReceive, OffloadFeature::GenericReceive],
        )
        .with_context(|| format!("cannot use {}", interface.name()))?;
    Ok(match io {
        BridgeIo::Packet => {
            Box::new(PacketSocket::open(interface, namespace)?.with_single_frames())
        }
        BridgeIo::Xdp => Box::new(XdpSocket::open(interface, namespace)?),
    })
}

/// Locks a mutex, even one that a panicking thread held: that thread leaves the data as it was.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = r#"
        ports = 4
        transit = [{ size = "64B", time = "30us" }]
        [output]
        queue = { packets = 50 }
    "#;

    fn start(ports: &[&str]) -> String {
        let start = DeviceStart {
            model: toml::from_str(MODEL).unwrap(),
            ports: ports.iter().copied().map(BridgeEnd::here).collect(),
            io: BridgeIo::Packet,
            seed: 1,
            busy_poll: Duration::ZERO,
        };
        let error = DeviceHandle::start(start).err().unwrap();
        format!("{error:#}")
    }

    #[test]
    fn ports_without_interfaces_are_named() {
        let error = start(&["eth1", "eth2"]);
        assert!(error.contains("4 ports and 2 interfaces"), "{error}");
        let error = start(&["no-such-device", "a", "b", "c"]);
        assert!(error.contains("port 0"), "{error}");
        assert!(error.contains("no such interface"), "{error}");
    }

    #[test]
    fn preset_is_found_by_its_name() {
        let model = read_model(Path::new("linux-tbf-20")).unwrap();
        assert_eq!(
            (model.name.as_str(), model.ports),
            ("Linux router, tbf 20 Mbit/s", 3)
        );
    }

    #[test]
    fn unknown_key_of_a_model_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("model.toml");
        fs::write(&path, format!("buffer = 3\n{MODEL}")).unwrap();
        let error = format!("{:#}", read_model(&path).unwrap_err());
        assert!(error.contains("buffer"), "{error}");
        assert!(error.contains("model.toml"), "{error}");
        fs::write(&path, MODEL).unwrap();
        assert_eq!(read_model(&path).unwrap().ports, 4);
        let missing = read_model(&directory.path().join("no")).unwrap_err();
        let missing = format!("{missing:#}");
        assert!(
            missing.contains("cannot read the device model"),
            "{missing}"
        );
    }
}

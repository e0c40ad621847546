//! The cable of the calibration: a veth pair in a network namespace of its own.
//!
//! ```text
//!   namespace of the run:  cable0 ═══ cable1   (port 0 and port 1; more pairs for more ports)
//! ```
//! A veth pair has no queue and no rate, so the delay through it is what the ports themselves add.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use host::command;
use host::packets::namespace::NetworkNamespace;
use host::run::LabRun;

use crate::port::{MeasurementPort, PortLocation};

/// MTU of the pair: jumbo frames, the longest packets of a plan.
const MTU: &str = "9000";

/// Number of the cables that this process has made: a run may measure several times.
static CABLES: AtomicU32 = AtomicU32::new(0);

/// A cable between two ports; dropping it removes it.
#[derive(Debug)]
pub(crate) struct CablePair {
    ports: Vec<MeasurementPort>,
}

impl CablePair {
    /// Makes the pair in a new namespace of `run`, for IP packets of up to `packet_bytes`.
    ///
    /// # Errors
    /// When the kernel or `ip` refuses.
    pub(crate) fn create(run: &LabRun, packet_bytes: usize) -> Result<Self> {
        let number = CABLES.fetch_add(1, Ordering::Relaxed);
        let namespace = run.make_namespace(&format!("cable{number}"))?;
        let inside = |words: &str| {
            let arguments = ["-n", &namespace].into_iter().chain(words.split(' '));
            command::run("ip", arguments).map(|_| ())
        };
        inside("link add cable0 type veth peer name cable1").context("making the cable")?;
        for device in ["cable0", "cable1"] {
            // Addresses that the kernel gives itself would send frames of their own.
            inside(&format!(
                "link set {device} mtu {MTU} addrgenmode none arp off"
            ))?;
            inside(&format!("link set {device} up"))?;
        }
        let ports = (0..2_u16)
            .map(|number| {
                let location = PortLocation {
                    interface: format!("cable{number}"),
                    namespace: Some(NetworkNamespace::new(&namespace)),
                };
                MeasurementPort::open(&location, number, packet_bytes)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { ports })
    }

    /// The ports at its ends.
    ///
    /// # Errors
    /// When the plan uses more than two ports.
    pub(crate) fn ports(&mut self, wanted: u16) -> Result<&mut [MeasurementPort]> {
        ensure!(
            wanted <= 2,
            "a cable has two ends, and this run of the plan uses port {}; give its cable runs the ports 0 and 1",
            wanted - 1
        );
        Ok(&mut self.ports)
    }
}

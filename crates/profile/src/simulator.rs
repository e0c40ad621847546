//! The interface to an emulator that runs a device model.
//!
//! This crate does not know the emulator. The shell that joins both implements [`DeviceSimulator`],
//! so the model is validated on the same code that emulates it.

use vocab::{DeviceModel, Time};

/// A packet that is put through a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedPacket {
    /// Time at which it enters the device.
    pub sent: Time,
    /// Length of the IP packet in bytes.
    pub size: u32,
    /// Port that it enters.
    pub input: u16,
    /// Port that it leaves.
    pub output: u16,
}

/// Runs device models in virtual time.
pub trait DeviceSimulator {
    /// Puts `packets`, by rising time, through an idle device of this model. Returns for each the
    /// time at which it leaves, or `None` if it is dropped.
    fn replay(&mut self, model: &DeviceModel, packets: &[SimulatedPacket]) -> Vec<Option<Time>>;
}

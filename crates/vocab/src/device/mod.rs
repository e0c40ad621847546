//! Device model: a router or switch as a black box, described by a few parameters.
//!
//! ```text
//!  input port ─► input queue ─┐                                   ┌─► policer ─► output queue ─► line
//!  input port ─► input queue ─┼─► shared servers ─► fixed delay ──┤              limit, AQM      rate
//!  input port ─► input queue ─┘   count,            the rest of   └─► policer ─► output queue ─► line
//!                limit            service by size   the transit
//! ```
//!
//! The profiler fits such a model, `device.toml` keeps it, and the emulator runs it. A size is the
//! length of an IP packet. The `overhead` of an output is added to it for the rate, and for queue
//! limits in bytes and in slots of that output. [`DeviceModel::transit`] is the whole time that a
//! lone packet takes, so the fixed delay is the transit without service and serialisation.
//!
//! Packets keep their order from input queue to line, save that several servers may overtake each
//! other.

mod check;
mod exact_text;
mod table;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Bitrate, ByteCount, Probability};

pub use check::{
    DEVICE_PORTS_MAX, DEVICE_RATE_MAX, DEVICE_SERVERS_MAX, DeviceModelError, TABLE_POINTS_MAX,
};
pub use table::{SizeTimePoint, SizeTimeTable};

/// A device as its model describes it.
///
/// Reading one from text checks it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "check::UncheckedDevice")]
pub struct DeviceModel {
    /// Name of the device, for people.
    pub name: String,
    /// Number of ports; they are numbered from 0. Each is an input and an output.
    pub ports: u16,
    /// Time that a lone packet takes from the last bit at the input to the last bit at the output,
    /// by its size.
    pub transit: SizeTimeTable,
    /// Queue of each input port in front of the servers; `None` for one that is never full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_queue: Option<DeviceQueueLimit>,
    /// Servers that all ports share: a processor, a bus, a forwarding engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers: Option<SharedServers>,
    /// Every output, except those that `port` describes.
    pub output: OutputModel,
    /// Outputs that differ from the others.
    #[serde(rename = "port", skip_serializing_if = "Vec::is_empty")]
    pub port_outputs: Vec<PortOutput>,
}

impl DeviceModel {
    /// The model of the output of port `port`.
    #[must_use]
    pub fn output_of(&self, port: u16) -> &OutputModel {
        self.port_outputs
            .iter()
            .find(|own| own.number == port)
            .map_or(&self.output, |own| &own.output)
    }

    /// Part of the transit of a packet of `size` bytes to port `port` that is neither service nor
    /// serialisation; zero where the transit leaves nothing.
    #[must_use]
    pub fn fixed_delay(&self, port: u16, size: u64) -> Duration {
        let service = self.service_time(size);
        let serialisation = self.output_of(port).serialisation(size);
        self.transit
            .at(size)
            .saturating_sub(service)
            .saturating_sub(serialisation)
    }

    /// Time that a shared server is busy with a packet of `size` bytes; zero without servers.
    #[must_use]
    pub fn service_time(&self, size: u64) -> Duration {
        self.servers
            .as_ref()
            .map_or(Duration::ZERO, |servers| servers.service.at(size))
    }
}

/// Servers that the packets of all inputs share, oldest packet first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedServers {
    /// Number of servers that work at the same time.
    pub count: u16,
    /// Time that one server needs for a packet, by its size.
    pub service: SizeTimeTable,
}

/// One output: an optional policer, a queue, and a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputModel {
    /// Rate of the line; `None` for a line that carries each packet at once.
    #[serde(
        default,
        with = "exact_text::optional_rate",
        skip_serializing_if = "Option::is_none"
    )]
    pub rate: Option<Bitrate>,
    /// Bytes that the line carries at once after it was idle, as a shaper with a token bucket does;
    /// `None` for a line that sends bit by bit. It needs a rate.
    #[serde(
        default,
        with = "exact_text::optional_bytes",
        skip_serializing_if = "Option::is_none"
    )]
    pub burst: Option<ByteCount>,
    /// Bytes that each packet takes on the line in addition to its size.
    #[serde(default, with = "exact_text::bytes")]
    pub overhead: ByteCount,
    /// Greatest content of the queue; the packet on the line counts until its last bit has left.
    pub queue: DeviceQueueLimit,
    /// Active queue management in front of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aqm: Option<AqmModel>,
    /// Policer in front of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policer: Option<PolicerModel>,
}

impl OutputModel {
    /// Time that an idle line needs for a packet of `size` bytes; zero for a token bucket, which is
    /// full then.
    #[must_use]
    pub fn serialisation(&self, size: u64) -> Duration {
        if self.burst.is_some() {
            return Duration::ZERO;
        }
        let counted = ByteCount::new(size.saturating_add(self.overhead.bytes()));
        self.rate
            .map_or(Duration::ZERO, |rate| rate.time_for(counted))
    }
}

/// The output of one port that differs from the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortOutput {
    /// Number of the port, from 0.
    pub number: u16,
    /// Its output.
    pub output: OutputModel,
}

/// Greatest content of a queue, in the unit in which the device counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "check::UncheckedQueue", into = "check::UncheckedQueue")]
pub enum DeviceQueueLimit {
    /// Bytes: `{ bytes = "64KiB" }`.
    Bytes(ByteCount),
    /// Packets of any size: `{ packets = 50 }`.
    Packets(u64),
    /// Buffers of one size, of which a packet fills as many as it needs:
    /// `{ slots = 128, slot = "256B" }`.
    Slots {
        /// Number of buffers.
        count: u64,
        /// Bytes in each.
        slot: ByteCount,
    },
}

impl DeviceQueueLimit {
    /// Limit in the queue's own unit.
    #[must_use]
    pub fn limit(self) -> u64 {
        match self {
            DeviceQueueLimit::Bytes(limit) => limit.bytes(),
            DeviceQueueLimit::Packets(limit) => limit,
            DeviceQueueLimit::Slots { count, .. } => count,
        }
    }

    /// Units of the limit that a packet takes, whose length with overhead is `counted` bytes.
    #[must_use]
    pub fn cost(self, counted: u64) -> u64 {
        match self {
            DeviceQueueLimit::Bytes(_) => counted,
            DeviceQueueLimit::Packets(_) => 1,
            DeviceQueueLimit::Slots { slot, .. } => counted.div_ceil(slot.bytes().max(1)).max(1),
        }
    }
}

/// Active queue management of an output.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum AqmModel {
    /// Controlled delay, RFC 8289.
    Codel {
        /// Acceptable standing waiting time.
        #[serde(with = "exact_text::duration")]
        target: Duration,
        /// Time for which longer waits are tolerated.
        #[serde(with = "exact_text::duration")]
        interval: Duration,
    },
    /// Proportional integral controller enhanced, RFC 8033.
    Pie {
        /// Waiting time that is aimed at.
        #[serde(with = "exact_text::duration")]
        target: Duration,
    },
    /// Random early detection, by the average queue in bytes.
    Red {
        /// Average below which nothing is dropped.
        minimum: ByteCount,
        /// Average from which everything is dropped.
        maximum: ByteCount,
        /// Drop probability as the average reaches the maximum.
        probability: Probability,
    },
}

/// A token bucket that drops packets that come too fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicerModel {
    /// Fill rate of the bucket.
    #[serde(with = "exact_text::rate")]
    pub rate: Bitrate,
    /// Size of the bucket, in bytes with the output's overhead.
    #[serde(with = "exact_text::bytes")]
    pub burst: ByteCount,
}

#[cfg(test)]
mod tests;

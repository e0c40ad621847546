//! Checks of a device model as it is read from text.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    AqmModel, DeviceModel, DeviceQueueLimit, OutputModel, PortOutput, SharedServers, SizeTimeTable,
};
use crate::{Bitrate, ByteCount, format_duration};

/// Greatest number of ports of a device; a chassis switch has several hundred.
pub const DEVICE_PORTS_MAX: u16 = 1024;
/// Greatest number of shared servers; more are seen as none by a few hundred ports.
pub const DEVICE_SERVERS_MAX: u16 = 256;
/// Greatest number of points of a table by size; the sizes of a plan are a dozen.
pub const TABLE_POINTS_MAX: usize = 256;
/// Greatest rate of an output; the emulator counts its work in 64 bits up to here.
pub const DEVICE_RATE_MAX: Bitrate = Bitrate::from_bits_per_second(1_000_000_000_000);
/// Greatest transit or service time.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Greatest overhead of a packet; real ones stay below 300 bytes.
const OVERHEAD_MAX: ByteCount = ByteCount::new(10_000);
/// Length of the largest packet that the limits must let in: 1500 bytes of IP.
const FULL_PACKET: u64 = 1500;

/// Reason why a device model is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeviceModelError {
    /// The number of ports is zero or too large.
    #[error("ports = {ports}: a device has 1 to {DEVICE_PORTS_MAX} ports")]
    Ports {
        /// The number.
        ports: u16,
    },
    /// A `[[port]]` names a port that the device does not have.
    #[error("[[port]] number = {number}: the device has {ports} ports, which are numbered from 0")]
    NoSuchPort {
        /// The number.
        number: u16,
        /// Ports of the device.
        ports: u16,
    },
    /// Two `[[port]]` name the same port.
    #[error("[[port]] number = {number}: the port is described twice; remove one")]
    PortTwice {
        /// The number.
        number: u16,
    },
    /// A table has no point or too many.
    #[error("a table by size has {points} points: write 1 to {TABLE_POINTS_MAX}")]
    TableLength {
        /// The number of points.
        points: usize,
    },
    /// The sizes of a table do not rise.
    #[error("size = \"{size}\" in a table by size: each size is larger than the one before it")]
    TableOrder {
        /// The size that is out of order.
        size: ByteCount,
    },
    /// A time of a table is too long.
    #[error("time = \"{}\" in a table by size: at most 60 s", format_duration(*.time))]
    TableTime {
        /// The time.
        time: Duration,
    },
    /// The number of servers is zero or too large.
    #[error("servers.count = {count}: 1 to {DEVICE_SERVERS_MAX}; leave out [servers] for none")]
    Servers {
        /// The number.
        count: u16,
    },
    /// The rate of an output is zero or too large.
    #[error(
        "rate = \"{rate}\": an output has a rate above zero, up to {DEVICE_RATE_MAX}; leave it out for no limit"
    )]
    Rate {
        /// The rate.
        rate: Bitrate,
    },
    /// A queue has no unit or two.
    #[error(
        "a queue needs one limit: {{ bytes = \"64KiB\" }}, {{ packets = 50 }} or {{ slots = 128, slot = \"256B\" }}"
    )]
    QueueUnit,
    /// A queue never accepts a packet of 1500 bytes.
    #[error(
        "a queue of {limit} {unit} never accepts a packet of {FULL_PACKET} bytes: at least {least}"
    )]
    QueueTooSmall {
        /// The limit.
        limit: u64,
        /// Unit of the limit.
        unit: &'static str,
        /// The smallest accepted limit.
        least: u64,
    },
    /// A lone packet cannot pass as fast as the transit table says.
    #[error("transit of {size} B is \"{}\": service and serialisation alone take {}", format_duration(*.transit), format_duration(*.least))]
    TransitTooShort {
        /// Size of the packet.
        size: u64,
        /// Transit in the table.
        transit: Duration,
        /// Service time and serialisation time.
        least: Duration,
    },
    /// A setting of active queue management or of a policer is out of its range.
    #[error("{setting}: {rule}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The rule that it breaks.
        rule: &'static str,
    },
}

/// A device model as text gives it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UncheckedDevice {
    #[serde(default)]
    name: String,
    ports: u16,
    transit: SizeTimeTable,
    #[serde(default)]
    input_queue: Option<DeviceQueueLimit>,
    #[serde(default)]
    servers: Option<SharedServers>,
    output: OutputModel,
    #[serde(default, rename = "port")]
    port_outputs: Vec<PortOutput>,
}

impl TryFrom<UncheckedDevice> for DeviceModel {
    type Error = DeviceModelError;

    fn try_from(text: UncheckedDevice) -> Result<Self, DeviceModelError> {
        let model = DeviceModel {
            name: text.name,
            ports: text.ports,
            transit: text.transit,
            input_queue: text.input_queue,
            servers: text.servers,
            output: text.output,
            port_outputs: text.port_outputs,
        };
        model.check()?;
        Ok(model)
    }
}

impl DeviceModel {
    /// Checks a model that was put together in code; one that was read from text has been checked.
    ///
    /// # Errors
    /// The first setting that contradicts another, or that no emulator can use.
    pub fn check(&self) -> Result<(), DeviceModelError> {
        if self.ports == 0 || self.ports > DEVICE_PORTS_MAX {
            return Err(DeviceModelError::Ports { ports: self.ports });
        }
        check_times(&self.transit)?;
        if let Some(servers) = &self.servers {
            if servers.count == 0 || servers.count > DEVICE_SERVERS_MAX {
                return Err(DeviceModelError::Servers {
                    count: servers.count,
                });
            }
            check_times(&servers.service)?;
        }
        if let Some(queue) = self.input_queue {
            check_queue(queue, 0)?;
        }
        let mut described = Vec::new();
        for own in &self.port_outputs {
            if own.number >= self.ports {
                return Err(DeviceModelError::NoSuchPort {
                    number: own.number,
                    ports: self.ports,
                });
            }
            if described.contains(&own.number) {
                return Err(DeviceModelError::PortTwice { number: own.number });
            }
            described.push(own.number);
            check_output(&own.output)?;
            self.check_transit(&own.output)?;
        }
        check_output(&self.output)?;
        if described.len() < usize::from(self.ports) {
            self.check_transit(&self.output)?;
        }
        Ok(())
    }

    /// Transit covers service and serialisation at each size of the table, to the rounding of a
    /// nanosecond each.
    fn check_transit(&self, output: &OutputModel) -> Result<(), DeviceModelError> {
        const ROUNDING: Duration = Duration::from_nanos(2);
        for point in self.transit.points() {
            let size = point.size.bytes();
            let least = self.service_time(size) + output.serialisation(size);
            if point.time + ROUNDING < least {
                return Err(DeviceModelError::TransitTooShort {
                    size,
                    transit: point.time,
                    least,
                });
            }
        }
        Ok(())
    }
}

fn check_times(table: &SizeTimeTable) -> Result<(), DeviceModelError> {
    match table.points().iter().find(|point| point.time > TIME_MAX) {
        Some(point) => Err(DeviceModelError::TableTime { time: point.time }),
        None => Ok(()),
    }
}

fn check_output(output: &OutputModel) -> Result<(), DeviceModelError> {
    if let Some(rate) = output.rate
        && (rate == Bitrate::default() || rate > DEVICE_RATE_MAX)
    {
        return Err(DeviceModelError::Rate { rate });
    }
    if output.overhead > OVERHEAD_MAX {
        return Err(DeviceModelError::Setting {
            setting: "output.overhead",
            rule: "at most 10kB for each packet",
        });
    }
    check_queue(output.queue, output.overhead.bytes())?;
    if let Some(burst) = output.burst
        && (output.rate.is_none() || burst.bytes() < FULL_PACKET + output.overhead.bytes())
    {
        return Err(DeviceModelError::Setting {
            setting: "output.burst",
            rule: "at least one packet of 1500 bytes with its overhead, and only with a rate",
        });
    }
    if let Some(aqm) = &output.aqm {
        check_aqm(aqm)?;
    }
    if let Some(policer) = &output.policer {
        let full = FULL_PACKET.saturating_add(output.overhead.bytes());
        if policer.rate == Bitrate::default() || policer.rate > DEVICE_RATE_MAX {
            return Err(DeviceModelError::Rate { rate: policer.rate });
        }
        if policer.burst.bytes() < full {
            return Err(DeviceModelError::Setting {
                setting: "policer.burst",
                rule: "at least one packet of 1500 bytes with its overhead",
            });
        }
    }
    Ok(())
}

fn check_queue(queue: DeviceQueueLimit, overhead: u64) -> Result<(), DeviceModelError> {
    if let DeviceQueueLimit::Slots { slot, .. } = queue
        && slot == ByteCount::new(0)
    {
        return Err(DeviceModelError::Setting {
            setting: "slot",
            rule: "a slot has at least 1 byte",
        });
    }
    let least = queue.cost(FULL_PACKET.saturating_add(overhead));
    if queue.limit() < least {
        return Err(DeviceModelError::QueueTooSmall {
            limit: queue.limit(),
            unit: match queue {
                DeviceQueueLimit::Bytes(_) => "bytes",
                DeviceQueueLimit::Packets(_) => "packets",
                DeviceQueueLimit::Slots { .. } => "slots",
            },
            least,
        });
    }
    Ok(())
}

fn check_aqm(aqm: &AqmModel) -> Result<(), DeviceModelError> {
    let hour = Duration::from_secs(3600);
    let is_usable = |time: Duration| time > Duration::ZERO && time <= hour;
    match aqm {
        AqmModel::Codel { target, interval } => {
            if !is_usable(*target) || !is_usable(*interval) {
                return Err(DeviceModelError::Setting {
                    setting: "aqm.target and aqm.interval",
                    rule: "above zero, at most 1 h",
                });
            }
        }
        AqmModel::Pie { target } => {
            if !is_usable(*target) {
                return Err(DeviceModelError::Setting {
                    setting: "aqm.target",
                    rule: "above zero, at most 1 h",
                });
            }
        }
        AqmModel::Red {
            minimum, maximum, ..
        } => {
            if minimum >= maximum {
                return Err(DeviceModelError::Setting {
                    setting: "aqm.minimum",
                    rule: "below aqm.maximum",
                });
            }
        }
    }
    Ok(())
}

/// A queue limit as text gives it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UncheckedQueue {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<ExactBytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    packets: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slots: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slot: Option<ExactBytes>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
struct ExactBytes(#[serde(with = "super::exact_text::bytes")] ByteCount);

impl TryFrom<UncheckedQueue> for DeviceQueueLimit {
    type Error = DeviceModelError;

    fn try_from(text: UncheckedQueue) -> Result<Self, DeviceModelError> {
        match (text.bytes, text.packets, text.slots, text.slot) {
            (Some(ExactBytes(bytes)), None, None, None) => Ok(DeviceQueueLimit::Bytes(bytes)),
            (None, Some(packets), None, None) => Ok(DeviceQueueLimit::Packets(packets)),
            (None, None, Some(count), Some(ExactBytes(slot))) => {
                Ok(DeviceQueueLimit::Slots { count, slot })
            }
            (Some(_), _, _, _)
            | (None, None, None, None)
            | (None, Some(_), Some(_), _)
            | (None, Some(_), _, Some(_))
            | (None, None, Some(_), None)
            | (None, None, None, Some(_)) => Err(DeviceModelError::QueueUnit),
        }
    }
}

impl From<DeviceQueueLimit> for UncheckedQueue {
    fn from(limit: DeviceQueueLimit) -> Self {
        let mut text = UncheckedQueue {
            bytes: None,
            packets: None,
            slots: None,
            slot: None,
        };
        match limit {
            DeviceQueueLimit::Bytes(bytes) => text.bytes = Some(ExactBytes(bytes)),
            DeviceQueueLimit::Packets(packets) => text.packets = Some(packets),
            DeviceQueueLimit::Slots { count, slot } => {
                text.slots = Some(count);
                text.slot = Some(ExactBytes(slot));
            }
        }
        text
    }
}

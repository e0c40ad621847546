//! Queue disciplines: who is dropped or marked before the queue is full.
//!
//! A discipline owns no packet. The bottleneck asks it as a packet comes, as one is taken out for
//! the line, and when the queue has run empty, and does what it says. Each was written against
//! vectors made from its specification's pseudocode (tests/vectors/README.md).

mod codel;
mod pie;
mod red;

use std::time::Duration;

use vocab::Time;

use crate::config::QueueDiscipline;
use codel::CoDelState;
use pie::PieState;
use red::RedState;

/// What a discipline says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueVerdict {
    /// Let it be.
    Pass,
    /// Let it be, marked "congestion experienced".
    Mark,
    /// Drop it.
    Drop,
}

/// A packet as it comes to the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivingPacket {
    /// What the queue holds without it, the packet on the line included.
    pub(crate) occupancy: u64,
    /// Whether its sender can read a mark.
    pub(crate) is_ecn_capable: bool,
    /// Its number of chance, in `0.0..1.0`.
    pub(crate) uniform: f64,
}

/// A packet as it is taken out for the line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DequeuedPacket {
    /// How long it waited.
    pub(crate) sojourn: Duration,
    /// What still waits behind it.
    pub(crate) backlog: u64,
    /// Whether its sender can read a mark.
    pub(crate) is_ecn_capable: bool,
}

/// A discipline at work.
#[derive(Debug)]
pub(crate) enum QueueManager {
    /// Only the limit counts.
    DropTail,
    /// Only the limit counts, at the other end.
    DropHead,
    CoDel(CoDelState),
    Pie(PieState),
    Red(RedState),
}

impl QueueManager {
    /// `full_packet` is what a packet of Ethernet's usual size counts as, in bytes.
    pub(crate) fn new(discipline: QueueDiscipline, full_packet: u64) -> Self {
        match discipline {
            QueueDiscipline::DropTail => QueueManager::DropTail,
            QueueDiscipline::DropHead => QueueManager::DropHead,
            QueueDiscipline::CoDel(config) => {
                QueueManager::CoDel(CoDelState::new(config, full_packet))
            }
            QueueDiscipline::Pie(config) => QueueManager::Pie(PieState::new(config, full_packet)),
            QueueDiscipline::Red(config) => QueueManager::Red(RedState::new(config)),
        }
    }

    /// Takes other settings; a discipline that stays what it is keeps what it has learned.
    pub(crate) fn set(&mut self, now: Time, discipline: QueueDiscipline, full_packet: u64) {
        match (self, discipline) {
            (QueueManager::CoDel(codel), QueueDiscipline::CoDel(config)) => {
                codel.set(config, full_packet)
            }
            (QueueManager::Pie(pie), QueueDiscipline::Pie(config)) => {
                pie.set(now, config, full_packet)
            }
            (QueueManager::Red(red), QueueDiscipline::Red(config)) => red.set(config),
            (manager, discipline) => *manager = QueueManager::new(discipline, full_packet),
        }
    }

    /// Whether it asks what a packet's sender can read, so that it need not be looked up else.
    pub(crate) fn is_active(&self) -> bool {
        !matches!(self, QueueManager::DropTail | QueueManager::DropHead)
    }

    /// Judges a packet as it comes, before it is held against the limit.
    pub(crate) fn on_arrival(&mut self, now: Time, newcomer: ArrivingPacket) -> QueueVerdict {
        match self {
            QueueManager::DropTail | QueueManager::DropHead | QueueManager::CoDel(_) => {
                QueueVerdict::Pass
            }
            QueueManager::Pie(pie) => pie.on_enqueue(
                newcomer.occupancy,
                newcomer.is_ecn_capable,
                newcomer.uniform,
            ),
            QueueManager::Red(red) => red.on_enqueue(
                now,
                newcomer.occupancy,
                newcomer.is_ecn_capable,
                newcomer.uniform,
            ),
        }
    }

    /// Learns that a packet that it let pass did not fit.
    pub(crate) fn on_full(&mut self) {
        if let QueueManager::Pie(pie) = self {
            pie.on_full();
        }
    }

    /// Judges the packet at the head as it is taken out for the line.
    pub(crate) fn on_departure(&mut self, now: Time, head: DequeuedPacket) -> QueueVerdict {
        match self {
            QueueManager::DropTail | QueueManager::DropHead | QueueManager::Red(_) => {
                QueueVerdict::Pass
            }
            QueueManager::CoDel(codel) => {
                codel.on_dequeue(now, head.sojourn, head.backlog, head.is_ecn_capable)
            }
            QueueManager::Pie(pie) => {
                pie.on_dequeue(head.sojourn, head.backlog);
                QueueVerdict::Pass
            }
        }
    }

    /// Learns that the last bit has left and nothing waits.
    pub(crate) fn on_idle(&mut self, now: Time) {
        match self {
            QueueManager::CoDel(codel) => codel.on_empty(),
            QueueManager::Red(red) => red.on_idle(now),
            QueueManager::DropTail | QueueManager::DropHead | QueueManager::Pie(_) => {}
        }
    }

    /// When [`QueueManager::update`] is to be called next.
    pub(crate) fn next_update(&self) -> Option<Time> {
        match self {
            QueueManager::Pie(pie) => pie.next_update(),
            QueueManager::DropTail
            | QueueManager::DropHead
            | QueueManager::CoDel(_)
            | QueueManager::Red(_) => None,
        }
    }

    /// Does all the updates up to and including `until`.
    pub(crate) fn update(&mut self, until: Time) {
        if let QueueManager::Pie(pie) = self {
            pie.update(until);
        }
    }
}

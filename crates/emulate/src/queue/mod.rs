//! Queue disciplines: they drop or mark packets before the queue is full.
//!
//! A discipline holds no packets. The bottleneck asks it when a packet arrives, when one is taken
//! out for the line, and when the queue has become empty, and follows its decision. Each was
//! written against vectors made from its specification's pseudocode (tests/vectors/README.md).

mod codel;
mod pie;
mod red;

use std::time::Duration;

use vocab::Time;

use crate::config::QueueDiscipline;
use codel::CoDelState;
use pie::PieState;
use red::RedState;

/// Decision of a discipline about a packet.
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
    /// Content of the queue without it, the packet on the line included.
    pub(crate) occupancy: u64,
    /// Set if its sender supports congestion marks.
    pub(crate) is_ecn_capable: bool,
    /// Its random number in `0.0..1.0`.
    pub(crate) uniform: f64,
}

/// A packet as it is taken out for the line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DequeuedPacket {
    /// Time that it waited.
    pub(crate) sojourn: Duration,
    /// Content of the queue behind it.
    pub(crate) backlog: u64,
    /// Set if its sender supports congestion marks.
    pub(crate) is_ecn_capable: bool,
}

/// A discipline at work.
#[derive(Debug)]
pub(crate) enum QueueManager {
    /// Drop-tail: only the limit counts.
    DropTail,
    /// Drop-head: only the limit counts, and the oldest packets are dropped.
    DropHead,
    CoDel(CoDelState),
    Pie(PieState),
    Red(RedState),
}

impl QueueManager {
    /// Makes a queue manager. `full_packet` is the counted length of a full-size Ethernet packet,
    /// in bytes.
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

    /// Applies other settings; an unchanged discipline keeps its state.
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

    /// Tells whether the discipline uses ECN capability; otherwise it need not be looked up.
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

    /// Time of the next call of [`QueueManager::update`].
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

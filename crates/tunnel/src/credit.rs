//! Division of the total credit among the flows, and the sizes that follow from it.
//!
//! ```text
//!  total window of the peer
//!  │◄──────── committed ────────►│◄───────────── left ─────────────►│◄ headroom ►│
//!    written, not yet consumed      share of one flow: falls faster    rest of one
//!                                   than what is left                  begun record
//! ```
//!
//! The sender decides. A flow whose reader stops keeps its share and the data in flight at that
//! moment, and gets no more. The share falls as the total fills up, so flows with stopped readers
//! can never use all of it, however many they are (the dynamic thresholds of Choudhury and Hahne,
//! 1998). A flow whose reader keeps up may have more in flight: four times the data that its reader
//! consumed, up to the credit that all other flows left.
//!
//! A peer can consume only complete records. So a record is begun within the share, and a record
//! that was begun can always be completed: the headroom is reserved for it.

use crate::limits::FLOW_LIMIT;

/// Largest size of one record, in encoded bytes. A part of a longer record would look like a reader
/// that has fallen behind.
pub const RECORD: u64 = 256 << 10;

/// Credit that a receiver gives each flow however full the total is: one record.
pub const LEAST_WINDOW: u64 = RECORD;

/// Credit that each new flow begins with: four records, so that three are under way while the
/// reader takes one.
pub const FLOW_WINDOW: u64 = 4 * RECORD;

/// Upper limit of the window that a flow takes over from earlier flows of its session, in bytes. It fills an
/// OC-1 (51.84 Mbit/s) at a round trip of 500 ms. Sixteen flows with stopped readers take the total.
pub const KNOWN_WINDOW_LIMIT: u64 = 4 * FLOW_WINDOW;

/// Flow windows in the total window.
pub const SHARES: u64 = 64;

/// Bytes of all flows of a peer that may be sent and not consumed.
pub const TOTAL_WINDOW: u64 = SHARES * FLOW_WINDOW;

/// Upper limit of one flow's window, in bytes: the part of the total that a single flow may use.
pub const FLOW_WINDOW_LIMIT: u64 = TOTAL_WINDOW / 2;

/// Share that each flow has however full the total is. All flows that one side can open
/// ([`FLOW_LIMIT`]) take an eighth of the total with it.
pub const LEAST_SHARE: u64 = TOTAL_WINDOW / 8 / FLOW_LIMIT as u64;

/// A record of less than this, in bytes, is not worth its header, unless the share is smaller.
const LEAST_ROOM: u64 = 4 << 10;

/// Growth of a flow's credit by the bytes that its reader consumed, as a factor: a flow in progress
/// grows to four times as much in each round trip.
const GROWTH: u64 = 3;

/// The total credit as it stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreditPool {
    window: u64,
    left: u64,
}

/// Credit of one flow within the total.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlowCredit {
    /// Written and not consumed by the peer.
    pub(crate) committed: u64,
    /// Received by the peer and not consumed.
    pub(crate) behind: u64,
    /// Bytes that the flow's reader is known to consume in time, see [`CreditPool::proven`].
    pub(crate) proven: u64,
}

impl CreditPool {
    /// Makes the pool of the peer's total window, of which `committed` bytes are in use.
    pub(crate) fn new(window: u64, committed: u64) -> Self {
        let headroom = RECORD.min(window / 8);
        let left = window.saturating_sub(headroom + committed);
        Self { window, left }
    }

    /// Bytes that no flow has.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Credit of a flow whose reader has not consumed anything yet, in bytes.
    ///
    /// The first half of the window is given to any flow. Then the share falls with the square of
    /// what is left, and with its cube below a quarter. Ten thousand stalled flows therefore leave
    /// a megabyte, and some hundreds of them have shares of dozens of kibibytes.
    pub(crate) fn share(&self) -> u64 {
        let (left, window) = (u128::from(self.left), u128::from(self.window.max(1)));
        let spare = self.left.saturating_sub(self.window / 2);
        let mut share = left * left / (u128::from(SHARES) * window);
        if left < window / 4 {
            share = share * 4 * left / window;
        }
        spare + u64::try_from(share).unwrap_or(u64::MAX).max(LEAST_SHARE)
    }

    /// Bytes that the flow may write now.
    pub(crate) fn room(&self, flow: FlowCredit) -> u64 {
        let share = self.share();
        let by_share = share.saturating_sub(flow.committed);
        // A reader that has stopped consumes nothing, so `proven` itself would never fall.
        let proven = match flow.behind >= share {
            true => 0,
            false => flow.proven,
        };
        let by_reader = share.saturating_add(proven).saturating_sub(flow.committed);
        let by_others = self.left.saturating_sub(flow.committed).max(by_share);
        let room = by_reader.min(by_others).min(self.left);
        if room < LEAST_ROOM.min(share / 4) {
            return 0;
        }
        room
    }

    /// Encoded bytes of one record at most, so that what has arrived of it does not look like a
    /// reader that has fallen behind.
    pub(crate) fn record_room(&self, flow: FlowCredit) -> u64 {
        self.room(flow).min(self.share() / 2)
    }

    /// Bytes that a reader is known to consume in time, after it consumed `consumed` more. A reader
    /// that has fallen behind by a share starts again from what it consumed last.
    pub(crate) fn proven(&self, flow: FlowCredit, consumed: u64) -> u64 {
        let grown = GROWTH.saturating_mul(consumed);
        if flow.behind >= self.share() {
            return grown.min(flow.proven / 2);
        }
        flow.proven.saturating_add(grown).min(self.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets flows with stopped readers write until none may, and returns the credit that is left.
    fn left_beside(stalled: usize, record: u64) -> u64 {
        let mut committed = 0;
        let mut flows = vec![FlowCredit::default(); stalled];
        loop {
            let before = committed;
            for flow in &mut flows {
                let room = CreditPool::new(TOTAL_WINDOW, committed).room(*flow);
                if room > 0 && flow.committed < FLOW_WINDOW {
                    let written = room.min(record);
                    flow.committed += written;
                    flow.behind = flow.committed;
                    committed += written;
                }
            }
            if committed == before {
                return CreditPool::new(TOTAL_WINDOW, committed).left();
            }
        }
    }

    #[test]
    fn stalled_flows_leave_credit_for_bulk_flow() {
        for (stalled, least) in [(60, 20 << 20), (500, 10 << 20), (10_000, 1 << 20)] {
            for record in [512, 16 << 10, 64 << 10] {
                let left = left_beside(stalled, record);
                assert!(left >= least, "{stalled} stalled flows leave {left} bytes");
            }
        }
    }

    /// Readers take at full speed, one after another, and then stop.
    #[test]
    fn stopped_fast_readers_leave_credit_for_bulk_flow() {
        const WINDOW: u64 = 4 << 20;
        let mut committed = 0;
        for _ in 0..60 {
            let mut flow = FlowCredit {
                proven: TOTAL_WINDOW,
                ..FlowCredit::default()
            };
            loop {
                let room = CreditPool::new(TOTAL_WINDOW, committed).room(flow);
                if room == 0 || flow.committed >= WINDOW {
                    break;
                }
                let written = room.min(64 << 10);
                flow.committed += written;
                flow.behind = flow.committed;
                committed += written;
            }
        }
        let left = CreditPool::new(TOTAL_WINDOW, committed).left();
        assert!(left >= 20 << 20, "60 stopped readers leave {left} bytes");
    }

    #[test]
    fn the_windows_fit_records_and_the_total() {
        const { assert!(LEAST_WINDOW >= RECORD && FLOW_WINDOW >= 2 * RECORD) }
        const { assert!(FLOW_WINDOW_LIMIT + RECORD < TOTAL_WINDOW) }
        const { assert!(LEAST_SHARE >= 128 && LEAST_SHARE * FLOW_LIMIT as u64 <= TOTAL_WINDOW / 8) }
        let empty = CreditPool::new(TOTAL_WINDOW, 0);
        assert!(empty.share() >= FLOW_WINDOW);
        assert!(empty.record_room(FlowCredit::default()) >= RECORD);
    }

    #[test]
    fn a_record_that_was_begun_fits_the_window() {
        for committed in (0..TOTAL_WINDOW).step_by(100_003) {
            let pool = CreditPool::new(TOTAL_WINDOW, committed);
            if pool.room(FlowCredit::default()) > 0 {
                assert!(committed + RECORD <= TOTAL_WINDOW);
            }
        }
    }

    #[test]
    fn single_flow_gets_half_the_window() {
        let mut flow = FlowCredit::default();
        loop {
            let room = CreditPool::new(TOTAL_WINDOW, flow.committed).room(flow);
            if room == 0 {
                break;
            }
            flow.committed += room.min(16 << 10);
            flow.proven = TOTAL_WINDOW;
        }
        assert!(flow.committed >= FLOW_WINDOW_LIMIT - RECORD);
    }

    #[test]
    fn slow_reader_loses_its_proven_credit() {
        let pool = CreditPool::new(TOTAL_WINDOW, TOTAL_WINDOW / 2);
        let mut flow = FlowCredit::default();
        flow.proven = pool.proven(flow, 1_000);
        assert_eq!(flow.proven, 3_000);
        flow.behind = pool.share();
        assert_eq!(pool.proven(flow, 100), 300);
        assert_eq!(pool.proven(flow, 0), 0);
    }
}

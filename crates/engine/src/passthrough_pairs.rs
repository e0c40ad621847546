//! Pairs of hosts whose flow an accelerator had to close for a reason that the next flow would meet
//! as well.
//!
//! A client whose connection is reset connects again, logs in again and is reset again, as long as
//! the key is missing. So the next flows between the same two hosts pass without acceleration for a
//! while. Acceleration is tried again after that time, or when the configuration changes, because
//! the change may have added the key.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use accelerate::registry::AcceleratorReason;
use vocab::Time;

/// The time for which a pair passes. A client that is reset again afterwards loses one connection
/// in five minutes, and an operator who has added an account waits no longer than that.
const PASSTHROUGH_FOR: Duration = Duration::from_secs(300);

/// Pairs that are remembered: the clients of a large branch at some servers each, about 200 kB.
const PAIRS_MAX: usize = 1_000;

/// The reason why flows between two hosts pass without acceleration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PassthroughReason {
    pub(crate) reason: AcceleratorReason,
    /// The accelerator's note about the flow that it closed.
    pub(crate) note: Option<String>,
}

impl PassthroughReason {
    /// The text that `why` shows beside the reason.
    pub(crate) fn text(&self) -> String {
        let minutes = PASSTHROUGH_FOR.as_secs() / 60;
        let whose = self.note.as_ref().map(|note| format!("{note}; "));
        format!(
            "{}the node closed a flow between these hosts for this reason, and forwards the bytes of their \
             new flows unchanged for {minutes} minutes",
            whose.unwrap_or_default()
        )
    }
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct PassthroughPairs {
    pairs: BTreeMap<(IpAddr, SocketAddr), (Time, PassthroughReason)>,
}

impl PassthroughPairs {
    /// A flow between these was closed for a reason that recurs.
    pub(crate) fn closed(
        &mut self,
        now: Time,
        client: IpAddr,
        server: SocketAddr,
        why: PassthroughReason,
    ) {
        self.pairs.retain(|_, (until, _)| now < *until);
        if self.pairs.len() >= PAIRS_MAX {
            let oldest = self.pairs.iter().min_by_key(|(_, (until, _))| *until);
            if let Some(oldest) = oldest.map(|(pair, _)| *pair) {
                self.pairs.remove(&oldest);
            }
        }
        let until = now + PASSTHROUGH_FOR;
        self.pairs.insert((client, server), (until, why));
    }

    /// Returns the reason why a flow between these hosts passes without acceleration, if it does.
    pub(crate) fn reason_for(
        &self,
        now: Time,
        client: IpAddr,
        server: SocketAddr,
    ) -> Option<PassthroughReason> {
        let (until, why) = self.pairs.get(&(client, server))?;
        (now < *until).then(|| why.clone())
    }

    /// Forgets all pairs, because the missing key may be available now.
    pub(crate) fn forget(&mut self) {
        self.pairs.clear();
    }
}

#[cfg(test)]
mod tests {
    use accelerate::ReasonCode;

    use super::*;

    fn passthrough_reason(code: ReasonCode) -> PassthroughReason {
        let accelerator = &accelerate::passthrough::ENTRY;
        let reason = AcceleratorReason { accelerator, code };
        PassthroughReason { reason, note: None }
    }

    fn client(number: u32) -> IpAddr {
        IpAddr::V4(std::net::Ipv4Addr::from_bits(number))
    }

    #[test]
    fn only_the_closed_pair_passes_for_some_minutes() {
        let server: SocketAddr = "192.0.2.1:445".parse().unwrap();
        let other: SocketAddr = "192.0.2.2:445".parse().unwrap();
        let mut left = PassthroughPairs::default();
        let why = passthrough_reason(ReasonCode::UNKNOWN_ACCOUNT);
        left.closed(Time::ZERO, client(1), server, why.clone());
        let before = Time::ZERO + PASSTHROUGH_FOR - Duration::from_millis(1);
        assert_eq!(left.reason_for(before, client(1), server), Some(why));
        assert_eq!(left.reason_for(before, client(2), server), None);
        assert_eq!(left.reason_for(before, client(1), other), None);
        let after = Time::ZERO + PASSTHROUGH_FOR;
        assert_eq!(left.reason_for(after, client(1), server), None);
    }

    #[test]
    fn reload_forgets_all_pairs() {
        let server: SocketAddr = "192.0.2.1:445".parse().unwrap();
        let mut left = PassthroughPairs::default();
        left.closed(
            Time::ZERO,
            client(1),
            server,
            passthrough_reason(ReasonCode::WRONG_KEY),
        );
        left.forget();
        assert_eq!(left.reason_for(Time::ZERO, client(1), server), None);
    }

    #[test]
    fn full_table_forgets_the_oldest_pair() {
        let server: SocketAddr = "192.0.2.1:445".parse().unwrap();
        let mut left = PassthroughPairs::default();
        let at = |number: u32| Time::ZERO + Duration::from_millis(number.into());
        let most = PAIRS_MAX as u32;
        for number in 0..=most {
            let why = passthrough_reason(ReasonCode::SIGNED);
            left.closed(at(number), client(number), server, why);
        }
        assert_eq!(left.reason_for(at(most), client(0), server), None);
        assert!(left.reason_for(at(most), client(1), server).is_some());
    }
}

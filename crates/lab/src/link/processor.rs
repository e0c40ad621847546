//! A processor for the link's thread to stay on.
//!
//! Whoever sends a packet wakes this thread, and the kernel likes to let the woken run where the
//! waker is. There it stands in the sender's way: with two processors, one of them idle, a sender's
//! packet then took 60 µs instead of 2. So the thread stays on one processor, and the kernel moves
//! the others away from it. Two links of one machine choose different processors as long as there
//! are enough; where there is only one, or all are taken, the thread goes wherever it is put.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use super::system;

/// A processor that this thread stays on, taken until it is dropped.
#[derive(Debug)]
pub(super) struct Processor {
    /// Nobody connects to it: its name, which one process at a time can have and which goes with
    /// the process, is the claim.
    _claim: UnixListener,
    number: usize,
}

impl Processor {
    /// Takes a processor that no other link has, and stays on it. `None` when there is none to
    /// choose from, or the kernel does not allow it.
    pub(super) fn settle() -> Option<Self> {
        let allowed = system::allowed_processors().ok()?;
        if allowed.len() < 2 {
            return None;
        }
        // Devices interrupt the first one, mostly.
        let processor = allowed.iter().rev().find_map(|number| {
            let name = format!("trunkline-link-on-processor-{number}");
            let address = SocketAddr::from_abstract_name(name).ok()?;
            let claim = UnixListener::bind_addr(&address).ok()?;
            Some(Self {
                _claim: claim,
                number: *number,
            })
        })?;
        match system::stay_on(processor.number) {
            Ok(()) => {
                tracing::debug!(processor = processor.number, "link stays on one processor");
                Some(processor)
            }
            Err(error) => {
                tracing::debug!(%error, "link goes wherever it is put");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_links_take_two_processors_or_none() {
        let Ok(allowed) = system::allowed_processors() else {
            panic!("the kernel says where a thread may run");
        };
        // Each on a thread of its own, for the thread stays where it has settled.
        let taken = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| Processor::settle().map(|taken| (taken.number, taken))))
                .collect();
            threads
                .into_iter()
                .filter_map(|thread| thread.join().ok().flatten())
                .collect::<Vec<_>>()
        });
        let mut numbers: Vec<usize> = taken.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), taken.len(), "one processor, two links");
        assert!(numbers.iter().all(|number| allowed.contains(number)));
    }
}

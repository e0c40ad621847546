//! Which processor the link's thread runs on.
//!
//! Whoever sends a packet wakes this thread, and the kernel likes to let the woken run where the
//! waker is. For a lone packet that is best: the waker goes to sleep, and nobody has to be called
//! from another processor. In a stream it stands in the sender's way: with two processors, one of
//! them idle, a sender's packet then took 60 µs instead of 2. So the thread goes wherever it is put
//! while packets are **sparse**, and while they are **dense** it stays on a processor that is not
//! the one on which it was woken.
//!
//! Two links started in one network namespace stay on different processors as long as there are
//! enough (the kernel keeps the names by which they are taken for each namespace apart); where there
//! is only one, or all are taken, the thread roams.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use vocab::Time;

use super::system;

/// Packets are dense when so many come within [`DENSE_SPAN`]: 5,000 per second.
const DENSE_PACKETS: usize = 50;
const DENSE_SPAN: Duration = Duration::from_millis(10);

/// And sparse again when fewer than this come within [`SPARSE_SPAN`]: 1,000 per second.
const SPARSE_PACKETS: usize = 100;
const SPARSE_SPAN: Duration = Duration::from_millis(100);

/// How long to roam before another try when no processor could be had.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Where the thread that made it runs.
#[derive(Debug)]
pub(super) struct Processor {
    /// Where it may; not more than one, if there is nothing to choose.
    allowed: Vec<usize>,
    taken: Option<Taken>,
    try_at: Time,
    /// When counting began, and how many packets have come since.
    from: Time,
    count: usize,
}

/// A processor that no other link of this network namespace has.
#[derive(Debug)]
struct Taken {
    /// Nobody connects to it: its name, which one process at a time can have and which goes with
    /// the process, is the claim.
    _claim: UnixListener,
    number: usize,
}

impl Processor {
    /// The calling thread's, which roams.
    pub(super) fn new() -> Self {
        Self {
            allowed: system::allowed_processors().unwrap_or_default(),
            taken: None,
            try_at: Time::ZERO,
            from: Time::ZERO,
            count: 0,
        }
    }

    /// Takes in that so many packets have come.
    pub(super) fn came(&mut self, now: Time, packets: usize) {
        if self.allowed.len() < 2 {
            return;
        }
        self.count += packets;
        let span = now.since(self.from);
        if self.taken.is_none() {
            if span > DENSE_SPAN {
                (self.from, self.count) = (now, packets);
            }
            if self.count >= DENSE_PACKETS && now >= self.try_at {
                self.settle(now);
            }
        } else if span >= SPARSE_SPAN {
            if self.count < SPARSE_PACKETS {
                self.roam();
            }
            (self.from, self.count) = (now, 0);
        }
    }

    /// Takes a processor that no other link has and that is not this one, and stays on it.
    fn settle(&mut self, now: Time) {
        (self.from, self.count) = (now, 0);
        let here = system::this_processor();
        let free = self
            .allowed
            .iter()
            .rev()
            .filter(|number| Some(**number) != here)
            .find_map(|number| Taken::claim(*number));
        let settled = free.filter(|taken| match system::run_on(&[taken.number]) {
            Ok(()) => {
                tracing::debug!(processor = taken.number, "link stays on one processor");
                true
            }
            Err(error) => {
                tracing::debug!(%error, "link goes wherever it is put");
                false
            }
        });
        if settled.is_none() {
            self.try_at = now + TRY_AGAIN;
        }
        self.taken = settled;
    }

    fn roam(&mut self) {
        self.taken = None;
        if let Err(error) = system::run_on(&self.allowed) {
            tracing::debug!(%error, "link cannot leave its processor");
        }
    }
}

impl Taken {
    fn claim(number: usize) -> Option<Self> {
        let name = format!("trunkline-link-on-processor-{number}");
        let address = SocketAddr::from_abstract_name(name).ok()?;
        Some(Self {
            _claim: UnixListener::bind_addr(&address).ok()?,
            number,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// Where a thread of its own runs after packets have come with this gap, and may run at all.
    fn after(gap: Duration, packets: u32) -> (Vec<usize>, Vec<usize>) {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let mut processor = Processor::new();
                let before = processor.allowed.clone();
                let mut now = Time::ZERO;
                for _ in 0..packets {
                    now += gap;
                    processor.came(now, 1);
                }
                (system::allowed_processors().unwrap(), before)
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn stays_where_packets_are_dense_and_roams_where_they_are_sparse() {
        let (now, before) = after(MILLISECOND, 1_000);
        assert_eq!(now, before);
        let (now, before) = after(MILLISECOND / 10, 1_000);
        // One, if there is a choice and no other link has it; else it roams on.
        assert!(now.len() == 1 || now == before, "{now:?} of {before:?}");
        assert!(now.iter().all(|number| before.contains(number)));
    }

    #[test]
    fn roams_again_when_packets_become_sparse() {
        let mut processor = Processor::new();
        let before = system::allowed_processors().unwrap();
        let mut now = Time::ZERO;
        for _ in 0..1_000 {
            now += MILLISECOND / 10;
            processor.came(now, 1);
        }
        for _ in 0..300 {
            now += 10 * MILLISECOND;
            processor.came(now, 1);
        }
        assert!(processor.taken.is_none());
        assert_eq!(system::allowed_processors().unwrap(), before);
    }

    #[test]
    fn one_processor_is_taken_by_one_link() {
        let number = 4_096;
        let taken = Taken::claim(number);
        assert!(taken.is_some());
        assert!(Taken::claim(number).is_none());
        drop(taken);
        assert!(Taken::claim(number).is_some());
    }
}

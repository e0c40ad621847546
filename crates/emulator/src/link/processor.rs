//! Placement of the link's thread on a processor.
//!
//! The sender of a packet wakes this thread, and the kernel prefers to run a woken thread on the
//! waker's processor. For a single packet that is best: the waker goes to sleep, and no other
//! processor must be interrupted. In a stream it delays the sender: with two processors, one of
//! them idle, a sender's packet then took 60 µs instead of 2. So the thread follows the scheduler
//! while packets are **sparse**, and while they are **dense** it stays on a processor other than
//! the one on which it was woken.
//!
//! Two links of one user stay on different processors as long as there are enough, whichever network
//! namespaces they were started in; where there is only one, or all are taken, the thread roams. A
//! processor is taken by a lock on a file of its own, which goes with the process, and is given back
//! as soon as the thread roams again.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use vocab::Time;

use host::kernel;
use host::packets::system;

/// Number of packets within [`DENSE_SPAN`] from which packets are dense: 5,000 per second.
const DENSE_PACKETS: usize = 50;
const DENSE_SPAN: Duration = Duration::from_millis(10);

/// And sparse again when fewer than this come within [`SPARSE_SPAN`]: 1,000 per second.
const SPARSE_PACKETS: usize = 100;
const SPARSE_SPAN: Duration = Duration::from_millis(100);

/// Time to roam before another attempt when no processor was free.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Placement of the thread that made it.
#[derive(Debug)]
pub(crate) struct ThreadPlacement {
    /// Processors that the thread may use; at most one if there is no choice.
    allowed: Vec<usize>,
    claims: ProcessorClaims,
    taken: Option<ClaimedProcessor>,
    try_at: Time,
    /// Start of the counting, and the number of packets since then.
    from: Time,
    count: usize,
}

/// Directory in which links tell each other which processors they use.
#[derive(Debug)]
struct ProcessorClaims(PathBuf);

/// A processor that no other link has.
#[derive(Debug)]
struct ClaimedProcessor {
    /// Locked as long as it is open.
    _claim: File,
    number: usize,
}

impl ThreadPlacement {
    /// The calling thread's, which roams.
    pub(crate) fn new() -> Self {
        Self::with(ProcessorClaims::of_this_user())
    }

    fn with(claims: ProcessorClaims) -> Self {
        Self {
            allowed: system::allowed_processors().unwrap_or_default(),
            claims,
            taken: None,
            try_at: Time::ZERO,
            from: Time::ZERO,
            count: 0,
        }
    }

    /// Tells whether it has claimed a processor that it may have to give back without packets to
    /// trigger that.
    pub(crate) fn is_settled(&self) -> bool {
        self.taken.is_some()
    }

    /// Records that so many packets have come; zero if it is only time to check.
    pub(crate) fn came(&mut self, now: Time, packets: usize) {
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
            .find_map(|number| self.claims.claim(*number));
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

impl ProcessorClaims {
    /// Claims directory of the whole machine for root, who alone can make a directory there;
    /// otherwise of one user, including root in a user namespace of that user.
    fn of_this_user() -> Self {
        let machine = PathBuf::from("/run/trunkline-link");
        if is_private(&machine) {
            return Self(machine);
        }
        let user = kernel::effective_user();
        Self(PathBuf::from(format!("/tmp/trunkline-link-{user}")))
    }

    /// Claims a processor; `None` if another link has it, or claims cannot be made.
    fn claim(&self, number: usize) -> Option<ClaimedProcessor> {
        if !is_private(&self.0) {
            return None;
        }
        let claim = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(self.0.join(format!("processor-{number}.lock")))
            .ok()?;
        claim.try_lock().ok()?;
        Some(ClaimedProcessor {
            _claim: claim,
            number,
        })
    }
}

/// Tells whether this is a directory that only this user can write to; creates it if it does not
/// exist.
fn is_private(directory: &Path) -> bool {
    // One that is there already is as good, if the look at it says so.
    let _ = DirBuilder::new().mode(0o700).create(directory);
    fs::symlink_metadata(directory).is_ok_and(|found| {
        const OTHERS_WRITE: u32 = 0o022;
        found.is_dir()
            && found.uid() == kernel::effective_user()
            && found.permissions().mode() & OTHERS_WRITE == 0
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// Runs on a thread of its own with claims of its own, which may stay on the processor where it
    /// was not woken; `None` where there is only one processor, with a remark on standard error.
    fn on_a_thread<T: Send>(
        test: &str,
        work: impl FnOnce(&mut ThreadPlacement, &[usize]) -> T + Send,
    ) -> Option<T> {
        let directory = tempfile::tempdir().unwrap();
        let claims = ProcessorClaims(directory.path().join("claims"));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let mut processor = ThreadPlacement::with(claims);
                let allowed = processor.allowed.clone();
                if allowed.len() < 2 {
                    // Past the test harness, which hides what passing tests print.
                    let mut out = std::io::stderr();
                    let _ = writeln!(out, "skipped {test}: there is only one processor");
                    return None;
                }
                Some(work(&mut processor, &allowed))
            });
            thread.join().unwrap()
        })
    }

    fn come(processor: &mut ThreadPlacement, now: &mut Time, gap: Duration, packets: u32) {
        for _ in 0..packets {
            *now += gap;
            processor.came(*now, 1);
        }
    }

    #[test]
    fn stays_where_packets_are_dense() {
        let test = "stays_where_packets_are_dense";
        on_a_thread(test, |processor, allowed| {
            // Nobody moves it while it is bound to where it was woken.
            let woken = allowed[allowed.len() - 1];
            system::run_on(&[woken]).unwrap();
            come(processor, &mut Time::default(), MILLISECOND / 10, 1_000);
            assert!(processor.is_settled());
            let now = system::allowed_processors().unwrap();
            assert_eq!(now.len(), 1);
            assert!(now[0] != woken && allowed.contains(&now[0]));
        });
    }

    #[test]
    fn roams_where_packets_are_sparse() {
        on_a_thread("roams_where_packets_are_sparse", |processor, allowed| {
            come(processor, &mut Time::default(), MILLISECOND, 1_000);
            assert!(!processor.is_settled());
            assert_eq!(system::allowed_processors().unwrap(), allowed);
        });
    }

    #[test]
    fn roams_again_when_packets_become_sparse() {
        let test = "roams_again_when_packets_become_sparse";
        on_a_thread(test, |processor, allowed| {
            for stay_away in [false, true] {
                let mut now = processor.from;
                come(processor, &mut now, MILLISECOND / 10, 20_000);
                assert!(processor.is_settled());
                assert_eq!(system::allowed_processors().unwrap().len(), 1);
                let number = processor.taken.as_ref().unwrap().number;
                if stay_away {
                    for _ in 0..2 {
                        now += Duration::from_secs(1);
                        processor.came(now, 0);
                    }
                } else {
                    come(processor, &mut now, 10 * MILLISECOND, 300);
                }
                assert!(!processor.is_settled());
                assert_eq!(system::allowed_processors().unwrap(), allowed);
                // Another may have it now.
                assert!(processor.claims.claim(number).is_some());
            }
        });
    }

    #[test]
    fn roams_where_others_have_all_processors() {
        let test = "roams_where_others_have_all_processors";
        on_a_thread(test, |processor, allowed| {
            let others: Vec<_> = allowed
                .iter()
                .map(|number| processor.claims.claim(*number).unwrap())
                .collect();
            let mut now = Time::default();
            come(processor, &mut now, MILLISECOND / 10, 1_000);
            assert!(!processor.is_settled());
            drop(others);
            // It is not tried again at once.
            let ten_thousand_a_second = MILLISECOND / 10;
            come(processor, &mut now, ten_thousand_a_second, 20_000);
            assert!(processor.is_settled());
        });
    }

    #[test]
    fn one_processor_is_taken_by_one_link() {
        let directory = tempfile::tempdir().unwrap();
        let claims = ProcessorClaims(directory.path().join("claims"));
        let taken = claims.claim(7);
        assert!(taken.is_some());
        assert!(claims.claim(7).is_none());
        assert!(ProcessorClaims(claims.0.clone()).claim(7).is_none());
        assert!(claims.claim(8).is_some());
        drop(taken);
        assert!(claims.claim(7).is_some());
    }

    #[test]
    fn a_place_where_others_write_is_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let open = directory.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(ProcessorClaims(open.clone()).claim(0).is_none());
        let elsewhere = directory.path().join("elsewhere");
        symlink(directory.path(), &elsewhere).unwrap();
        assert!(ProcessorClaims(elsewhere).claim(0).is_none());
        // Nor is a lock that leads elsewhere.
        fs::set_permissions(&open, fs::Permissions::from_mode(0o700)).unwrap();
        symlink(
            directory.path().join("victim"),
            open.join("processor-0.lock"),
        )
        .unwrap();
        assert!(ProcessorClaims(open).claim(0).is_none());
        assert!(!directory.path().join("victim").exists());
    }
}

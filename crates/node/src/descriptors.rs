//! The distribution of the process's file descriptors.
//!
//! ```text
//!   the limit = reserve (rules, administration, disk, links, probes, runtime) + pool (hosts' connections)
//!   pool: ├── flows ──────────── interception ends ──┤── connections that were accepted already ──┤
//! ```
//! A connection is accepted only when there are descriptors for it and for the connection to its
//! server. Until then it waits in the kernel's queue, where it uses none. So accepting, opening and
//! the start of `nft` never fail for lack of a descriptor. Interception ends well before the pool
//! is used up ([`DescriptorBudget::flows`]): new connections then go directly to their servers.
//! Connections that the kernel had accepted before are served from the rest of the pool, in order.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::accelerator_files;
use crate::config::NodeConfig;
use crate::sys;

/// A client's connection has one here, and one to its server if it goes directly.
const PER_CLIENT: u32 = 2;
/// A peer's flow has one, to its server.
const PER_SERVER: u32 = 1;

/// The descriptors of standard streams, the watchdog, listeners, the administration socket, timers
/// and the polls of two runtimes: some twenty, and room for those that close a moment later.
const RUNTIME: u64 = 32;
/// The descriptors of `nft` or `ip` at work: three pipes while it starts, and a successor of the
/// watchdog beside it.
const TOOLS: u64 = 12;
/// Clients of the administration socket and scrapers of metrics at a time.
const QUESTIONS: u64 = 16 + 8;
/// The descriptors of links to one peer: TCP and UDP, the old ones beside the new ones.
const PER_PEER: u64 = 4;
/// Handshakes of strangers, where there are descriptors enough (`wan/listener.rs`).
const HANDSHAKES: u64 = 256;
/// Files of the dictionary that are kept open, where there are descriptors enough.
const DISK_FILES: u64 = 64;
/// Files of accelerators, and the directory of one while it is synced.
const ACCELERATOR_FILES: u64 = accelerator_files::OPEN_FILES as u64 + 2;
/// Calls of servers that do not answer a client's address (`lan/connect.rs`) at a time, where there are
/// descriptors enough: a site has few such servers at a time, and one call tells of all clients.
const PROBES: u64 = 64;
/// Handshakes, disk files and probes get this part of the limit, at most, each.
const SHARE: u64 = 16;
/// The fewest of each.
const LEAST: u64 = 4;

/// Connections that the kernel may have taken when interception ends, at most: a tenth of a second at
/// 10,000 new connections a second.
const LATE_MAX: usize = 1_000;
/// They get this part of the places, where these are few.
const LATE_SHARE: usize = 4;

/// A peer's flow waits this long for a descriptor: as long as for a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Flows that peers, and connections that clients, may have begun when interception ends for want of
/// descriptors: a tenth of a second at 10,000 new ones a second.
const FLOWS_ON_THEIR_WAY: usize = 1_000;

/// The division of the descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorBudget {
    /// Connections of hosts have so many descriptors together.
    pub(crate) pool: usize,
    /// With so many flows and direct connections interception ends, at most.
    pub(crate) flows: usize,
    /// Files of the dictionary that may be kept open.
    pub(crate) disk_files: usize,
    /// Handshakes of strangers at a time.
    pub(crate) handshakes: usize,
    /// Probes of servers at a time.
    pub(crate) probes: usize,
}

impl DescriptorBudget {
    /// Divides this many descriptors.
    pub(crate) fn of(descriptors: u64, config: &NodeConfig) -> Self {
        let share = |most: u64| (descriptors / SHARE).clamp(LEAST, most);
        let (handshakes, disk_files) = (share(HANDSHAKES), share(DISK_FILES));
        let probes = share(PROBES);
        let links = PER_PEER * config.peers.len() as u64;
        let reserve = RUNTIME
            + TOOLS
            + QUESTIONS
            + ACCELERATOR_FILES
            + links
            + handshakes
            + disk_files
            + probes;
        let pool = descriptors.saturating_sub(reserve);
        // A node that can hold nothing at all is still a node; it says so.
        let pool = usize::try_from(pool)
            .unwrap_or(usize::MAX)
            .clamp(2 * PER_CLIENT as usize, Semaphore::MAX_PERMITS);
        let places = pool / PER_CLIENT as usize;
        let late = (places / LATE_SHARE).clamp(1, LATE_MAX);
        Self {
            pool,
            flows: (places - late).max(1),
            disk_files: disk_files as usize,
            handshakes: handshakes as usize,
            probes: probes as usize,
        }
    }
}

/// Divides the descriptors of the process, and lowers the limit of flows accordingly: interception
/// must end before they are used up. Logs a warning, unless `told` shows an earlier warning of this
/// limit.
pub(crate) fn fit_flows_to_descriptors(
    config: &mut NodeConfig,
    told: Option<usize>,
) -> DescriptorBudget {
    // A system that does not say has as many as most.
    const USUAL: u64 = 1_024;
    let descriptors = sys::raise_descriptor_limit().unwrap_or(USUAL);
    let budget = DescriptorBudget::of(descriptors, config);
    config.limits.comfortable_flows = budget.flows;
    if config.limits.flows > budget.flows {
        let enough = descriptors_for(config.limits.flows, config);
        if told == Some(config.limits.flows) {
            tracing::info!(
                flows = budget.flows,
                descriptors,
                enough,
                "[limits] flows is still reduced, because the limit of open files does not allow more"
            );
        } else {
            tracing::warn!(
                flows = budget.flows,
                descriptors,
                enough,
                "[limits] flows is reduced, because the limit of open files does not allow more; raise the \
                 limit of open files to `enough` (`ulimit -Hn`, LimitNOFILE=), or write a lower value for \
                 flows"
            );
        }
        // Those that are on their way when interception ends wait for descriptors.
        let most = budget.flows + FLOWS_ON_THEIR_WAY;
        config.limits.flows = config.limits.flows.min(most);
    }
    budget
}

/// So many descriptors allow so many flows.
fn descriptors_for(flows: usize, config: &NodeConfig) -> u64 {
    // More than Linux gives a process (fs.nr_open is 2^30 at most).
    let (mut fewer, mut enough) = (0_u64, 1_u64 << 31);
    while enough - fewer > 1 {
        let middle = fewer.midpoint(enough);
        match DescriptorBudget::of(middle, config).flows >= flows {
            true => enough = middle,
            false => fewer = middle,
        }
    }
    enough
}

/// The descriptors for hosts' connections and for probes. A descriptor returns to the pool when its
/// holder is dropped.
#[derive(Clone, Debug)]
pub(crate) struct DescriptorPool {
    pool: Arc<Semaphore>,
    probes: Arc<Semaphore>,
}

/// Descriptors that belong to a connection. They go back when the last clone is dropped: those of a client's
/// connection are also those of the connection to its server, which may outlive it.
#[derive(Clone, Debug)]
pub(crate) struct TakenDescriptors(
    #[expect(dead_code, reason = "it is held")] Arc<OwnedSemaphorePermit>,
);

impl DescriptorPool {
    pub(crate) fn new(budget: DescriptorBudget) -> Self {
        Self {
            pool: Arc::new(Semaphore::new(budget.pool)),
            probes: Arc::new(Semaphore::new(budget.probes)),
        }
    }

    /// Waits for the descriptors of a client's connection: its own and one to its server.
    pub(crate) async fn for_client(&self) -> TakenDescriptors {
        self.take(PER_CLIENT).await
    }

    /// Returns the same descriptors if they are free now.
    pub(crate) fn for_client_now(&self) -> Option<TakenDescriptors> {
        let permit = Arc::clone(&self.pool).try_acquire_many_owned(PER_CLIENT);
        permit.ok().map(TakenDescriptors::new)
    }

    /// A descriptor for a probe, if one is free now.
    pub(crate) fn for_probe_now(&self) -> Option<TakenDescriptors> {
        let permit = Arc::clone(&self.probes).try_acquire_owned();
        permit.ok().map(TakenDescriptors::new)
    }

    /// Waits for the descriptor of a peer's flow; `None` when the wait is too long.
    pub(crate) async fn for_server(&self) -> Option<TakenDescriptors> {
        tokio::time::timeout(PATIENCE, self.take(PER_SERVER))
            .await
            .ok()
    }

    async fn take(&self, count: u32) -> TakenDescriptors {
        let permit = Arc::clone(&self.pool).acquire_many_owned(count).await;
        TakenDescriptors::new(permit.expect("nobody closes the pool"))
    }

    /// The number of free descriptors in the pool.
    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.pool.available_permits()
    }
}

impl TakenDescriptors {
    fn new(permit: OwnedSemaphorePermit) -> Self {
        Self(Arc::new(permit))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config() -> NodeConfig {
        let text = "[node]\nname = \"near\"\n[intercept]\nmode = \"off\"\n\
            [[peer]]\nname = \"far\"\naddress = \"192.0.2.1:4433\"\nprefixes = [\"203.0.113.0/24\"]\n";
        NodeConfig::parse(Path::new("near.toml"), text).unwrap()
    }

    #[test]
    fn fixed_needs_get_descriptors_before_hosts() {
        for descriptors in [128, 256, 1_024, 4_096, 65_536, 1 << 20] {
            let budget = DescriptorBudget::of(descriptors, &config());
            let reserve = descriptors as usize - budget.pool;
            let used = budget.disk_files
                + budget.handshakes
                + budget.probes
                + (RUNTIME + TOOLS + QUESTIONS) as usize;
            assert!(
                reserve >= used + PER_PEER as usize,
                "{descriptors}: {budget:?}"
            );
            // Interception ends while there is still room for what was accepted already.
            let room = budget.pool / 2 - budget.flows;
            assert!(room >= 1, "{descriptors}: {budget:?}");
        }
        let usual = DescriptorBudget::of(1 << 20, &config());
        assert!(usual.flows > 500_000, "{usual:?}");
        assert_eq!((usual.handshakes, usual.disk_files), (256, 64));
        assert_eq!(usual.probes, 64);
        let few = DescriptorBudget::of(256, &config());
        assert!((40..100).contains(&few.flows), "{few:?}");
        // Fewer than are needed: it begins to work all the same, as slowly as it must.
        assert_eq!(DescriptorBudget::of(32, &config()).flows, 1);
    }

    #[test]
    fn suggested_limit_is_sufficient_and_tight() {
        for flows in [2, 50, 1_000, 10_000, 500_000] {
            let enough = descriptors_for(flows, &config());
            assert!(
                DescriptorBudget::of(enough, &config()).flows >= flows,
                "{flows}"
            );
            assert!(
                DescriptorBudget::of(enough - 1, &config()).flows < flows,
                "{flows}"
            );
        }
    }

    #[tokio::test]
    async fn taken_descriptors_return_and_wake_waiters() {
        let descriptors = DescriptorPool::new(DescriptorBudget {
            pool: 3,
            ..DescriptorBudget::of(256, &config())
        });
        let first = descriptors.for_client().await;
        let _second = descriptors.for_server().await.unwrap();
        let mut third = std::pin::pin!(descriptors.for_client());
        let waits = tokio::time::timeout(Duration::ZERO, &mut third).await;
        assert!(waits.is_err());
        drop(first);
        third.await;
    }
}

//! What the halves of one flow are made of, in clear and inside TLS.
//!
//! Inside TLS a flow may have a half for each of its lanes. They are told apart by the lane's number.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::account::{FlowAccount, HttpTotals};
use super::cache::UrlScheme;
use super::carried::{CarriedProtocols, ConnectionFar, ConnectionNear};
use super::far::HttpFarHalf;
use super::near::HttpNearHalf;
use super::prefetch::{
    AheadTable, AskingClient, FarMemory, FarPrefetch, FlowLane, NearPrefetch, PrefetchSettings,
};
use super::recall::{FarRecall, RecallMemory};
use super::shared::SharedCache;
use crate::shared::SharedHandle;

/// Parts of the near halves of one flow.
#[derive(Clone, Debug)]
pub(super) struct NearHalfParts {
    pub(super) flow: u64,
    pub(super) client: IpAddr,
    pub(super) totals: SharedHandle<HttpTotals>,
    /// `None` where nothing is fetched ahead.
    pub(super) prefetch: Option<(SharedHandle<AheadTable>, Arc<PrefetchSettings>)>,
    pub(super) carried: CarriedProtocols,
}

/// Parts of the far halves of one flow.
#[derive(Clone, Debug)]
pub(super) struct FarHalfParts {
    pub(super) client: IpAddr,
    pub(super) server: SocketAddr,
    /// `None` where nothing is fetched ahead.
    pub(super) prefetch: Option<(SharedHandle<FarMemory>, Arc<PrefetchSettings>)>,
    pub(super) recall: SharedHandle<RecallMemory>,
    pub(super) carried: CarriedProtocols,
}

impl NearHalfParts {
    /// The only half of the flow. What it carries may be in the dictionaries if `may_store`.
    pub(super) fn build(&self, cache: Option<SharedCache>, may_store: bool) -> ConnectionNear {
        let http = self.build_with(cache, 0, |prefetch| prefetch);
        ConnectionNear::new(http, self.carried.clone().with_storage(may_store))
    }

    /// The half of a lane with this number, whose far half may have served another lane before.
    pub(super) fn build_lane(&self, cache: Option<SharedCache>, number: u32) -> HttpNearHalf {
        self.build_with(cache, number, NearPrefetch::with_predecessor)
    }

    fn build_with(
        &self,
        cache: Option<SharedCache>,
        number: u32,
        finish: impl FnOnce(NearPrefetch) -> NearPrefetch,
    ) -> HttpNearHalf {
        // What comes ahead is stored, or it is of no use.
        let prefetch = self.prefetch.as_ref().filter(|_| cache.is_some());
        let account = FlowAccount::new(self.totals.clone());
        let near = HttpNearHalf::new(cache).with_account(account);
        let Some((table, settings)) = prefetch else {
            return near;
        };
        let asker = AskingClient {
            lane: FlowLane {
                flow: self.flow,
                number,
            },
            client: self.client,
        };
        let prefetch = NearPrefetch::new(table.clone(), Arc::clone(settings), asker);
        near.with_prefetch(finish(prefetch))
    }
}

impl FarHalfParts {
    /// The only half of a flow in clear.
    pub(super) fn build_only(&self) -> ConnectionFar {
        ConnectionFar::new(self.build(UrlScheme::Http), self.carried.clone())
    }

    /// The only half of a flow inside TLS.
    pub(super) fn build_only_inside(&self, may_store: bool) -> ConnectionFar {
        let carried = self.carried.clone().with_storage(may_store);
        ConnectionFar::new(self.build_inside(may_store), carried)
    }

    /// A half inside TLS. What it fetches ahead is payload, which may not be sent where content may not be stored.
    pub(super) fn build_inside(&self, may_store: bool) -> HttpFarHalf {
        match may_store {
            true => self.build(UrlScheme::Https),
            false => HttpFarHalf::new(),
        }
    }

    /// A half for URLs of this scheme.
    fn build(&self, scheme: UrlScheme) -> HttpFarHalf {
        let far = HttpFarHalf::new();
        let Some((memory, settings)) = &self.prefetch else {
            return far;
        };
        let (memory, settings) = (memory.clone(), Arc::clone(settings));
        let prefetch = FarPrefetch::new(memory, settings, self.client, self.server);
        far.with_prefetch(prefetch.with_scheme(scheme))
            .with_recall(FarRecall::new(self.recall.clone(), self.server))
    }
}

//! The state that all flows of one engine share: the settings, and the ports that endpoint mappers
//! have named.

use std::net::SocketAddr;
use std::sync::Arc;

use accelerate::settings::AcceleratorSettings;
use accelerate::shared::{HalfContext, SharedHandle, SharedState};
use accelerate::{AcceleratorHalf, WanEnd};
use vocab::Time;

use crate::config::MapiSettings;
use crate::entry::ENDPOINT_MAPPER;
use crate::epm_watch::EndpointWatch;
use crate::far::MapiFarHalf;
use crate::learnt_ports::LearntPorts;
use crate::near::MapiNearHalf;

/// The shared state of the accelerator.
pub(crate) struct MapiState {
    settings: MapiSettings,
    learnt: SharedHandle<LearntPorts>,
}

impl MapiState {
    /// Begins with no port learnt.
    pub(crate) fn new(settings: MapiSettings) -> Self {
        Self {
            settings,
            learnt: SharedHandle::new(LearntPorts::default()),
        }
    }
}

impl SharedState for MapiState {
    fn configure(&mut self, settings: &Arc<dyn AcceleratorSettings>) {
        self.settings = settings.expect::<MapiSettings>().clone();
    }

    fn build(&mut self, half: WanEnd, context: HalfContext) -> Box<dyn AcceleratorHalf> {
        let server = context.server;
        if server.port() == ENDPOINT_MAPPER {
            let learnt = self.learnt.clone();
            return Box::new(EndpointWatch::new(half, server.ip(), learnt));
        }
        let may_store = self.settings.may_store_decrypted;
        match half {
            WanEnd::Near => Box::new(MapiNearHalf::new(may_store)),
            WanEnd::Far if !self.settings.is_on => Box::new(MapiFarHalf::switched_off()),
            WanEnd::Far => Box::new(MapiFarHalf::new(may_store, context.delegated)),
        }
    }

    fn serves(&mut self, now: Time, server: SocketAddr) -> bool {
        self.settings.is_on && self.learnt.with(|learnt| learnt.serve(now, server))
    }
}
